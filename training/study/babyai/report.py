"""Results of `ttm study babyai`: one file for each core, so that runs at different times make one table."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

from rich.table import Table

from ttm.policy.errors import UserError
from ttm.sim.evaluation.intervals import mcnemar_exact, wilson_interval
from ttm.training.common.tables import compact_table
from ttm.training.study.babyai.demos import Demonstrations

BASELINE = "none"
"""What every core is tested against: the core without memory."""
WAYS: Mapping[str, str] = MappingProxyType(
    {
        "best": "Acting by the highest score",
        "drawn": "Acting by actions drawn by their probabilities, as a way out of going round in circles",
    }
)
"""How a trained policy may act."""
NOTES = """\
Intervals are Wilson's at 95 %, over the episodes; they do not say how much another training of the same core would
differ. p: McNemar's exact test against the core without memory, on the same episodes. ticks: mean length of an
episode, failed ones included. s: seconds of training, by the clock."""


@dataclass(frozen=True)
class Settings:
    """What results must have in common to be compared."""

    level: str
    demonstrations: int
    steps: int
    batch_ticks: int
    learning_rate: float
    width: int
    seed: int
    episodes: int
    actions: tuple[str, ...]
    """Keys of `WAYS`."""
    minigrid: str

    @property
    def folder(self) -> str:
        """A name that no other settings have."""
        digest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:8]
        return f"{self.level}-{digest}"


@dataclass(frozen=True)
class Acting:
    """What came of the episodes, by seed."""

    success: list[bool]
    lengths: list[int]
    """Ticks."""
    seconds: float

    @property
    def rate(self) -> float:
        """Part of the episodes that succeeded."""
        return sum(self.success) / len(self.success)


@dataclass(frozen=True)
class Result:
    """One core, trained and evaluated."""

    core: str
    """Its name, and the options that it was given."""
    config: dict[str, Any]
    parameters: int
    """Of the core; the whole policy has `all_parameters`."""
    all_parameters: int
    loss: float
    """At the end of the training."""
    training_s: float
    acting: dict[str, Acting]
    """By key of `WAYS`."""


class ResultFolder:
    """The results of some settings, so far."""

    def __init__(self, root: Path, settings: Settings) -> None:
        self.settings = settings
        self._folder = root / settings.folder

    def save(self, result: Result) -> None:
        """Whole or not at all: another process may be reading."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(result.core)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps({"settings": asdict(self.settings), **asdict(result)}))
        unfinished.replace(path)

    def find(self, core: str) -> Result | None:
        """The result of the core and options that `core` names."""
        path = self._path(core)
        return _read(path) if path.exists() else None

    def all(self) -> list[Result]:
        """By name."""
        return [_read(path) for path in sorted(self._folder.glob("*.json"))]

    def _path(self, core: str) -> Path:
        return self._folder / f"{re.sub(r'[^A-Za-z0-9@=._-]+', '_', core)}.json"


def heading(settings: Settings, shown: Demonstrations) -> str:
    """What was learned from, how long, and how it was evaluated."""
    tried = len(shown) + len(shown.skipped)
    return (
        f"BabyAI {settings.level} (minigrid {settings.minigrid}): cloning of its bot, {settings.episodes} episodes\n"
        f"{len(shown):,} demonstrations, mean length {shown.lengths.mean():.1f}; the bot solves {len(shown):,} of "
        f"{tried:,} seeds; one core records {shown.per_second:.0f} a second\n"
        f"{settings.steps:,} steps of {settings.batch_ticks:,} ticks, width {settings.width}, seed {settings.seed}"
    )


def result_table(results: Sequence[Result], way: str) -> Table:
    """A row for each core, the best first; way: a key of `WAYS`."""
    table = compact_table(
        WAYS[way], ("core", "parameters", "success\n%", "95 % interval", "p", "ticks", "s")
    )
    baseline = next((result.acting[way] for result in results if result.core == BASELINE), None)
    for result in sorted(results, key=lambda result: -result.acting[way].rate):
        acting = result.acting[way]
        low, high = wilson_interval(sum(acting.success), len(acting.success))
        table.add_row(
            result.core,
            f"{result.parameters:,}",
            f"{100 * acting.rate:.1f}",
            f"{100 * low:.1f} to {100 * high:.1f}",
            _p_value(acting, baseline),
            f"{fmean(acting.lengths):.1f}",
            f"{result.training_s:.0f}",
        )
    return table


def to_json(settings: Settings, shown: Demonstrations, results: Sequence[Result]) -> str:
    """All of it, episode by episode."""
    return json.dumps(
        {
            "settings": asdict(settings),
            "bot": {
                "demonstrations": len(shown),
                "mean_length": float(shown.lengths.mean()),
                "per_second_and_core": shown.per_second,
                "seeds_not_solved": shown.skipped,
            },
            "results": [asdict(result) for result in results],
        },
        indent=2,
    )


def _p_value(acting: Acting, baseline: Acting | None) -> str:
    if baseline is None or acting is baseline:
        return "—"
    p_value = mcnemar_exact(acting.success, baseline.success).p_value
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"


def _read(path: Path) -> Result:
    try:
        values = json.loads(path.read_text())
        del values["settings"]
        acting = {way: Acting(**fields) for way, fields in values.pop("acting").items()}
        return Result(**values, acting=acting)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged ({error}); delete it, and its core is trained again"
        ) from error
