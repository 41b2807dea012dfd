"""What every command takes unless told otherwise: the environment, and its initial states.

Nothing here imports a simulator: a robot's computer has none.
"""

from __future__ import annotations

from typing import Literal

KITCHEN = "ttm/Kitchen-v0"
"""The Gymnasium ID of the simulated Fetch in its kitchen."""
FIRST_DEMONSTRATION_SEED = 1_000_000
"""The first initial state that demonstrations are recorded from. Evaluation takes 0, 1, 2, …, so that
no evaluated state was ever trained on."""
CueName = Literal["hidden", "left_on", "held_out"]
"""Whether memory tasks hide their cue before the robot may act, leave it on as a control, or hide a cue
whose colour or shape they do not show otherwise."""
