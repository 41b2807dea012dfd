"""The recorded episodes of a folder, with pictures and films. All calls may take a while."""

from __future__ import annotations

import multiprocessing
import re
import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import simplejpeg

from ttm.datasets.edit.edit import Labels, Success, delete_episodes, label_episodes, undo_edit
from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.layout import SUFFIXES, natural_key
from ttm.datasets.play.episode_film import film_frames
from ttm.datasets.play.film import Film
from ttm.policy.errors import UserError

THUMBNAIL_QUALITY = 80

_NAME = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]*")
_SUCCESS: dict[bool, Success] = {True: "true", False: "false"}


@dataclass(frozen=True)
class _Read:
    """What an episode file says of itself, at the state that `version` stands for."""

    version: int
    facts: dict[str, Any]


class Album:
    """Lists, shows and changes the episode files that lie directly in a folder.

    An episode is named by its file. Names that are not listed are refused, so that no name leads out of
    the folder.
    """

    def __init__(self, folder: Path, draw: Callable[[Path, Path], None] | None = None) -> None:
        """draw: writes the film of an episode to a path; by default a process of its own does."""
        self.folder, self._draw = folder, draw or draw_apart
        self._read: dict[str, _Read] = {}
        self._films = tempfile.TemporaryDirectory(prefix="ttm_films_")
        self._lock, self._drawing = threading.Lock(), threading.Lock()

    def close(self) -> None:
        """Delete the films."""
        self._films.cleanup()

    def episodes(self) -> list[dict[str, Any]]:
        """Return the facts of every episode, the newest first."""
        with self._lock:
            paths = self._paths()
            self._read = {name: self._facts(name, path) for name, path in paths.items()}
            return [self._read[name].facts for name in paths]

    def path(self, name: str) -> Path:
        """Return the file of an episode. Raises `UserError` if there is none of that name."""
        path = self._paths().get(name)
        if path is None:
            raise UserError("there is no such episode; it may have been deleted")
        return path

    def thumbnail(self, name: str) -> bytes:
        """Return the first frame of the first camera as a JPEG."""
        episode = EpisodeReader.open(self.path(name))
        if not episode.spec.cameras:
            raise UserError("this episode has no camera")
        (frame,) = episode.frames(episode.spec.cameras[0].name, 0, 1)
        return bytes(simplejpeg.encode_jpeg(frame, THUMBNAIL_QUALITY, "RGB"))

    def film(self, name: str) -> Path:
        """Return an mp4 file with cameras, action and proprioception, which is drawn when first asked for."""
        path = self.path(name)
        target = Path(self._films.name) / f"{path.stem}_{path.stat().st_mtime_ns}.mp4"
        with self._drawing:
            if not target.exists():
                self._draw(path, target)
        if not target.exists():
            raise UserError(f"{name} cannot be played; see: ttm data check {self.folder}")
        return target

    def label(self, name: str, success: bool | None, instruction: str | None) -> str:
        """Write success and instruction into an episode; None leaves either. Return what was done."""
        judged = None if success is None else _SUCCESS[success]
        label_episodes(self.path(name), Labels(instruction, judged))
        return f"{name} is labelled"

    def delete(self, name: str) -> str:
        """Delete an episode. Return what was done."""
        delete_episodes([self.path(name)])
        return f"{name} is deleted"

    def undo(self) -> str:
        """Take back the newest change. Return what was done."""
        edit = undo_edit(self.folder)
        return f"undone: {edit.what} {', '.join(file.name for file in edit.files)}"

    def _paths(self) -> dict[str, Path]:
        try:
            found = [path for path in self.folder.iterdir() if path.suffix in SUFFIXES]
        except OSError:
            return {}
        inside = self.folder.resolve()
        paths = {
            path.name: path
            for path in found
            if _NAME.fullmatch(path.name)
            and path.is_file()
            and path.resolve().is_relative_to(inside)
        }
        return dict(sorted(paths.items(), key=lambda item: natural_key(item[0]), reverse=True))

    def _facts(self, name: str, path: Path) -> _Read:
        try:
            version = path.stat().st_mtime_ns
            if name in self._read and self._read[name].version == version:
                return self._read[name]
            episode = EpisodeReader.open(path)
        except (UserError, OSError) as error:
            facts: dict[str, Any] = {"name": name, "problem": " ".join(str(error).split())}
            return _Read(0, facts)
        facts = {
            "name": name,
            "version": str(version),
            "instruction": episode.instruction,
            "success": episode.success,
            "ticks": episode.num_samples,
            "seconds": round(episode.num_samples / episode.spec.rate_hz, 1),
        }
        return _Read(version, facts)


def draw_apart(path: Path, target: Path) -> None:
    """Draw the film of an episode in a process of its own, which keeps no message of this one waiting."""
    spawning = multiprocessing.get_context("spawn")
    process = spawning.Process(target=_draw_quietly, args=(path, target), daemon=True)
    process.start()
    process.join()


def draw(path: Path, target: Path) -> None:
    """Draw the film of an episode."""
    episode = EpisodeReader.open(path)
    with Film(target, episode.spec.rate_hz) as film:
        for frame in film_frames(episode):
            film.show(frame)


def _draw_quietly(path: Path, target: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends this process itself
    draw(path, target)
