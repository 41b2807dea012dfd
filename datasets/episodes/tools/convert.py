"""`ttm data convert`: data sets from one format to another, episode by episode."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated

import numpy as np
from tyro.conf import Positional, arg

from ttm.datasets.console import track
from ttm.datasets.episode_file import READ_ERRORS
from ttm.datasets.formats.recording import Recording, require_fit
from ttm.datasets.formats.table import (
    FORMATS,
    ConvertOptions,
    load,
    recognise,
    refuse_unheeded,
    require_format,
)
from ttm.datasets.frames import require_jpeg_quality
from ttm.datasets.hdf5 import one_line, writing_in
from ttm.datasets.layout import SUFFIXES
from ttm.policy.errors import UserError, printable, require_above_0
from ttm.policy.files import flush_to_disk, partial_path, publish_partial
from ttm.policy.spec import require_plain


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
    to: Annotated[str, arg(metavar=f"{{{','.join(FORMATS)}}}")] = "ttm"
    """The format to write."""
    options: Annotated[ConvertOptions, arg(name="")] = field(default_factory=ConvertOptions)
    overwrite: bool = False
    """Replace TO if it is there and is a data set of the format that is written."""

    def run(self) -> int:
        """Convert, print what was done and what was left out, and return the exit code."""
        done = convert_dataset(
            self.source, self.target, to=self.to, options=self.options, overwrite=self.overwrite
        )
        print(
            f"{self.target}: {done.num_episodes} episodes ({done.num_ticks} ticks), "
            f"{done.source_format} to {self.to}"
        )
        for note in done.notes:
            print(f"note: {printable(note)}")
        return 0


DAMAGE = (*READ_ERRORS, IndexError, AttributeError, OverflowError)
"""What libraries raise for damaged files where a reader does not say more."""


@dataclass(frozen=True)
class Conversion:
    """What was converted."""

    source_format: str
    num_episodes: int
    num_ticks: int
    notes: tuple[str, ...]


def convert_dataset(
    source: str | Path,
    target: str | Path,
    *,
    to: str = "ttm",
    options: ConvertOptions | None = None,
    overwrite: bool = False,
) -> Conversion:
    """Convert the data set `source`, whose format is recognised, to the format `to` at `target`.

    Raises `UserError` if a format is unknown, data do not fit, or `target` exists.
    """
    options = options or ConvertOptions()
    require_above_0({"--rate-hz": options.rate_hz})
    require_jpeg_quality("--jpeg-quality", options.jpeg_quality)
    source, target = Path(source).expanduser(), Path(target).expanduser()
    require_format(to, source, target)
    name = recognise(source, allow_external=options.choices.allow_external)
    refuse_unheeded(name, to, options)
    require_apart(source, target)
    if FORMATS[to].is_file and target.suffix not in SUFFIXES:
        raise UserError(f"{target}: {to} is one file; give a name that ends in .hdf5")
    contents = FORMATS[to].contents
    refuse_overwriting(target, contents, overwrite)
    writer = load(to, FORMATS[to].writer)
    num_ticks = 0

    def checked() -> Iterator[Recording]:
        """Yield the recordings, which fit the spec, with the given instruction if they have none."""
        nonlocal num_ticks
        num_ticks = 0  # of the last pass
        for recording in track(opened.recordings(), "converting", total=opened.num_episodes):
            num_ticks += len(recording.actions)
            if options.instruction and not recording.instruction:
                recording = replace(recording, instruction=options.instruction)
            yield require_fit(recording, opened.spec)

    def write(partial: Path) -> None:
        writer(replace(opened, recordings=checked), partial, options)

    try:
        # What float32 cannot hold becomes infinite, which `require_fit` refuses.
        with np.errstate(over="ignore", invalid="ignore"):
            opened = load(name, f"{FORMATS[name].reader}:read_source")(source, options)
            require_plain(opened.spec)
            write_whole(target, write, contents=contents, overwrite=overwrite)
    except UserError:
        raise
    except DAMAGE as error:
        what = f"{source} cannot be converted; as {name} it is damaged, or of an unknown kind"
        raise UserError(f"{what} ({type(error).__name__}: {error})") from error
    return Conversion(name, opened.num_episodes, num_ticks, opened.notes)


def write_whole(
    target: Path, write: Callable[[Path], None], *, contents: Iterable[str], overwrite: bool
) -> None:
    """Let `write` make a file or folder at a partial name, and then rename it to `target`.

    A kill at any moment leaves either nothing or what was there before at `target`, beside a hidden
    `.<name>.partial`. Only between the two renames that replace a folder, the old one is `.<name>.old`.

    contents: glob patterns of what may be in a folder that is overwritten.
    Raises `UserError` if `target` exists and may not be overwritten, or cannot be written.
    """
    refuse_overwriting(target, contents, overwrite)
    partial = partial_path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with writing_in(target.parent):
            try:
                _remove(partial)
                write(partial)
                _publish(target)
            finally:
                _remove(partial)
    except OSError as error:
        raise UserError(
            f"cannot write {target} ({one_line(error.strerror or error)}); is there space?"
        ) from error


def refuse_overwriting(target: Path, contents: Iterable[str], overwrite: bool) -> None:
    """Raise `UserError` if `target` exists and may not be replaced."""
    if not target.exists():
        return
    if not overwrite:
        raise UserError(f"{target} exists already; give another name, or --overwrite")
    patterns = tuple(contents)
    names = [item.name for item in target.iterdir()] if target.is_dir() else []
    other = [name for name in names if not any(fnmatch(name, each) for each in patterns)]
    if other:
        raise UserError(
            f"{target} holds {min(other)}, which is no part of such a data set; give another name"
        )


def require_apart(source: str | Path, target: Path) -> None:
    """Raise `UserError` if what is written would be part of what is read, or the other way round."""
    ours, theirs = target.resolve(), Path(source).expanduser().resolve()
    if ours == theirs or ours in theirs.parents or (theirs.is_dir() and theirs in ours.parents):
        raise UserError(f"{target} and {source} lie within each other; give another place")


def _publish(target: Path) -> None:
    partial, old = partial_path(target), target.with_name(f".{target.name}.old")
    if partial.is_file() and not target.is_dir():
        publish_partial(target)
        return
    for folder, _, names in os.walk(partial):
        for name in [*names, ""]:
            flush_to_disk(Path(folder, name))
    if target.exists():
        _remove(old)
        target.rename(old)
    partial.rename(target)
    flush_to_disk(target.parent)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
