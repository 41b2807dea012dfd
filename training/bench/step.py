"""`ttm bench step`: the time of a training step on whole episodes, by part.

Each core is compared, on the same batches and in turns, with an LSTM of as many weights. Hooks on the
modules, and on the gradients of what passes between them, mark where one part of a step ends and the
next one begins, so that every moment of a step belongs to one part.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from rich.console import Console
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ttm.datasets.writer import EpisodeWriter
from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.cores.registry import core_to_dict, sized_like, with_options
from ttm.policy.engines import cpu_threads
from ttm.policy.errors import options, require_at_least, require_some
from ttm.policy.policy import Policy
from ttm.policy.spec import PolicySpec, checkpoint_path, random_observation
from ttm.training.bench.common import BenchCommand, Cell, Figures, Report, counted_step, rows_table
from ttm.training.data import FeatureCache
from ttm.training.losses import TrainingBatch
from ttm.training.network import parameters_and_tokens
from ttm.training.options import FrozenVisionConfig, LossConfig, TrainOptions
from ttm.training.runtime import keep_freed_memory
from ttm.training.sequence_model import lstm_with_parameters, split_sight
from ttm.training.train import assembled
from ttm.training.trainer import Trainer

OURS = "ttm write=gated read=attend process_memory=true"
"""The options of the Token Turing Machine that learn to remember; see `TokenTuringConfig`."""
EPISODES, TICKS = 32, (30, 60)
"""Made-up episodes, of which every tenth is held out, and the ticks of the shortest and the longest."""
BATCH_SIZE = 16
RECALL_WEIGHT = 2.0
WARM_UP = 2
"""Steps of each training that are not counted."""

Part = Literal["batch", "cameras", "inputs", "core", "head", "recall", "weights"]
Pass = Literal["forward", "backward"]
PART_NAMES: dict[Part, str] = {
    "batch": "batch: gathering",
    "cameras": "camera tokens",
    "inputs": "other tokens, sight",
    "core": "core",
    "head": "head and losses",
    "recall": "recall loss",
    "weights": "optimiser, average",
}

NOTES = """\
  weights     of the core and of its sight memory; an LSTM "of as many weights" has as many within 2 %.
  products    millions of multiply-adds of the core in the matrix products of one tick.
  processor   seconds of all threads together; wall: seconds on the clock.
  ratio       to the LSTM of as many weights, on the same batches; bar: 1.5 or less.
  backward    includes the losses themselves.
All are medians over the steps, so that the parts need not add up.
"""


@dataclass(frozen=True)
class Contender:
    """A core with its options."""

    label: str
    """Name and options, as the user gives them."""
    name: str
    options: tuple[str, ...]
    parameters: int
    """Number of weights of the core and the sight memory."""
    multiply_adds: int
    """Multiply-adds of the matrix products of one tick of the core, forward."""
    sight_tokens: int = 0


def parsed(text: str, policy: Policy) -> Contender:
    """Return the core that a text names, at the size that it gets in `policy`.

    text: the core, its options, each FIELD=VALUE, and perhaps sight_tokens. Raises
    `UserError` if there is no such core, or it has no such options.
    """
    name, *given = text.split() or [""]
    of_core, slots = split_sight(given)
    core = with_options(sized_like(name, policy.config.core), of_core)
    weights, tokens = parameters_and_tokens(policy, slots)
    counted = counted_step(core, policy.config.width, tokens)
    return Contender(
        text, name, of_core, counted.parameters + weights, counted.multiply_adds, slots
    )


def equal_lstm(core: Contender, policy: Policy) -> Contender:
    """Return an LSTM with as many weights and as many output tokens as `core`.

    Raises `UserError` if no LSTM has as few weights.
    """
    outputs = [option for option in core.options if option.startswith("process_size=")]
    lstm = with_options(sized_like("lstm", policy.config.core), outputs)
    sizes = core.parameters, policy.config.width, parameters_and_tokens(policy, 0)[1]
    found = core_to_dict(lstm_with_parameters(lstm, *sizes, advice="give a larger core"))
    name = found.pop("kind")
    return parsed(" ".join([name, *(f"{k}={v}" for k, v in found.items())]), policy)


def trainer_of(
    core: Contender, init: Path, data: tuple[str, ...], features: FeatureCache
) -> Trainer:
    """Return the trainer of `ttm train` on whole episodes; it writes no files.

    features: of the vision of `init`; what it lacks is added.
    """
    training = TrainOptions(
        data=data,
        out=Path(),
        core=core.name,
        core_options=core.options,
        sight_tokens=core.sight_tokens,
        init=init,
        window="episode",
        batch_size=BATCH_SIZE,
        vision=FrozenVisionConfig(freeze_vision=True),
        loss=LossConfig(recall_weight=RECALL_WEIGHT),
        device="cpu",
        dry_run=True,
    )
    training.check()
    return assembled(training, Console(quiet=True), features)


@contextmanager
def made_up_episodes(policy: Policy) -> Iterator[tuple[str, ...]]:
    """Yield a folder of episodes of the robot of `policy`, in which no two frames are equal."""
    spec, size = policy.spec, policy.config.embedding_size
    with tempfile.TemporaryDirectory() as folder:
        for seed, length in enumerate(np.linspace(*TICKS, EPISODES).round().astype(int)):
            rng = np.random.default_rng(seed)
            with EpisodeWriter(Path(folder) / f"{seed}.hdf5", spec) as writer:
                for tick in range(length):
                    seen, action = random_observation(spec, rng), made_up_action(spec, rng)
                    writer.append(seen, action, timestamp_s=tick / spec.rate_hz)
                embedding = np.full(size, size**-0.5, np.float32)
                writer.finish(instruction="bench", embedding=embedding)
        yield (folder,)


def made_up_action(spec: PolicySpec, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return an action within the limits of the spec, (A,); binary parts are one of their commands."""
    low, high = spec.action_limits
    command = np.where(rng.uniform(size=spec.action_size) < 0.5, low, high)
    return np.where(spec.binary_mask, command, np.clip(rng.normal(size=low.shape), low, high))


