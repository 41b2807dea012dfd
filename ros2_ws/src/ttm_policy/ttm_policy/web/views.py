"""What the page shows: the controls of a robot, which follow from its contract, and the recorded episodes.

A control is named by its part of the action and its place there, as in `base.0`. Keys are physical
ones (`KeyboardEvent.code`), so that they lie together on every keyboard.
"""

from __future__ import annotations

import multiprocessing
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import simplejpeg

from ttm.datasets.layout import SUFFIXES, natural_key
from ttm.datasets.reader import EpisodeReader
from ttm.datasets.tools.edit import Labels, Success, delete_episodes, label_episodes, undo_edit
from ttm.datasets.tools.play import Film, film_frames
from ttm.policy.errors import UserError
from ttm_policy.contract import MOTION_TYPES, ActionSink
from ttm_policy.teleop.controls import ControlMap
from ttm_policy.teleop.source import TeleopContext

SIGNAL = "std_msgs/Bool"

STICKS: Sequence[tuple[str, str]] = (
    ("linear.x", "angular.z"),
    ("linear.x", "linear.y"),
    ("angular.y", "angular.z"),
)
"""Pairs of directions that one stick moves: up, and to the left. The first pair that a part has counts."""
FLIPPED = ("angular.y",)
"""Positive is to pitch down, but up on the stick is to pitch up."""
WORDS: Mapping[str, tuple[str, str]] = {
    "linear.x": ("forward", "back"),
    "linear.y": ("left", "right"),
    "linear.z": ("up", "down"),
    "angular.x": ("roll right", "roll left"),
    "angular.y": ("pitch down", "pitch up"),
    "angular.z": ("turn left", "turn right"),
}
"""Direction -> what more and less of it mean."""
MORE_OR_LESS = ("more", "less")
KEYS: Mapping[str, Sequence[Sequence[str]]] = {
    "stick": (
        ("KeyW", "KeyS", "KeyA", "KeyD"),
        ("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"),
        ("KeyI", "KeyK", "KeyJ", "KeyL"),
    ),
    "lever": (
        *(("KeyR", "KeyF"), ("KeyO", "KeyU"), ("KeyY", "KeyH")),
        *((f"Digit{i}", f"Digit{i + 1}") for i in (1, 3, 5, 7)),
    ),
    "toggle": (("Space",), ("KeyG",), ("KeyV",)),
    "hold": (("KeyT",), ("KeyB",)),
}
"""Kind of widget -> the keys of the first one, the second one, and so on."""
KEY_NAMES = {"ArrowUp": "↑", "ArrowDown": "↓", "ArrowLeft": "←", "ArrowRight": "→"}


class _Value(NamedTuple):
    """One value of the action: the name of its control, and its direction, such as `linear.x`."""

    name: str
    direction: str


def page_controls(drives: ControlMap) -> ControlMap:
    """Return controls with the values and speeds of others, but the page's names and no dead-man button."""
    renamed = [
        replace(drive, plus=f"{drive.part}.{drive.value}", minus="", dead_man="")
        for drive in drives.drives
    ]
    return ControlMap(tuple(renamed))


def page_layout(context: TeleopContext, drives: ControlMap) -> dict[str, Any]:
    """Return the widgets, keys and legend for the values that `drives` has, as JSON takes them."""
    layout = _Layout()
    # Velocities first, so that the base and the arm get the best keys.
    for sink in sorted(context.contract.actions, key=_rank):
        values = sorted(drive.value for drive in drives.drives if drive.part == sink.name)
        binary = context.spec.binary_mask[context.spec.action_slices[sink.name]].all()
        layout.add_part(sink, [_value(sink, value) for value in values], bool(binary))
    return {"widgets": layout.widgets, "keys": layout.keys, "legend": layout.legend}


def _rank(sink: ActionSink) -> int:
    """Return the place of a part in the order: base, other velocities, joints, signals."""
    if sink.type in MOTION_TYPES:
        return 1 if sink.per_second else 0
    return 3 if sink.type == SIGNAL else 2


def _value(sink: ActionSink, value: int) -> _Value:
    words = sink.fields[value].path.split(".") if sink.type in MOTION_TYPES else []
    return _Value(f"{sink.name}.{value}", ".".join(words[-2:]))


