"""One episode on its way from one format to another, and the data set that it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.datasets.episode_reader import Floats
from ttm.datasets.frames import Frames, image_size
from ttm.policy.errors import UserError
from ttm.policy.spec import CameraSpec, PolicySpec

Seconds = npt.NDArray[np.float64]

PER_TICK = ("timestamps", "rewards", "dones", "interventions", "loss_weights")
"""The fields of `Recording` that have one value for each tick."""


@dataclass(frozen=True)
class FrameStream:
    """The frames of one camera in one episode, which are read one after another."""

    frames: Callable[[], Iterator[Frames]]
    """Starts a pass over the T frames, each (H, W, 3) uint8 RGB."""
    jpegs: Callable[[], Iterator[Frames]] | None = None
    """Starts a pass over the same frames as the JPEGs that were recorded, each (n,) uint8.

    None if they were recorded in another way."""


@dataclass(frozen=True)
class Recording:
    """One episode of T ticks. None stands for what its format did not record."""

    name: str
    """Where it comes from, for error messages."""
    actions: Floats
    """(T, A) float32."""
    vectors: Mapping[str, Floats]
    """Proprioception name -> (T, K) float32."""
    cameras: Mapping[str, FrameStream]
    instruction: str = ""
    task: str = ""
    success: bool | None = None
    seed: int | None = None
    masks: frozenset[str] = frozenset()
    timestamps: Seconds | None = None
    """(T,), capture times in seconds."""
    rewards: Floats | None = None
    dones: npt.NDArray[np.int64] | None = None
    executed_actions: Floats | None = None
    """(T, A), where they differ from `actions`."""
    interventions: npt.NDArray[np.uint8] | None = None
    """(T,), 1 where a person drove in the policy's place."""
    loss_weights: Floats | None = None
    language_embedding: Floats | None = None
    language_model: str | None = None

    def each_frame(self, camera: str) -> Iterator[Frames]:
        """Yield the T frames of a camera; raise `UserError` if the file holds more or fewer."""
        yield from self._exactly(camera, self.cameras[camera].frames())

    def each_jpeg(self, camera: str) -> Iterator[Frames]:
        """Yield the T JPEGs of a camera that has them, like `each_frame`."""
        jpegs = self.cameras[camera].jpegs
        assert jpegs is not None, f"{camera} was not recorded as JPEG"
        yield from self._exactly(camera, jpegs())

    def _exactly(self, camera: str, items: Iterator[Frames]) -> Iterator[Frames]:
        count, expected = 0, len(self.actions)
        for count, item in enumerate(items, start=1):
            if count > expected:
                break
            yield item
        if count != expected:
            found = f"more than {expected}" if count > expected else str(count)
            raise UserError(
                f"{self.name}: camera '{camera}' has {found} frames, but there are {expected} "
                "actions; leave this episode out, or repair the file"
            )


@dataclass(frozen=True)
class Source:
    """An opened data set of any format."""

    spec: PolicySpec
    num_episodes: int
    recordings: Callable[[], Iterator[Recording]]
    """Starts a pass over all episodes. They are read one by one."""
    has_own_spec: bool = False
    """Whether the data set says what its spec is; otherwise `spec` was inferred from the values."""
    notes: tuple[str, ...] = field(default=())
    """What was assumed or left out, each in one sentence."""


def require_fit(recording: Recording, spec: PolicySpec) -> Recording:
    """Return the recording with frames that are checked as they are read.

    Raises `UserError` if an array has another shape than the spec and the number of actions say, if
    a value is not finite as float32, or if the cameras have other names. Reading the frames raises
    it if a frame has another size.
    """
    _require_shapes(recording, spec)
    _require_finite(recording)
    if set(recording.cameras) != {camera.name for camera in spec.cameras}:
        found = ", ".join(sorted(recording.cameras)) or "none"
        wanted = ", ".join(camera.name for camera in spec.cameras) or "none"
        raise UserError(f"{recording.name} has the cameras {found}, but its spec says {wanted}")
    return replace(
        recording,
        cameras={
            camera.name: _sized(recording.cameras[camera.name], camera, recording.name)
            for camera in spec.cameras
        },
    )


def _require_shapes(recording: Recording, spec: PolicySpec) -> None:
    count = len(recording.actions)
    if not count:
        raise UserError(f"{recording.name} has no tick; leave this episode out")
    arrays: dict[str, tuple[Any, tuple[int, ...]]] = {
        "actions": (recording.actions, (count, spec.action_size)),
        "executed_actions": (recording.executed_actions, (count, spec.action_size)),
        **{name: (getattr(recording, name), (count,)) for name in PER_TICK},
        **{v.name: (recording.vectors.get(v.name), (count, v.size)) for v in spec.proprioception},
    }
    for name, (values, shape) in arrays.items():
        if values is not None and values.shape != shape:
            raise UserError(
                f"{recording.name}: {name} has shape {values.shape}, but {count} actions and the "
                f"spec need {shape}; leave this episode out, or repair the file"
            )


def _require_finite(recording: Recording) -> None:
    names = ("actions", "executed_actions", "timestamps", "loss_weights", "language_embedding")
    arrays = {name: getattr(recording, name) for name in names} | dict(recording.vectors)
    for name, values in arrays.items():
        if values is None or np.isfinite(values).all():
            continue
        at = np.argwhere(~np.isfinite(values))[0].tolist()
        raise UserError(
            f"{recording.name}: {name}{at} is NaN, infinite or too large for float32, which no "
            "policy can be trained on; leave this episode out, or repair the file"
        )


def _sized(stream: FrameStream, camera: CameraSpec, name: str) -> FrameStream:
    def checked(read: Callable[[], Iterator[Frames]]) -> Iterator[Frames]:
        for frame in read():
            size = frame.shape[:2] if frame.ndim == 3 else _jpeg_size(frame, camera, name)
            if size != (camera.height, camera.width):
                raise UserError(
                    f"{name}: camera '{camera.name}' has a frame of {size[1]}x{size[0]} pixels, "
                    f"but the spec says {camera.width}x{camera.height}; bring all to one size first"
                )
            yield frame

    return FrameStream(
        partial(checked, stream.frames),
        None if stream.jpegs is None else partial(checked, stream.jpegs),
    )


def _jpeg_size(data: Frames, camera: CameraSpec, name: str) -> tuple[int, ...]:
    """Return the height and width that a JPEG declares; its pixels are not decoded."""
    try:
        return image_size(data)
    except OSError as error:
        raise UserError(
            f"{name}: camera '{camera.name}' has a damaged JPEG ({error}); leave this episode out"
        ) from error
