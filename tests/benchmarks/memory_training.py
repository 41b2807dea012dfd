"""Which way to train through memory holds over 300 ticks? The study behind the default of `ttm train --memory`.

    ttm collect --task all --episodes 300 --out demos
    python tests/benchmarks/memory_training.py --data demos --out runs/memory_training

Takes a trained policy, keeps its vision as it is, and trains its core and head anew under each way of beginning a
window (zero memory, carried memory, burn-in), several times each, on two kinds of data: the demonstrations, and long
episodes made of demonstrations of the same instruction laid end to end. Steps, batches and ticks are the same for all.
The trainer is that of `ttm train`: the vision's tokens, computed once, stand in for the camera's frames.

Measured on held-out episodes: the error in use, and drift over 300 ticks as by `ttm bench drift`, both with the
instruction changing from episode to episode and with one instruction throughout. Half an hour to one hour on a core.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
import tyro
from lightning.fabric import Fabric
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ttm.datasets.episode_dataset import EpisodeDataset
from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.statistics import dataset_statistics
from ttm.datasets.windows.window_dataset import WindowDataset
from ttm.policy.cores.registry import with_options
from ttm.policy.cores.ttm.machine import PositionedSummarizer
from ttm.policy.network.policy import Policy
from ttm.policy.run.checkpoint import load_checkpoint
from ttm.sim.shipped import checkpoint_path
from ttm.training.bench.drift.chart import draw_drift
from ttm.training.bench.drift.measure import Chain, DriftRuns, Run, lay_chains, measure
from ttm.training.bench.drift.summary import DriftSummary, summarize
from ttm.training.cloning.behavior_cloning import BehaviorCloningConfig
from ttm.training.cloning.command import DEFAULT_BURN_IN, Memory
from ttm.training.cloning.memory_start import MEMORY_STARTS
from ttm.training.cloning.trainer import Trainer, TrainerConfig
from ttm.training.cloning.training_data import BatchSource, open_all, policy_inputs, split
from ttm.training.cloning.validation import EpisodeErrors
from ttm.training.common.schedule import Budget, WarmupCosine

KINDS = ("short", "long")


@dataclass(frozen=True)
class Study:
    """Compare the ways to train through memory."""

    data: tuple[str, ...]
    """Demonstrations for the checkpoint's robot."""
    out: Path = Path("runs/memory_training")
    """Folder for the figures and the pictures."""
    checkpoint: Path = Path("shipped")
    """Whose vision is taken."""
    core_options: tuple[str, ...] = ()
    """Changes to its core, as in `ttm train`."""
    seeds: int = 3
    """Trainings of each kind."""
    steps: int = 1000
    """Optimiser steps of each training."""
    window: int = 8
    burn_in: int = DEFAULT_BURN_IN
    batch_size: int = 16
    learning_rate: float = 1e-3
    ticks: int = 300
    """Length of the chains on which drift is measured, and"""
    chains: int = 32
    """their number."""


class LongEpisode:
    """Recorded episodes of one instruction, as one. What training windows need of an `EpisodeReader`."""

    def __init__(self, parts: Sequence[EpisodeReader]) -> None:
        self.parts = parts
        self.path, self.name, self.instruction = parts[0].path, parts[0].name, parts[0].instruction
        self.language_embedding, self.language_model = (
            parts[0].language_embedding,
            parts[0].language_model,
        )
        self.num_samples = sum(part.num_samples for part in parts)

    @property
    def actions(self) -> np.ndarray:
        return np.concatenate([part.actions for part in self.parts])

    @property
    def executed_actions(self) -> np.ndarray:
        return np.concatenate([part.executed_actions for part in self.parts])

    def proprioception(self, name: str) -> np.ndarray:
        return np.concatenate([part.proprioception(name) for part in self.parts])


class CameraTokens:
    """In place of a `FrameStore`: gives a camera's K tokens of width D as a frame of one row, K columns, D channels."""

    def __init__(self, tokens: Mapping[str, Tensor]) -> None:
        self.tokens = tokens

    def gather(self, rows: Tensor) -> dict[str, Tensor]:
        """rows: (B, T) -> camera -> (B, T, 1, K, D)."""
        return {name: values[rows].unsqueeze(2) for name, values in self.tokens.items()}


class SeenPolicy(Policy):
    """Its cameras' frames are the tokens that `CameraTokens` gives."""

    def _camera_tokens(self, images: Mapping[str, Tensor], code: Tensor) -> list[Tensor]:
        """images: camera -> (B, T, D, 1, K)."""
        return [images[camera.name].squeeze(3).transpose(2, 3) for camera in self.spec.cameras]


