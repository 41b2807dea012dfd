"""`ttm study chunks`: why does Hourglass need vanilla layers around the layers that it shortens?"""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.study.chunks.options import ChunksOptions


@dataclass(frozen=True)
class StudyChunksCommand(ChunksOptions):
    """Train memories to predict the next symbol of chunks L#L (the Hourglass paper's appendix A.1).

    Hourglass learns that the third symbol repeats the first if it has a layer at full length before
    and after the shortened ones; without them it cannot. Any other core that remembers two symbols
    can. Takes some minutes.
    """

    def run(self) -> int:
        """Train the models one after another, print the table, and return the exit code."""
        self.check()
        from ttm.training.study.chunks.study import run  # loads torch, which `ttm --help` must not

        return run(self)
