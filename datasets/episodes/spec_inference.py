"""The `PolicySpec` of files that carry none, such as those of robomimic, robosuite and LIBERO."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt

from ttm.datasets.episode_file import damaged, demo_names, open_file
from ttm.datasets.frames import decode_jpeg
from ttm.datasets.layout import JPEG
from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec

DEFAULT_RATE_HZ = 5.0
"""The control rate if neither timestamps nor robosuite's `control_freq` give it."""

MIN_BINARY_PORTION = 0.9
"""A gripper's values must be 0 or 1 in this portion of the ticks to be inferred as binary.

The rest leaves room for ticks in which it is on its way (5 % of the ticks of BridgeData V2)."""

Demo = tuple[Path, str]
"""A file, and the name of a demo in it."""


def infer_spec_of_files(paths: Sequence[Path]) -> PolicySpec:
    """Return what `infer_spec` infers from all demos of the files.

    Raises `UserError` if there is no demo, or if one of them is damaged.
    """
    demos = []
    for path in paths:
        with open_file(path) as file:
            demos += [(path, name) for name in demo_names(file)]
    try:
        return infer_spec(demos)
    except (KeyError, OSError) as error:
        raise damaged(paths[0], f"no spec can be inferred ({error})") from error


def infer_spec(demos: Sequence[Demo]) -> PolicySpec:
    """Return the spec of a policy that could have recorded all of `demos`.

    - Cameras are the (T, H, W, 3) uint8 and the JPEG members of the first demo's `obs`.
    - Proprioception are its (T, K) float members, in the order of their names.
    - Action dimensions are binary if their values over all demos lie in [0, 1] and are 0 or 1 in
      nearly all ticks. Neighbouring dimensions of one kind become one part, without limits.
    - The control rate is that of the timestamps, or else robosuite's `control_freq`, or else 5 Hz.
    """
    if not demos:
        raise UserError(
            "there is no demo to infer a spec from; record one, or give a file that has data/demo_0"
        )
    path, name = demos[0]
    with h5py.File(path, "r") as file:
        observations = file[f"data/{name}/obs"]
        cameras = [camera for key in observations if (camera := _camera(key, observations[key]))]
        vectors = [vector for key in observations if (vector := _vector(key, observations[key]))]
        env_args = _json(file["data"].attrs.get("env_args"))
    return PolicySpec(
        robot=str(env_args.get("env_name") or "unknown"),
        cameras=tuple(cameras),
        proprioception=tuple(vectors),
        actions=infer_action_parts(np.concatenate(list(_actions(demos)))),
        rate_hz=_rate_hz(demos, env_args),
    )


def infer_action_parts(actions: npt.NDArray[np.float32]) -> tuple[ActionPart, ...]:
    """Return the parts "continuous", "binary", "continuous_2", … of actions, in their order.

    actions: (n, A), of all episodes.
    """
    zero_or_one = (np.abs(actions) < 1e-3) | (np.abs(actions - 1) < 1e-3)
    inside = ((actions >= 0) & (actions <= 1)).all(axis=0)
    varies = (actions > 0.5).any(axis=0) & (actions < 0.5).any(axis=0)
    binary = inside & varies & (zero_or_one.mean(axis=0) >= MIN_BINARY_PORTION)  # (A,)
    parts: list[ActionPart] = []
    for is_binary, dimensions in groupby(binary.tolist()):
        kind: Literal["continuous", "binary"] = "binary" if is_binary else "continuous"
        count = 1 + sum(part.kind == kind for part in parts)
        name = kind if count == 1 else f"{kind}_{count}"
        low, high = (0.0, 1.0) if is_binary else (-float("inf"), float("inf"))
        parts.append(ActionPart(name, len(list(dimensions)), "unknown", kind, low, high))
    return tuple(parts)


def _actions(demos: Iterable[Demo]) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the actions (T, A) of each demo; raise `UserError` if A differs."""
    size: int | None = None
    for path, name in demos:
        with h5py.File(path, "r") as file:
            actions = np.asarray(file[f"data/{name}/actions"], dtype=np.float32)
        size = actions.shape[-1] if size is None else size
        if actions.ndim != 2 or actions.shape[1] != size:
            raise UserError(
                f"{path}: data/{name}/actions has shape {actions.shape}, others (T, {size}); "
                "keep episodes of different robots in different folders"
            )
        yield actions


def _camera(name: str, dataset: Any) -> CameraSpec | None:
    if not isinstance(dataset, h5py.Dataset) or not dataset.size:
        return None
    if dataset.attrs.get("encoding") == JPEG:
        height, width, _ = decode_jpeg(dataset[0]).shape
        return CameraSpec(name, height, width)
    if dataset.ndim == 4 and dataset.dtype == np.uint8 and dataset.shape[-1] == 3:
        return CameraSpec(name, *dataset.shape[1:3])
    return None


def _vector(name: str, dataset: Any) -> ProprioceptionSpec | None:
    if isinstance(dataset, h5py.Dataset) and dataset.ndim == 2 and dataset.dtype.kind == "f":
        return ProprioceptionSpec(name, tuple(f"{name}[{i}]" for i in range(dataset.shape[1])))
    return None


def _rate_hz(demos: Iterable[Demo], env_args: dict[str, Any]) -> float:
    intervals = []
    for path, name in demos:
        with h5py.File(path, "r") as file:
            if f"data/{name}/timestamps" in file:
                intervals.append(np.diff(file[f"data/{name}/timestamps"][()]))
    if intervals and (median := float(np.median(np.concatenate(intervals)))) > 0:
        # Rounded to half a hertz, because jitter of the clock must not make specs differ.
        return max(round(2 / median) / 2, 0.5)
    env_kwargs = env_args.get("env_kwargs")
    frequency = env_kwargs.get("control_freq") if isinstance(env_kwargs, dict) else None
    return float(frequency) if frequency else DEFAULT_RATE_HZ


def _json(text: Any) -> dict[str, Any]:
    """Return the JSON object in `text`, or an empty one if there is none."""
    try:
        data = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
