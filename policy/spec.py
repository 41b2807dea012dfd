"""The contract between recording, training and running: what is observed, what is commanded, how often.

One `PolicySpec` is written into every episode file and every checkpoint; a mismatch is an error when
loading, not a silent resize (the idea is Rosetta's).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import MalformedObservation, MissingObservation, UserError

Array = npt.NDArray[Any]
Observation = Mapping[str, Array]
"""Camera name -> (H, W, 3) uint8 RGB; proprioception name -> (K,) float32, in the spec's units."""


@dataclass(frozen=True)
class CameraSpec:
    """One RGB camera: frames are (height, width, 3) uint8."""

    name: str
    height: int
    width: int


@dataclass(frozen=True)
class ProprioceptionSpec:
    """One vector of the robot's own state, of `len(labels)` values; each label names a value and its unit."""

    name: str
    labels: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class ActionPart:
    """Some consecutive dimensions of the action vector that share a meaning, a unit and a loss.

    `binary` parts take 0 or 1 (gripper closed or open, terminate), `continuous` ones any value in
    [`low`, `high`], which are the limits of the command and not statistics of the data.
    """

    name: str
    size: int
    unit: str
    kind: Literal["continuous", "binary"] = "continuous"
    low: float = -float("inf")
    high: float = float("inf")


