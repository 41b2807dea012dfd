"""The options of `ttm data convert`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from ttm.datasets.convert.formats import writable
from ttm.datasets.convert.options import ConvertOptions


@dataclass(frozen=True)
class DataConvertCommand:
    """Convert a data set from another project's format to ours, or from ours to another project's.

    The format of FROM is recognised. Actions, frames, proprioception, instructions, the control
    rate, success and masks are converted; what is not is named. TO appears when all is written. The
    formats and what each of them keeps are in datasets/README.md. Bags of ROS 2 are converted by `ttm
    data bags`, which takes the robot's contract.

    For example:
      ttm data convert lerobot_pusht demos
      ttm data convert demos demos_lerobot --to lerobot
      ttm data convert aloha_episodes demos --colour-order bgr
    """

    source: Annotated[Positional[str], arg(metavar="FROM")]
    """The data set to read: a file, a folder, or (of HDF5 files) a glob in quotes."""

    target: Annotated[Positional[Path], arg(metavar="TO")]
    """The file or folder to write."""

    to: Annotated[str, arg(metavar=f"{{{','.join(writable())}}}")] = "ttm"
    """The format to write."""

    options: Annotated[ConvertOptions, arg(name="")] = field(default_factory=ConvertOptions)

    overwrite: bool = False
    """Replace TO if it is there and is a data set of the format that is written."""

    def run(self) -> int:
        """Convert and print what was done; return the exit code."""
        from ttm.datasets.convert.convert import convert_and_report

        return convert_and_report(
            self.source, self.target, to=self.to, options=self.options, overwrite=self.overwrite
        )
