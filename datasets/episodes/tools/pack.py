"""`ttm data pack`: frames are decoded and resized once, and written uncompressed to large files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated

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
from ttm.datasets.frames import Frames, require_jpeg_quality
from ttm.datasets.reader import EpisodeReader
from ttm.datasets.tools.convert import require_apart, write_whole
from ttm.datasets.windows import reduced_spec, resized_frames
from ttm.policy.errors import UserError, options, require_above_0
from ttm.policy.spec import CameraSpec, PolicySpec


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
    """The greatest height and width of frames, in pixels, as in `ttm train --image-size`."""
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
        num_episodes, num_ticks, num_files = pack_dataset(self)
        size = sum(path.stat().st_size for path in self.out.iterdir())
        print(
            f"{self.out}: {num_episodes} episodes ({num_ticks} ticks) with frames of at "
            f"most {self.image_size}x{self.image_size}, {size / 2**30:.2f} GiB in {num_files} files"
        )
        return 0


def pack_dataset(options: DataPackCommand) -> tuple[int, int, int]:
    """Write the packed episodes; return the numbers of episodes, ticks and files.

    Raises `UserError` if there is no camera, or the folder may not be written.
    """
    source, out = options.source, options.out
    require_apart(source, out)
    episodes = open_dataset(source, choices=options.choices)
    if not episodes.spec.cameras:
        raise UserError(f"{source} has no camera whose frames could be packed")
    spec = reduced_spec(episodes.spec, options.image_size)
    own = has_own_spec(episodes) or options.choices.changes_spec
    packed = Source(spec, len(episodes), lambda: (_recording(each, spec) for each in episodes), own)
    with_spec = fits_spec(packed)
    parts = list(_parts(episodes, spec, options.file_gib * 2**30))

    def write(folder: Path) -> None:
        folder.mkdir()
        done = track(episodes, "packing")
        for number, part in enumerate(parts):
            write_demo_file(
                folder / f"part_{number:05d}.hdf5",
                spec,
                enumerate(_recording(next(done), spec) for _ in part),
                with_spec=with_spec,
                jpeg_quality=options.jpeg_quality,
                compression="none",
            )

    write_whole(out, write, contents=["part_*.hdf5"], overwrite=options.overwrite)
    return len(episodes), episodes.num_ticks, len(parts)


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
    streams = {each.name: FrameStream(partial(_frames, episode, each)) for each in spec.cameras}
    return replace(recording_of(episode), cameras=streams)


def _frames(episode: EpisodeReader, camera: CameraSpec) -> Iterator[Frames]:
    for start in range(0, episode.num_samples, FRAMES_A_READ):
        frames = episode.frames(camera.name, start, start + FRAMES_A_READ)
        yield from resized_frames(frames, camera)
