"""The options of `ttm data check`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import tyro
from tyro.conf import OmitArgPrefixes

from ttm.datasets.observations.choices import Choices


@dataclass(frozen=True)
class DataCheckCommand:
    """Check every episode of a data set, and name each fault with its file, demo, tick and remedy.

    Finds: files that are truncated or cannot be read, missing datasets, lengths that differ, NaN,
    actions outside their limits, frames that repeat or do not decode, timestamps that run
    backwards, repeat or leave gaps, loss weights below 0, specs that differ between files, masks
    that name demos which are not there, episodes that occur twice, data that lie elsewhere. With the
    same choices, it fails whenever training would refuse the data.

    The exit code is 0 if there is no fault (warnings allowed), 1 if there are faults, and 2 if
    there is no data set, or a choice does not fit it.
    """

    path: Annotated[str, tyro.conf.Positional]
    """An HDF5 file, a folder of them, or a glob in quotes."""

    choices: OmitArgPrefixes[Choices] = field(default_factory=Choices)

    def run(self) -> int:
        """Check the data set and print the report; return the exit code."""
        from ttm.datasets.check.report import check_and_report

        return check_and_report(self.path, self.choices)
