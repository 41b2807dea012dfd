"""Runs `ttm study memory-start`.

The trainings of all ways have the same steps, batches and ticks. They are repeated with several
seeds, on short episodes (the demonstrations) and on long ones (demonstrations of one instruction,
joined).
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from lightning.fabric import Fabric
from rich.console import Console
from torch import Tensor

from ttm.datasets.console import TitledTable
from ttm.datasets.dataset import EpisodeDataset, dataset_statistics
from ttm.datasets.reader import EpisodeReader
from ttm.datasets.windows import RecentFrames, WindowDataset, resized_spec
from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.cores.registry import with_options
from ttm.policy.errors import options, require_above_0, require_at_least, require_some
from ttm.policy.files import write_json
from ttm.policy.policy import Policy
from ttm.policy.summarizers import PositionedSummarizer
from ttm.sim.shipped import checkpoint_path
from ttm.training.batches import BatchSource
from ttm.training.bench.drift import (
    Chain,
    ChainRun,
    DriftRuns,
    DriftSummary,
    draw_drift,
    lay_chains,
    measure,
    summarize,
)
from ttm.training.console import make_folder
from ttm.training.data import open_all, policy_inputs, split
from ttm.training.memory_start import memory_start
from ttm.training.options import Memory, MemoryStartConfig, OptimizationConfig, TrainOptions
from ttm.training.trainer import Trainer
from ttm.training.validation import EpisodeErrors

# The demonstrations of the study, seen once by the vision of a trained policy.
#
# The vision stays as it is in all trainings, so its tokens are computed once and stand in for the
# camera frames.

LONG_EPISODE = (100, 300)
"""Range of ticks from which the length of a long episode is drawn."""


class LongEpisode:
    """Several recorded episodes of one instruction, joined to one.

    It has the members of `EpisodeReader` that training windows need.
    """

    def __init__(self, parts: Sequence[EpisodeReader]) -> None:
        self.parts = parts
        first = parts[0]
        self.path, self.name, self.instruction = first.path, first.name, first.instruction
        self.language_embedding = first.language_embedding
        self.language_model = first.language_model
        self.num_samples = sum(part.num_samples for part in parts)

    @property
    def actions(self) -> np.ndarray:
        """(T, A), as in `EpisodeReader`."""
        return np.concatenate([part.actions for part in self.parts])

    @property
    def executed_actions(self) -> np.ndarray:
        """(T, A), as in `EpisodeReader`."""
        return np.concatenate([part.executed_actions for part in self.parts])

    def proprioception(self, name: str) -> np.ndarray:
        """Return (T, K), as `EpisodeReader` does."""
        return np.concatenate([part.proprioception(name) for part in self.parts])


class CameraTokens:
    """Stands in for a `FrameStore` and gives the tokens of a camera's frames instead of the frames.

    K tokens of width D come as a frame of one row, K columns and D channels.
    """

    def __init__(self, tokens: Mapping[str, Tensor]) -> None:
        """tokens: camera -> (ticks, K, D)."""
        self.tokens = tokens

    def gather(self, rows: Tensor, recent: RecentFrames | None = None) -> dict[str, Tensor]:
        """rows: (B, T) -> camera -> (B, T, 1, K, D). All tokens are in memory, without `recent`."""
        return {name: values[rows].unsqueeze(2) for name, values in self.tokens.items()}


class TokenPolicy(Policy):
    """A policy that takes the tokens of `CameraTokens` as its camera frames."""

    def _camera_tokens(self, images: Mapping[str, Tensor], code: Tensor) -> list[Tensor]:
        """images: camera -> (B, T, D, 1, K) -> (B, T, K, D) for each camera."""
        return [images[camera.name].squeeze(3).transpose(2, 3) for camera in self.spec.cameras]


class Material:
    """All demonstrations, as tokens."""

    def __init__(self, data: Sequence[str], policy: Policy) -> None:
        opened = open_all(data, like=policy.spec)
        sizes = {camera.name: (camera.height, camera.width) for camera in policy.spec.cameras}
        policy.spec.require_compatible(
            resized_spec(opened[0].spec, sizes), ours="the checkpoint", theirs=opened[0].source
        )
        parts = {name: split(opened, name) for name in ("train", "valid")}
        self.statistics = dataset_statistics(parts["train"]).actions
        self._tokens = {
            id(episode): tokens
            for part in parts.values()
            for episode, tokens in see(policy, part, sizes)
        }
        rng = np.random.default_rng(0)
        self.training = {"short": parts["train"], "long": lengthen(parts["train"], rng)}
        self.held_out = parts["valid"]

    def windows(self, episodes: EpisodeDataset, window: int, pad: Any) -> WindowDataset:
        """Return training windows that hold tokens instead of frames."""
        windows = WindowDataset(episodes, window, pad=pad, cache="none")
        parts = [part for episode in episodes for part in getattr(episode, "parts", [episode])]
        cameras = self._tokens[id(parts[0])]
        windows.frames = CameraTokens(  # type: ignore[assignment]
            {name: torch.cat([self._tokens[id(part)][name] for part in parts]) for name in cameras}
        )
        return windows


@torch.no_grad()
def see(
    policy: Policy, episodes: EpisodeDataset, resize_to: Mapping[str, tuple[int, int]]
) -> list[tuple[EpisodeReader, dict[str, Tensor]]]:
    """Return each episode with camera -> (ticks, K, D), the tokens that the core gets."""
    longest = max(episode.num_samples for episode in episodes)
    windows = WindowDataset(episodes, longest, pad="none", resize_to=resize_to)
    seen = []
    for number, episode in enumerate(episodes):
        tokens = policy.encode(policy_inputs(windows.gather([number])))[0, : episode.num_samples]
        sources = {camera.name: policy.token_sources[camera.name] for camera in policy.spec.cameras}
        seen.append((episode, {name: tokens[:, where].clone() for name, where in sources.items()}))
    return seen


def lengthen(episodes: EpisodeDataset, rng: np.random.Generator) -> EpisodeDataset:
    """Join the episodes of each instruction to long ones, each episode in exactly one of them.

    Lengths are drawn from `LONG_EPISODE`; the last long episode of an instruction gets what is
    left.
    """
    made: list[Any] = []
    for instruction in dict.fromkeys(episode.instruction for episode in episodes):
        same = [episode for episode in episodes if episode.instruction == instruction]
        parts: list[EpisodeReader] = []
        wanted = rng.integers(*LONG_EPISODE)
        for number in rng.permutation(len(same)).tolist():
            parts.append(same[number])
            if sum(part.num_samples for part in parts) >= wanted or len(parts) == len(same):
                made.append(LongEpisode(parts))
                parts, wanted = [], rng.integers(*LONG_EPISODE)
        made += [LongEpisode(parts)] if parts else []
    return EpisodeDataset(made, episodes.spec, source=episodes.source)


# Options of `ttm study memory-start`.


@dataclass(frozen=True)
class MemoryStartOptions:
    """The material, the trainings and the measurements of the study."""

    data: tuple[str, ...]
    """Demonstrations of the checkpoint's robot, with the masks `train` and `valid`."""
    out: Path = Path("runs/memory_start")
    """Folder for the figures and the pictures."""
    checkpoint: Path = Path("shipped")
    """Policy whose vision is used: a .safetensors file, or `shipped`."""
    core_options: tuple[str, ...] = ()
    """Changes to the checkpoint's core, as in `ttm train`."""
    seeds: int = 3
    """Trainings of each kind."""
    steps: int = 1000
    """Optimiser steps of each training."""
    window: int = 8
    """Ticks in a training window."""
    burn_in: int = MemoryStartConfig.burn_in
    """Ticks that run before a window, for the way burn-in."""
    batch_size: int = 16
    """Windows in a batch."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    ticks: int = 300
    """Length of the chains of episodes on which drift is measured."""
    chains: int = 32
    """Number of these chains."""

    def check(self) -> None:
        """Raise `UserError` if a value is out of range."""
        require_some(options(self, "data"))
        counts = ("seeds", "steps", "window", "burn_in", "batch_size", "ticks", "chains")
        require_at_least(1, options(self, *counts))
        require_above_0(options(self, "learning_rate"))


# `ttm study memory-start`: which memory should a training window start from?


@dataclass(frozen=True)
class StudyMemoryStartCommand(MemoryStartOptions):
    """Compare the ways of `ttm train --memory` by how well the memory holds over 300 ticks.

    Keeps the vision of a trained policy and trains its core and action head from random weights,
    with each way to start a window (zero, carry, burn-in), on the demonstrations as they are and on
    long episodes made of demonstrations of one instruction. Measures the error in use on held-out
    episodes and the drift over 300 ticks, as ttm bench drift does. Takes half an hour to an hour on
    one core.

    For example:
      ttm collect --task all --episodes 300 --out demos
      ttm study memory-start --data demos --out runs/memory_start

    """

    def run(self) -> int:
        """Run the study, print its table after each seed, and return the exit code."""
        self.check()

        return run(self)


# What the study measures of a trained policy: error in use, and drift over long chains.


@dataclass(frozen=True)
class Found:
    """The measurements of one training."""

    in_use: float
    """Normalised error on held-out episodes, whose memory is empty at their start."""
    changing: DriftRuns
    """Chains in which the instruction changes from episode to episode."""
    same: DriftRuns
    """Chains of one instruction each."""
    old_memory: float
    """Portion of a new memory token that is old memory, by the weights of the write; NaN if
    unknown."""


class Examination:
    """Held-out episodes and chains of them, on which policies are measured."""

    def __init__(self, options: MemoryStartOptions, material: Material) -> None:
        episodes = material.held_out
        longest = max(episode.num_samples for episode in episodes)
        self.windows = material.windows(episodes, longest, "none")
        self.statistics = material.statistics
        lengths = self.windows.episode_lengths
        self.changing = lay_chains(lengths, options.chains, options.ticks, seed=0)
        self.same = self._chains_of_one_instruction(options)

    def __call__(self, policy: Policy) -> Found:
        """Measure `policy`."""
        in_use = EpisodeErrors(self.windows, self.statistics).policy(policy).normalized
        changing = measure(policy, self.windows, self.statistics, self.changing)
        with old_memory(policy) as shares:
            same = measure(policy, self.windows, self.statistics, self.same)
        return Found(in_use, changing, same, float(np.mean(shares)))

    def _chains_of_one_instruction(self, options: MemoryStartOptions) -> list[Chain]:
        lengths = self.windows.episode_lengths
        texts = [episode.instruction for episode in self.windows.episodes]
        chains = []
        for number, text in zip(
            range(options.chains), itertools.cycle(sorted(set(texts))), strict=False
        ):
            alike = [index for index, other in enumerate(texts) if other == text]
            some = [lengths[index] for index in alike]
            (chain,) = lay_chains(some, 1, options.ticks, seed=number)
            chains.append([stretch._replace(episode=alike[stretch.episode]) for stretch in chain])
        return chains


@contextmanager
def old_memory(policy: Policy) -> Iterator[list[float]]:
    """Record the mean share of old memory in the new memory, tick by tick.

    The list holds NaN unless a Token Turing Machine writes by summarisation.
    """
    shares: list[float] = []

    def listen(write: Any, groups: tuple[Tensor, ...], memory: Tensor) -> None:
        tokens = torch.cat(groups, dim=1) + (0 if write.position is None else write.position)
        weights = write.summarizer.weights(tokens)  # (B, P, m)
        shares.append(float(weights[:, : groups[0].shape[1]].sum(dim=1).mean()))

    core: Any = policy.core
    if isinstance(core.unit.write, PositionedSummarizer):
        hook = core.unit.write.register_forward_hook(listen)
        yield shares
        hook.remove()
    else:
        yield [np.nan]


# The table, the pictures and the figures of `ttm study memory-start`.

COLUMNS = (
    "trained on",
    "memory",
    "error in use",
    "old memory",
    "chains",
    "error, last 100",
    "drift",
    "norm",
    "cost of keeping",
    "verdict",
)
LAST_TICKS = 100
BIN_TICKS = 20


def report(
    console: Console, out: Path, steps: int, found: Mapping[tuple[str, str], list[Found]]
) -> dict[str, Any]:
    """Print the table, write the pictures to `out`, and return the figures as plain data.

    found: (kind of episodes, memory) -> the measurements of each seed.
    """
    seeds = max(len(some) for some in found.values())
    table = TitledTable(
        f"{steps} steps, {seeds} seeds: mean ± deviation over seeds; 95 % intervals"
    )
    for heading in COLUMNS:
        table.add_column(heading)
    figures: dict[str, Any] = {}
    drawn: dict[tuple[str, str], dict[str, DriftSummary]] = {}
    for (kind, memory), some in found.items():
        errors, shares = [f.in_use for f in some], [f.old_memory for f in some]
        entry: dict[str, Any] = {"error_in_use": errors, "old_memory": shares}
        for chains in ("changing", "same"):
            runs = [getattr(f, chains) for f in some]
            summary = summarize(together(runs), bin_ticks=BIN_TICKS)
            drawn.setdefault((kind, chains), {})[memory] = summary
            last = [last_error(run) for run in runs]
            facts = (
                chains,
                spread(last),
                str(summary.drift),
                str(summary.norm_growth),
                str(summary.cost),
            )
            table.add_row(kind, memory, spread(errors), spread(shares), *facts, summary.verdict)
            each = [summarize(run, bin_ticks=BIN_TICKS).drift.value for run in runs]
            entry[chains] = {"error_last_100": last, "drift_of_each": each, **summary.to_json()}
        figures[f"{kind}, {memory}"] = entry
    console.print(table)
    for (kind, chains), summaries in drawn.items():
        draw_drift(summaries, out / f"trained_on_{kind}_{chains}_instruction.png")
    return figures


def together(runs: Sequence[DriftRuns]) -> DriftRuns:
    """Return the chains of the trainings of all seeds side by side."""

    def stacked(some: Sequence[ChainRun]) -> ChainRun:
        norms = np.concatenate([run.norms for run in some])
        return ChainRun(norms, np.concatenate([run.errors for run in some]))

    seams = np.concatenate([run.seams for run in runs])
    kept, control = stacked([run.kept for run in runs]), stacked([run.control for run in runs])
    return DriftRuns(kept, control, seams)


def spread(values: Sequence[float]) -> str:
    """Return the mean and the standard deviation over seeds as text."""
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.3f}"


def last_error(runs: DriftRuns) -> float:
    """Return the normalised error of the last `LAST_TICKS` ticks with the memory kept."""
    return float(np.sqrt(runs.kept.errors[:, -LAST_TICKS:].mean()))


# One training of the study, by the trainer of `ttm train`.

TRAINED = ("core.", "action_head.")
"""Prefixes of the weights that start at random and are trained; all others stay as they are."""


class SilentLog:
    """Stands in for a `RunLog` and writes nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def train(
    options: MemoryStartOptions,
    material: Material,
    trained: Policy,
    kind: str,
    memory: Memory,
    seed: int,
) -> Policy:
    """Train the core and the head on the episodes of `kind`; return the averaged policy."""
    windows = material.windows(material.training[kind], options.window, "both")
    start = memory_start(MemoryStartConfig(memory, options.burn_in))
    source = BatchSource(windows, options.batch_size, seed, memory=start)
    with tempfile.TemporaryDirectory() as folder:
        training = TrainOptions(
            data=(),
            out=Path(folder),
            steps=options.steps,
            optimization=OptimizationConfig(options.learning_rate),
            validations=1,
            seed=seed,
        )
        fabric = Fabric(accelerator="cpu", devices=1)
        policy = fresh_policy(options, trained, seed)
        trainer = Trainer(training, policy, source, {}, fabric)
        trainer.run(SilentLog())  # type: ignore[arg-type]
    return trainer.average.model


