"""The policy that ships with the project, which every command takes if no checkpoint is named."""

from __future__ import annotations

from pathlib import Path

from ttm.policy.errors import UserError

SHIPPED = "shipped"
"""The name of that policy wherever a command takes a checkpoint."""
SHIPPED_CHECKPOINT = Path(__file__).resolve().parent / "assets" / "kitchen.safetensors"


def default_checkpoint() -> Path:
    """Return the path of the shipped policy. Raises `UserError` if this installation lacks it."""
    if not SHIPPED_CHECKPOINT.is_file():
        raise UserError(
            f"{SHIPPED_CHECKPOINT} is missing; install from a whole clone of the repository, "
            "or name a checkpoint of your own with --checkpoint"
        )
    return SHIPPED_CHECKPOINT


def checkpoint_path(named: str | Path) -> Path:
    """Return the file that an option names: `shipped`, or a path.

    Raises `UserError` if there is no such file.
    """
    if str(named) == SHIPPED:
        return default_checkpoint()
    path = Path(named)
    if not path.is_file():
        raise UserError(
            f"{path}: no such checkpoint; give the .safetensors file that `ttm train` wrote, or {SHIPPED}"
        )
    return path
