"""Packing of data sets: frames are decoded and resized once, and written uncompressed to large files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from ttm.datasets.console import track
from ttm.datasets.dataset import open_dataset
from ttm.datasets.description import Choices
from ttm.datasets.formats.hdf5 import (
    FRAMES_A_READ,
    fits_spec,
    has_own_spec,
    recording_of,
    write_demo_file,
)
from ttm.datasets.formats.recording import FrameStream, Recording, Source
from ttm.datasets.frames import Frames
from ttm.datasets.layout import require_jpeg_quality
from ttm.datasets.reader import EpisodeReader
from ttm.datasets.tools.convert import require_apart, write_whole
from ttm.datasets.windows import resized_frames, resized_spec
from ttm.policy.errors import UserError, options, require_above_0
from ttm.policy.spec import CameraSpec, PolicySpec


@dataclass(frozen=True)
class Packed:
    """What was written."""

    num_episodes: int
    num_ticks: int
    num_files: int
    num_bytes: int


def pack_dataset(
    source: str | Path,
    out: Path,
    image_size: int,
    *,
    jpeg_quality: int | None = None,
    file_gib: float = 4.0,
    choices: Choices | None = None,
    overwrite: bool = False,
) -> Packed:
    """Write the episodes of `source` to files in the folder `out`, with square frames of `image_size`.

    jpeg_quality: None for frames as they are, uncompressed. file_gib: a new file is begun at so many
    GiB of frames, counted without compression. Raises `UserError` if there is no camera, or the folder
    may not be written.
    """
    choices = choices or Choices()
    require_apart(source, out)
    episodes = open_dataset(source, choices=choices)
    if not episodes.spec.cameras:
        raise UserError(
            f"{source} has no camera whose frames could be packed; train on it as it is"
        )
    sizes = {camera.name: (image_size, image_size) for camera in episodes.spec.cameras}
    spec = resized_spec(episodes.spec, sizes)
    opened = Source(
        spec,
        len(episodes),
        recordings=lambda: (_recording(episode, spec) for episode in episodes),
        has_own_spec=has_own_spec(episodes) or choices.changes_spec,
    )
    with_spec = fits_spec(opened)
    parts = list(_parts(episodes, spec, file_gib * 2**30))

    def write(folder: Path) -> None:
        folder.mkdir()
        done = track(episodes, "packing")
        for number, part in enumerate(parts):
            write_demo_file(
                folder / f"part_{number:05d}.hdf5",
                spec,
                enumerate(_recording(next(done), spec) for _ in part),
                with_spec=with_spec,
                jpeg_quality=jpeg_quality,
                compression="none",
            )

    write_whole(out, write, contents=["part_*.hdf5"], overwrite=overwrite)
    size = sum(path.stat().st_size for path in out.iterdir())
    return Packed(len(episodes), episodes.num_ticks, len(parts), size)


def pack_and_report(source: str, out: Path, image_size: int, **options: Any) -> int:
    """Pack with the options of `pack_dataset`, print what was written, and return the exit code."""
    done = pack_dataset(source, out, image_size, **options)
    print(
        f"{out}: {done.num_episodes} episodes ({done.num_ticks} ticks) with frames of "
        f"{image_size}x{image_size}, {done.num_bytes / 2**30:.2f} GiB in {done.num_files} files"
    )
    return 0


def _parts(
    episodes: Sequence[EpisodeReader], spec: PolicySpec, limit: float
) -> Iterator[list[EpisodeReader]]:
    """Cut the episodes into runs whose uncompressed frames take about `limit` bytes."""
    tick = sum(camera.height * camera.width * 3 for camera in spec.cameras)
    part: list[EpisodeReader] = []
    size = 0
    for episode in episodes:
        part.append(episode)
        size += episode.num_samples * tick
        if size >= limit:
            yield part
            part, size = [], 0
    if part:
        yield part


def _recording(episode: EpisodeReader, spec: PolicySpec) -> Recording:
    cameras = {
        camera.name: FrameStream(partial(_frames, episode, camera)) for camera in spec.cameras
    }
    return replace(recording_of(episode), cameras=cameras)


def _frames(episode: EpisodeReader, camera: CameraSpec) -> Iterator[Frames]:
    for start in range(0, episode.num_samples, FRAMES_A_READ):
        frames = episode.frames(camera.name, start, start + FRAMES_A_READ)
        yield from resized_frames(frames, camera)


# The options of `ttm data pack`.


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

        return pack_and_report(
            self.source,
            self.out,
            self.image_size,
            jpeg_quality=self.jpeg_quality,
            file_gib=self.file_gib,
            choices=self.choices,
            overwrite=self.overwrite,
        )