def fresh_policy(options: MemoryStartOptions, trained: Policy, seed: int) -> TokenPolicy:
    """Return a copy of `trained` with a new core and head, which alone require a gradient."""
    torch.manual_seed(seed)
    core = with_options(trained.config.core, options.core_options)
    policy = TokenPolicy(trained.spec, replace(trained.config, core=core))
    kept = {
        name: value for name, value in trained.state_dict().items() if not name.startswith(TRAINED)
    }
    policy.load_state_dict(kept, strict=False)
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_(name.startswith(TRAINED))
    return policy


KINDS = ("short", "long")
WIDTH = 170
"""Columns of the console that the table needs."""


def run(options: MemoryStartOptions) -> int:
    """Run the study and return the exit code. The table is printed and written after each seed."""
    trained, _ = load_checkpoint(checkpoint_path(options.checkpoint))
    make_folder(options.out)
    console = Console(highlight=False, width=WIDTH)
    torch.set_num_threads(1)
    material = Material(options.data, trained)
    examine = Examination(options, material)
    found: dict[tuple[str, str], list[Found]] = {}
    for seed in range(options.seeds):
        for kind, memory in itertools.product(KINDS, get_args(Memory)):
            result = examine(train(options, material, trained, kind, memory, seed))
            found.setdefault((kind, memory), []).append(result)
            console.print(f"{kind}, {memory}, seed {seed}: error in use {result.in_use:.3f}")
        figures = report(console, options.out, options.steps, found)
        write_json(options.out / "figures.json", figures)
    return 0
