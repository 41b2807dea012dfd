"""The options that all studies of MiniGrid levels have, and their checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from ttm.policy.checks import options, require_above_0, require_at_least, require_some
from ttm.policy.errors import UserError
from ttm.sim.workers.cores import usable_cores
from ttm.training.common.core_names import CoreName

INSTALL = "pip install 'minigrid>=3,<4'"


@dataclass(frozen=True)
class Effort:
    """How much a core learns from, and for how long."""

    demonstrations: int
    steps: int
    batch_ticks: int


@dataclass(frozen=True)
class MinigridOptions(ABC):
    """What a study asks that clones the expert of a MiniGrid level with every core."""

    level: str
    """Name of the level."""

    core: tuple[CoreName, ...] = get_args(CoreName)
    """Cores to compare."""

    core_options: tuple[str, ...] = ()
    """Fields that all named cores get, as in ttm train. With mlp_size=… cores keep their size."""

    demonstrations: int | None = None
    """Episodes to learn from."""

    steps: int | None = None
    """Training steps of every core."""

    batch_ticks: int | None = None
    """Most ticks in a batch."""

    learning_rate: float = 1e-3
    """Highest learning rate of Adam, after the warm-up."""

    width: int = 128
    """D, the width of the tokens that the cores get."""

    episodes: int = 512
    """Episodes for the evaluation, with seeds that no demonstration has."""

    actions: tuple[Literal["best", "drawn"], ...] = ("best", "drawn")
    """How the policy acts: by its best action, or by actions drawn by their probabilities."""

    seed: int = 0
    """Seed of weights and batches. The seeds of demonstrations and episodes stay the same."""

    workers: int = usable_cores()
    """Processes that record demonstrations."""

    threads: int = 1
    """CPU threads of the training."""

    cache: Path = Path("runs/minigrid")
    """Folder in which demonstrations and results are kept."""

    again: bool = False
    """Train and evaluate even if there is a result with the same settings, and replace it."""

    json: Path | None = None
    """Also write the figures of the tables and of every episode to this file."""

    plot: Path | None = None
    """Also draw the success rates with their intervals to this file, SVG or PNG."""

    def check(self) -> None:
        """Raise `UserError` if a value is out of range, or if minigrid is not installed."""
        require_some(options(self, "core", "actions"))
        require_at_least(
            1,
            options(
                self,
                "demonstrations",
                "steps",
                "batch_ticks",
                "width",
                "episodes",
                "workers",
                "threads",
            ),
        )
        require_above_0(options(self, "learning_rate"))
        if self.plot is not None and self.plot.suffix not in (".svg", ".png"):
            raise UserError(f"--plot is {self.plot}; give a file that ends with .svg or .png")
        if find_spec("minigrid") is None:
            raise UserError(
                f"this study needs minigrid, which is not installed; install it: {INSTALL}"
            )

    @property
    @abstractmethod
    def default_effort(self) -> Effort:
        """The effort for the level where the user asks for none."""

    @property
    def effort(self) -> Effort:
        """The effort that was asked for, or the default for the level."""
        return Effort(
            **{
                field.name: getattr(self, field.name) or getattr(self.default_effort, field.name)
                for field in fields(Effort)
            }
        )
