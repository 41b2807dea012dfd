"""The work of a study: demonstrations, and the training and evaluation of every core."""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.core import CoreConfig
from ttm.policy.errors import UserError, options, require_above_0, require_at_least, require_some
from ttm.sim.results import mcnemar_exact, wilson_interval
from ttm.sim.workers import usable_cores
from ttm.training.console import print_progress
from ttm.training.help_texts import CoreName
from ttm.training.options import WarmupCosine
from ttm.training.sequence_model import (
    Progress,
    fit,
    has_free_size,
    num_parameters,
    study_core,
    with_parameters,
)
from ttm.training.study.minigrid import (
    FIRST_EVALUATION_SEED,
    ActingResult,
    CoreResult,
    Demonstrations,
    Level,
    MinigridPolicy,
    ResultFolder,
    StudySettings,
    Vocabulary,
    load_or_record,
    minigrid_version,
    roll_out,
)

# Behaviour cloning on whole episodes, in batches of episodes of similar length.
#
# A batch has about the same number of ticks, whatever the lengths of its episodes. Every core gets
# the same batches in the same order.

POOL = 16
"""Number of batches that are cut from one pool of episodes, sorted by length."""
NO_LOSS = -100
"""Stands in place of an action after the end of an episode."""


class EpisodeTensors(NamedTuple):
    """B episodes from their first tick on, padded to the T ticks of the longest."""

    sentences: Tensor
    """(M, words) int64, the different instructions."""
    which: Tensor
    """(B,) int64, the number of each episode's instruction."""
    tiles: Tensor
    """(B, T, 49) int64."""
    directions: Tensor
    """(B, T) int64."""
    actions: Tensor
    """(B, T) int64, `NO_LOSS` after the end."""


