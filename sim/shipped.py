"""The policy that ships with the project: what every command takes when no checkpoint is named."""

from __future__ import annotations

from pathlib import Path

from ttm.policy.errors import UserError

SHIPPED = "shipped"
"""What stands for that policy wherever a command takes a checkpoint."""
SHIPPED_CHECKPOINT = Path(__file__).parent / "assets" / "kitchen.safetensors"


def default_checkpoint() -> Path:
    """Path of the shipped policy; `UserError` if this installation lacks it."""
    if not SHIPPED_CHECKPOINT.is_file():
        raise UserError(
            f"{SHIPPED_CHECKPOINT} is missing; install from a whole clone of the repository, "
            "or name a checkpoint of your own with --checkpoint"
        )
    return SHIPPED_CHECKPOINT


def checkpoint_path(named: str | Path) -> Path:
    """The file that a command's option names: `shipped`, or a path. `UserError` if it is not there."""
    if str(named) == SHIPPED:
        return default_checkpoint()
    path = Path(named)
    if not path.is_file():
        raise UserError(
            f"{path}: no such checkpoint; give the .safetensors file that `ttm train` wrote, or {SHIPPED}"
        )
    return path