@dataclass(frozen=True)
class PolicySpec:
    """What a policy sees and commands. `rate_hz` is the control rate, in ticks a second."""

    robot: str
    cameras: tuple[CameraSpec, ...]
    proprioception: tuple[ProprioceptionSpec, ...]
    actions: tuple[ActionPart, ...]
    rate_hz: float

    def __post_init__(self) -> None:
        names = [camera.name for camera in self.cameras] + [
            vector.name for vector in self.proprioception
        ]
        if len(set(names)) != len(names):
            raise UserError(
                f"observation names {names} repeat; give each camera and vector a name of its own"
            )
        if not self.actions:
            raise UserError("a PolicySpec needs at least one action part")
        if not self.rate_hz > 0:
            raise UserError(f"rate_hz is {self.rate_hz}; the control rate must be above 0")

    @property
    def action_size(self) -> int:
        """A, the length of the action vector."""
        return sum(part.size for part in self.actions)

    @property
    def control_dt_s(self) -> float:
        """Seconds from tick to tick."""
        return 1.0 / self.rate_hz

    @property
    def action_slices(self) -> dict[str, slice]:
        """Where each part lies in the action vector."""
        slices, start = {}, 0
        for part in self.actions:
            slices[part.name] = slice(start, start + part.size)
            start += part.size
        return slices

    @property
    def binary_mask(self) -> npt.NDArray[np.bool_]:
        """(A,) bool: True where the dimension is binary."""
        return np.repeat(
            [part.kind == "binary" for part in self.actions], [part.size for part in self.actions]
        )

    @property
    def action_limits(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """The lowest and the highest command, (A,) float32 each; 0 and 1 for binary parts, infinite where open."""
        sizes = [part.size for part in self.actions]
        low = [0.0 if part.kind == "binary" else part.low for part in self.actions]
        high = [1.0 if part.kind == "binary" else part.high for part in self.actions]
        return np.repeat(np.array(low, np.float32), sizes), np.repeat(
            np.array(high, np.float32), sizes
        )

    def camera(self, name: str) -> CameraSpec:
        """The camera of that name; an unknown one is an error that lists those there are."""
        for camera in self.cameras:
            if camera.name == name:
                return camera
        known = ", ".join(camera.name for camera in self.cameras) or "none"
        raise UserError(f"camera '{name}' is not in this spec; it has: {known}")

    def validate_observation(self, observation: Observation) -> None:
        """Raise `MissingObservation` or `MalformedObservation` unless every part is there, well-shaped and finite."""
        for camera in self.cameras:
            frame = self._require(observation, camera.name, "camera")
            shape = (camera.height, camera.width, 3)
            if frame.shape != shape or frame.dtype != np.uint8:
                raise MalformedObservation(
                    f"camera '{camera.name}' gave {frame.dtype} {frame.shape}; "
                    f"the policy was trained with uint8 {shape} RGB: resize or convert the frame"
                )
        for vector in self.proprioception:
            values = self._require(observation, vector.name, "proprioception")
            if values.shape != (vector.size,):
                raise MalformedObservation(
                    f"proprioception '{vector.name}' has shape {values.shape}; "
                    f"the policy was trained with ({vector.size},): {', '.join(vector.labels)}"
                )
            if not np.isfinite(values).all():
                bad = ", ".join(vector.labels[i] for i in np.flatnonzero(~np.isfinite(values)))
                raise MalformedObservation(
                    f"proprioception '{vector.name}' is not finite in: {bad}; check the sensor"
                )

    def _require(self, observation: Observation, name: str, kind: str) -> Array:
        if name not in observation:
            have = ", ".join(sorted(observation)) or "nothing"
            raise MissingObservation(f"{kind} '{name}' is missing; the observation has: {have}")
        return np.asarray(observation[name])

    def require_compatible(
        self, other: PolicySpec, *, theirs: str, ours: str = "this checkpoint"
    ) -> None:
        """Raise `UserError` that names the first difference between `other` and what this policy was made for."""
        pairs = [
            ("robot", self.robot, other.robot),
            ("cameras", _camera_names(self), _camera_names(other)),
            ("camera sizes", _camera_sizes(self), _camera_sizes(other)),
            ("proprioception", self.proprioception, other.proprioception),
            ("actions", self.actions, other.actions),
            ("control rate (Hz)", self.rate_hz, other.rate_hz),
        ]
        for what, mine, given in pairs:
            if mine != given:
                raise UserError(
                    f"{ours} was made for {what} {_plain(mine)}, but {theirs} has {_plain(given)}; "
                    f"use a checkpoint and a robot (or data) of the same spec"
                )

    def to_json(self) -> str:
        """A JSON object that `from_json` reads back to an equal spec; infinite limits are kept as null."""
        return json.dumps(_finite_or_null(asdict(self)))

    @classmethod
    def from_json(cls, text: str) -> PolicySpec:
        """Raises `UserError` if `text` is not a PolicySpec."""
        try:
            data = json.loads(text)
            return cls(
                robot=data["robot"],
                cameras=tuple(CameraSpec(**camera) for camera in data["cameras"]),
                proprioception=tuple(
                    ProprioceptionSpec(vector["name"], tuple(vector["labels"]))
                    for vector in data["proprioception"]
                ),
                actions=tuple(_action_part(part) for part in data["actions"]),
                rate_hz=data["rate_hz"],
            )
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise UserError(
                f"not a PolicySpec in JSON ({error}); write it with PolicySpec.to_json"
            ) from error


@dataclass(frozen=True)
class Action:
    """One tick's command. `values` (A,) float32 in the spec's units, binary parts 0 or 1.

    `probabilities` (A,) float32 keeps what the binary parts were thresholded from; it equals `values` elsewhere.
    """

    spec: PolicySpec
    values: npt.NDArray[np.float32]
    probabilities: npt.NDArray[np.float32]

    def part(self, name: str) -> npt.NDArray[np.float32]:
        """The values of the action part of that name, (size,)."""
        return self.values[self.spec.action_slices[name]]


def _action_part(data: dict[str, Any]) -> ActionPart:
    low, high = data.pop("low"), data.pop("high")
    return ActionPart(
        **data,
        low=-float("inf") if low is None else low,
        high=float("inf") if high is None else high,
    )


def _camera_names(spec: PolicySpec) -> tuple[str, ...]:
    return tuple(camera.name for camera in spec.cameras)


def _camera_sizes(spec: PolicySpec) -> tuple[str, ...]:
    return tuple(f"{camera.name} {camera.width}x{camera.height}" for camera in spec.cameras)


def _finite_or_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite_or_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite_or_null(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(_plain(item) for item in value) or "none"
    if isinstance(value, ActionPart | ProprioceptionSpec):
        return f"{value.name}[{value.size}]"
    return str(value)
