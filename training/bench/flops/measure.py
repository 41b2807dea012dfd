"""Both counts of the models that `ttm bench flops` shows: by PyTorch's counter, and by hand."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.policy.cores import registry
from ttm.policy.cores.configs import sized_like
from ttm.policy.cores.hourglass.hourglass import HourglassConfig
from ttm.policy.network.config import PresetName
from ttm.policy.network.presets import PRESETS
from ttm.training.bench.flops.hand_counts import step_by_hand
from ttm.training.bench.flops.operations import StepOperations
from ttm.training.bench.flops.paper_tables import WIDTH, PaperRow, paper_tables
from ttm.training.bench.torch_counter import CountedStep, counted_step

CAMERAS, PROPRIOCEPTION = 2, 3
"""Of the robot in the simulated kitchen. They set the number of tokens a tick in the table of cores."""


@dataclass(frozen=True)
class Measured:
    """One model with both of its counts."""

    row: PaperRow
    counted: CountedStep
    by_hand: StepOperations | None
    """None for a core that has no count by hand."""

    @property
    def matrix_gflops(self) -> float | None:
        """Matrix products alone, counted by hand."""
        return None if self.by_hand is None else self.by_hand.whole.matrix / 1e9

    @property
    def gflops(self) -> float | None:
        """All operations, counted by hand, with element-wise work at half."""
        return None if self.by_hand is None else self.by_hand.whole.total / 1e9

    def to_paper(self, gflops: float | None) -> float | None:
        """Return the ratio of `gflops` to the paper's figure; None if either is unknown."""
        paper = self.row.paper_gflops
        return None if paper is None or gflops is None else gflops / paper


def measure(row: PaperRow, width: int = WIDTH) -> Measured:
    """Count a row in both ways."""
    return Measured(
        row,
        counted_step(row.config, width, row.num_inputs),
        step_by_hand(row.config, width, row.num_inputs),
    )


def measure_tables() -> list[tuple[str, list[Measured]]]:
    """Return title and rows of each table of the paper."""
    return [(table.title, [measure(row) for row in table.rows]) for table in paper_tables()]


def measure_cores(preset: PresetName) -> list[Measured]:
    """Count every core of this project at the sizes of one preset."""
    config = PRESETS[preset]
    # Besides cameras and proprioception, the previous action and the instruction are one token each.
    tokens = config.tokens_per_camera * CAMERAS + PROPRIOCEPTION + 2
    return [
        measure(PaperRow(kind, sized_like(kind, config.core), tokens), config.width)
        for kind in registry.CORES
    ]


def hourglass_sizes(preset: PresetName) -> HourglassConfig:
    """Return the configuration of the preset's Hourglass."""
    config = sized_like("hourglass", PRESETS[preset].core)
    assert isinstance(config, HourglassConfig)
    return config
