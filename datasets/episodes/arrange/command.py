"""The options of `ttm data merge`, `ttm data split` and `ttm data filter`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ttm.datasets.arrange.wanted import Wanted
from ttm.policy.errors import UserError

VALID = 0.1
"""The portion that is held out by default."""


@dataclass(frozen=True)
class DataMergeCommand:
    """Merge data sets of one robot into one HDF5 file.

    Demos are copied whole, with all their members, and keep their masks, instructions and success.
    A few large files open faster than many small ones.

    For example:
      ttm data merge monday tuesday --out week.hdf5
    """

    sources: Annotated[Positional[tuple[str, ...]], arg(metavar="EPISODES …")]
    """HDF5 files, folders of them, or globs in quotes."""

    out: Path
    """The HDF5 file to write."""

    overwrite: bool = False
    """Replace the file if it is there."""

    def run(self) -> int:
        """Merge and print how many episodes there are; return the exit code."""
        from ttm.datasets.arrange.report import merge_and_report

        return merge_and_report(self.sources, self.out, self.overwrite)


@dataclass(frozen=True)
class DataSplitCommand:
    """Split a data set into several HDF5 files in one folder.

    By default these are train.hdf5 and valid.hdf5, with the masks train and valid. Copies of an
    episode go to the same side.

    For example:
      ttm data split demos --out demos_split --valid 0.1
      ttm data split demos.hdf5 --out by_task --by task
    """

    source: Annotated[Positional[str], arg(metavar="EPISODES")]
    """An HDF5 file, a folder of them, or a glob in quotes."""

    out: Path
    """The folder to write."""

    by: Literal["valid", "task", "instruction", "episode"] = "valid"
    """What has a file of its own: training and validation, or each task, instruction or episode."""

    valid: float | None = None
    """The portion of the episodes that --by valid holds out for validation; 0.1 by default."""

    seed: int | None = None
    """Which episodes --by valid holds out, 0 by default; the same seed chooses the same ones."""

    overwrite: bool = False
    """Replace the folder if it is there and holds HDF5 files only."""

    def run(self) -> int:
        """Split and print the files; return the exit code."""
        for option, value in (("--valid", self.valid), ("--seed", self.seed)):
            if value is not None and self.by != "valid":
                raise UserError(
                    f"{option} is {value:g}, but --by {self.by} holds nothing out; leave {option} out, "
                    "or split with --by valid"
                )
        from ttm.datasets.arrange.report import split_and_report

        return split_and_report(
            self.source,
            self.out,
            self.by,
            VALID if self.valid is None else self.valid,
            self.seed or 0,
            self.overwrite,
        )


@dataclass(frozen=True)
class DataFilterCommand:
    """Write those episodes of a data set that are wanted to one HDF5 file.

    For example:
      ttm data filter demos --success true --out good.hdf5
      ttm data filter demos --instruction drawer --min-ticks 10 --out drawers.hdf5
    """

    source: Annotated[Positional[str], arg(metavar="EPISODES")]
    """An HDF5 file, a folder of them, or a glob in quotes."""

    out: Path
    """The HDF5 file to write."""

    wanted: Annotated[Wanted, arg(name="")] = field(default_factory=Wanted)

    overwrite: bool = False
    """Replace the file if it is there."""

    def run(self) -> int:
        """Filter and print how many episodes were kept; return the exit code."""
        from ttm.datasets.arrange.report import filter_and_report

        return filter_and_report(self.source, self.out, self.wanted, self.overwrite)
