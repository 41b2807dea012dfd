"""`ttm bench drift`: the memory's norm and the action error against the tick number, over hundreds of ticks."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ttm.policy.errors import UserError
from ttm.training.option_checks import require_1_or_more

if TYPE_CHECKING:
    from rich.console import Console

    from ttm.training.bench.drift.summary import DriftSummary


@dataclass(frozen=True)
class BenchDriftCommand:
    """Measure whether a memory drifts in episodes that are much longer than those trained on.

    Lays recorded episodes end to end, to chains of --ticks ticks. The memory goes on from one to the next and the
    instruction changes, so that all ticks are alike but for the age of the memory. Beside it, the same ticks with the
    memory emptied at every episode's start, as in use. Prints a table and a verdict; OUT gets drift.png and drift.json.
    """

    data: tuple[str, ...]
    """Episodes: HDF5 files, folders of them, or globs in quotes."""
    checkpoint: tuple[Path, ...] = (Path("shipped"),)
    """One or more checkpoints; `shipped` is the policy that comes with the project."""
    out: Path = Path("runs/drift")
    """Folder for the picture and the figures."""
    ticks: int = 300
    """Length of a chain."""
    chains: int = 64
    """How many chains; more make the intervals narrower."""
    bin: int = 20
    """Ticks in a row of the table and a point of the picture."""
    filter: str = "valid"
    """The mask of the episodes. Where there are no masks, every tenth episode is "valid"."""
    seed: int = 0
    """Seed of the episodes' order; the same for all checkpoints."""
    threads: int = 0
    """CPU threads; 0 means one for each core."""

    def run(self) -> int:
        """Measures; returns the exit code."""
        require_1_or_more(self, "ticks", "chains", "bin")
        # Here, so that `ttm --help` does not load torch.
        import torch
        from rich.console import Console

        torch.set_num_threads(self.threads or os.cpu_count() or 1)
        console = Console(highlight=False)
        summaries = {}
        for name, path in self._named():
            summaries[name] = self._measure(path)
            print_drift(console, name, summaries[name])
        self._write(console, summaries)
        return 0

    def _named(self) -> list[tuple[str, Path]]:
        """Each checkpoint with a short name: trainings call their files alike, so folders tell them apart."""
        from ttm.sim.shipped import SHIPPED, checkpoint_path

        if not self.checkpoint:
            raise UserError("no checkpoint is given; name one or more with --checkpoint")
        names = [
            c.stem if str(c) == SHIPPED else f"{c.parent.name}/{c.stem}" for c in self.checkpoint
        ]
        if len(set(names)) < len(names):
            names = [str(checkpoint) for checkpoint in self.checkpoint]
        return [(name, checkpoint_path(c)) for name, c in zip(names, self.checkpoint, strict=True)]

    def _measure(self, path: Path) -> DriftSummary:
        from ttm.datasets.statistics import dataset_statistics
        from ttm.datasets.windows.windows import WindowDataset, resized_spec
        from ttm.policy.run.checkpoint import load_checkpoint
        from ttm.training.bench.drift.measure import lay_chains, measure
        from ttm.training.bench.drift.summary import summarize
        from ttm.training.cloning.training_data import open_all, split

        policy, _ = load_checkpoint(path)
        opened = open_all(self.data, [camera.name for camera in policy.spec.cameras])
        sizes = {camera.name: (camera.height, camera.width) for camera in policy.spec.cameras}
        episodes = split(opened, self.filter)
        policy.spec.require_compatible(
            resized_spec(episodes.spec, sizes), ours=str(path), theirs=episodes.source
        )
        if not len(episodes):
            raise UserError(
                f"{episodes.source}: no episode is in mask '{self.filter}'; give another --filter"
            )
        longest = max(episode.num_samples for episode in episodes)
        windows = WindowDataset(episodes, longest, pad="none", resize_to=sizes)
        statistics = dataset_statistics(
            episode for dataset in opened for episode in dataset
        ).actions
        chains = lay_chains(windows.episode_lengths, self.chains, self.ticks, self.seed)
        return summarize(measure(policy, windows, statistics, chains), self.bin, self.seed)

    def _write(self, console: Console, summaries: dict[str, DriftSummary]) -> None:
        from ttm.training.bench.drift.chart import draw_drift

        self.out.mkdir(parents=True, exist_ok=True)
        draw_drift(summaries, self.out / "drift.png")
        found = {name: summary.to_json() for name, summary in summaries.items()}
        options = {
            "data": list(self.data),
            "ticks": self.ticks,
            "chains": self.chains,
            "seed": self.seed,
        }
        written = json.dumps({"options": options, "checkpoints": found}, indent=2)
        (self.out / "drift.json").write_text(written + "\n")
        console.print(
            f"picture: {self.out / 'drift.png'}; figures: {self.out / 'drift.json'}", soft_wrap=True
        )


def print_drift(console: Console, name: str, summary: DriftSummary) -> None:
    """A table by tick number, and the verdict."""
    from rich.table import Table

    table = Table(
        "ticks", title=f"{name}: normalised action error, and norm of the memory's tokens"
    )
    for heading in ("error", "±", "error, memory reset", "±", "norm", "norm, memory reset"):
        table.add_column(heading, justify="right")
    for kept, control in zip(summary.kept, summary.control, strict=True):
        errors = (kept.error, kept.error_deviation, control.error, control.error_deviation)
        figures = (*(f"{value:.3f}" for value in errors), f"{kept.norm:.2f}", f"{control.norm:.2f}")
        table.add_row(f"{kept.first} to {kept.stop - 1}", *figures)
    console.print(table)
    console.print(f"{name} {summary.in_words()}", soft_wrap=True)
    console.print(
        f"{name}: a memory kept over seams costs {summary.cost} times the error", soft_wrap=True
    )
