"""Crash-safe recording of one episode into one HDF5 file, which robomimic can read as well."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt

from ttm.datasets.frames import encode_jpeg, require_jpeg_quality
from ttm.datasets.hdf5 import WriteGuard, writing_in
from ttm.datasets.layout import FORMAT_VERSION, JPEG
from ttm.policy.errors import UserError
from ttm.policy.files import partial_path, publish_partial
from ttm.policy.spec import ActionPart, Observation, PolicySpec

LARGEST = 1e15
"""Actions and weights beyond this, which no robot has, overflow float32 where a training squares them."""

GZIP_PIXELS = 320 * 240
"""Frames of more pixels are compressed with LZF, which only h5py reads and is three times as fast as gzip."""

GZIP: Mapping[str, Any] = MappingProxyType({"compression": "gzip", "compression_opts": 1})

ROBOMIMIC_GYM_TYPE = 2  # robomimic's EnvType.GYM_TYPE, without which it refuses env_args


def validate_action(spec: PolicySpec, action: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return the action as (A,) float32.

    Raises `UserError` if its shape is not the spec's, or if a value is not finite, not binary where
    it must be, or outside its limits.
    """
    values = np.asarray(action, dtype=np.float32)
    if values.shape != (spec.action_size,):
        names = ", ".join(f"{part.name}[{part.size}]" for part in spec.actions)
        raise UserError(f"the action has shape {values.shape}; give ({spec.action_size},): {names}")
    for part in spec.actions:
        bad = outside_limits(part, values[spec.action_slices[part.name]])
        if bad.any():
            where = int(np.flatnonzero(bad)[0])
            value = values[spec.action_slices[part.name]][where]
            raise UserError(
                f"action '{part.name}'[{where}] is {value}; the spec wants {limits_text(part)}"
            )
    return values


