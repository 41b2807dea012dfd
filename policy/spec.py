"""The contract between recording, training and running: observations, actions and control rate.

One `PolicySpec` is part of every episode file and every checkpoint. A mismatch is an error when a file
is loaded; larger frames alone are reduced, as in training. Nothing here imports PyTorch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image
from safetensors import SafetensorError, safe_open

from ttm.policy.errors import (
    MalformedObservation,
    MissingObservation,
    UserError,
    first_line,
    printable,
    require_choice,
)

CHECKPOINT_FORMAT = "1"
SHIPPED = "shipped"
"""The name of the policy that ships with the project, wherever a checkpoint is asked for."""
SHIPPED_CHECKPOINT = Path(__file__).resolve().parents[1] / "sim" / "assets" / "kitchen.safetensors"
RATES_HZ = (1e-3, 1e5)
"""The least and greatest control rate."""
MOST_NAME = 200
"""Characters of the name of a robot, camera, vector, label or part."""
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What reading a malformed spec may raise."""

Array = npt.NDArray[Any]
Observation = Mapping[str, Array]
"""Camera name -> (H, W, 3) uint8 RGB; proprioception name -> (K,) float32, in units of the spec."""


@dataclass(frozen=True)
class CameraSpec:
    """One RGB camera, whose frames are (height, width, 3) uint8."""

    name: str
    height: int
    width: int

    def takes(self, height: int, width: int) -> bool:
        """Return whether frames of this size can be used: no side is enlarged, and the ratio may change."""
        return height >= self.height and width >= self.width


def whole_factors(frame: Array, height: int, width: int) -> bool:
    """Return whether both sides of a frame (H, W, 3) shrink by whole factors, or stay."""
    return not (frame.shape[0] % height or frame.shape[1] % width)


def resize_frame(frame: Array, height: int, width: int) -> Array:
    """Return a frame (H, W, 3) uint8 as (height, width, 3) uint8; the aspect ratio may change.

    Pixels are averaged over areas if both sides shrink by whole factors. Otherwise they are
    interpolated linearly, where a side shrinks over as many pixels as become one (antialiasing).
    """
    if frame.shape[:2] == (height, width):
        return frame
    whole = whole_factors(frame, height, width)
    resample = Image.Resampling.BOX if whole else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(frame).resize((width, height), resample))


@dataclass(frozen=True)
class ProprioceptionSpec:
    """One vector of measurements of the robot itself. Each label names a value and its unit."""

    name: str
    labels: tuple[str, ...]

    @property
    def size(self) -> int:
        """K, the number of values."""
        return len(self.labels)


