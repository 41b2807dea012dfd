"""The answer of the services `~/reset_memory` and `~/erase_memory`, as JSON in its message.

A simulator that begins an episode can thereby check that the memory was reset under its
instruction, and not under an older one because the instruction had not arrived yet. This module is
light: a simulator need not load torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from std_srvs.srv import Trigger


@dataclass(frozen=True)
class ResetReply:
    """The state of the policy right after a reset."""

    instruction: str
    """The instruction in force."""
    tick: int = 0
    """Ticks since the reset."""

    def to_json(self) -> str:
        """Return the text of the service's answer."""
        return json.dumps(asdict(self), ensure_ascii=False)


def read_reset_reply(response: Trigger.Response) -> ResetReply | None:
    """Return the reply, or None if the service refused the reset or answered something else."""
    if not response.success:
        return None
    try:
        data = json.loads(response.message)
        return ResetReply(instruction=str(data["instruction"]), tick=int(data["tick"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
