"""Run `ttm bench step`: make the trainings, time their steps in turns, and report."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from string import ascii_uppercase
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ttm.datasets.writer import EpisodeWriter
from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.cores.registry import sized_like, with_options
from ttm.policy.engines import cpu_threads
from ttm.policy.errors import UserError, options, require_at_least, require_some
from ttm.policy.policy import Policy
from ttm.policy.sight import SightMemory
from ttm.policy.spec import Observation, PolicySpec
from ttm.sim.shipped import checkpoint_path
from ttm.training.batches import TrainingBatch
from ttm.training.bench.common import Report, counted_step, rows_table
from ttm.training.console import compact_table
from ttm.training.frozen_vision import FeatureCache
from ttm.training.options import FrozenVisionConfig, LossConfig, TrainOptions
from ttm.training.runtime import keep_freed_memory
from ttm.training.sequence_model import NO_SIGHT, SightSize, split_sight
from ttm.training.train import assembled
from ttm.training.trainer import Trainer

# The cores that are timed, each with an LSTM of as many weights.

LSTM = "lstm"
TOLERANCE = 0.02
"""The largest relative difference between the weights of a core and of its LSTM."""


@dataclass(frozen=True)
class Contender:
    """A core with its options, as text."""

    name: str
    options: tuple[str, ...]
    parameters: int
    """Number of weights of the core and the sight memory."""
    multiply_adds: int
    """Multiply-adds of the matrix products of one tick of the core, forward."""
    sight: SightSize = NO_SIGHT
    trains_vision: bool = False
    """Whether the step trains vision too, from frames instead of features."""

    @property
    def label(self) -> str:
        """Name and options, as the user gives them."""
        core = " ".join((self.name, *self.options, *self.sight.options))
        return f"{core} (vision trained, no recall loss)" if self.trains_vision else core


def parsed(cores: Sequence[str], policy: Policy) -> list[Contender]:
    """Return the cores that the texts name, at the sizes that they get in `policy`.

    Raises `UserError` if there is no such core, or it has no such options.
    """
    found = []
    for text in cores:
        name, *options = text.split() or [""]
        found.append(contender(name, tuple(options), policy))
    return found


def contender(name: str, options: tuple[str, ...], policy: Policy) -> Contender:
    """Return a core with its size in `policy`, counted without making its weights.

    options: of the core, each FIELD=VALUE, and perhaps the size of a sight memory.
    """
    config = policy.config
    of_core, size = split_sight(options)
    core = with_options(sized_like(name, config.core), of_core)
    tokens, weights = policy.num_encoded, 0
    if size.tokens:
        sight = SightMemory(config.width, size.tokens)
        tokens += sight.num_tokens
        weights = sum(parameter.numel() for parameter in sight.parameters())
    counted = counted_step(core, config.width, tokens)
    return Contender(name, of_core, counted.parameters + weights, counted.multiply_adds, size)


def equal_lstm(core: Contender, policy: Policy) -> Contender:
    """Return an LSTM with as many weights and as many output tokens as `core`.

    It has as many layers as fit, and if that leaves a gap, a wider summary of its inputs. Raises
    `UserError` if no LSTM has as many weights.
    """
    outputs = [option for option in core.options if option.startswith("process_size=")]

    def lstm(layers: int, *more: str) -> Contender:
        return contender(LSTM, (*outputs, f"num_layers={layers}", *more), policy)

    layers = 1
    while lstm(layers + 1).parameters <= core.parameters * (1 + TOLERANCE):
        layers += 1
    found = lstm(layers)
    if not _equal(found, core):
        widths = [lstm(layers, f"bottleneck={width}").parameters for width in (1, 2)]
        width = 1 + round((core.parameters - widths[0]) / (widths[1] - widths[0]))
        found = lstm(layers, f"bottleneck={max(width, 1)}")
    if not _equal(found, core):
        raise UserError(
            f"core {core.label} has {core.parameters:,} weights, fewer than an LSTM of width "
            f"{policy.config.width} can have; give a larger core"
        )
    return found


def _equal(one: Contender, other: Contender) -> bool:
    return abs(one.parameters - other.parameters) <= TOLERANCE * other.parameters


# The options of `ttm bench step`.

OURS = "ttm write=gated read=attend process_memory=true"
"""The options of the Token Turing Machine that learn to remember; see `TokenTuringConfig`."""


@dataclass(frozen=True)
class StepOptions:
    """Which cores are trained, on what, and how often a step is timed."""

    cores: tuple[str, ...] = (OURS, "ttm")
    """Cores, each in quotes: its name, and options as of `ttm train --core-options`. Each is compared
    with an LSTM of as many weights."""
    data: tuple[str, ...] = ()
    """Episodes: HDF5 files, folders of them, or globs in quotes. Default: made-up episodes of the
    robot of --init, in which no two frames are equal."""
    ticks: tuple[int, int] = (30, 60)
    """Without --data: the ticks of the shortest and of the longest episode."""
    episodes: int = 32
    """Without --data: how many episodes are made up, of which every tenth is held out."""
    init: Path = Path("shipped")
    """The checkpoint whose vision is frozen; `shipped` is the policy that comes with the project."""
    batch_size: int = 16
    """Episodes in a batch."""
    recall_weight: float = 2.0
    """Weight of the recall loss; 0: none."""
    trained_vision: bool = False
    """Also time steps of the first core in which vision is trained, from augmented frames, and without
    recall loss."""
    threads: tuple[int, ...] = (1, 2)
    """Numbers of CPU threads; all is timed with each of them."""
    rounds: int = 10
    """Steps of each core that are timed with each number of threads, in turns."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_some(options(self, "cores", "threads"))
        require_at_least(1, options(self, "episodes", "batch_size", "rounds"))
        require_at_least(0, options(self, "recall_weight"))
        for count in self.threads:
            require_at_least(1, {"--threads": count})
        shortest, longest = self.ticks
        require_at_least(2, {"--ticks": shortest})
        if longest < shortest:
            raise UserError(f"--ticks is {shortest} {longest}; give the smaller number first")


