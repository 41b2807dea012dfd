"""Reading one recorded episode: its facts at once, its arrays when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from ttm.datasets.description import Choices, describe_bare
from ttm.datasets.episode_file import (
    OpenFiles,
    damaged,
    data_group,
    decoded,
    demo_group,
    demo_names,
    instruction_of,
    mask_problems,
    open_file,
    plain_text,
    read_masks,
    read_stored_spec,
)
from ttm.datasets.frames import Frames, StoredCamera, read_frames
from ttm.datasets.hdf5 import one_line
from ttm.datasets.spec_inference import TAKE_OUT, expected_shapes, json_object, structure_problems
from ttm.datasets.writer import usable_weights
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]
Number = TypeVar("Number", bool, int)
Scalar = TypeVar("Scalar", bound=np.generic)

MOST_EMBEDDING = 2**16  # values of an instruction's embedding


def stamp_of(path: Path) -> str:
    """Return the size, modification time and change time of a file. Raises `OSError` if it is gone."""
    found = path.stat()
    return f"{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


@dataclass(frozen=True)
class KeptVectors:
    """The place of an episode's vectors in a file of the cache (`opening.py`), safetensors."""

    path: Path
    stamp: str
    """That of the episode's file when they were read."""
    starts: Mapping[str, int]
    """Name in the demo -> the row at which the vector begins; of those that the episode has."""

    def read(self, file: Path, name: str, count: int) -> Array | None:
        """Return a vector of so many rows of an episode in `file`; None if the episode lacks it.

        Raises `OSError` or `SafetensorError` if the file has changed, or the cache is gone or damaged.
        """
        if stamp_of(file) != self.stamp:
            raise OSError(f"{file} has changed")
        if name not in self.starts:
            return None
        with safe_open(self.path, "numpy") as cache:
            values: Array = cache.get_slice(name)[self.starts[name] : self.starts[name] + count]
        return values


