"""The study of a MiniGrid level: cores that clone its expert, their results on disk, and a plot.

Results are kept in one file for each core, so that several commands, at any time, can fill one table.
The fields of `StudySettings`, `CoreResult` and `ActingResult`, their names and their order are the
format of these files; a change would make the files unreadable that users already have.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, get_args

import minigrid
import torch
from rich.table import Table

from ttm.policy.cores.core import CoreConfig
from ttm.policy.errors import UserError, options, require_above_0, require_at_least, require_some
from ttm.policy.files import write_atomically
from ttm.sim.pages import Point, draw_rates
from ttm.sim.results import Rate, mcnemar_exact
from ttm.sim.workers import usable_cores
from ttm.training.console import print_progress
from ttm.training.help_texts import CoreName
from ttm.training.sequence_model import (
    has_free_size,
    num_parameters,
    study_core,
    with_parameters,
)
from ttm.training.study.common import print_results
from ttm.training.study.minigrid import (
    FIRST_EVALUATION_SEED,
    Demonstrations,
    EpisodeSampler,
    Expert,
    MinigridEnvironment,
    MinigridPolicy,
    Vocabulary,
    clone,
    load_or_record,
    publish,
    roll_out,
)

WAYS: Mapping[str, str] = MappingProxyType({"best": "best action", "drawn": "drawn actions"})
"""How a policy acts: by its best action, or by actions drawn by their probabilities."""
BASELINE = "none"
"""The core without memory, against which every other core is tested."""


@dataclass(frozen=True)
class StudySettings:
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
    """How the policy acts, of `WAYS`."""
    minigrid: str
    """Version of the package; levels and bots may change from one version to the next."""


@dataclass(frozen=True)
class ActingResult:
    """The results of episodes in which a policy acted in one way, in the order of seeds."""

    success: list[bool]
    lengths: list[int]
    """Number of ticks of each episode."""
    seconds: float
    """Duration of all episodes."""

    @property
    def rate(self) -> float:
        """The portion of the episodes that succeeded."""
        return sum(self.success) / len(self.success)


@dataclass(frozen=True)
class CoreResult:
    """The result of one core, trained and evaluated."""

    core: str
    """The name of the core and the options that it was given."""
    config: dict[str, Any]
    parameters: int
    """Number of parameters of the core."""
    all_parameters: int
    """Number of parameters of the whole policy."""
    loss: float
    """Mean loss of the last batches of the training."""
    training_s: float
    acting: dict[str, ActingResult]
    """"best" or "drawn" -> results."""

    def is_of(self, config: CoreConfig) -> bool:
        """Return whether it is the result of `config`.

        A field that did not exist when the result was made counts as its default, which is what
        cores did before.
        """
        return {**asdict(type(config)()), **self.config} == asdict(config)

    def p_value(self, results: Sequence[CoreResult], way: str) -> str:
        """Return McNemar's p against the core without memory, on the same episodes, as text.

        "—" for that core itself, and where `results` has none. way: see `WAYS`.
        """
        baseline = next((known.acting[way] for known in results if known.core == BASELINE), None)
        acting = self.acting[way]
        if baseline is None or acting is baseline:
            return "—"
        p_value = mcnemar_exact(acting.success, baseline.success).p_value
        return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"


class ResultFolder:
    """The results so far with the same settings, in a folder of their own."""

    def __init__(self, root: Path, settings: StudySettings) -> None:
        """root: the folder that holds the results of all settings."""
        self.settings = asdict(settings)
        digest = hashlib.sha256(json.dumps(self.settings).encode()).hexdigest()[:8]
        self.path = root / f"{settings.level}-{digest}"

    def save(self, result: CoreResult) -> None:
        """Write the file of one core, so that another process never reads half of it."""
        self.path.mkdir(parents=True, exist_ok=True)
        content = json.dumps({"settings": self.settings, **asdict(result)})
        publish(self._path(result.core), content.encode())

    def find(self, core: str) -> CoreResult | None:
        """Return the result of a core, named with its options; None if there is none.

        Raises `UserError` if the file is damaged.
        """
        path = self._path(core)
        return _result(path) if path.exists() else None

    def all(self) -> list[CoreResult]:
        """Return all results, sorted by name. Raises `UserError` if a file is damaged."""
        return [_result(path) for path in sorted(self.path.glob("*.json"))]

    def _path(self, core: str) -> Path:
        return self.path / f"{re.sub(r'[^A-Za-z0-9@=._-]+', '_', core)}.json"


def _result(path: Path) -> CoreResult:
    try:
        values = json.loads(path.read_text())
        del values["settings"]
        acting = {way: ActingResult(**fields) for way, fields in values.pop("acting").items()}
        return CoreResult(**values, acting=acting)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged ({error}); delete it, and its core is trained again"
        ) from error


# The command.

COMMON: Mapping[str, Any] = MappingProxyType(
    {"process_size": 1, "num_layers": 2, "num_heads": 4, "window": 16, "bottleneck": 16}
)
"""Sizes of every core that has such fields: about two blocks, and one token a tick."""
OWN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "ttm": {"process_size": 2, "memory_size": 8},
        "none": {"process_size": 2, "memory_size": 8},
        "recurrent-transformer": {"memory_size": 4},
        "mixer": {"window": 4, "token_mixing_size": 32},
        "frame-stacking": {"window": 4},
        "tlb": {"num_layers": 1, "num_latents": 8, "chunk_size": 8},
        "hourglass": {
            "hierarchy": "1@1 1@2 1@1",
            "pooling": "average",
            "upsampling": "linear",
            "position": "rotary",
        },
    }
)
"""Sizes of single cores. The Token Turing Machine needs several tokens to read from its memory. A
core that is not named here gets `COMMON` alone."""
REFERENCE = "lstm"
"""The core that determines the number of parameters; it has no MLP whose width could be chosen."""


def equal_core(name: str, width: int, options: Sequence[str] = ()) -> CoreConfig:
    """Return the core called `name` with about as many parameters as the LSTM.

    The width of its MLPs is chosen for that. A core without an `mlp_size`, or with one among
    `options`, keeps its own number of parameters. Raises `UserError` for options that do not fit,
    and if the core is larger than the LSTM even with the narrowest MLPs.

    width: D, of both. options: what the user asked for, each "field=value".
    """
    config = study_core(name, COMMON, OWN, options)
    if not has_free_size(config, options):
        return config
    wanted = num_parameters(study_core(REFERENCE, COMMON, OWN), width)
    advice = (
        "give smaller --core-options, or an mlp_size among them, with which it has its own size"
    )
    return with_parameters(name, config, wanted, width, advice=advice)


class Effort(NamedTuple):
    """How much a core learns from, and for how long."""

    demonstrations: int
    steps: int
    batch_ticks: int
    """Most ticks in a batch of whole episodes."""


class Comparison(NamedTuple):
    """All results of the same settings that are kept in the folder, also those of earlier commands."""

    settings: StudySettings
    demonstrations: Demonstrations
    results: Sequence[CoreResult]


@dataclass(frozen=True)
class MinigridStudy(ABC):
    """The options of a study that clones the expert of a level with every core, and its work."""

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
    learning_rate: float = 1e-3
    """Highest learning rate of Adam, after the warm-up."""
    width: int = 128
    """D, the width of the tokens that the cores get."""
    episodes: int = 512
    """Episodes for the evaluation, with seeds that no demonstration has."""
    seed: int = 0
    """Seed of weights and batches. The seeds of demonstrations and episodes stay the same."""
    workers: int = usable_cores()
    """Processes that record demonstrations."""
    cache: Path = Path("runs/minigrid")
    """Folder in which demonstrations and results are kept."""
    json: Path | None = None
    """Also write the figures of the tables and of every episode to this file."""
    plot: Path | None = None
    """Also draw the success rates with their intervals to this file, an SVG."""

    notes: ClassVar[str]
    """What the columns of the tables hold."""

    @abstractmethod
    def environment(self) -> MinigridEnvironment:
        """Return a new environment of the level. Raises `UserError` if there is no such level."""

    @abstractmethod
    def expert(self, environment: MinigridEnvironment) -> Expert:
        """Return the expert for the episode that has just begun in `environment`."""

    @property
    @abstractmethod
    def default_effort(self) -> Effort:
        """The effort for the level where the user asks for none."""

    @abstractmethod
    def heading(self, found: Comparison) -> str:
        """Return the text above the tables: demonstrations, training, and evaluation."""

    @abstractmethod
    def table(self, results: Sequence[CoreResult], way: str) -> Table:
        """Return a table with one row for each core, the best first. way: see `WAYS`."""

    @abstractmethod
    def figures(self, found: Comparison) -> dict[str, Any]:
        """Return all figures as plain data, with the results of every episode."""

    def policy(self, config: CoreConfig, vocabulary: Vocabulary) -> MinigridPolicy:
        """Return a new policy around a core."""
        return MinigridPolicy(config, vocabulary, self.width)

    def settings(self) -> StudySettings:
        """Return what results must have in common to be compared with those of this command."""
        return StudySettings(**self.common_settings())

    def common_settings(self) -> dict[str, Any]:
        """Return the values of `StudySettings`."""
        default = self.default_effort
        return {
            "level": self.level,
            "demonstrations": self.demonstrations or default.demonstrations,
            "steps": self.steps or default.steps,
            "batch_ticks": default.batch_ticks,
            "learning_rate": self.learning_rate,
            "width": self.width,
            "seed": self.seed,
            "episodes": self.episodes,
            "actions": tuple(WAYS),
            "minigrid": str(minigrid.__version__),
        }

    def check(self) -> None:
        """Raise `UserError` if a value is out of range."""
        require_some(options(self, "core"))
        counts = ("demonstrations", "steps", "width", "episodes", "workers")
        require_at_least(1, options(self, *counts))
        require_above_0(options(self, "learning_rate"))
        if self.plot is not None and self.plot.suffix != ".svg":
            raise UserError(f"--plot is {self.plot}; give a file that ends with .svg")

    def run(self) -> int:
        """Train and evaluate the cores that have no result yet, print the tables of all results.

        Returns the exit code. Raises `UserError` for an unknown level and for core options that do
        not fit.
        """
        self.check()
        self.environment()  # raises here, before anything is recorded
        torch.set_num_threads(1)
        configs = {name: equal_core(name, self.width, self.core_options) for name in self.core}
        settings = self.settings()
        shown = load_or_record(self, settings.demonstrations, self.cache, self.workers)
        folder = ResultFolder(self.cache / "results", settings)
        for name, config in configs.items():
            label = " ".join((name, *self.core_options))
            known = folder.find(label)
            if known is None or not known.is_of(config):
                folder.save(self.train(label, config, shown))
        found = Comparison(settings, shown, folder.all())
        print_results(
            self.heading(found),
            *(self.table(found.results, way) for way in WAYS),
            self.notes,
            figures=self.figures(found),
            json_path=self.json,
        )
        if self.plot is not None:
            write_plot(self.plot, panels_of(self.level, found.results))
        return 0

    def train(self, label: str, config: CoreConfig, shown: Demonstrations) -> CoreResult:
        """Train `config`, called `label`, and let it act in the episodes of the evaluation.

        Weights, batches and actions depend on the seed alone. Prints progress on stderr.
        """
        settings = self.settings()
        torch.manual_seed(self.seed)
        vocabulary = Vocabulary.of(shown.missions.tolist(), shown.images)
        policy = self.policy(config, vocabulary)
        batches = EpisodeSampler(shown, vocabulary, settings.batch_ticks).endless(self.seed)
        for progress in clone(policy, batches, settings.steps, self.learning_rate):
            done = f"step {progress.steps:,} of {settings.steps:,}, loss {progress.mean_loss:.4f}"
            print_progress(f"{label}: {done}, {progress.seconds:.0f} s")
        seeds = range(FIRST_EVALUATION_SEED, FIRST_EVALUATION_SEED + self.episodes)
        acting = {}
        for way in WAYS:
            begun, sample = time.perf_counter(), None if way == "best" else self.seed
            success, lengths = zip(*roll_out(policy, vocabulary, self, seeds, sample), strict=True)
            seconds = time.perf_counter() - begun
            acting[way] = ActingResult(list(success), list(lengths), seconds)
            rate = 100 * acting[way].rate
            print_progress(f"{label}: {rate:.1f} % of {self.episodes} episodes ({way})")
        return CoreResult(
            label,
            asdict(config),
            num_parameters(config, self.width),
            sum(parameter.numel() for parameter in policy.parameters()),
            progress.mean_loss,
            progress.seconds,
            acting,
        )


# Success rates as a plot, and as a table of a page.


class Panel(NamedTuple):
    """One part of the plot: the successes of each core in the same episodes."""

    title: str
    episodes: int
    successes: Mapping[str, int]

    def rate(self, core: str) -> Rate:
        """Return how often a core succeeded."""
        return Rate(self.successes[core], self.episodes)


def panels_of(level: str, results: Sequence[CoreResult]) -> list[Panel]:
    """Return a panel for each way of acting of which there are results."""
    return [
        Panel(
            f"{level}, {WAYS[way]}",
            len(acting.success),
            {result.core: sum(result.acting[way].success) for result in results},
        )
        for way, acting in results[0].acting.items()
    ]


def write_plot(path: Path, panels: Sequence[Panel]) -> None:
    """Draw the panels side by side to an SVG file, with the cores sorted by the first of them.

    Raises `UserError` if the file cannot be written.
    """
    points = {
        panel.title: [
            Point(core, None, panel.rate(core))
            for core in sorted(panel.successes, key=lambda core: -panel.successes[core])
        ]
        for panel in panels
    }
    try:
        write_atomically(path, draw_rates(points))
    except OSError as error:
        raise UserError(f"cannot write {path} ({error}); give another file with --plot") from error


def percent(rate: Rate, unit: str = "") -> str:
    """Return a rate in per cent, with Wilson's interval in parentheses; "—" without episodes."""
    if not rate.episodes:
        return "—"
    low, high = rate.interval
    return f"{100 * rate.rate:.1f}{unit} ({100 * low:.1f} to {100 * high:.1f})"


def main(arguments: Sequence[str]) -> None:
    """Print panels as a Markdown table, and draw them if the last argument is no JSON file.

    arguments: JSON files, each [{"title": str, "episodes": int, "successes": {core: int}}], then
    perhaps an SVG for the plot.
    """
    files = [Path(argument) for argument in arguments if argument.endswith(".json")]
    panels = [Panel(**values) for path in files for values in json.loads(path.read_text())]
    rows = [["core", *(panel.title for panel in panels)], ["---"] * (1 + len(panels))]
    for core in dict.fromkeys(core for panel in panels for core in panel.successes):
        rates = (percent(p.rate(core), " %") if core in p.successes else "" for p in panels)
        rows.append([f"`{core}`", *rates])
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))
    if len(files) < len(arguments):
        write_plot(Path(arguments[-1]), panels)


if __name__ == "__main__":
    main(sys.argv[1:])