class EpisodeSampler:
    """Cuts demonstrations into batches."""

    def __init__(self, demonstrations: Demonstrations, vocabulary: Vocabulary, ticks: int) -> None:
        """ticks: most ticks of a batch with its padding; a longer episode has its own batch."""
        missions = sorted(set(demonstrations.missions))
        number = {mission: i for i, mission in enumerate(missions)}
        self._sentences = vocabulary.sentences(missions)
        self._which = torch.tensor([number[mission] for mission in demonstrations.missions])
        self._tiles = torch.from_numpy(vocabulary.tiles(demonstrations.images))
        self._directions = torch.from_numpy(demonstrations.directions)
        self._actions = torch.from_numpy(demonstrations.actions)
        self._lengths = demonstrations.lengths
        self._first = np.cumsum(demonstrations.lengths) - demonstrations.lengths
        self._ticks = ticks

    def endless(self, seed: int) -> Iterator[EpisodeTensors]:
        """Yield batches without end, pass after pass, in an order that depends on `seed` alone."""
        rng = np.random.default_rng(seed)
        while True:
            for episodes in self.one_pass(rng):
                yield self.batch(episodes)

    def one_pass(self, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the episodes of each batch; every episode comes once."""
        order = rng.permutation(len(self._lengths))
        pool_of = self._lengths[order].cumsum() // (POOL * self._ticks)
        for pool in np.split(order, np.flatnonzero(np.diff(pool_of)) + 1):
            batches = self._cut(pool[np.argsort(self._lengths[pool], kind="stable")])
            for i in rng.permutation(len(batches)):
                yield batches[i]

    def batch(self, episodes: NDArray[np.int64]) -> EpisodeTensors:
        """Return the episodes with these numbers (B,)."""
        lengths, first = (
            torch.from_numpy(values[episodes]) for values in (self._lengths, self._first)
        )
        tick = torch.arange(int(lengths.max()))
        real = tick < lengths[:, None]  # (B, T)
        place = torch.where(real, first[:, None] + tick, 0)
        asked, which = self._which[episodes].unique(return_inverse=True)
        return EpisodeTensors(
            self._sentences[asked],
            which,
            self._tiles[place].long(),
            self._directions[place].long(),
            torch.where(real, self._actions[place].long(), NO_LOSS),
        )

    def _cut(self, episodes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Cut episodes, sorted from short to long, into batches."""
        batches: list[list[int]] = [[]]
        for episode in episodes.tolist():
            if batches[-1] and (len(batches[-1]) + 1) * self._lengths[episode] > self._ticks:
                batches.append([])
            batches[-1].append(episode)
        return [np.array(batch) for batch in batches]


def cloning_loss(
    policy: MinigridPolicy,
    sentences: Tensor,
    which: Tensor,
    tiles: Tensor,
    directions: Tensor,
    actions: Tensor,
) -> Tensor:
    """Return the cross-entropy with the demonstrated actions, a scalar; see `EpisodeTensors`."""
    scores, _ = policy(policy.instruct(sentences), which, tiles, directions)
    return action_loss(scores, actions)


def action_loss(scores: Tensor, actions: Tensor) -> Tensor:
    """Return the cross-entropy, to which every tick of every episode contributes alike.

    scores: (B, T, 7). actions: (B, T) int64, see `EpisodeTensors`.
    """
    return F.cross_entropy(scores.flatten(0, 1), actions.flatten(), ignore_index=NO_LOSS)


def clone(
    policy: MinigridPolicy,
    batches: Iterator[EpisodeTensors],
    steps: int,
    learning_rate: float,
    report_every: int,
    loss: Callable[..., Tensor] = cloning_loss,
) -> Iterator[Progress]:
    """Train for `steps` steps with a warm-up and half a cosine; yield as `fit` does.

    loss: called with the policy and the parts of `EpisodeTensors`.
    """
    schedule = WarmupCosine(peak=learning_rate)
    return fit(
        policy,
        islice(batches, steps),
        loss,
        learning_rate=lambda step: schedule.learning_rate(step, step / steps),
        report_every=report_every,
    )


# One core of a study: trained on the demonstrations, then evaluated on new episodes.

REPORT_EVERY = 100
"""Steps between two lines of progress."""
DRAWN = "drawn"


@dataclass(frozen=True)
class Method:
    """What a study builds around every core, and how it trains that."""

    policy: Callable[[CoreConfig, Vocabulary, int], MinigridPolicy] = MinigridPolicy
    loss: Callable[..., Tensor] = cloning_loss
    """See `clone`."""


def train_and_evaluate(
    label: str,
    config: CoreConfig,
    level: Level,
    demonstrations: Demonstrations,
    settings: StudySettings,
    method: Method,
) -> CoreResult:
    """Train `config`, called `label`, and let it act in the episodes of the evaluation.

    Weights, batches and actions depend on `settings.seed` alone. Prints progress on stderr.
    """
    torch.manual_seed(settings.seed)
    vocabulary = Vocabulary.of(demonstrations.missions, demonstrations.images)
    policy = method.policy(config, vocabulary, settings.width)
    sampler = EpisodeSampler(demonstrations, vocabulary, settings.batch_ticks)
    batches = sampler.endless(settings.seed)
    for progress in clone(
        policy, batches, settings.steps, settings.learning_rate, REPORT_EVERY, method.loss
    ):
        done = f"step {progress.steps:,} of {settings.steps:,}, loss {progress.mean_loss:.4f}"
        print_progress(f"{label}: {done}, {progress.seconds:.0f} s")
    return CoreResult(
        core=label,
        config=asdict(config),
        parameters=num_parameters(config, settings.width),
        all_parameters=sum(parameter.numel() for parameter in policy.parameters()),
        loss=progress.mean_loss,
        training_s=progress.seconds,
        acting={
            way: _act(label, policy, vocabulary, level, settings, way) for way in settings.actions
        },
    )


def _act(
    label: str,
    policy: MinigridPolicy,
    vocabulary: Vocabulary,
    level: Level,
    settings: StudySettings,
    way: str,
) -> ActingResult:
    begun = time.perf_counter()
    seeds = range(FIRST_EVALUATION_SEED, FIRST_EVALUATION_SEED + settings.episodes)
    sample = settings.seed if way == DRAWN else None
    episodes = roll_out(policy, vocabulary, level, seeds, sample)
    acting = ActingResult(
        [episode.success for episode in episodes],
        [episode.steps for episode in episodes],
        time.perf_counter() - begun,
    )
    print_progress(f"{label}: {100 * acting.rate:.1f} % of {settings.episodes} episodes ({way})")
    return acting


# A loss that asks the core's outputs what was seen earlier in the episode and is not seen now.
#
# It needs no labels and knows nothing of the task: the targets are the agent's own views. The loss of
# the actions asks for the memory at one tick of an episode, long after what is to be remembered. This
# one asks from the next tick on, so that a memory that is kept for a tick, then for two and so on, is
# rewarded all the way.


class RecallHead(nn.Module):
    """Tells from the core's output which kinds of tiles have been in view so far."""

    def __init__(self, width: int, num_kinds: int) -> None:
        super().__init__()
        self.num_kinds = num_kinds
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, num_kinds))

    def loss(self, outputs: Tensor, tiles: Tensor, real: Tensor) -> Tensor:
        """Return the mean logistic loss over the kinds that are not in view, a scalar.

        outputs: (B, T, D). tiles: (B, T, 49) int64. real: (B, T) bool, False after the end.
        """
        now = seen_now(tiles, self.num_kinds)
        asked = ~now & real.unsqueeze(-1)
        before = now.cumsum(dim=1) > 0
        logits = self.layers(outputs)
        return F.binary_cross_entropy_with_logits(logits[asked], before[asked].to(logits.dtype))


