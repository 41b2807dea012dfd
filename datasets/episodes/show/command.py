"""The options of `ttm data show`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import OmitArgPrefixes

from ttm.datasets.observations.choices import Choices
from ttm.policy.checks import options, require_at_least


@dataclass(frozen=True)
class DataShowCommand:
    """Show what is in a data set: episodes, steps, rate, cameras, ranges, instructions, success.

    With --sheet, also write a contact sheet for each camera: a picture whose rows are episodes and
    whose columns are evenly spaced ticks.

    For example:
      ttm data show demos
      ttm data show demos --sheet sheet.png
      ttm data show "demos/pick_*.hdf5" --mask valid
      ttm data show theirs.hdf5 --spec theirs.yaml    # writes it; edit it and give it with --spec
    """

    path: Annotated[str, tyro.conf.Positional]
    """An HDF5 file, a folder of them, or a glob in quotes."""

    mask: str | None = None
    """Show only the episodes of this mask, such as train or valid."""

    sheet: Path | None = None
    """Where to write the contact sheet, as .png or .jpg. With several cameras there is one file for
    each, with the camera's name added. None writes no contact sheet."""

    rows: int = 12
    """The number of episodes on the contact sheet, evenly spread over the data set."""

    columns: int = 8
    """The number of ticks of each episode on the contact sheet, from its first to its last."""

    choices: OmitArgPrefixes[Choices] = field(default_factory=Choices)

    def run(self) -> int:
        """Print the summary and write the contact sheets; return the exit code."""
        require_at_least(1, options(self, "rows", "columns"))
        from ttm.datasets.show.report import show_dataset

        show_dataset(
            self.path,
            mask=self.mask,
            sheet=self.sheet,
            rows=self.rows,
            columns=self.columns,
            choices=self.choices,
        )
        return 0