@dataclass(frozen=True)
class ActionPart:
    """Consecutive dimensions of the action vector that share a meaning, a unit and a loss.

    Binary parts (gripper, terminate) take one of two values, `low` or `high`; these are 0 and 1 where
    they are not given. Continuous parts take any value in [`low`, `high`], which are limits of the
    command and not statistics of data.
    """

    name: str
    size: int
    unit: str
    kind: Literal["continuous", "binary"] = "continuous"
    low: float = -float("inf")
    high: float = float("inf")

    def __post_init__(self) -> None:
        require_choice(f"the kind of action '{self.name}'", self.kind, ("continuous", "binary"))
        is_one_command = math.isfinite(self.low) != math.isfinite(self.high)
        if not self.low < self.high or (self.kind == "binary" and is_one_command):
            wanted = "its two commands" if self.kind == "binary" else "its limits"
            raise UserError(
                f"{self.kind} action '{self.name}' has low {self.low:g} and high {self.high:g}; "
                f"give {wanted}, the lower one as low"
            )

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest command; of a binary part, its two commands."""
        given = math.isfinite(self.low) and math.isfinite(self.high)
        return (self.low, self.high) if given or self.kind == "continuous" else (0.0, 1.0)


@dataclass(frozen=True)
class PolicySpec:
    """What a policy observes and commands. `rate_hz` is the control rate, in ticks per second."""

    robot: str
    cameras: tuple[CameraSpec, ...]
    proprioception: tuple[ProprioceptionSpec, ...]
    actions: tuple[ActionPart, ...]
    rate_hz: float

    def __post_init__(self) -> None:
        names = self.observation_names
        if len(set(names)) != len(names):
            raise UserError(f"observation names {names} repeat; give each a name of its own")
        for name in names:
            # Data sets of some formats have a folder of this name for each camera.
            if "/" in name or name in ("", ".", ".."):
                name = printable(name, 100)
                raise UserError(f"the name {name!r} cannot be one of a file; give one without /")
        if not self.actions:
            raise UserError("a PolicySpec needs at least one action part")
        if len(self.action_slices) != len(self.actions):
            parts = [part.name for part in self.actions]
            raise UserError(f"action names {parts} repeat; give each part a name of its own")
        low, high = RATES_HZ
        if not low <= self.rate_hz <= high:
            rate = printable(self.rate_hz, 30)
            raise UserError(f"rate_hz is {rate}; give a finite control rate ({low:g} to {high:g})")

    @property
    def observation_names(self) -> list[str]:
        """The names of the cameras, and then those of the proprioception."""
        return [each.name for each in self.cameras] + [each.name for each in self.proprioception]

    @property
    def action_size(self) -> int:
        """A, the length of the action vector."""
        return sum(part.size for part in self.actions)

    @property
    def control_dt_s(self) -> float:
        """The time between two ticks, in seconds."""
        return 1.0 / self.rate_hz

    @property
    def action_slices(self) -> dict[str, slice]:
        """Action part -> its dimensions of the action vector."""
        slices, start = {}, 0
        for part in self.actions:
            slices[part.name] = slice(start, start + part.size)
            start += part.size
        return slices

    @property
    def binary_mask(self) -> npt.NDArray[np.bool_]:
        """(A,) bool: True where the dimension is binary."""
        sizes = [part.size for part in self.actions]
        return np.repeat([part.kind == "binary" for part in self.actions], sizes)

    @property
    def action_limits(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """The lowest and the highest command, (A,) float32 each; infinite where there is no limit."""
        sizes = [part.size for part in self.actions]
        limits = np.array([part.limits for part in self.actions], np.float32)  # (parts, 2)
        return np.repeat(limits[:, 0], sizes), np.repeat(limits[:, 1], sizes)

    @property
    def thresholds(self) -> npt.NDArray[np.float32]:
        """The value half-way between the two commands of binary dimensions, and 0 elsewhere, (A,)."""
        low, high = (np.where(self.binary_mask, limit, 0) for limit in self.action_limits)
        return ((low + high) / 2).astype(np.float32)

    def says_done(self, action: npt.NDArray[np.float32]) -> bool:
        """Return whether an action (A,) says by its binary part `terminate` that the task is done."""
        where = self.action_slices.get("terminate", slice(0))
        said = self.binary_mask[where] & (action[where] >= self.thresholds[where])
        return bool(said.any())

    def camera(self, name: str) -> CameraSpec:
        """Return the camera of that name. Raises `UserError`, which lists all names, if it is unknown."""
        for camera in self.cameras:
            if camera.name == name:
                return camera
        known = ", ".join(camera.name for camera in self.cameras) or "none"
        raise UserError(f"camera '{name}' is not in this spec; it has: {known}")

    def validate_observation(self, observation: Observation) -> None:
        """Raise an `ObservationError` unless every part is there, has its shape and type, and is finite."""
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
            bad = [vector.labels[i] for i in np.flatnonzero(~np.isfinite(values))]
            if bad:
                where = f"proprioception '{vector.name}' is not finite in: {', '.join(bad)}"
                raise MalformedObservation(f"{where}; check the sensor")

    def seen(self, observation: Observation) -> Observation:
        """Return the observation with larger frames reduced, as in training; itself if there are none.

        Raises as `validate_observation` for all else.
        """
        reduced = {}
        for camera in self.cameras:
            frame, size = np.asarray(observation.get(camera.name)), (camera.height, camera.width)
            is_frame = frame.dtype == np.uint8 and frame.shape[2:] == (3,)
            if is_frame and frame.shape[:2] != size and camera.takes(*frame.shape[:2]):
                reduced[camera.name] = resize_frame(frame, *size)
        seen = {**observation, **reduced} if reduced else observation
        self.validate_observation(seen)
        return seen

    def _require(self, observation: Observation, name: str, kind: str) -> Array:
        if name not in observation:
            have = ", ".join(sorted(observation)) or "nothing"
            raise MissingObservation(f"{kind} '{name}' is missing; the observation has: {have}")
        return np.asarray(observation[name])

    def require_compatible(
        self, other: PolicySpec, *, theirs: str, ours: str = "this checkpoint"
    ) -> None:
        """Raise `UserError`, which names both owners and the first difference, unless `other` is equal."""
        for field in fields(self):
            mine, given = getattr(self, field.name), getattr(other, field.name)
            if mine != given:
                fix = "use a checkpoint and a robot (or data) of the same spec"
                if field.name == "cameras" and [c.name for c in mine] == [c.name for c in given]:
                    sides = {side for camera in given for side in (camera.height, camera.width)}
                    side = f" {sides.pop()}" if len(sides) == 1 else ""
                    fix = f"send frames of that size or larger, or train with --image-size{side}"
                both = f"{field.name} {_plain(mine)}, but {theirs} has {_plain(given)}"
                raise UserError(f"{ours} was made for {both}; {fix}")

    def seen_by(self, policy: PolicySpec) -> PolicySpec:
        """Return this robot's spec with those inputs alone that a policy takes, unless it lacks one.

        Cameras with larger frames have the policy's size, to which these are reduced.
        """
        own = {camera.name: camera for camera in policy.cameras}
        pairs = ((c, own.get(c.name, c)) for c in self.cameras)
        cameras = (other if other.takes(c.height, c.width) else c for c, other in pairs)
        seen: dict[str, Any] = {"cameras": cameras, "proprioception": self.proprioception}
        for kind, given in seen.items():
            known = {each.name: each for each in given}
            names = [each.name for each in getattr(policy, kind)]
            seen[kind] = tuple(known[n] for n in (names if known.keys() >= set(names) else known))
        return replace(self, **seen)

    def require_robot(self, robot: PolicySpec, *, ours: str, theirs: str = "this robot") -> None:
        """Raise `UserError` unless a robot has this policy's inputs, or larger frames, and its actions."""
        self.require_compatible(robot.seen_by(self), theirs=theirs, ours=ours)

    def to_json(self) -> str:
        """Return a JSON object, from which `from_json` makes an equal spec. Infinite limits are null."""
        data = asdict(self)
        for part in data["actions"]:
            for end in ("low", "high"):
                part[end] = part[end] if math.isfinite(part[end]) else None
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> PolicySpec:
        """Read the result of `to_json`. Raises `UserError` if `text` is anything else."""
        try:
            data = json.loads(text)
            cameras = tuple(CameraSpec(**camera) for camera in data["cameras"])
            vectors = tuple(
                ProprioceptionSpec(vector["name"], tuple(vector["labels"]))
                for vector in data["proprioception"]
            )
            actions = tuple(_action_part(**part) for part in data["actions"])
            spec = cls(data["robot"], cameras, vectors, actions, data["rate_hz"])
            require_plain(spec)
            return spec
        except UserError:
            raise
        except MALFORMED as error:
            raise UserError(f"not a PolicySpec in JSON ({error}); use to_json") from error


