"""Reading one episode: its facts at once, its arrays when asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ttm.datasets.frames import Frames, decode_jpeg
from ttm.datasets.layout import JPEG, natural_key
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Episode:
    """One demonstration of `num_samples` ticks (T). It holds no open file, so that it can be sent to workers.

    `success` and `seed` are None, and `instruction` and `task` empty, where the file does not tell.
    """

    path: Path
    name: str
    spec: PolicySpec
    num_samples: int
    instruction: str
    task: str
    success: bool | None
    seed: int | None
    masks: frozenset[str]

    @property
    def actions(self) -> Floats:
        """(T, A) float32, in the spec's units."""
        return self._read("actions")

    @property
    def executed_actions(self) -> Floats:
        """(T, A) float32: what was done. It is `actions`, unless these were labelled afterwards (DAgger)."""
        with self._demo() as demo:
            return np.asarray(demo.get("executed_actions", demo["actions"]), dtype=np.float32)

    @property
    def timestamps(self) -> npt.NDArray[np.float64] | None:
        """(T,) float64, seconds: when each observation was captured; None if it was not recorded."""
        with self._demo() as demo:
            return (
                np.asarray(demo["timestamps"], dtype=np.float64) if "timestamps" in demo else None
            )

    @property
    def language_embedding(self) -> Floats | None:
        """(L,) float32: the instruction's embedding, if the recorder stored one."""
        with self._demo() as demo:
            stored = demo.get("language_embedding")
            return None if stored is None else np.asarray(stored, dtype=np.float32)

    @property
    def language_model(self) -> str | None:
        """Which model made `language_embedding`, if the recorder said so."""
        with self._demo() as demo:
            stored = demo.get("language_embedding")
            return None if stored is None else _text(stored.attrs.get("language_model")) or None

    def proprioception(self, name: str) -> Floats:
        """(T, K) float32: the proprioception vector of that name, in the spec's units."""
        return self._read(f"obs/{name}")

    def frames(self, camera: str, start: int = 0, stop: int | None = None) -> Frames:
        """(n, H, W, 3) uint8 RGB: what `camera` saw in ticks `start` to before `stop` (default: all)."""
        self.spec.camera(camera)
        with self._demo() as demo:
            return self._decode(demo, camera, *slice(start, stop).indices(self.num_samples)[:2])

    def observation(self, tick: int) -> dict[str, npt.NDArray[Any]]:
        """What was seen before `actions[tick]` was taken, as the policy's runner takes it."""
        if not 0 <= tick < self.num_samples:
            raise IndexError(
                f"tick {tick} of {self.name}, which has ticks 0 to {self.num_samples - 1}"
            )
        with self._demo() as demo:
            seen = {
                camera.name: self._decode(demo, camera.name, tick, tick + 1)[0]
                for camera in self.spec.cameras
            }
            felt = {
                v.name: np.asarray(demo[f"obs/{v.name}"][tick], np.float32)
                for v in self.spec.proprioception
            }
        return {**seen, **felt}

    def _read(self, key: str) -> Floats:
        with self._demo() as demo:
            return np.asarray(demo[key], dtype=np.float32)

    @contextmanager
    def _demo(self) -> Iterator[Any]:
        with open_file(self.path) as file:
            try:
                yield file["data"][self.name]
            except (KeyError, OSError) as error:
                raise damaged(self.path, f"data/{self.name}: {error}") from error

    def _decode(self, demo: Any, camera: str, start: int, stop: int) -> Frames:
        stored = demo[f"obs/{camera}"]
        frames = stored[start:stop]
        if stored.attrs.get("encoding") == JPEG:
            frames = [decode_jpeg(data) for data in frames]
        shape = (self.spec.camera(camera).height, self.spec.camera(camera).width, 3)
        if any(frame.shape != shape for frame in frames):
            sizes = sorted({frame.shape for frame in frames})
            raise damaged(
                self.path,
                f"data/{self.name}/obs/{camera} holds frames of {sizes}, the spec says {shape}",
            )
        return np.asarray(frames, dtype=np.uint8).reshape(-1, *shape)


