"""What `~/reset_memory` answers; both nodes need it, and the simulator's need not load torch for it."""

from __future__ import annotations


def reset_reply(instruction: str) -> str:
    """Whoever begins an episode can see from it that the instruction has arrived."""
    return f"memory is empty; the instruction is: {instruction}"
