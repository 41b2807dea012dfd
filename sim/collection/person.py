"""What holds while a person drives the simulated robot and records, however the nodes are started."""

from __future__ import annotations

import re
from pathlib import Path

from ttm.datasets.layout import next_episode_path
from ttm.sim.environment import FIRST_DEMONSTRATION_SEED

PATIENT_MAX_AGE_S = 5.0
"""The least `max_age_s` of who drives it: it does no harm, and a busy machine simulates slowly."""


def next_seed(folder: str | Path) -> int:
    """Return an initial state that no episode of the folder began with, nor any of an evaluation."""
    (number,) = re.findall(r"\d+", next_episode_path(Path(folder).expanduser()).stem)
    return FIRST_DEMONSTRATION_SEED + int(number)