@dataclass(frozen=True)
class Action:
    """The command of one tick."""

    spec: PolicySpec
    values: npt.NDArray[np.float32]
    """(A,) in the units of the spec; one of the two commands in binary parts."""
    probabilities: npt.NDArray[np.float32]
    """(A,) as `values`, except for the probabilities of the higher command in binary parts."""

    def part(self, name: str) -> npt.NDArray[np.float32]:
        """Return the values of the action part of that name, (size,)."""
        slices = self.spec.action_slices
        if name not in slices:
            raise UserError(f"the action has no part '{name}'; give one of {', '.join(slices)}")
        return self.values[slices[name]]

    def __repr__(self) -> str:
        """Return a line for each part: its name and unit, its values, and probabilities if it is binary."""
        lines = []
        for part in self.spec.actions:
            where = self.spec.action_slices[part.name]
            shown = ", ".join(f"{value:.4g}" for value in self.values[where])
            if part.kind == "binary":
                portions = ", ".join(f"{value:.2f}" for value in self.probabilities[where])
                shown += f" (probability of {part.limits[1]:g}: {portions})"
            unit = f" ({part.unit})" if part.unit else ""
            lines.append(f"{part.name}{unit}: {shown}")
        return "\n".join(lines)


def _action_part(*, low: float | None, high: float | None, **rest: Any) -> ActionPart:
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    return ActionPart(**rest, low=low, high=high)


