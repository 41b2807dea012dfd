"""What holds while a person drives the simulated robot and records, however the nodes are started."""

from __future__ import annotations

import re
from pathlib import Path

from ttm.datasets.layout import next_episode_path
from ttm.sim.environment import FIRST_DEMONSTRATION_SEED

PATIENT_MAX_AGE_S = 5.0
"""The least `max_age_s` of who drives it: it does no harm, and a busy machine simulates slowly."""


def next_seed(folder: str | Path) -> int:
    """Return the initial state from which a session counts on that records into the folder.

    No evaluation uses such ones. It goes on after the folder's episodes if these were recorded from here
    and each in an initial state of its own.
    """
    (number,) = re.findall(r"\d+", next_episode_path(Path(folder).expanduser()).stem)
    return FIRST_DEMONSTRATION_SEED + int(number)
