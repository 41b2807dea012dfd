"""What results of `ttm study memory` must have in common to be compared."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.study.minigrid.results import StudySettings


@dataclass(frozen=True)
class MemorySettings(StudySettings):
    """The settings of every study, and the weight of the recall loss."""

    recall: float
