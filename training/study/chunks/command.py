"""`ttm study chunks`: why Hourglass needs vanilla layers around what it shortens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttm.policy.errors import UserError
from ttm.training.common.core_names import CoreName
from ttm.training.option_checks import require_1_or_more, require_some
from ttm.training.study.symbol_study import SymbolStudyCommand

if TYPE_CHECKING:
    from ttm.training.study.chunks.training import ChunkOptions


@dataclass(frozen=True)
class StudyChunksCommand(SymbolStudyCommand):
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

    def run(self) -> int:
        """Trains them one after another; returns the exit code."""
        self._validate()
        # Here, so that `ttm --help` does not load torch.
        import torch
        from rich.console import Console

        from ttm.training.common.allocator import keep_freed_memory
        from ttm.training.common.tables import write_figures
        from ttm.training.study.chunks.report import (
            HEADER,
            chunk_models,
            chunk_table,
            progress_line,
            to_json,
        )
        from ttm.training.study.chunks.training import train_chunks

        models, options = (
            chunk_models(self.core, self.hierarchies, self.core_options),
            self._options(),
        )
        keep_freed_memory()
        torch.set_num_threads(self.threads)
        progress, results = Console(stderr=True, highlight=False), []
        for letters in self.vocabularies:
            for model in models:
                for seed in self.seeds:
                    limit = model.limit(letters)
                    results.append(
                        train_chunks(model.name, model.config, letters, limit, seed, options)
                    )
                    progress.print(progress_line(results[-1]), soft_wrap=True)
        console = Console(highlight=False)
        console.print(HEADER.format(steps=self.steps, threads=self.threads), soft_wrap=True)
        console.print(chunk_table(results))
        write_figures(console, self.json, to_json(models, options, results))
        return 0

    def _options(self) -> ChunkOptions:
        from ttm.training.study.chunks.training import ChunkOptions

        return ChunkOptions(self.steps, self.width, self.batch_size, self.learning_rate)

    def _validate(self) -> None:
        self.check()
        require_some(self, "core", "hierarchies", "vocabularies")
        require_1_or_more(self, "steps")
        if min(self.vocabularies) < 2:
            raise UserError(
                f"--vocabularies has {min(self.vocabularies)}; give numbers of letters, 2 or more"
            )