@contextmanager
def open_file(path: Path) -> Iterator[Any]:
    """An h5py.File for reading; a file that HDF5 does not open is a `UserError`."""
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise damaged(path, f"HDF5 cannot open it ({error})") from error
    with file:
        yield file


def damaged(path: Path, what: str) -> UserError:
    """The error for a file that is not a whole data set."""
    return UserError(
        f"{path}: {what}; `ttm data check {path}` names every fault, then delete or re-record it"
    )


def read_stored_spec(file: Any) -> PolicySpec | None:
    """The spec that our writer stored in an open file; None in files that others wrote."""
    text = _text(file["data"].attrs.get("ttm_spec")) if "data" in file else ""
    return PolicySpec.from_json(text) if text else None


def read_masks(file: Any) -> dict[str, list[str]]:
    """Filter key -> names of demos, from an open file."""
    group = file.get("mask", {})
    return {key: [_text(name) for name in group[key][()]] for key in group}


def demo_names(file: Any) -> list[str]:
    """The demos of an open file, demo_2 before demo_10."""
    return sorted(file.get("data", {}), key=natural_key)


def read_episodes(file: Any, path: Path, spec: PolicySpec) -> list[Episode]:
    """Every episode of an open file; one whose arrays do not fit the spec or each other is a `UserError`."""
    masks = read_masks(file)
    fallback = _problem_instruction(file["data"].attrs) if "data" in file else ""
    episodes = []
    for name in demo_names(file):
        demo = file["data"][name]
        _require_whole(demo, path, name, spec)
        attributes = demo.attrs
        success, seed = attributes.get("success"), attributes.get("seed")
        episodes.append(
            Episode(
                path=path,
                name=name,
                spec=spec,
                num_samples=len(demo["actions"]),
                instruction=_text(attributes.get("language_instruction"))
                or _episode_instruction(attributes)
                or fallback,
                task=_text(attributes.get("task")),
                success=None if success is None else bool(success),
                seed=None if seed is None else int(seed),
                masks=frozenset(key for key, members in masks.items() if name in members),
            )
        )
    return episodes


def expected_shapes(spec: PolicySpec) -> dict[str, tuple[int, ...]]:
    """Dataset of a demo -> the shape of one tick of it."""
    shapes: dict[str, tuple[int, ...]] = {"actions": (spec.action_size,)}
    shapes |= {f"obs/{camera.name}": (camera.height, camera.width, 3) for camera in spec.cameras}
    return shapes | {f"obs/{vector.name}": (vector.size,) for vector in spec.proprioception}


def _require_whole(demo: Any, path: Path, name: str, spec: PolicySpec) -> None:
    """Shapes alone, which cost no reading: a data set with hundreds of files must open at once."""
    for key, shape in expected_shapes(spec).items():
        if key not in demo:
            raise damaged(path, f"data/{name}/{key} is missing")
        stored = demo[key]
        if stored.shape[1:] != (() if stored.attrs.get("encoding") == JPEG else shape):
            raise damaged(
                path,
                f"data/{name}/{key} has shape {stored.shape}, the spec says (T, {str(shape)[1:]}",
            )
        if len(stored) != len(demo["actions"]):
            raise damaged(
                path, f"data/{name}/{key} has {len(stored)} ticks, actions {len(demo['actions'])}"
            )


def _episode_instruction(attributes: Any) -> str:
    """RoboCasa's place for it."""
    return _from_json(attributes.get("ep_meta"), "lang")


def _problem_instruction(attributes: Any) -> str:
    """LIBERO's place for it: one instruction a file."""
    return _from_json(attributes.get("problem_info"), "language_instruction")


def _from_json(text: Any, key: str) -> str:
    try:
        return str(json.loads(_text(text)).get(key, ""))
    except (ValueError, AttributeError):
        return ""


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else "" if value is None else str(value)