class Material:
    """All demonstrations, seen once by the checkpoint's vision."""

    def __init__(self, study: Study, policy: Policy) -> None:
        opened = open_all(study.data, [camera.name for camera in policy.spec.cameras])
        parts = {name: split(opened, name) for name in ("train", "valid")}
        self.statistics = dataset_statistics(parts["train"]).actions
        self._tokens = {id(e): tokens for part in parts.values() for e, tokens in see(policy, part)}
        rng = np.random.default_rng(0)
        self.training = {"short": parts["train"], "long": lengthen(parts["train"], rng)}
        self.held_out = parts["valid"]

    def windows(self, episodes: EpisodeDataset, window: int, pad: Any) -> WindowDataset:
        """Training windows with tokens for frames."""
        windows = WindowDataset(episodes, window, pad=pad, cache="none")
        parts = [part for episode in episodes for part in getattr(episode, "parts", [episode])]
        cameras = self._tokens[id(parts[0])]
        windows.frames = CameraTokens(  # type: ignore[assignment]
            {name: torch.cat([self._tokens[id(part)][name] for part in parts]) for name in cameras}
        )
        return windows


@torch.no_grad()
def see(policy: Policy, episodes: EpisodeDataset) -> list[tuple[EpisodeReader, dict[str, Tensor]]]:
    """Each episode with camera -> (ticks, K, D), the tokens that the core gets of it."""
    longest = max(episode.num_samples for episode in episodes)
    windows = WindowDataset(episodes, longest, pad="none")
    seen = []
    for number, episode in enumerate(episodes):
        tokens = policy.encode(policy_inputs(windows.gather([number])))[0, : episode.num_samples]
        sources = {camera.name: policy.token_sources[camera.name] for camera in policy.spec.cameras}
        seen.append((episode, {name: tokens[:, where].clone() for name, where in sources.items()}))
    return seen


def lengthen(episodes: EpisodeDataset, rng: np.random.Generator) -> EpisodeDataset:
    """Each episode once, in long ones of one instruction and 100 to 300 ticks (or what is left of it)."""
    made: list[Any] = []
    for instruction in dict.fromkeys(episode.instruction for episode in episodes):
        same = [episode for episode in episodes if episode.instruction == instruction]
        parts, wanted = [], rng.integers(100, 300)
        for number in rng.permutation(len(same)).tolist():
            parts.append(same[number])
            if sum(part.num_samples for part in parts) >= wanted or len(parts) == len(same):
                made.append(LongEpisode(parts))
                parts, wanted = [], rng.integers(100, 300)
        made += [LongEpisode(parts)] if parts else []
    return EpisodeDataset(made, episodes.spec, source=episodes.source)


def fresh_policy(study: Study, trained: Policy, seed: int) -> SeenPolicy:
    """`trained`, whose core and head alone are to be trained, and are new."""
    torch.manual_seed(seed)
    core = with_options(trained.config.core, study.core_options)
    policy = SeenPolicy(trained.spec, replace(trained.config, core=core))
    new = ("core.", "action_head.")
    kept = {name: value for name, value in trained.state_dict().items() if not name.startswith(new)}
    policy.load_state_dict(kept, strict=False)
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_(name.startswith(new))
    return policy


