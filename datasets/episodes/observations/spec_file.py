"""The YAML file by which a user says what the episodes of others hold.

robot: franka
rate_hz: 20
cameras:                      # their names in obs; without this entry: all that can be used
  agentview_rgb: {orientation: upside-down, colours: rgb, values: [0, 1]}
proprioception:               # name in obs: labels of its values with their units
  ee_pos: [x (m), y (m), z (m)]
actions:                      # in their order
  - {name: arm, size: 6, unit: m}
  - {name: gripper, size: 1, kind: binary, low: -1, high: 1}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import yaml

from ttm.datasets.access.unreadable import one_line
from ttm.datasets.observations.stored_camera import Colours, Orientation, StoredCamera
from ttm.policy.errors import UserError
from ttm.policy.files import write_atomically
from ttm.policy.spec import ActionPart, PolicySpec

HEADER = (
    "# What a policy sees and commands in these episodes. Edit it, and give it with --spec.\n"
    "# Cameras: orientation is upright, upside-down or rotated, as they are stored; colours are rgb\n"
    "# or bgr; values are black and white of float frames. Binary parts of the action have two\n"
    "# commands, low and high. What is left out is inferred.\n"
)


@dataclass(frozen=True)
class SpecFile:
    """What a spec file says. None stands for what it leaves out."""

    robot: str | None = None
    rate_hz: float | None = None
    cameras: Mapping[str, StoredCamera] | None = None
    proprioception: Mapping[str, tuple[str, ...] | None] | None = None
    """Name -> labels, None for those of the data."""
    actions: tuple[ActionPart, ...] | None = None
    path: Path = field(default=Path("spec"))


def read_spec_file(path: Path) -> SpecFile:
    """Read a spec file. Raises `UserError` that names the entry if it cannot be understood."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:  # 2026-99-99 is no date
        raise UserError(
            f"{path}: no spec can be read from it ({one_line(error)}); write one with `ttm data show DATA "
            f"--spec {path.name}`"
        ) from error
    data = {} if data is None else data  # an empty file, or one of comments
    known = ("robot", "rate_hz", "cameras", "proprioception", "actions")
    if not isinstance(data, dict) or not set(data) <= set(known):
        keys = map(str, data) if isinstance(data, dict) else [str(data)]
        unknown = one_line(", ".join(key for key in keys if key not in known))
        raise UserError(f"{path}: unknown {unknown}; it may have: {', '.join(known)}")
    try:
        return SpecFile(
            robot=None if data.get("robot") is None else str(data["robot"]),
            rate_hz=_rate(data.get("rate_hz")),
            cameras=_cameras(data.get("cameras")),
            proprioception=_vectors(data.get("proprioception")),
            actions=_actions(data.get("actions")),
            path=path,
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: an entry has another form than expected ({error})") from error


def write_spec_file(path: Path, spec: PolicySpec, cameras: Mapping[str, StoredCamera]) -> None:
    """Write what is known of a data set.

    cameras: how the frames of each camera are stored, where that is not the usual way.
    """
    data: dict[str, Any] = {
        "robot": spec.robot,
        "rate_hz": spec.rate_hz,
        "cameras": {
            camera.name: _camera_data(cameras.get(camera.name, StoredCamera()))
            for camera in spec.cameras
        },
        "proprioception": {vector.name: list(vector.labels) for vector in spec.proprioception},
        "actions": [_part_data(part) for part in spec.actions],
    }
    text = HEADER + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise UserError(f"cannot write {path} ({error}); give another file with --spec") from error


def _camera_data(stored: StoredCamera) -> dict[str, Any]:
    data = {"orientation": stored.orientation or "upright", "colours": stored.colours}
    return data | {"values": list(stored.values)}


def _part_data(part: ActionPart) -> dict[str, Any]:
    return {key: value for key, value in asdict(part).items() if value not in (math.inf, -math.inf)}


def _rate(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"rate_hz is {value}; give ticks per second")
    return float(value)


def _cameras(data: Any) -> dict[str, StoredCamera] | None:
    if data is None:
        return None
    return {str(name): _camera(str(name), options or {}) for name, options in data.items()}


def _camera(name: str, options: Mapping[str, Any]) -> StoredCamera:
    choices = {"orientation": get_args(Orientation), "colours": get_args(Colours), "values": None}
    for key, value in options.items():
        if key not in choices:
            raise UserError(f"camera {name}: unknown {key}; it may have: {', '.join(choices)}")
        allowed = choices[key]
        if allowed is not None and value not in allowed:
            raise UserError(f"camera {name}: {key} is {value}; take one of {', '.join(allowed)}")
    low, high = map(float, options.get("values", StoredCamera().values))
    if not -math.inf < low < high < math.inf:
        raise UserError(f"camera {name}: values are {low:g} and {high:g}; give black, then white")
    return StoredCamera(
        options.get("orientation"), options.get("colours", StoredCamera().colours), (low, high)
    )


def _vectors(data: Any) -> dict[str, tuple[str, ...] | None] | None:
    if data is None:
        return None
    for name, labels in data.items():
        if labels is not None and not isinstance(labels, list):
            raise UserError(f"proprioception {name} is {labels}; give a list of labels")
    return {str(name): tuple(map(str, labels)) if labels else None for name, labels in data.items()}


def _actions(data: Any) -> tuple[ActionPart, ...] | None:
    return None if data is None else tuple(_part(dict(entry)) for entry in data)


def _part(entry: dict[str, Any]) -> ActionPart:
    kind, size = entry.get("kind", "continuous"), entry.get("size")
    if type(size) is not int or size < 1:
        raise UserError(f"action {entry.get('name')}: size is {size}; give a whole number above 0")
    limits = {key: float(entry[key]) for key in ("low", "high") if entry.get(key) is not None}
    unit = str(entry.get("unit", "unknown"))
    unknown = set(entry) - {"name", "size", "unit", "kind", "low", "high"}
    if unknown:
        raise UserError(f"action {entry.get('name')}: unknown {', '.join(sorted(unknown))}")
    return ActionPart(str(entry["name"]), size, unit, kind, **limits)
