"""Recognises the layout of episodes from an open HDF5 file, or from the names of a folder's files.

The marks are those that the projects' own writers leave: robomimic's `dataset_states_to_obs.py`,
robosuite's `collect_human_demonstrations.py`, MimicGen's `datagen_info`, LIBERO's
`create_dataset.py`, RoboCasa's `ep_meta`, Isaac Lab's `HDF5DatasetFileHandler`, ACT's
`record_sim_episodes.py`, diffusion_policy's `ReplayBuffer`, DROID's `TrajectoryWriter`, ManiSkill's
`RecordEpisode`, LeRobot's `meta/info.json`, TensorFlow Datasets' `dataset_info.json`, and rosbag2's
`metadata.yaml`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import h5py

from ttm.datasets.access.links import find_member
from ttm.datasets.layouts.table import LAYOUTS, Layout

TRAJECTORY = re.compile(r"traj_\d+")
"""How ManiSkill names an episode."""


def layout_of_file(file: Any, *, allow_external: bool = False) -> Layout | None:
    """Return the layout of an open `h5py.File`, or None if it is none of those that are known.

    Raises `OutsideLink` if an external link is in the way and not allowed.
    """
    key = _key_of_file(file, allow_external)
    return LAYOUTS[key] if key else None


def layout_of_path(path: Path) -> Layout | None:
    """Return the layout of a folder, or of a file that is not HDF5, by names; None if unknown."""
    key = _key_of_folder(path) if path.is_dir() else _key_of_name(path)
    return LAYOUTS[key] if key else None


def _key_of_file(file: Any, allow_external: bool) -> str | None:
    action = find_member(file, "action", allow_external=allow_external)
    if isinstance(action, h5py.Dataset):
        observations = find_member(file, "observations", allow_external=allow_external)
        if isinstance(observations, h5py.Group):
            return "aloha"
    if isinstance(action, h5py.Group):
        state = find_member(file, "observation/robot_state", allow_external=allow_external)
        if isinstance(state, h5py.Group):
            return "droid"
    if any(TRAJECTORY.fullmatch(name) for name in file):
        return "maniskill"
    data = find_member(file, "data", allow_external=allow_external)
    if not isinstance(data, h5py.Group):
        return None
    if "ttm_spec" in data.attrs:
        return "ours"
    demo = _first_demo(data, allow_external)
    if "problem_info" in data.attrs or "bddl_file_name" in data.attrs:
        return "libero" if demo is not None and "obs" in demo else "robosuite"
    return _key_of_demo(demo)


def _key_of_demo(demo: Any | None) -> str | None:
    """Return the layout that a robomimic-like file with this first demo has."""
    if demo is None:
        return None
    if "obs" not in demo:
        return "robosuite" if "states" in demo and "actions" in demo else None
    if "ep_meta" in demo.attrs:
        return "robocasa"
    if "datagen_info" in demo:
        return "mimicgen"
    return "isaaclab" if "initial_state" in demo else "robomimic"


def _first_demo(data: Any, allow_external: bool) -> Any | None:
    name = next(iter(data), None)
    demo = None if name is None else find_member(data, name, allow_external=allow_external)
    return demo if isinstance(demo, h5py.Group) else None


def _key_of_folder(folder: Path) -> str | None:
    info = folder / "meta" / "info.json"
    if info.is_file():
        return "lerobot_v3" if _lerobot_version(info).startswith("v3") else "lerobot_v2"
    if (folder / "data").is_dir() and (folder / "meta" / "episode_ends").is_dir():
        return "diffusion_policy"
    if (folder / "metadata.yaml").is_file():
        return "rosbag2"
    # TensorFlow Datasets puts a folder of the version in between.
    versions = (folder, *(item for item in folder.iterdir() if item.is_dir()))
    if any((version / "dataset_info.json").is_file() for version in versions):
        return "rlds"
    keys = (_key_of_name(item) for item in sorted(folder.iterdir()))
    return next(filter(None, keys), None)


def _key_of_name(path: Path) -> str | None:
    if path.suffix in (".db3", ".mcap"):
        return "rosbag2"
    if ".tfrecord" in path.name:
        return "rlds"
    if path.name.endswith((".zarr", ".zarr.zip")):
        return "diffusion_policy"
    return "lerobot_v2" if path.suffix == ".parquet" else None


def _lerobot_version(info: Path) -> str:
    try:
        return str(json.loads(info.read_text(encoding="utf-8")).get("codebase_version", ""))
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