# `ttm bench step`: time a training step on whole episodes, against an LSTM of as many weights.


@dataclass(frozen=True)
class BenchStepCommand(StepOptions):
    """Time a training step on whole episodes with frozen vision, part by part.

    The step is that of `ttm train --init … --freeze-vision --window episode --recall-weight 2`. Each
    core is compared, in the same run, with an LSTM of as many weights. Takes some minutes; run it
    while nothing else runs.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()

        run_bench(self)
        return 0


# The trainings whose steps are timed, on recorded or on made-up episodes.


def trainer_of(
    core: Contender, options: StepOptions, data: tuple[str, ...], features: FeatureCache
) -> Trainer:
    """Return the trainer of `ttm train` on whole episodes; it writes no files.

    features: of the vision of `options.init`; what it lacks is added.
    """
    training = TrainOptions(
        data=data,
        out=Path(),
        core=core.name,
        core_options=core.options,
        sight_tokens=core.sight.tokens,
        sight_cells=core.sight.cells,
        init=options.init,
        window="episode",
        batch_size=options.batch_size,
        vision=FrozenVisionConfig(freeze_vision=not core.trains_vision),
        loss=LossConfig(recall_weight=0 if core.trains_vision else options.recall_weight),
        device="cpu",
    )
    training.check()
    return assembled(training, Console(quiet=True), features)


def record_episodes(folder: Path, policy: Policy, options: StepOptions) -> None:
    """Record made-up episodes of the robot of `policy`, whose lengths `options.ticks` spans evenly."""
    lengths = np.linspace(*options.ticks, options.episodes).round().astype(int)
    size = policy.config.embedding_size
    for seed, length in enumerate(lengths):
        rng = np.random.default_rng(seed)
        with EpisodeWriter(folder / f"{seed}.hdf5", policy.spec) as writer:
            for tick in range(length):
                seen, action = _observation(policy.spec, rng), made_up_action(policy.spec, rng)
                writer.append(seen, action, timestamp_s=tick / policy.spec.rate_hz)
            embedding = np.full(size, size**-0.5, np.float32)
            writer.finish(instruction="bench", embedding=embedding)


def made_up_action(spec: PolicySpec, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return an action within the limits of the spec, (A,); binary parts are one of their commands."""
    low, high = (limit.astype(float) for limit in spec.action_limits)
    portion = rng.uniform(size=spec.action_size)
    chosen = np.where(portion < 0.5, low, high)
    # Where there is no limit: 1 from the other limit, or from 0.
    low = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high, 0) - 1)
    high = np.where(np.isfinite(high), high, low + 1)
    return np.where(spec.binary_mask, chosen, low + portion * (high - low))


