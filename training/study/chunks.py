"""`ttm study chunks`: why Hourglass needs vanilla layers around what it shortens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ttm.policy.errors import UserError
from ttm.training.core_names import CoreName

if TYPE_CHECKING:
    from ttm.training.study.chunk_training import ChunkOptions


@dataclass(frozen=True)
class StudyChunksCommand:
    """Train memories to tell the next symbol of chunks L#L (the Hourglass paper's appendix A.1).

    Hourglass with a layer at full length before and after the shortened ones learns that the third symbol repeats the
    first; without one it cannot. Any other core that remembers two symbols can. Takes some minutes.
    """

    core: tuple[CoreName, ...] = ("hourglass", "ttm")
    """Memories to compare; Hourglass once for each of --hierarchies."""
    hierarchies: tuple[str, ...] = ("1@1 1@3 1@1", "0@1 1@3 0@1")
    """Of Hourglass, layers@scale; each in quotes."""
    vocabularies: tuple[int, ...] = (2, 4, 26)
    """V, how many letters there are."""
    steps: int = 600
    seeds: tuple[int, ...] = (0,)
    """One training for each, with other first weights and other sequences; the held-out sequences stay."""
    core_options: tuple[str, ...] = ()
    """Fields of all cores named, such as `upsampling=repeat`; the sizes of the study otherwise."""
    width: int = 64
    """D, of the core and of the symbols' embedding."""
    batch_size: int = 32
    learning_rate: float = 1e-3
    """Of Adam."""
    threads: int = 1
    """CPU threads. Figures differ a little with their number, since sums are rounded in another order."""
    json: Path | None = None
    """Also write all figures to this file."""

    def run(self) -> int:
        """Trains them one after another; returns the exit code."""
        self._validate()
        # Here, so that `ttm --help` does not load torch.
        import torch
        from rich.console import Console

        from ttm.training.allocator import keep_freed_memory
        from ttm.training.study.chunk_report import HEADER, chunk_models, chunk_table, progress_line, to_json
        from ttm.training.study.chunk_training import train_chunks

        models, options = chunk_models(self.core, self.hierarchies, self.core_options), self._options()
        keep_freed_memory()
        torch.set_num_threads(self.threads)
        progress, results = Console(stderr=True, highlight=False), []
        for letters in self.vocabularies:
            for model in models:
                for seed in self.seeds:
                    limit = model.limit(letters)
                    results.append(train_chunks(model.name, model.config, letters, limit, seed, options))
                    progress.print(progress_line(results[-1]), soft_wrap=True)
        console = Console(highlight=False)
        console.print(HEADER.format(steps=self.steps, threads=self.threads), soft_wrap=True)
        console.print(chunk_table(results))
        if self.json is not None:
            self.json.parent.mkdir(parents=True, exist_ok=True)
            self.json.write_text(to_json(models, options, results))
            console.print(f"figures: {self.json}", soft_wrap=True)
        return 0

    def _options(self) -> ChunkOptions:
        from ttm.training.study.chunk_training import ChunkOptions

        return ChunkOptions(self.steps, self.width, self.batch_size, self.learning_rate)

    def _validate(self) -> None:
        for name in ("core", "hierarchies", "vocabularies", "seeds"):
            if not getattr(self, name):
                raise UserError(f"--{name} is empty; give one value or more")
        for name in ("steps", "width", "batch_size", "threads"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} is {getattr(self, name)}; give 1 or more")
        if self.learning_rate <= 0:
            raise UserError(f"--learning-rate is {self.learning_rate}; give a number above 0")
        if min(self.vocabularies) < 2:
            raise UserError(
                f"--vocabularies has {min(self.vocabularies)}; give numbers of letters, 2 or more"
            )
