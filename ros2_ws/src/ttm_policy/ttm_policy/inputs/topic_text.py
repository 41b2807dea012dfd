"""Texts that come over a topic, judged where they come in: anybody may publish them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from rclpy.node import Node
from std_msgs.msg import String

from ttm.policy.checks import require_instruction
from ttm.policy.errors import UserError, printable

MOST_CHARACTERS = 2**20
"""The longest JSON that is read."""
MOST_PARTS = 1000
"""The longest list, and the longest text, in it."""
LARGEST = 2**63
WARN_EVERY_S = 10.0


def read_json(
    node: Node, topic: str, message: String, fields: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return these fields of a JSON object; None, with a warning, if it is none or has others.

    Texts are printable, and lists hold texts alone, as objects hold whole numbers alone.
    fields: name -> type, or what it is if it is left out.
    """
    try:
        data = _loaded(message.data)
        if not isinstance(data, dict):
            raise ValueError("it is no JSON object")
        return {name: _field(data, name, kind) for name, kind in fields.items()}
    except (ValueError, RecursionError) as error:
        _refused(node, topic, error)
        return None


def read_json_texts(node: Node, topic: str, message: String) -> list[str] | None:
    """Return the texts of a JSON list; None, with a warning, if it is none."""
    try:
        return _texts(_loaded(message.data))
    except (ValueError, RecursionError) as error:
        _refused(node, topic, error)
        return None


def read_instruction(node: Node, message: String) -> str:
    """Return the instruction of a message; an empty text, with a warning, if it is none."""
    try:
        return require_instruction(message.data)
    except UserError as error:
        _refused(node, "instruction", error, "")
        return ""


def _loaded(text: str) -> Any:
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has {len(text)} characters")
    return json.loads(text)


def _field(data: Mapping[str, Any], name: str, kind: Any) -> Any:
    value: Any = data.get(name)
    if value is None:
        if isinstance(kind, type):
            raise ValueError(f"'{name}' is missing")
        return kind
    wanted = kind if isinstance(kind, type) else type(kind)
    if wanted is float and type(value) is int:
        value = float(value) if abs(value) < LARGEST else math.inf
    if type(value) is not wanted or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"'{name}' is no {wanted.__name__}")
    if wanted is int:
        _require_int(value)
    if isinstance(value, dict):
        for number in value.values():
            _require_int(number)
    if isinstance(value, str):
        return _text(value)
    return _texts(value) if wanted is list else value


def _require_int(value: Any) -> None:
    if type(value) is not int or abs(value) >= LARGEST:
        raise ValueError("it holds no whole number below 2**63 where one belongs")


def _text(value: str) -> str:
    short = value.isprintable() and len(value) <= MOST_PARTS
    return value if short else printable(value, MOST_PARTS)


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError("it holds no list of texts")
    if len(value) > MOST_PARTS:
        raise ValueError(f"it holds a list of {len(value)} texts")
    return [_text(text) for text in value]


def _refused(
    node: Node, topic: str, error: Exception, remedy: str = "; end the node that publishes it"
) -> None:
    node.get_logger().warning(
        f"a message of '{topic}' is not used: {printable(error, 250)}{remedy}",
        throttle_duration_sec=WARN_EVERY_S,
    )