def _observation(spec: PolicySpec, rng: np.random.Generator) -> Observation:
    frames = {
        c.name: rng.integers(0, 256, (c.height, c.width, 3), dtype=np.uint8) for c in spec.cameras
    }
    vectors = {v.name: rng.normal(size=v.size).astype(np.float32) for v in spec.proprioception}
    return {**frames, **vectors}


# Where the time of a training step goes, told by hooks on the policy's modules.
#
# A step passes through the parts forward and then, in the opposite order, backward. Hooks on modules,
# and on the gradients of what passes between them, mark where one part ends and the next one begins.
# Every moment of a step belongs to one part.

Part = Literal["batch", "vision", "cameras", "inputs", "core", "head", "recall", "weights"]
Pass = Literal["forward", "backward"]


@dataclass
class Seconds:
    """Seconds of the processor, of all threads together, and of the clock on the wall."""

    processor: float = 0.0
    wall: float = 0.0

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.processor + other.processor, self.wall + other.wall)

    @classmethod
    def now(cls) -> Seconds:
        """Read both clocks."""
        return cls(time.process_time(), time.perf_counter())


PartTimes = dict[tuple[Part, Pass], Seconds]


class PartClock:
    """Adds the time since the last mark to the part that has just ended."""

    def __init__(self) -> None:
        self.taken: PartTimes = defaultdict(Seconds)
        self._last = Seconds.now()

    def restart(self) -> None:
        """Begin to count here."""
        self._last = Seconds.now()

    def ends(self, part: Part, direction: Pass) -> None:
        """Mark the end of a part."""
        now, last = Seconds.now(), self._last
        taken = Seconds(now.processor - last.processor, now.wall - last.wall)
        self.taken[part, direction] += taken
        self._last = now