def outside_limits(part: ActionPart, values: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Return where `values` are not finite or not what the part may command.

    values: (..., size) -> bool of the same shape. Limits have a slack for rounding to float32.
    """
    low, high = np.array(part.limits, np.float32)
    if part.kind == "binary":
        return np.asarray((values != low) & (values != high))
    slack = 1e-5 * np.maximum(1.0, np.nan_to_num([abs(part.low), abs(part.high)], posinf=0.0).max())
    return np.asarray(
        ~((values >= part.low - slack) & (values <= part.high + slack) & np.isfinite(values))
    )


def usable_weights(weights: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.bool_]:
    """Return which values can weigh a tick in a loss: those from 0 to `LARGEST`."""
    usable: npt.NDArray[np.bool_] = (weights >= 0) & (weights <= LARGEST)
    return usable


def limits_text(part: ActionPart) -> str:
    """Return in words what the part may command, with its unit."""
    if part.kind == "binary":
        return f"{part.limits[0]:g} or {part.limits[1]:g}"
    unit = f" {part.unit}" if part.unit else ""
    bounded = math.isfinite(part.high - part.low)
    return f"{part.low:g} to {part.high:g}{unit}" if bounded else f"finite values{unit}"


def lossless(height: int, width: int) -> Mapping[str, Any]:
    """Return the options of a dataset by which frames are compressed without loss."""
    return GZIP if height * width <= GZIP_PIXELS else {"compression": "lzf"}


class EpisodeWriter:
    """Writes the ticks of one episode as they happen; `finish` makes them an episode.

    While it is recorded, the episode lies in `.<name>.partial` in the same folder. `finish` flushes
    this file to the disk and renames it, so that a kill at any moment loses at most this episode.
    `remove_leftovers` deletes what a kill leaves. Leaving the `with` block without `finish` deletes what
    was recorded.

    A tick that `append` refuses changes nothing, and recording may go on. After a failed write, as on a
    full disk, the episode can only be abandoned.

    Parameters
    ----------
    path
        The episode's file. It must not exist; missing folders are made.
    spec
        What is observed and commanded in every tick.
    jpeg_quality
        1 to 95 stores each frame as a JPEG, which takes a tenth of the space. None stores them without loss.
    """

    def __init__(
        self, path: str | Path, spec: PolicySpec, *, jpeg_quality: int | None = None
    ) -> None:
        require_jpeg_quality("jpeg_quality", jpeg_quality)
        self.path = Path(path)
        self.spec = spec
        self.num_samples = 0
        self._jpeg_quality = jpeg_quality
        self._executed: list[npt.NDArray[np.float32]] = []
        self._loss_weights: list[float] = []
        self._interventions: list[bool | None] = []
        self._partial = partial_path(self.path)
        self._guard = WriteGuard(self._partial)
        self._claim = ExitStack()
        self._refuse_overwriting()
        self._file = self._open()
        self._demo = self._file.create_group("data/demo_0")
        self._datasets = self._create_datasets()

    def append(
        self,
        observation: Observation,
        action: npt.ArrayLike,
        *,
        timestamp_s: float,
        reward: float = 0.0,
        done: bool = False,
        executed_action: npt.ArrayLike | None = None,
        loss_weight: float = 1.0,
        intervention: bool | None = None,
    ) -> None:
        """Record one tick: what was seen, and the action that was then taken.

        Parameters
        ----------
        observation
            Camera and proprioception values of the spec.
        action
            (A,), in the spec's units.
        timestamp_s
            Capture time, in seconds, of the newest sensor message in `observation` (not the time
            of writing).
        reward, done
            Stored as they are.
        executed_action
            (A,), the action that was carried out, if it was not `action`: what a policy did where
            `action` is an expert's, or a disturbed action, perhaps beyond the limits. Training uses it
            as the previous action of the next tick.
        loss_weight
            Weight of the tick in the loss of a training, at least 0. Stored if one is not 1.
        intervention
            Whether a person drove in the policy's place; None if nobody knows. Stored if known of a tick.
        """
        self._require_open()
        self.spec.validate_observation(observation)
        values = executed = validate_action(self.spec, action)
        if executed_action is not None:
            executed = np.asarray(executed_action, dtype=np.float32)
            if executed.shape != values.shape or not np.isfinite(executed).all():
                raise UserError(f"executed_action is {executed}; give {len(values)} finite values")
        if not math.isfinite(timestamp_s):
            raise UserError(f"timestamp_s is {timestamp_s}; give the capture time in seconds")
        if not (math.isfinite(loss_weight) and loss_weight >= 0):
            raise UserError(f"loss_weight is {loss_weight}; give a finite number of at least 0")
        row: dict[str, Any] = {
            "actions": values,
            "timestamps": timestamp_s,
            "rewards": reward,
            "dones": int(done),
        }
        for camera in self.spec.cameras:
            frame, quality = observation[camera.name], self._jpeg_quality
            row[f"obs/{camera.name}"] = frame if quality is None else encode_jpeg(frame, quality)
        for vector in self.spec.proprioception:
            row[f"obs/{vector.name}"] = observation[vector.name]
        self._guard.require_space(sum(np.asarray(value).nbytes for value in row.values()))
        with self._guard.writing():
            for name, value in row.items():
                self._datasets[name].resize(self.num_samples + 1, axis=0)
                self._datasets[name][self.num_samples] = value
        self._executed.append(executed)
        self._loss_weights.append(loss_weight)
        self._interventions.append(intervention)
        self.num_samples += 1  # last, so that `finish` cuts off a tick whose write failed

    def flush(self) -> None:
        """Hand over to the operating system what was recorded; raise `UserError` if the disk is full."""
        self._require_open()
        with self._guard.writing():
            self._file.flush()

    def end_at(self, num_samples: int) -> None:
        """Drop all ticks after the first `num_samples`, and mark the last of these as done.

        What was executed in the last tick is then its action, since what followed is not recorded.
        """
        self._require_open()
        self.num_samples = min(num_samples, self.num_samples)
        for column in (self._executed, self._loss_weights, self._interventions):
            del column[self.num_samples :]
        if self.num_samples:
            self._executed[-1] = self._datasets["actions"][self.num_samples - 1]
            self._datasets["dones"][self.num_samples - 1] = 1

    def finish(
        self,
        *,
        instruction: str,
        task: str = "",
        success: bool | None = None,
        seed: int | None = None,
        variation: str = "",
        embedding: npt.ArrayLike | None = None,
        language_model: str | None = None,
        split: Literal["train", "valid"] | None = "train",
    ) -> Path:
        """Complete the episode and return its path.

        Parameters
        ----------
        instruction
            The language instruction that the robot followed.
        task, success, seed
            Facts about the episode, for statistics and for reproducing it.
        variation
            What varied in a simulation beside the initial state, such as "camera=1 light=2".
        embedding
            (L,), the instruction's sentence embedding by `language_model`.
        split
            The mask that names the episode, or None for no mask.
        """
        self._require_open()
        if self.num_samples == 0:
            raise UserError(f"{self.path}: the episode has no tick; append one before finish")
        self._refuse_overwriting()
        with self._guard.writing():
            for dataset in self._datasets.values():
                dataset.resize(self.num_samples, axis=0)
            executed = np.stack(self._executed)
            if (executed != self._demo["actions"][()]).any():
                self._demo.create_dataset("executed_actions", data=executed)
            if any(weight != 1 for weight in self._loss_weights):
                weights = np.array(self._loss_weights, np.float32)
                self._demo.create_dataset("loss_weights", data=weights)
            if any(known is not None for known in self._interventions):
                driven = np.array([bool(known) for known in self._interventions], np.uint8)
                self._demo.create_dataset("interventions", data=driven)
            write_file_attributes(self._file, self.spec, total=self.num_samples)
            facts: dict[str, Any] = {"language_instruction": instruction, "task": task}
            facts |= {} if success is None else {"success": bool(success)}
            facts |= {} if seed is None else {"seed": int(seed)}
            facts |= {"variation": variation} if variation else {}
            self._demo.attrs.update(num_samples=self.num_samples, **facts)
            if embedding is not None:
                values = np.asarray(embedding, dtype=np.float32)
                stored = self._demo.create_dataset("language_embedding", data=values)
                stored.attrs["language_model"] = language_model or ""
            if split is not None:
                self._file.create_dataset(f"mask/{split}", data=np.array([b"demo_0"]))
            self._file.flush()
            self._file.close()
        with self._claim, self._guard.writing():
            publish_partial(self.path)
        return self.path

    def abandon(self) -> None:
        """Delete what was recorded. Does nothing after `finish`."""
        if self._file:
            with self._claim:
                self._guard.discard(self._file)
                self._partial.unlink(missing_ok=True)

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon()

    def _require_open(self) -> None:
        if not self._file or self._guard.failed:
            raise UserError(
                f"{self.path}: this episode has ended, or could not be written; make a new EpisodeWriter"
            )

    def _refuse_overwriting(self) -> None:
        if self.path.exists():
            raise UserError(f"{self.path} exists already; give another name, or delete it first")

    def _open(self) -> h5py.File:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._claim.enter_context(writing_in(self.path.parent))
            return h5py.File(self._partial, "w")
        except OSError as error:
            self._claim.close()
            raise UserError(
                f"cannot record to {self._partial} ({error}); is another recorder at work on it?"
            ) from error

    def _create_datasets(self) -> dict[str, h5py.Dataset]:
        def create(key: str, rows: int, shape: Sequence[int], dtype: Any, **options: Any) -> None:
            options |= {"maxshape": (None, *shape), "chunks": (rows, *shape)}
            datasets[key] = self._demo.create_dataset(key, (0, *shape), dtype, **options)

        datasets: dict[str, h5py.Dataset] = {}
        create("actions", 128, (self.spec.action_size,), np.float32)
        kinds = {"timestamps": np.float64, "rewards": np.float32, "dones": np.int64}
        for key, dtype in kinds.items():
            create(key, 128, (), dtype)
        for vector in self.spec.proprioception:
            create(f"obs/{vector.name}", 128, (vector.size,), np.float32)
        for camera in self.spec.cameras:
            key, shape = f"obs/{camera.name}", (camera.height, camera.width, 3)
            if self._jpeg_quality is None:
                create(key, 1, shape, np.uint8, **lossless(*shape[:2]))
            else:
                create(key, 128, (), h5py.vlen_dtype(np.uint8))
                datasets[key].attrs["encoding"] = JPEG
        return datasets


def write_file_attributes(
    file: h5py.File, spec: PolicySpec, *, total: int = 0, with_spec: bool = True
) -> None:
    """Write into the group `data` what the environment is, and what the spec is if asked."""
    kwargs = {"control_freq": spec.rate_hz}
    env_args = {"env_name": spec.robot, "type": ROBOMIMIC_GYM_TYPE, "env_kwargs": kwargs}
    data = file.require_group("data")
    data.attrs.update(total=total, env_args=json.dumps(env_args))
    if with_spec:
        data.attrs["ttm_spec"] = spec.to_json()
    data.attrs["ttm_format"] = FORMAT_VERSION