def require_plain(spec: PolicySpec) -> None:
    """Raise `TypeError` or `ValueError` for names that cannot be printed, and sizes that are none."""
    sizes = [size for camera in spec.cameras for size in (camera.height, camera.width)]
    sizes += [part.size for part in spec.actions]
    if not all(type(size) is int and size > 0 for size in sizes):
        raise TypeError(f"sizes are {sizes}, and must be whole numbers above 0")
    names = [spec.robot, *(camera.name for camera in spec.cameras)]
    names += [part.name for part in spec.actions]
    names += [text for vector in spec.proprioception for text in (vector.name, *vector.labels)]
    for name in names:
        if not isinstance(name, str):
            raise TypeError("names and labels must be texts")
        if not name.isprintable() or len(name) > MOST_NAME:
            raise ValueError(f"the name {printable(name, 100)!r} is too long, or cannot be printed")


def random_observation(spec: PolicySpec, rng: np.random.Generator) -> dict[str, Array]:
    """Return an observation of noise."""
    frames = {c.name: (c.height, c.width, 3) for c in spec.cameras}
    images = {name: rng.integers(0, 256, shape, np.uint8) for name, shape in frames.items()}
    vectors = {v.name: rng.normal(size=v.size).astype(np.float32) for v in spec.proprioception}
    return {**images, **vectors}


def default_checkpoint() -> Path:
    """Return the path of the shipped policy. Raises `UserError` if this installation lacks it."""
    if not SHIPPED_CHECKPOINT.is_file():
        missing = f"{SHIPPED_CHECKPOINT} is missing; install from a whole clone of the repository"
        raise UserError(f"{missing}, or give --checkpoint")
    return SHIPPED_CHECKPOINT


def checkpoint_path(named: str | Path) -> Path:
    """Return the file that an option names: `shipped`, or a path.

    Raises `UserError` if there is no such file.
    """
    if str(named) == SHIPPED:
        return default_checkpoint()
    path = Path(named)
    if not path.is_file():
        raise UserError(f"{path}: no such checkpoint; give a .safetensors file, or {SHIPPED}")
    return path


def read_header(path: Path | str) -> dict[str, str]:
    """Return the metadata of a checkpoint, without its weights; see `ttm.policy.checkpoint`.

    Raises `UserError` if the file is missing, truncated, or no checkpoint of this version.
    """
    path = checkpoint_path(path)
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        why = first_line(error)
        raise UserError(f"{path}: not a whole safetensors file ({why}); copy it again") from error
    version = header.get("ttm_format")
    if version is None:
        raise UserError(f"{path}: a safetensors file, but not a policy; give one of `ttm train`")
    if version != CHECKPOINT_FORMAT:
        raise UserError(f"{path}: checkpoint format {version}, not {CHECKPOINT_FORMAT}; train anew")
    return dict(header)


def read_checkpoint_spec(path: Path | str) -> PolicySpec:
    """Return what a checkpoint's policy observes and commands. Raises `UserError` as `read_header`."""
    header = read_header(path)
    try:
        return PolicySpec.from_json(header["spec"])
    except (KeyError, UserError) as error:
        raise damaged(path, error) from error


def damaged(path: Path | str, error: Exception) -> UserError:
    """Return the error for a checkpoint whose content is not as expected."""
    return UserError(
        f"{path}: this checkpoint was written by another version or is damaged ({first_line(error)}); "
        "train it again with this version"
    )


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(_plain(item) for item in value) or "none"
    if isinstance(value, CameraSpec):
        return f"{value.name} {value.width}x{value.height}"
    if isinstance(value, ActionPart | ProprioceptionSpec):
        return f"{value.name}[{value.size}]"
    return str(value)