@dataclass(frozen=True)
class EpisodeReader:
    """One recorded episode of `num_samples` ticks (T), from `EpisodeReader.open` or a data set.

    Arrays are read from the file each time they are asked for. The episode holds no file open, so
    that it can be sent to other processes.

    `success` and `seed` are None, and `instruction` and `task` empty, if the file does not contain
    them. `masks` are the filter keys (such as "train") under which the file names the episode.
    `stored` says how the frames of each camera lie in the file, and `kept` where its vectors are cached.
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
    stored: tuple[tuple[str, StoredCamera], ...] = ()
    kept: KeptVectors | None = field(default=None, compare=False, repr=False)

    @classmethod
    def open(cls, path: str | Path, name: str | None = None) -> EpisodeReader:
        """Open an episode of the HDF5 file `path`: the only one, or the demo `name` of several.

        The spec is the one that the file carries, or is inferred from all of the file's demos.
        Raises `UserError` if the file is missing, damaged or empty, if it has several episodes and
        `name` is None, or if it has none of that name.
        """
        path = Path(path).expanduser()
        with open_file(path) as file:
            names, spec = demo_names(file), read_stored_spec(file)
        some = ", ".join(names[:5]) + (f", … {names[-1]}" if len(names) > 5 else "")
        if not names:
            raise UserError(f"{path} has no episode (data/demo_0, …); record one")
        if name is None and len(names) > 1:
            raise UserError(f"{path} has {len(names)} episodes; give the name of one ({some})")
        if name is not None and name not in names:
            raise UserError(f"{path} has no episode '{name}'; it has: {some}")
        cameras: Mapping[str, StoredCamera] = {}
        if spec is None:
            described = describe_bare([(path, each) for each in names], Choices())
            spec, cameras = described.spec, described.cameras
        with open_file(path) as file:
            return read_episodes(file, path, spec, cameras, [name or names[0]])[0]

    @property
    def actions(self) -> Floats:
        """The actions (T, A) float32, in the spec's units."""
        return self._read("actions")

    @property
    def executed_actions(self) -> Floats:
        """The actions that were carried out, (T, A) float32; `actions` unless others were recorded."""
        executed = self._optional("executed_actions", np.float32)
        return self.actions if executed is None else executed

    @property
    def loss_weights(self) -> Floats:
        """The weight of each tick in the loss of a training, (T,) float32; 1 if not recorded.

        Raises `UserError` if there is not one finite weight of 0 or more for each tick.
        """
        shape = (self.num_samples,)
        weights = self._optional("loss_weights", np.float32, shape)
        if weights is None:
            return np.ones(shape, np.float32)
        if not usable_weights(weights).all():
            what = "loss_weights does not hold one weight of 0 or more for each tick"
            raise damaged(self.path, f"data/{self.name}/{what}")
        return weights

    @property
    def timestamps(self) -> npt.NDArray[np.float64] | None:
        """The capture time of each observation, (T,) float64, in seconds; None if not recorded."""
        return self._optional("timestamps", np.float64)

    @property
    def interventions(self) -> npt.NDArray[np.bool_] | None:
        """Whether a person drove in the policy's place, (T,); None if not recorded."""
        return self._optional("interventions", np.bool_)

    @property
    def language_embedding(self) -> Floats | None:
        """The instruction's sentence embedding, (L,) float32; None if not recorded."""
        with self._demo() as demo:
            stored = demo.get("language_embedding")
            if getattr(stored, "size", 0) > MOST_EMBEDDING:
                what = f"data/{self.name}/language_embedding has {stored.size} values"
                raise damaged(self.path, what, "take it out of the file")
            return None if stored is None else np.asarray(stored, dtype=np.float32)

    @property
    def language_model(self) -> str | None:
        """The name of the model that made `language_embedding`; None if not recorded."""
        with self._demo() as demo:
            stored = demo.get("language_embedding")
            return None if stored is None else decoded(stored.attrs.get("language_model")) or None

    def proprioception(self, name: str) -> Floats:
        """Return the proprioception vector `name`, (T, K) float32, in the spec's units."""
        return self._read(f"obs/{name}").reshape(self.num_samples, -1)

    def frames(
        self,
        camera: str,
        start: int = 0,
        stop: int | None = None,
        *,
        files: OpenFiles | None = None,
    ) -> Frames:
        """Return the frames of `camera` in ticks `start` to `stop` - 1, (n, H, W, 3) uint8 RGB.

        `stop` is by default the end of the episode. files: keeps the file open for the next call;
        None opens and closes it. Raises `UserError` for an unknown camera.
        """
        self.spec.camera(camera)
        ticks = slice(start, stop).indices(self.num_samples)[:2]
        with self._demo(files, f"/obs/{camera}") as stored:
            return self._decode(stored, camera, *ticks)

    def observation(self, tick: int) -> dict[str, npt.NDArray[Any]]:
        """Return what was seen before `actions[tick]` was taken, as `PolicyRunner` takes it."""
        if not 0 <= tick < self.num_samples:
            raise IndexError(f"tick {tick} of {self.name}, which has {self.num_samples} ticks")
        found: dict[str, npt.NDArray[Any]] = {}
        with self._demo() as demo:
            for camera in self.spec.cameras:
                stored = demo[f"obs/{camera.name}"]
                found[camera.name] = self._decode(stored, camera.name, tick, tick + 1)[0]
            for vector in self.spec.proprioception:
                values = np.asarray(demo[f"obs/{vector.name}"][tick], np.float32)
                found[vector.name] = np.atleast_1d(values)
        return found

    def _optional(
        self, key: str, dtype: type[Scalar], shape: tuple[int, ...] | None = None
    ) -> npt.NDArray[Scalar] | None:
        """Return an array, or None if it is not there.

        shape: nothing of a dataset of another shape is read, and NaN stands for it.
        """
        with suppress(OSError, SafetensorError):
            if self.kept is not None:
                return self.kept.read(self.path, key, self.num_samples)
        with self._demo() as demo:
            if key not in demo:
                return None
            if shape not in (None, getattr(demo[key], "shape", None)):
                return np.full(shape, np.nan, dtype)
            return np.asarray(demo[key], dtype=dtype)

    def _read(self, key: str) -> Floats:
        values = self._optional(key, np.float32)
        if values is None:
            raise damaged(self.path, f"data/{self.name}/{key} is missing")
        return values

    @contextmanager
    def _demo(self, files: OpenFiles | None = None, member: str = "") -> Iterator[Any]:
        """Open the demo, or a member of it."""
        name = f"data/{self.name}{member}"
        opening = open_file(self.path) if files is None else files.open(self.path, name)
        with opening as opened:
            try:
                yield opened[name] if files is None else opened
            except (KeyError, OSError) as error:
                raise damaged(self.path, f"data/{self.name}: {one_line(error)}") from error

    def _decode(self, dataset: Any, camera: str, start: int, stop: int) -> Frames:
        stored = dict(self.stored).get(camera, StoredCamera())
        key = f"data/{self.name}/obs/{camera}"
        try:
            frames = read_frames(dataset, start, stop, stored)
        except (OSError, ValueError) as error:
            what = f"{key} in ticks {start} to {stop - 1}: {one_line(error)}"
            raise damaged(self.path, what) from error
        shape = (self.spec.camera(camera).height, self.spec.camera(camera).width, 3)
        sizes = {frame.shape for frame in frames}
        if not sizes <= {shape}:
            what = f"{key} holds frames of {sorted(sizes)}, the spec says {shape}"
            raise damaged(self.path, what)
        return np.asarray(frames, dtype=np.uint8).reshape(-1, *shape)