class _Layout:
    """Widgets and keys as they are given out."""

    def __init__(self) -> None:
        self.widgets: list[dict[str, Any]] = []
        self.keys: dict[str, dict[str, Any]] = {}
        self.legend: list[dict[str, Any]] = []
        self._codes = {kind: iter(codes) for kind, codes in KEYS.items()}

    def add_part(self, sink: ActionSink, values: Sequence[_Value], binary: bool) -> None:
        """Give each value of a part its place."""
        label = sink.name.replace("_", " ")
        if sink.type == SIGNAL or binary:
            for value in values:
                (self._add_hold if sink.type == SIGNAL else self._add_toggle)(label, value)
            return
        by_direction = {value.direction: value for value in values if value.direction}
        for up, left in STICKS:
            if up in by_direction and left in by_direction:
                self._add_stick(label, by_direction[up], by_direction[left])
                values = [each for each in values if each.direction not in (up, left)]
                break
        for value in values:
            self._add_lever(label, value)

    def _add_stick(self, part: str, up: _Value, left: _Value) -> None:
        sign = -1 if up.direction in FLIPPED else 1
        ways = WORDS[up.direction][::sign] + WORDS[left.direction]
        labels = dict(zip(("up", "down", "left", "right"), ways, strict=True))
        x, y = {"name": left.name, "sign": -1}, {"name": up.name, "sign": sign}
        codes = self._add("stick", part, labels=labels, x=x, y=y)
        self._bind(part, up, codes[:2], sign)
        self._bind(part, left, codes[2:])

    def _add_lever(self, part: str, value: _Value) -> None:
        labels = dict(zip(("up", "down"), WORDS.get(value.direction, MORE_OR_LESS), strict=True))
        codes = self._add("lever", part, labels=labels, y={"name": value.name, "sign": 1})
        self._bind(part, value, codes)

    def _add_toggle(self, part: str, value: _Value) -> None:
        high, low = ("Open", "Close") if "gripper" in part else ("On", "Off")
        codes = self._add("toggle", part, name=value.name, high=high, low=low)
        key = {"name": value.name, "value": 1, "toggles": True}
        self._explain(dict.fromkeys(codes, key), f"{part}: {high.lower()} or {low.lower()}")

    def _add_hold(self, part: str, value: _Value) -> None:
        codes = self._add("hold", part, name=value.name, hint="Hold")
        key = {"name": value.name, "value": 1}
        self._explain(dict.fromkeys(codes, key), f"{part}, while it is held")

    def _add(self, kind: str, part: str, **more: Any) -> Sequence[str]:
        """Add a widget, and return the keys that are left for it."""
        self.widgets.append({"kind": kind, "part": part, **more})
        return next(self._codes[kind], ())

    def _bind(self, part: str, value: _Value, codes: Sequence[str], sign: int = 1) -> None:
        """Give a value two keys, of which the first is up or left."""
        ways = zip(codes, (sign, -sign), strict=False)  # there may be no codes left
        keys = {code: {"name": value.name, "value": way} for code, way in ways}
        words = WORDS.get(value.direction, MORE_OR_LESS)[::sign]
        self._explain(keys, f"{part}: {', '.join(words)}")

    def _explain(self, keys: Mapping[str, dict[str, Any]], label: str) -> None:
        self.keys.update(keys)
        if keys:
            names = [KEY_NAMES.get(c, c.removeprefix("Key").removeprefix("Digit")) for c in keys]
            self.legend.append({"keys": names, "label": label})


QUALITY = 80
_NAME = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]*")
_SUCCESS: dict[bool, Success] = {True: "true", False: "false"}


class Album:
    """Lists, shows and changes the episode files in a folder. All calls may take a while.

    Names that are not listed are refused, so that no name leads out of the folder.
    """

    def __init__(self, folder: Path, draw: Callable[[Path, Path], None] | None = None) -> None:
        """draw: writes the film of an episode to a path; by default a process of its own does."""
        self.folder, self._draw = folder, draw or draw_apart
        self._read: dict[str, tuple[int, dict[str, Any]]] = {}
        """Name -> when the file was changed, and what it says of itself."""
        self._films = tempfile.TemporaryDirectory(prefix="ttm_films_")
        self._lock, self._drawing = threading.Lock(), threading.Lock()

    def close(self) -> None:
        """Delete the films."""
        self._films.cleanup()

    def episodes(self) -> list[dict[str, Any]]:
        """Return the facts of every episode, the newest first."""
        with self._lock:
            self._read = {path.name: self._facts(path) for path in self._paths().values()}
            return [facts for _, facts in self._read.values()]

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
        return bytes(simplejpeg.encode_jpeg(frame, QUALITY, "RGB"))

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

    def label(self, episode: str, success: bool | None, instruction: str | None) -> str:
        """Write success and instruction into an episode; None leaves either. Return what was done."""
        judged = None if success is None else _SUCCESS[success]
        label_episodes(self.path(episode), Labels(instruction, judged))
        return f"{episode} is labelled"

    def delete(self, episode: str) -> str:
        """Delete an episode. Return what was done."""
        delete_episodes([self.path(episode)])
        return f"{episode} is deleted"

    def undo(self) -> str:
        """Take back the newest change. Return what was done."""
        edit = undo_edit(self.folder)
        return f"undone: {edit.what} {', '.join(file.name for file in edit.files)}"

    def _paths(self) -> dict[str, Path]:
        """Return the files by their names, the newest first."""
        try:
            found = [path for path in self.folder.iterdir() if path.suffix in SUFFIXES]
        except OSError:
            return {}

        def is_safe(path: Path) -> bool:
            inside = path.resolve().is_relative_to(self.folder.resolve())
            return inside and path.is_file() and bool(_NAME.fullmatch(path.name))

        safe = sorted(filter(is_safe, found), key=lambda path: natural_key(path.name), reverse=True)
        return {path.name: path for path in safe}

    def _facts(self, path: Path) -> tuple[int, dict[str, Any]]:
        try:
            version = path.stat().st_mtime_ns
            if self._read.get(path.name, (None,))[0] == version:
                return self._read[path.name]
            episode = EpisodeReader.open(path)
        except (UserError, OSError) as error:
            return 0, {"name": path.name, "problem": " ".join(str(error).split())}
        return version, {
            "name": path.name,
            "version": str(version),
            "instruction": episode.instruction,
            "success": episode.success,
            "ticks": episode.num_samples,
            "seconds": round(episode.num_samples / episode.spec.rate_hz, 1),
        }


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
