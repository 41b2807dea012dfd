"""Trimming, labelling and deleting recorded episodes, each of which `undo_edit` takes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py

from ttm.datasets.edit.demo_copies import (
    EMBEDDING,
    changed_in_place,
    cut_demo,
    leave_out,
    write_anew,
)
from ttm.datasets.edit.history import Edit, history_of
from ttm.datasets.episode_file import demo_group, demo_names, open_file
from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.layout import SUFFIXES
from ttm.datasets.layouts.find_files import find_files
from ttm.policy.errors import UserError

Success = Literal["true", "false", "unknown"]


@dataclass(frozen=True)
class Edited:
    """What `label_episodes` or `delete_episodes` changed."""

    count: int
    """The number of episodes."""
    folder: Path
    """What `undo_edit` takes to undo it."""


@dataclass(frozen=True)
class Labels:
    """What `label_episodes` writes. None leaves what is there."""

    instruction: str | None = None
    """The instruction that the robot followed."""
    success: Success | None = None
    """Whether it succeeded."""
    task: str | None = None
    """The name of the task, for statistics."""

    def validate(self) -> None:
        """Raise `UserError` if there is nothing to write, or an instruction without words."""
        if self == Labels():
            raise UserError("nothing to write; give --instruction, --success or --task")
        if self.instruction is not None and not self.instruction.strip():
            raise UserError("--instruction is empty; give the words that the robot followed")


def trim_episode(path: Path, start: int, stop: int | None, demo: str | None = None) -> int:
    """Keep the ticks `start` to `stop` - 1 of one episode; return how many there are.

    stop: None keeps all to the end. demo: which one, in a file of several.
    Raises `UserError` if nothing would be left, or nothing would be cut off.
    """
    episode = EpisodeReader.open(path, demo)
    length = episode.num_samples
    end = length if stop is None else stop
    if not 0 <= start < end <= length:
        raise UserError(
            f"{path}: {episode.name} has ticks 0 to {length - 1}; ticks {start} to {end - 1} are no part "
            "of them: give --start and --stop within, --stop above --start"
        )
    if end - start == length:
        raise UserError(f"{path}: these are all {length} ticks; give --start or --stop")
    what = f"trim {episode.name} to ticks {start} to {end - 1}"
    cut = cut_demo(start, end)
    history_of(path).change(what, [path], lambda file: write_anew(file, episode.name, cut))
    return end - start


def label_episodes(path: str | Path, labels: Labels, demo: str | None = None) -> Edited:
    """Write labels into all episodes of a file, folder or glob.

    demo: only this one, of one file. A new instruction drops the sentence embedding of the old one.
    Episodes that cannot be opened are labelled too, since an instruction that is no text is such a reason.
    Raises `UserError` if a file is damaged, and then leaves all as they were.
    """
    labels.validate()
    if demo is not None:
        files, count = [Path(path).expanduser()], 1
        _require_demo(files[0], demo)
    else:
        files = find_files(path)
        count = sum(len(_names(file)) for file in files)
        if not count:
            raise UserError(f"{path} has no episode (data/demo_0, …); check the path")
    place = Path(path).expanduser()
    folder = place if place.is_dir() else _common_folder(files)

    def label(file: Path) -> None:
        with changed_in_place(file) as opened:
            for name in [demo] if demo else demo_names(opened):
                _write_labels(demo_group(opened, name), labels)

    history_of(folder).change("label", files, label)
    return Edited(count, folder)


def delete_episodes(paths: Sequence[Path], demo: str | None = None) -> Edited:
    """Delete episode files, or the one demo of a file of several.

    Damaged files can be deleted too, and count as one. Raises `UserError` for what is no episode file.
    """
    paths = list(dict.fromkeys(paths))
    for path in paths:
        if not path.is_file() or path.suffix not in SUFFIXES:
            raise UserError(f"{path} is no episode file; name the HDF5 files to delete")
    folder = _common_folder(paths)
    if demo is None:
        count = sum(_count(path) for path in paths)
        history_of(folder).change("delete", paths, Path.unlink)
        return Edited(count, folder)
    if len(paths) != 1:
        raise UserError(f"--demo {demo} is of one file, but there are {len(paths)}; name one")
    _require_demo(paths[0], demo)
    if _count(paths[0]) == 1:
        return delete_episodes(paths)
    history_of(folder).change(
        f"delete {demo}", paths, lambda file: write_anew(file, demo, leave_out)
    )
    return Edited(1, folder)


def undo_edit(place: Path) -> Edit:
    """Take back the newest edit of the episodes of a file's folder, or of a folder; return it.

    Raises `UserError` if there is none, or if its files were changed again since.
    """
    return history_of(place).undo()


def _write_labels(demo: h5py.Group, labels: Labels) -> None:
    if labels.instruction is not None and not _is_text(
        demo.attrs.get("language_instruction"), labels.instruction
    ):
        demo.attrs["language_instruction"] = labels.instruction
        if EMBEDDING in demo:
            del demo[EMBEDDING]
    if labels.task is not None:
        demo.attrs["task"] = labels.task
    if labels.success == "unknown":
        demo.attrs.pop("success", None)
    elif labels.success is not None:
        demo.attrs["success"] = labels.success == "true"


def _is_text(stored: Any, text: str) -> bool:
    return isinstance(stored, str) and stored == text


def _require_demo(path: Path, demo: str) -> None:
    """Raise `UserError` unless the file has the demo, be it one that can be opened or not."""
    names = _names(path)
    if demo not in names:
        raise UserError(f"{path} has no episode '{demo}'; it has: {', '.join(names) or 'none'}")


def _names(path: Path) -> list[str]:
    with open_file(path) as file:
        return demo_names(file)


def _common_folder(files: Sequence[Path]) -> Path:
    """Return the deepest folder that all files are in. The history of a change lies there."""
    folders = [file.parent.resolve() for file in files]
    shared = [
        each
        for each in (folders[0], *folders[0].parents)
        if all(folder.is_relative_to(each) for folder in folders)
    ]
    return files[0].parent if shared[0] == folders[0] else shared[0]


def _count(path: Path) -> int:
    """Return the number of episodes in a file; 1 if it is damaged."""
    try:
        return max(len(_names(path)), 1)
    except UserError:
        return 1
