"""What every command takes unless told otherwise: the policy that ships, and its environment.

Nothing here imports a simulator: a robot's computer has none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ttm.policy.errors import UserError

KITCHEN = "ttm/Kitchen-v0"
"""The Gymnasium ID of the simulated Fetch in its kitchen."""
FIRST_DEMONSTRATION_SEED = 1_000_000
"""The first initial state that demonstrations are recorded from. Evaluation takes 0, 1, 2, …, so that
no evaluated state was ever trained on."""
CueName = Literal["hidden", "left_on", "held_out"]
"""Whether memory tasks hide their cue before the robot may act, leave it on as a control, or hide a cue
whose colour or shape they do not show otherwise."""
SHIPPED = "shipped"
"""The name of that policy wherever a command takes a checkpoint."""
SHIPPED_CHECKPOINT = Path(__file__).resolve().parent / "assets" / "kitchen.safetensors"


def default_checkpoint() -> Path:
    """Return the path of the shipped policy. Raises `UserError` if this installation lacks it."""
    if not SHIPPED_CHECKPOINT.is_file():
        missing = f"{SHIPPED_CHECKPOINT} is missing; install from a whole clone of the repository"
        raise UserError(f"{missing}, or give --checkpoint")
    return SHIPPED_CHECKPOINT


def checkpoint_path(named: str | Path) -> Path:
    """Return the file that an option names: `shipped`, or a path.

    Raises `UserError` if there is no such file.
    """
    if str(named) == SHIPPED:
        return default_checkpoint()
    path = Path(named)
    if not path.is_file():
        raise UserError(f"{path}: no such checkpoint; give a .safetensors file, or {SHIPPED}")
    return path
