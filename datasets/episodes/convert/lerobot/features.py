"""The features of a LeRobot data set (`meta/info.json`), and what they are to a `PolicySpec`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ttm.datasets.convert.inferred import index_labels
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

ACTION = "action"
STATE = "observation.state"
IMAGES = "observation.images."
OBSERVATION = "observation."
SIMULATOR_STATE = "observation.environment_state"

CAPTURE_TIME, EXECUTED, WEIGHT = "capture_time_s", "executed_action", "loss_weight"
"""Features that only our files have. LeRobot's policies take no feature of such a name as input."""

REWARD, DONE, SUCCESS = "next.reward", "next.done", "next.success"

INDICES = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
"""The features that every LeRobot data set has, with their types."""


@dataclass(frozen=True)
class Camera:
    """One camera: its feature, its frames' size, and whether they are a video or images."""

    key: str
    height: int
    width: int
    is_video: bool


@dataclass(frozen=True)
class Observed:
    """What of a data set's features is read."""

    cameras: Mapping[str, Camera]
    """Our name -> camera."""
    vectors: Mapping[str, str]
    """Our name -> feature."""
    labels: Mapping[str, tuple[str, ...]]
    """Our name -> a label for each value."""
    skipped: tuple[str, ...]
    """Features that are not read, each with the reason."""


def observed(features: Mapping[str, Any], where: str) -> Observed:
    """Sort the features of a data set. Raises `UserError` if there is no action vector."""
    if ACTION not in features or len(features[ACTION]["shape"]) != 1:
        raise UserError(
            f"{where} has no feature '{ACTION}' of one dimension; nothing can be learned"
        )
    cameras: dict[str, Camera] = {}
    vectors: dict[str, str] = {}
    labels: dict[str, tuple[str, ...]] = {}
    skipped: list[str] = []
    for key, feature in features.items():
        name = key.removeprefix(IMAGES).removeprefix(OBSERVATION)
        if reason := _reason_to_skip(key, feature):
            skipped.append(f"{key} ({reason})")
        elif feature["dtype"] in ("video", "image"):
            cameras[name] = _camera(key, feature)
        elif key.startswith(OBSERVATION):
            vectors[name] = key
            labels[name] = _labels(name, feature)
    return Observed(cameras, vectors, labels, tuple(skipped))


def features_of(
    spec: PolicySpec, *, codec: str | None, extras: Mapping[str, int]
) -> dict[str, Any]:
    """Return the features of a data set of `spec`.

    codec: the codec of the cameras' videos, or None for images in the data files.
    extras: further features of float numbers with their sizes.
    """
    features: dict[str, Any] = {}
    for camera in spec.cameras:
        feature: dict[str, Any] = {
            "dtype": "image" if codec is None else "video",
            "shape": [camera.height, camera.width, 3],
            "names": ["height", "width", "channels"],
        }
        if codec is not None:
            feature["info"] = _video_info(camera.height, camera.width, codec, spec.rate_hz)
        features[IMAGES + camera.name] = feature
    if spec.proprioception:
        names = [label for vector in spec.proprioception for label in vector.labels]
        features[STATE] = _numbers("float32", len(names), names)
    features[ACTION] = _numbers("float32", spec.action_size, _action_names(spec))
    features |= {key: _numbers(TYPES.get(key, "float32"), size) for key, size in extras.items()}
    return features | {key: _numbers(dtype, 1) for key, dtype in INDICES.items()}


TYPES = {CAPTURE_TIME: "float64", DONE: "bool", SUCCESS: "bool"}
"""The types of extra features; float32 for all others."""


def _reason_to_skip(key: str, feature: Mapping[str, Any]) -> str:
    if key in (ACTION, REWARD, DONE, SUCCESS, CAPTURE_TIME, EXECUTED, WEIGHT, *INDICES):
        return ""
    shape = feature["shape"]
    if feature["dtype"] in ("video", "image"):
        info = feature.get("info") or feature.get("video_info") or {}
        if info.get("video.is_depth_map") or "depth" in key:
            return "depth"
        return "" if len(shape) == 3 and 3 in (shape[0], shape[2]) else "not three channels"
    if not key.startswith(OBSERVATION):
        return "no observation"
    if key == SIMULATOR_STATE:
        return "the simulator's state"
    return "" if len(shape) == 1 and feature["dtype"].startswith("float") else "not a float vector"


def _camera(key: str, feature: Mapping[str, Any]) -> Camera:
    shape = feature["shape"]
    names = feature.get("names") or []
    first = bool(names) and str(names[0]).startswith("channel")
    height, width = shape[1:] if first or shape[2] != 3 else shape[:2]
    return Camera(key, int(height), int(width), feature["dtype"] == "video")


def _labels(name: str, feature: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a vector's values, which LeRobot has as a list or as {"motors": list}."""
    size, names = int(feature["shape"][0]), feature.get("names")
    if isinstance(names, dict) and len(names) == 1:
        names = next(iter(names.values()))
    whole = (
        isinstance(names, list) and len(names) == size and all(isinstance(n, str) for n in names)
    )
    return tuple(names) if whole and names else index_labels(name, size)


def _action_names(spec: PolicySpec) -> list[str]:
    return [
        part.name if part.size == 1 else f"{part.name}_{i}"
        for part in spec.actions
        for i in range(part.size)
    ]


def _numbers(dtype: str, size: int, names: list[str] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [size], "names": names}


def _video_info(height: int, width: int, codec: str, rate_hz: float) -> dict[str, Any]:
    return {
        "video.height": height,
        "video.width": width,
        "video.codec": codec,
        "video.pix_fmt": "yuv420p",
        "video.is_depth_map": False,
        "video.fps": rate(rate_hz),
        "video.channels": 3,
        "has_audio": False,
    }


def rate(rate_hz: float) -> int | float:
    """Return a rate as LeRobot writes it: an integer where it is one."""
    return int(rate_hz) if rate_hz == int(rate_hz) else rate_hz