def seen_now(tiles: Tensor, num_kinds: int) -> Tensor:
    """Return which kinds of tiles are in view: (B, T, 49) int64 -> (B, T, kinds) bool."""
    now = torch.zeros(*tiles.shape[:2], num_kinds, dtype=torch.bool, device=tiles.device)
    return now.scatter(2, tiles, True)


# The sizes of the cores in the studies of MiniGrid levels: all have the same number of parameters.

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
ADVICE = (
    "give smaller --core-options, or an mlp_size among them, with which it has a size of its own"
)


def equal_core(name: str, width: int, options: Sequence[str] = ()) -> CoreConfig:
    """Return the core called `name` with about as many parameters as the LSTM.

    The width of its MLPs is chosen for that.

    A core without an `mlp_size`, or with one among `options`, keeps its own number of parameters.
    Raises `UserError` for options that do not fit, and if the core is larger than the LSTM even
    with the narrowest MLPs.

    width: D, of both.
    options: what the user asked for, each "field=value".
    """
    config = study_core(name, COMMON, OWN, options)
    if not has_free_size(config, options):
        return config
    wanted = num_parameters(study_core(REFERENCE, COMMON, OWN), width)
    return with_parameters(name, config, wanted, width, advice=ADVICE)


# The options that all studies of MiniGrid levels have, and their checks.

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


@dataclass(frozen=True)
class Comparison:
    """All results of the same settings that are kept in the folder, also those of earlier commands."""

    settings: StudySettings
    demonstrations: Demonstrations
    results: Sequence[CoreResult]


def compare(
    options: MinigridOptions, settings: StudySettings, level: Level, method: Method
) -> Comparison:
    """Train and evaluate the cores that have no result yet; return all results.

    settings: made of `options`, with what the study adds to them. level: the one that they name.
    Raises `UserError` for an unknown level and for core options that do not fit.
    """
    level.environment()  # raises here, before anything is recorded
    torch.set_num_threads(options.threads)
    configs = {name: equal_core(name, options.width, options.core_options) for name in options.core}
    demonstrations = load_or_record(level, settings.demonstrations, options.cache, options.workers)
    folder = ResultFolder(options.cache / "results", settings)
    for name, config in configs.items():
        label = " ".join((name, *options.core_options))
        known = folder.find(label)
        if options.again or known is None or not is_of(known, config):
            folder.save(train_and_evaluate(label, config, level, demonstrations, settings, method))
    return Comparison(settings, demonstrations, folder.all())