class Silence:
    """A `RunLog` that says nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def train(
    study: Study, material: Material, trained: Policy, kind: str, memory: Memory, seed: int
) -> Policy:
    """The averaged policy after training."""
    windows = material.windows(material.training[kind], study.window, "both")
    cloning = BehaviorCloningConfig()
    start = MEMORY_STARTS[memory](study.burn_in)
    source = BatchSource(windows, study.batch_size, cloning, None, seed, start)
    config = TrainerConfig(
        Budget(study.steps, None), WarmupCosine(study.learning_rate), 0.05, 0.999, 1, seed, {}, {}
    )
    with tempfile.TemporaryDirectory() as folder:
        fabric = Fabric(accelerator="cpu", devices=1)
        trainer = Trainer(
            fresh_policy(study, trained, seed), source, {}, config, Path(folder), fabric
        )
        trainer.run(Silence())  # type: ignore[arg-type]
    return trainer.average.model


@dataclass(frozen=True)
class Found:
    """What one training came to."""

    in_use: float
    """Error on held-out episodes, the memory empty at their start."""
    changing: DriftRuns
    """Chains in which the instruction changes."""
    same: DriftRuns
    """Chains of one instruction each."""
    old_memory: float
    """Part of a new memory token that is old memory: the write's weights, over the chains' last ticks."""


class Examination:
    """Held-out episodes, and chains of them."""

    def __init__(self, study: Study, material: Material) -> None:
        episodes = material.held_out
        longest = max(episode.num_samples for episode in episodes)
        self.windows, self.statistics = (
            material.windows(episodes, longest, "none"),
            material.statistics,
        )
        self.changing = lay_chains(self.windows.episode_lengths, study.chains, study.ticks, seed=0)
        self.same = self._chains_of_one_instruction(study)

    def _chains_of_one_instruction(self, study: Study) -> list[Chain]:
        lengths, texts = (
            self.windows.episode_lengths,
            [e.instruction for e in self.windows.episodes],
        )
        chains = []
        for number, text in zip(
            range(study.chains), itertools.cycle(sorted(set(texts))), strict=False
        ):
            alike = [index for index, other in enumerate(texts) if other == text]
            (chain,) = lay_chains([lengths[index] for index in alike], 1, study.ticks, seed=number)
            chains.append([stretch._replace(episode=alike[stretch.episode]) for stretch in chain])
        return chains

    def __call__(self, policy: Policy) -> Found:
        in_use = EpisodeErrors(self.windows, self.statistics).policy(policy).normalized
        changing = measure(policy, self.windows, self.statistics, self.changing)
        with old_memory(policy) as shares:
            same = measure(policy, self.windows, self.statistics, self.same)
        return Found(in_use, changing, same, float(np.mean(shares)))


@contextmanager
def old_memory(policy: Policy) -> Iterator[list[float]]:
    """The mean share of old memory in the new, tick by tick, where a Token Turing Machine writes by summarisation."""
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


def together(runs: Sequence[DriftRuns]) -> DriftRuns:
    """The trainings of all seeds, their chains side by side."""

    def stacked(some: Sequence[Run]) -> Run:
        return Run(
            np.concatenate([r.norms for r in some]), np.concatenate([r.errors for r in some])
        )

    seams = np.concatenate([r.seams for r in runs])
    return DriftRuns(stacked([r.kept for r in runs]), stacked([r.control for r in runs]), seams)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.3f}"


def last_error(runs: DriftRuns) -> float:
    """Error of the last 100 ticks, the memory kept."""
    return float(np.sqrt(runs.kept.errors[:, -100:].mean()))


def report(
    console: Console, study: Study, found: Mapping[tuple[str, str], list[Found]]
) -> dict[str, Any]:
    """Prints and draws; returns the figures."""
    table = Table(
        title=f"{study.steps} steps, {study.seeds} seeds: mean ± deviation over seeds; 95 % intervals"
    )
    headings = [
        "trained on",
        "memory",
        "error in use",
        "old memory",
        "chains",
        "error, last 100",
        "drift",
        "norm",
    ]
    for heading in [*headings, "cost of keeping", "verdict"]:
        table.add_column(heading)
    figures: dict[str, Any] = {}
    drawn: dict[tuple[str, str], dict[str, DriftSummary]] = {}
    for (kind, memory), some in found.items():
        errors, shares = [f.in_use for f in some], [f.old_memory for f in some]
        entry: dict[str, Any] = {"error_in_use": errors, "old_memory": shares}
        for chains in ("changing", "same"):
            runs = [getattr(f, chains) for f in some]
            summary = summarize(together(runs), bin_ticks=20)
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
            each = [summarize(run, bin_ticks=20).drift.value for run in runs]
            entry[chains] = {"error_last_100": last, "drift_of_each": each, **summary.to_json()}
        figures[f"{kind}, {memory}"] = entry
    console.print(table)
    for (kind, chains), summaries in drawn.items():
        draw_drift(summaries, study.out / f"trained_on_{kind}_{chains}_instruction.png")
    return figures


def main() -> None:
    study = tyro.cli(Study)
    study.out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, width=170)
    torch.set_num_threads(1)
    trained, _ = load_checkpoint(checkpoint_path(study.checkpoint))
    material = Material(study, trained)
    examine = Examination(study, material)
    found: dict[tuple[str, str], list[Found]] = {}
    for seed in range(study.seeds):
        for kind, memory in itertools.product(KINDS, get_args(Memory)):
            result = examine(train(study, material, trained, kind, memory, seed))
            found.setdefault((kind, memory), []).append(result)
            console.print(f"{kind}, {memory}, seed {seed}: error in use {result.in_use:.3f}")
        figures = report(console, study, found)  # after each seed: it is long until the last
        (study.out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