Seconds = npt.NDArray[np.float64]
"""(2,): seconds of the processor, of all threads together, and seconds on the clock."""
PartTimes = dict[tuple[Part, Pass], Seconds]


def clocks() -> Seconds:
    return np.array([time.process_time(), time.perf_counter()])


class PartClock:
    """Adds the time since the last mark to the part that has just ended."""

    def __init__(self) -> None:
        self.taken: PartTimes = defaultdict(lambda: np.zeros(2))
        self.last = clocks()

    def ends(self, part: Part, direction: Pass) -> None:
        """Mark the end of a part."""
        now = clocks()
        self.taken[part, direction] += now - self.last
        self.last = now

    def watch(
        self, module: nn.Module, part: Part, before: Part, after: Part
    ) -> tuple[RemovableHandle, RemovableHandle]:
        """Mark the ends of `module` by hooks.

        before: the part that runs forward before it. after: the part that runs backward before it,
        since it comes after it forward.
        """

        def begins(module: nn.Module, args: tuple[Any, ...]) -> None:
            self.ends(before, "forward")
            if isinstance(args[0], Tensor) and args[0].requires_grad:
                args[0].register_hook(lambda gradient: self.ends(part, "backward"))

        def ends(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self.ends(part, "forward")
            out = output[0] if isinstance(output, tuple) else output
            out.register_hook(lambda gradient: self.ends(after, "backward"))

        return module.register_forward_pre_hook(begins), module.register_forward_hook(ends)


def timed_step(trainer: Trainer, make: Callable[[], TrainingBatch]) -> PartTimes:
    """Take a training step on the batch that `make` returns, and return the seconds of its parts.

    Losses count backward.
    """
    clock, policy = PartClock(), trainer.policy
    *cameras, last = policy.camera_tokens
    watched: list[tuple[nn.Module, Part, Part, Part]] = [
        *((camera, "cameras", "inputs", "cameras") for camera in cameras),
        (last, "cameras", "inputs", "inputs"),
        (policy.core, "core", "inputs", "head"),
        (policy.action_head, "head", "head", "head"),
    ]
    if trainer.recall is not None:
        watched.append((trainer.recall.mlp, "recall", "head", "recall"))
    handles = [handle for each in watched for handle in clock.watch(*each)]
    clock.last = clocks()
    batch = make()
    clock.ends("batch", "forward")
    trainer.backpropagate(batch)
    clock.ends("cameras", "backward")
    trainer.update_weights()
    clock.ends("weights", "forward")
    for handle in handles:
        handle.remove()
    return dict(clock.taken)


def measure_steps(
    trainers: Mapping[Contender, Trainer],
    lstm_of: Mapping[Contender, Contender],
    threads: int,
    rounds: int,
) -> list[Figures]:
    """Return a row for each training, which take turns and see the same batches: medians over `rounds` steps.

    `lstm` is the LSTM of as many weights, to which ratios refer; for such an LSTM, itself.
    """
    taken: dict[Contender, list[PartTimes]] = {core: [] for core in trainers}
    with cpu_threads(threads):
        batches = {core: each.source.sample(WARM_UP + rounds) for core, each in trainers.items()}
        for _, (core, trainer) in product(range(WARM_UP + rounds), trainers.items()):
            taken[core].append(timed_step(trainer, partial(next, batches[core])))
    counted = {core: times[WARM_UP:] for core, times in taken.items()}
    whole = {c: np.array([sum(parts.values()) for parts in counted[c]]) for c in trainers}
    rows = []
    for core in trainers:
        lstm = lstm_of.get(core, core)
        processor_ratio, wall_ratio = np.median(whole[core] / whole[lstm], axis=0).tolist()
        parts: dict[Part, Figures] = defaultdict(dict)
        for part, direction in counted[core][0]:
            parts[part][direction] = medians([times[part, direction] for times in counted[core]])
        rows.append(
            {
                "core": core.label,
                "parameters": core.parameters,
                "multiply_adds": core.multiply_adds,
                "threads": threads,
                "step": medians(whole[core]),
                "parts": parts,
                "lstm": lstm.label,
                "multiply_adds_ratio": core.multiply_adds / lstm.multiply_adds,
                "processor_ratio": processor_ratio,
                "wall_ratio": wall_ratio,
            }
        )
    return rows


def medians(seconds: Sequence[Seconds] | Seconds) -> Figures:
    """Return the medians by both clocks. seconds: (n, 2)."""
    return dict(zip(("processor", "wall"), np.median(seconds, axis=0).tolist(), strict=True))


@dataclass(frozen=True)
class BenchStepCommand(BenchCommand):
    """Time a training step on whole episodes with frozen vision, part by part.

    The step is that of `ttm train --init … --freeze-vision --window episode --recall-weight 2`. Each
    core is compared, in the same run, with an LSTM of as many weights. Takes some minutes; run it
    while nothing else runs.
    """

    cores: tuple[str, ...] = (OURS, "ttm")
    """Cores, each in quotes: its name, and options as of `ttm train --core-options`."""
    data: tuple[str, ...] = ()
    """Episodes: HDF5 files, folders of them, or globs in quotes. Default: made-up episodes of 30 to 60
    ticks of the robot of --init, in which no two frames are equal."""
    init: Path = Path("shipped")
    """The checkpoint whose vision is frozen; `shipped` is the policy that comes with the project."""
    threads: tuple[int, ...] = (1, 2)
    """Numbers of CPU threads; all is timed with each of them."""
    rounds: int = 10
    """Steps of each core that are timed with each number of threads, in turns."""

    def measure(self, report: Report) -> None:
        """Time all cores and their LSTMs."""
        require_some(options(self, "cores", "threads"))
        require_at_least(1, options(self, "rounds") | {"--threads": min(self.threads)})
        keep_freed_memory()
        policy = load_checkpoint(checkpoint_path(self.init))[0]
        ours = [parsed(text, policy) for text in self.cores]
        lstm_of = {core: equal_lstm(core, policy) for core in ours}
        with nullcontext(self.data) if self.data else made_up_episodes(policy) as data:
            cores = dict.fromkeys([*lstm_of, *lstm_of.values()])
            features = FeatureCache(policy, policy.spec.cameras)
            trainers = {core: trainer_of(core, self.init, data, features) for core in cores}
            letters = dict(zip((core.label for core in cores), ascii_uppercase, strict=False))
            lengths = trainers[ours[0]].source.windows.episode_lengths
            report.text(
                f"{len(lengths)} episodes of {min(lengths)} to {max(lengths)} ticks, whole, in batches "
                f"of {BATCH_SIZE}. Vision is frozen; weight of the recall loss {RECALL_WEIGHT:g}.\n\n"
                + "".join(f"  {letter}  {core}\n" for core, letter in letters.items())
            )
            report.figures["steps"] = []
            for threads in self.threads:
                rows = measure_steps(trainers, lstm_of, threads, self.rounds)
                report.figures["steps"] += rows
                print_steps(report, rows, letters)
        report.text(NOTES)


def print_steps(report: Report, rows: Sequence[Figures], letters: Mapping[str, str]) -> None:
    """Print whole steps, and their parts with a column for each core. letters: core -> its letter."""
    steps: dict[str, Cell] = {
        "core": lambda row: letters[row["core"]],
        "weights": "{parameters:,}",
        "products": lambda row: f"{row['multiply_adds'] / 1e6:.1f} M",
        "ratio": "{multiply_adds_ratio:.2f}",
        "processor": "{step[processor]:.3f} s",
        "ratio ": "{processor_ratio:.2f}",
        "wall": "{step[wall]:.3f} s",
        "ratio  ": "{wall_ratio:.2f}",
        "to": lambda row: letters[row["lstm"]],
    }
    threads = rows[0]["threads"]
    title = f"A training step on {threads} CPU thread{'s' * (threads > 1)}"
    report.table(rows_table(title, steps, rows))

    def milliseconds(row: Figures, part: Part) -> str:
        ways = row["parts"].get(part, {}).values()
        return " + ".join(f"{seconds['processor'] * 1e3:.0f}" for seconds in ways)

    parts: dict[str, Cell] = {"part": lambda part: PART_NAMES[part]}
    parts |= {letters[row["core"]]: partial(milliseconds, row) for row in rows}
    taken = [part for part in PART_NAMES if any(part in row["parts"] for row in rows)]
    title = "Its parts: processor time forward + backward, in milliseconds"
    report.table(rows_table(title, parts, taken))