@dataclass(frozen=True)
class Watched:
    """A module whose ends are marked, and which part's time runs before and after it."""

    module: nn.Module
    part: Part
    before: Part
    """The part that runs forward before it."""
    after: Part
    """The part that runs backward before it, since it comes after it forward."""

    def attach(self, clock: PartClock) -> list[RemovableHandle]:
        """Add the hooks, which keep `clock`."""

        def begins(module: nn.Module, args: tuple[Any, ...]) -> None:
            clock.ends(self.before, "forward")
            if isinstance(args[0], Tensor) and args[0].requires_grad:
                args[0].register_hook(lambda gradient: clock.ends(self.part, "backward"))

        def ends(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            clock.ends(self.part, "forward")
            out = output[0] if isinstance(output, tuple) else output
            out.register_hook(lambda gradient: clock.ends(self.after, "backward"))

        return [
            self.module.register_forward_pre_hook(begins),
            self.module.register_forward_hook(ends),
        ]


def watched_modules(trainer: Trainer) -> list[Watched]:
    """Return the modules at whose ends the parts of a step begin and end."""
    policy = trainer.policy
    *cameras, last = policy.camera_tokens
    found = [Watched(policy.vision, "vision", before="inputs", after="cameras")]
    found += [Watched(camera, "cameras", before="inputs", after="cameras") for camera in cameras]
    found.append(Watched(last, "cameras", before="inputs", after="inputs"))
    found.append(Watched(policy.core, "core", before="inputs", after="head"))
    found.append(Watched(policy.action_head, "head", before="head", after="head"))
    if trainer.recall is not None:
        found.append(Watched(trainer.recall.mlp, "recall", before="head", after="recall"))
    return found


def timed_step(trainer: Trainer, make: Callable[[], TrainingBatch]) -> PartTimes:
    """Take a training step on the batch that `make` returns, and return the seconds of its parts.

    Losses count backward.
    """
    clock = PartClock()
    handles = [handle for each in watched_modules(trainer) for handle in each.attach(clock)]
    clock.restart()
    batch = make()
    clock.ends("batch", "forward")
    trainer.backpropagate(batch)
    clock.ends("vision" if trainer.source.features is None else "cameras", "backward")
    trainer.update_weights()
    clock.ends("weights", "forward")
    for handle in handles:
        handle.remove()
    return dict(clock.taken)


# Time the steps of several trainings in turns.

WARM_UP = 2
"""Steps of each training that are not counted."""


@dataclass(frozen=True)
class StepRow:
    """The steps of one core on so many threads. All figures are medians over the steps."""

    core: str
    parameters: int
    multiply_adds: int
    """Of the matrix products of the core in one tick, forward."""
    threads: int
    step: Seconds
    parts: Mapping[Part, Mapping[Pass, Seconds]]
    lstm: str
    """The LSTM of as many weights, which is the core itself in the rows of these LSTMs."""
    multiply_adds_ratio: float
    """To those of the LSTM: the ratio of the cores' times if only matrix products took time."""
    processor_ratio: float
    """Processor time of a step over that of the LSTM on the same batch."""
    wall_ratio: float


def measure_steps(
    trainers: Mapping[Contender, Trainer],
    lstm_of: Mapping[Contender, Contender],
    threads: int,
    rounds: int,
) -> list[StepRow]:
    """Time `rounds` steps of each training, which take turns and see the same batches."""
    taken: dict[Contender, list[PartTimes]] = {core: [] for core in trainers}
    with cpu_threads(threads):
        for step in range(WARM_UP + rounds):
            for core, trainer in trainers.items():
                source = trainer.source
                picks = source.memory.picks(source.windows, source.batch_size, source.seed, step)
                make = partial(source.make, next(picks), step, burn_in=0)
                taken[core].append(timed_step(trainer, make))
    counted = {core: times[WARM_UP:] for core, times in taken.items()}
    return [_row(core, lstm_of.get(core, core), counted, threads) for core in trainers]


def _row(
    core: Contender,
    lstm: Contender,
    taken: Mapping[Contender, Sequence[PartTimes]],
    threads: int,
) -> StepRow:
    steps, others = ([_total(times) for times in taken[who]] for who in (core, lstm))
    pairs = list(zip(steps, others, strict=True))
    parts: dict[Part, dict[Pass, Seconds]] = {}
    for part, direction in taken[core][0]:
        of_part = [times[part, direction] for times in taken[core]]
        parts.setdefault(part, {})[direction] = _medians(of_part)
    return StepRow(
        core=core.label,
        parameters=core.parameters,
        multiply_adds=core.multiply_adds,
        threads=threads,
        step=_medians(steps),
        parts=parts,
        lstm=lstm.label,
        multiply_adds_ratio=core.multiply_adds / lstm.multiply_adds,
        processor_ratio=median(mine.processor / its.processor for mine, its in pairs),
        wall_ratio=median(mine.wall / its.wall for mine, its in pairs),
    )


def _total(times: PartTimes) -> Seconds:
    return sum(times.values(), Seconds())


def _medians(times: Sequence[Seconds]) -> Seconds:
    return Seconds(median(t.processor for t in times), median(t.wall for t in times))


# The tables that `ttm bench step` prints.

BAR = 1.5
"""The largest ratio of the processor time of a step to that of an LSTM with as many weights."""

PART_NAMES: Mapping[Part, str] = MappingProxyType(
    {
        "batch": "batch: gathering",
        "vision": "vision",
        "cameras": "camera tokens",
        "inputs": "other tokens, sight",
        "core": "core",
        "head": "head and losses",
        "recall": "recall loss",
        "weights": "optimiser, average",
    }
)

NOTES = f"""\
  weights     of the core and of its sight memory; an LSTM "of as many weights" has as many within 2 %.
  products    millions of multiply-adds of the core in the matrix products of one tick. If nothing else
              took time, the ratio of the cores' times would be the ratio beside it.
  processor   seconds of all threads together; wall: seconds on the clock.
  ratio       to the LSTM of as many weights, on the same batches; bar: {BAR} or less.
  backward    includes the losses themselves.
All are medians over the steps, so that the parts need not add up.
"""


def step_table(rows: Sequence[StepRow], letters: Mapping[str, str]) -> Table:
    """Return the table of whole steps. letters: core -> the letter that stands for it."""
    threads = rows[0].threads
    return rows_table(
        f"A training step on {threads} CPU thread{'s' * (threads > 1)}",
        {
            "core": lambda row: f"{letters[row.core]}",
            "weights": lambda row: f"{row.parameters:,}",
            "products": lambda row: f"{row.multiply_adds / 1e6:.1f} M",
            "ratio": lambda row: f"{row.multiply_adds_ratio:.2f}",
            "processor": lambda row: f"{row.step.processor:.3f} s",
            "ratio ": lambda row: f"{row.processor_ratio:.2f}",
            "wall": lambda row: f"{row.step.wall:.3f} s",
            "ratio  ": lambda row: f"{row.wall_ratio:.2f}",
            "to": lambda row: letters[row.lstm],
        },
        rows,
    )


def part_table(rows: Sequence[StepRow], letters: Mapping[str, str]) -> Table:
    """Return the table of the parts of a step, with a column for each core."""
    columns = [letters[row.core] for row in rows]
    title = "Its parts: processor time forward + backward, in milliseconds"
    table = compact_table(title, ("part", *columns))
    for part, name in PART_NAMES.items():
        if any(part in row.parts for row in rows):
            table.add_row(name, *(_both_ways(row.parts.get(part, {})) for row in rows))
    return table


def _both_ways(taken: Mapping[Pass, Seconds]) -> str:
    return " + ".join(f"{seconds.processor * 1e3:.0f}" for seconds in taken.values())


def run_bench(options: StepOptions) -> None:
    """Time the steps of all cores and of their LSTMs, print tables, and write the figures."""
    keep_freed_memory()
    report = Report(options.json)
    policy = load_checkpoint(checkpoint_path(options.init))[0]
    lstm_of = {core: equal_lstm(core, policy) for core in parsed(options.cores, policy)}
    if options.trained_vision:
        first, lstm = next(iter(lstm_of.items()))
        lstm_of[replace(first, trains_vision=True)] = lstm
    with _data(options, policy) as data:
        cores = dict.fromkeys([*lstm_of, *lstm_of.values()])
        features = FeatureCache(policy, policy.spec.cameras)
        trainers = {core: trainer_of(core, options, data, features) for core in cores}
        letters = dict(zip((core.label for core in cores), ascii_uppercase, strict=False))
        report.text(_introduction(next(iter(trainers.values())), options, letters))
        rows: list[StepRow] = []
        for threads in options.threads:
            rows += (found := measure_steps(trainers, lstm_of, threads, options.rounds))
            report.table(step_table(found, letters))
            report.table(part_table(found, letters))
    report.text(NOTES)
    report.figures["steps"] = [asdict(row) for row in rows]
    report.write()


@contextmanager
def _data(options: StepOptions, policy: Policy) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the episodes, which are made up if the user names none."""
    if options.data:
        yield options.data
        return
    with tempfile.TemporaryDirectory() as folder:
        record_episodes(Path(folder), policy, options)
        yield (folder,)


def _introduction(trainer: Trainer, options: StepOptions, letters: Mapping[str, str]) -> str:
    """Return in words what a step is, and which letter stands for which core."""
    lengths, features = trainer.source.windows.episode_lengths, trainer.source.features
    assert features is not None  # vision is frozen
    distinct = max(len(rows.unique()) for rows in features.rows.values())
    cores = "\n".join(f"  {letter}  {core}" for core, letter in letters.items())
    return f"""\
{len(lengths)} episodes of {min(lengths)} to {max(lengths)} ticks, whole, in batches of \
{options.batch_size}; of {sum(lengths)} frames a camera
{distinct} are distinct. Vision is frozen; weight of the recall loss {options.recall_weight:g}.

{cores}
"""
