"""`ttm study babyai`: which memory learns a level of BabyAI (Chevalier-Boisvert et al. 2019) from its bot?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, get_args

from ttm.training.common.core_names import CoreName
from ttm.training.option_checks import require_1_or_more, require_above_0, require_some
from ttm.training.study.babyai.level import environment_id, minigrid_version

if TYPE_CHECKING:
    from ttm.training.study.babyai.report import Settings


@dataclass(frozen=True)
class Effort:
    """How much is learned from, and how long."""

    demonstrations: int
    steps: int
    batch_ticks: int


EFFORTS: Mapping[str, Effort] = MappingProxyType(
    {
        "GoToLocal": Effort(50_000, 1_500, 1_024),
        "GoToSeq": Effort(20_000, 1_600, 2_048),
        "GoToSeqS5R2": Effort(40_000, 2_000, 2_048),
    }
)
OTHERWISE = Effort(10_000, 2_000, 2_048)
"""For levels that are not among them."""
LEAST_IS_1 = ("demonstrations", "steps", "batch_ticks", "width", "episodes", "workers", "threads")


@dataclass(frozen=True)
class StudyBabyaiCommand:
    """Clone the bot of a BabyAI level with every core, and count the successes over the same new episodes.

    Needs minigrid: pip install 'minigrid>=3,<4'. All cores have the same number of parameters (within 1 %), the same
    demonstrations in the same batches, and as many steps. Demonstrations and results are kept under --cache, so that
    what is there is not done again, and several of these commands may run side by side, each for other cores.
    """

    level: str = "GoToLocal"
    """BabyAI's name of it without BabyAI- and -v0. GoToLocal needs no memory; GoToSeq (several rooms) does."""

    core: tuple[CoreName, ...] = get_args(CoreName)
    """One after the other."""

    core_options: tuple[str, ...] = ()
    """Fields of every core named, as in ttm train. With mlp_size=… a core keeps that, and a size of its own."""

    demonstrations: int | None = None
    """Episodes to learn from. Left out: 50,000 for GoToLocal, 20,000 for GoToSeq, 40,000 for GoToSeqS5R2, and 10,000
    for other levels."""

    steps: int | None = None
    """Batches to learn from, for every core. Left out: 1,500 for GoToLocal, 1,600 for GoToSeq, else 2,000."""

    batch_ticks: int | None = None
    """Ticks in a batch, at most. Left out: 1,024 for GoToLocal, else 2,048."""

    learning_rate: float = 1e-3
    width: int = 128
    """D, of the tokens that the cores meet."""

    episodes: int = 512
    """To evaluate, on seeds that no demonstration has."""

    actions: tuple[Literal["best", "drawn"], ...] = ("best", "drawn")
    """How the policy acts, each evaluated: by its highest score, or drawn by its probabilities."""

    seed: int = 0
    """Of weights and batches. The demonstrations' and the episodes' seeds are always the same."""

    workers: int = os.cpu_count() or 1
    """Processes that record demonstrations."""

    threads: int = 1
    """Of the training."""

    cache: Path = Path("runs/babyai")
    """Where demonstrations and results are kept."""

    again: bool = False
    """Train and evaluate even where there is a result of the same settings, which is replaced."""

    json: Path | None = None
    """Also write the table's figures, and every episode's, to this file."""

    def run(self) -> int:
        self._check()

        # Here, so that `ttm --help` does not load torch.
        import torch
        from rich.console import Console

        from ttm.training.common.tables import write_figures
        from ttm.training.study.babyai.cores import equal_core
        from ttm.training.study.babyai.demos import demonstrations
        from ttm.training.study.babyai.measure import measure
        from ttm.training.study.babyai.report import (
            NOTES,
            ResultFolder,
            heading,
            result_table,
            to_json,
        )

        torch.set_num_threads(self.threads)
        settings = self._settings()
        configs = {name: equal_core(name, self.width, self.core_options) for name in self.core}
        shown = demonstrations(self.level, settings.demonstrations, self.cache, self.workers)
        results = ResultFolder(self.cache / "results", settings)
        for name, config in configs.items():
            label = " ".join((name, *self.core_options))
            known = results.find(label)
            if self.again or known is None or known.config != asdict(config):
                results.save(measure(label, config, shown, settings))
        console = Console(highlight=False)
        console.print(heading(settings, shown), soft_wrap=True)
        for way in self.actions:
            console.print(result_table(results.all(), way))
        console.print(NOTES, soft_wrap=True)
        write_figures(console, self.json, to_json(settings, shown, results.all()))
        return 0

    def _check(self) -> None:
        require_some(self, "core", "actions")
        require_1_or_more(self, *LEAST_IS_1)
        require_above_0(self, "learning_rate")
        environment_id(self.level)

    def _settings(self) -> Settings:
        from ttm.training.study.babyai.report import Settings

        usual = EFFORTS.get(self.level, OTHERWISE)
        effort = {
            field.name: getattr(self, field.name) or getattr(usual, field.name)
            for field in fields(usual)
        }
        return Settings(
            level=self.level,
            learning_rate=self.learning_rate,
            width=self.width,
            seed=self.seed,
            episodes=self.episodes,
            actions=self.actions,
            minigrid=minigrid_version(),
            **effort,
        )