def common_values(options: MinigridOptions) -> dict[str, Any]:
    """Return the values of `StudySettings` that `options` ask for."""
    return {
        "level": options.level,
        **asdict(options.effort),
        "learning_rate": options.learning_rate,
        "width": options.width,
        "seed": options.seed,
        "episodes": options.episodes,
        "actions": options.actions,
        "minigrid": minigrid_version(),
    }


def is_of(result: CoreResult, config: CoreConfig) -> bool:
    """Return whether a kept result is one of `config`.

    A field that did not exist when the result was made counts as its default, which is what cores
    did before.
    """
    return {**asdict(type(config)()), **result.config} == asdict(config)


# The test of a core's successes against those of the core without memory.

BASELINE = "none"
"""The core without memory, against which every other core is tested."""


def p_value_against_no_memory(result: CoreResult, results: Sequence[CoreResult], way: str) -> str:
    """Return McNemar's p of `result` as text; "—" for the baseline itself and where it is missing.

    results: all results of the same episodes. way: how the policies acted, "best" or "drawn".
    """
    baseline = next((known.acting[way] for known in results if known.core == BASELINE), None)
    acting = result.acting[way]
    if baseline is None or acting is baseline:
        return "—"
    p_value = mcnemar_exact(acting.success, baseline.success).p_value
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"


# Draws the success rates of a study with their intervals.
#
# `python -m ttm.training.study.minigrid_study FIGURES.json PLOT.svg` draws panels from a file that lists
# them: [{"title": str, "episodes": int, "successes": {core: int}}].

WAYS = {"best": "best action", "drawn": "drawn actions"}
COLOUR, BASELINE_COLOUR = "#1f5a99", "#b0452c"


@dataclass(frozen=True)
class Panel:
    """One part of the plot: the successes of each core in the same episodes."""

    title: str
    episodes: int
    successes: Mapping[str, int]


def panels_of(level: str, ways: Sequence[str], results: Sequence[CoreResult]) -> list[Panel]:
    """Return a panel for each way of acting, "best" or "drawn"."""
    return [
        Panel(
            f"{level}, {WAYS[way]}",
            len(results[0].acting[way].success),
            {result.core: sum(result.acting[way].success) for result in results},
        )
        for way in ways
    ]


def read_panels(path: Path) -> list[Panel]:
    """Read panels from a JSON file."""
    return [Panel(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))]


def write_plot(path: Path, panels: Sequence[Panel]) -> None:
    """Draw the panels side by side to an SVG or PNG file.

    The cores are sorted by their rates in the first panel.

    Raises `UserError` if the file cannot be written.
    """
    cores = sorted(panels[0].successes, key=lambda core: panels[0].successes[core])
    figure = Figure(figsize=(4.2 * len(panels), 0.8 + 0.34 * len(cores)), layout="constrained")
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), number)
        for place, core in enumerate(cores):
            rate = panel.successes[core] / panel.episodes
            low, high = wilson_interval(panel.successes[core], panel.episodes)
            colour = BASELINE_COLOUR if core == BASELINE else COLOUR
            axes.plot([100 * low, 100 * high], [place, place], color=colour, linewidth=2)
            axes.plot(100 * rate, place, "o", color=colour, markersize=6)
            axes.annotate(
                f"{100 * rate:.1f}",
                (100 * rate, place),
                (0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=colour,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )
        if BASELINE in panel.successes:
            rate = 100 * panel.successes[BASELINE] / panel.episodes
            axes.axvline(rate, color=BASELINE_COLOUR, linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(cores)), cores if number == 1 else [""] * len(cores))
        axes.set_ylim(-0.5, len(cores) - 0.3)
        axes.set_title(panel.title, fontsize=10, loc="left")
        axes.set_xlabel("success in %, with Wilson's 95 % interval", fontsize=9)
        axes.grid(axis="x", linewidth=0.4, alpha=0.6)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({"svg.hashsalt": "ttm"}):
            # Without a date, the same figures give the same file.
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=110, metadata=metadata)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error}); give another file with --plot") from error


if __name__ == "__main__":
    write_plot(Path(sys.argv[2]), read_panels(Path(sys.argv[1])))
