"""The options of `ttm data pack`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from ttm.datasets.layout import require_jpeg_quality
from ttm.datasets.observations.choices import Choices
from ttm.policy.checks import options, require_above_0


@dataclass(frozen=True)
class DataPackCommand:
    """Write a data set once more, with its frames decoded, at the size of a training, in a few files.

    Frames that are too many for the memory are read at every step of a training. Packed ones need
    neither decoding nor resizing, and a few large files suit slow disks. Training on what is packed
    equals training on the data themselves with the same --image-size. Members that a training does
    not read are left out.

    For example:
      ttm data pack demos --out demos_224 --image-size 224
      ttm train --data demos_224 --out runs/mine
    """

    source: Annotated[Positional[str], arg(metavar="EPISODES")]
    """An HDF5 file, a folder of them, or a glob in quotes."""

    out: Path
    """The folder to write."""

    image_size: int
    """The side to which all frames are resized, in pixels, as by `ttm train --image-size`."""

    jpeg_quality: int | None = None
    """1 to 95 writes JPEGs, which take a tenth of the space, and change the frames a little. Default:
    frames as they are, uncompressed."""

    file_gib: float = 4.0
    """A new file is begun when one holds so many GiB of frames, counted without JPEG's compression."""

    choices: OmitArgPrefixes[Choices] = field(default_factory=Choices)

    overwrite: bool = False
    """Replace the folder if it is there and holds packed files only."""

    def run(self) -> int:
        """Pack and print what was written; return the exit code."""
        require_above_0(options(self, "image_size", "file_gib"))
        require_jpeg_quality("--jpeg-quality", self.jpeg_quality)
        from ttm.datasets.pack.pack import pack_and_report

        return pack_and_report(
            self.source,
            self.out,
            self.image_size,
            jpeg_quality=self.jpeg_quality,
            file_gib=self.file_gib,
            choices=self.choices,
            overwrite=self.overwrite,
        )