def read_episodes(
    file: Any,
    path: Path,
    spec: PolicySpec,
    cameras: Mapping[str, StoredCamera],
    names: list[str] | None = None,
) -> list[EpisodeReader]:
    """Return the episodes of an open file: those of the given demo names, or all.

    cameras: how the frames of each camera are stored, where that is not the usual way.
    Raises `UserError` if the arrays of an episode do not fit the spec or each other.
    """
    data = data_group(file)
    if data is None:
        return []
    everything = demo_names(file)
    masks = {key: frozenset(members) for key, members in read_masks(file).items()}
    for what, remedy in mask_problems(masks, everything):
        raise UserError(f"{what}; {remedy}")
    default = _from_json(data.attrs.get("problem_info"), "language_instruction")
    stored = tuple((name, each.of_file(file)) for name, each in cameras.items())
    episodes = []
    for name in everything if names is None else names:
        demo = demo_group(file, name)
        _require_whole(demo, path, name, spec)
        facts = demo.attrs
        instruction = instruction_of(demo) or _from_json(facts.get("ep_meta"), "lang") or default
        episodes.append(
            EpisodeReader(
                path=path,
                name=name,
                spec=spec,
                num_samples=len(demo["actions"]),
                instruction=instruction,
                task=plain_text(decoded(facts.get("task")), "task"),
                success=whole_number(facts.get("success"), bool),
                seed=whole_number(facts.get("seed"), int),
                masks=frozenset(key for key, members in masks.items() if name in members),
                stored=stored,
            )
        )
    return episodes


def whole_number(value: Any, kind: type[Number]) -> Number | None:
    """Return an attribute that is one number as bool or int; None if it is missing or something else."""
    number = np.asarray(value)
    return kind(number.item()) if number.size == 1 and number.dtype.kind in "biu" else None


def _require_whole(demo: Any, path: Path, name: str, spec: PolicySpec) -> None:
    """Check types and shapes alone, which reads no data: hundreds of files must open quickly."""
    for what, remedy in structure_problems(demo, spec):
        raise damaged(path, f"data/{name}/{what}", remedy)
    length = len(demo["actions"])
    if not length:
        raise damaged(path, f"data/{name} has no tick", TAKE_OUT)
    for key in (*expected_shapes(spec), "executed_actions", "interventions"):
        if key in demo and len(demo[key]) != length:
            what = f"data/{name}/{key} has {len(demo[key])} ticks, actions {length}"
            raise damaged(path, what, TAKE_OUT)


def _from_json(text: Any, key: str) -> str:
    """Return the instruction that RoboCasa stores in each demo, and LIBERO once in each file, as JSON."""
    value = json_object(text).get(key, "")
    return plain_text(decoded(value), key) if isinstance(value, str) else ""
