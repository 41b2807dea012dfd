"""Conversion of a data set from one format to another, episode by episode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ttm.datasets.convert.formats import (
    FORMATS,
    reader_of,
    refuse_unheeded,
    require_format,
    writer_of,
)
from ttm.datasets.convert.options import ConvertOptions
from ttm.datasets.convert.output import refuse_overwriting, require_apart, write_whole
from ttm.datasets.convert.recognise import recognise
from ttm.datasets.convert.recording import Recording, Source, require_fit
from ttm.datasets.episode_file import READ_ERRORS
from ttm.datasets.layout import SUFFIXES
from ttm.datasets.progress import track
from ttm.policy.errors import UserError, printable
from ttm.policy.spec import require_plain

DAMAGE = (*READ_ERRORS, IndexError, AttributeError, OverflowError)
"""What libraries raise for damaged files where a reader does not say more."""


@dataclass(frozen=True)
class Conversion:
    """What was converted."""

    source_format: str
    target_format: str
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

    One episode is in memory at a time, and of its frames a few. `target` appears when all is
    written. Raises `UserError` if a format is unknown, data do not fit, or `target` exists.
    """
    options = options or ConvertOptions()
    options.validate()
    source, target = Path(source).expanduser(), Path(target).expanduser()
    require_format(to, source, target)
    name = recognise(source, allow_external=options.choices.allow_external)
    refuse_unheeded(name, to, options)
    require_apart(source, target)
    _require_suffix(target, to)
    refuse_overwriting(target, FORMATS[to].contents, overwrite)
    writer = writer_of(to)
    counter = _Counter(options.instruction)
    try:
        # What float32 cannot hold becomes infinite, which `require_fit` refuses.
        with np.errstate(over="ignore", invalid="ignore"):
            opened: Source = reader_of(name).read_source(source, options)
            require_plain(opened.spec)
            checked = replace(opened, recordings=lambda: counter.checked(opened))
            write_whole(
                target,
                lambda partial: writer.write(checked, partial, options),
                contents=FORMATS[to].contents,
                overwrite=overwrite,
            )
    except DAMAGE as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{source} cannot be converted; as {name} it is damaged, or of another kind than is known "
            f"({type(error).__name__}: {error})"
        ) from error
    return Conversion(name, to, opened.num_episodes, counter.num_ticks, opened.notes)


class _Counter:
    """Passes recordings on, and counts the ticks of the last pass."""

    def __init__(self, instruction: str | None) -> None:
        self.num_ticks = 0
        self._instruction = instruction

    def checked(self, source: Source) -> Iterator[Recording]:
        """Yield the recordings, which fit the spec, with the given instruction if they have none."""
        self.num_ticks = 0
        for recording in track(source.recordings(), "converting", total=source.num_episodes):
            self.num_ticks += len(recording.actions)
            if self._instruction and not recording.instruction:
                recording = replace(recording, instruction=self._instruction)
            yield require_fit(recording, source.spec)


def _require_suffix(target: Path, to: str) -> None:
    if FORMATS[to].is_file and target.suffix not in SUFFIXES:
        raise UserError(f"{target}: {to} is one file; give a name that ends in .hdf5")


def convert_and_report(
    source: str, target: Path, *, to: str, options: ConvertOptions, overwrite: bool
) -> int:
    """Convert, print what was done and what was left out, and return the exit code."""
    done = convert_dataset(source, target, to=to, options=options, overwrite=overwrite)
    print(
        f"{target}: {done.num_episodes} episodes ({done.num_ticks} ticks), "
        f"{done.source_format} to {done.target_format}"
    )
    for note in done.notes:
        print(f"note: {printable(note)}")
    return 0
