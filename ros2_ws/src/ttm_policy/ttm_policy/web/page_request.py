"""What a page asks for through its web socket, checked before anything is done.

A request is a JSON object with the name of an action under `do`, a number under `id` that its answer
carries again, and the action's own values:

=========  ==============================  =====================================================
take       -                               let this page drive
release    back bool                       let go of the controls, and let a policy drive again if `back`;
                                           never answered
steer      axes {name: -1 to 1}            positions of the controls; answered only if refused
seen       -                               a frame was shown; never answered
start      -                               begin an episode
stop       success bool                    end it and keep it
discard    -                               end it and drop it
instruct   text                            what the robot is told
scene      same bool                       in simulation: begin the same scene again, or the next
e_stop     -                               stop the robot, whoever drives, until `rearm`
rearm      -                               go on after an emergency stop
label      episode, success, instruction   write into a recorded episode; either value may be null
delete     episode                         delete a recorded episode
undo       -                               take back the newest change of recorded episodes
=========  ==============================  =====================================================
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ttm.policy.checks import require_instruction
from ttm.policy.errors import UserError

MOST_BYTES = 8192
"""The largest request."""
MOST_AXES = 64


@dataclass(frozen=True)
class PageRequest:
    """A request with all the values of its action, and no others."""

    do: str
    number: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)


def read_request(text: str) -> PageRequest:
    """Return the request. Raises `UserError` if it is none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError("the request is no JSON") from error
    if not isinstance(data, dict) or not isinstance(data.get("do"), str):
        raise UserError("a request is an object with the name of an action under 'do'")
    do, number = data.pop("do"), data.pop("id", 0)
    checks = ACTIONS.get(do)
    if checks is None:
        raise UserError(f"there is no such action; there are: {', '.join(ACTIONS)}")
    if type(number) is not int or not 0 <= number < 2**53:
        raise UserError("'id' must be a whole number")
    if data.keys() != checks.keys():
        raise UserError(f"'{do}' takes {', '.join(checks) or 'no values'}")
    return PageRequest(do, number, {name: check(data[name]) for name, check in checks.items()})


def _text(value: Any) -> str:
    if not isinstance(value, str) or not (text := require_instruction(value, "the text")):
        raise UserError("a text must not be empty")
    return text


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError("a value must be true or false")
    return value


def _bool_or_none(value: Any) -> bool | None:
    return None if value is None else _bool(value)


def _axes(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or len(value) > MOST_AXES:
        raise UserError(f"'axes' must be an object of at most {MOST_AXES} numbers")
    for number in value.values():
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not (is_number and math.isfinite(number) and -1 <= number <= 1):
            raise UserError("an axis must be a number from -1 to 1")
    return {name: float(number) for name, number in value.items()}


Check = Callable[[Any], Any]

ACTIONS: Mapping[str, Mapping[str, Check]] = {
    "take": {},
    "release": {"back": _bool},
    "steer": {"axes": _axes},
    "seen": {},
    "start": {},
    "stop": {"success": _bool},
    "discard": {},
    "instruct": {"text": _text},
    "scene": {"same": _bool},
    "e_stop": {},
    "rearm": {},
    "label": {"episode": _text, "success": _bool_or_none, "instruction": _text_or_none},
    "delete": {"episode": _text},
    "undo": {},
}
"""Action -> its values, and what checks each of them."""
