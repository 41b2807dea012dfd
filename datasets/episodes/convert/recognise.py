"""Which format a file or folder has, by its files' names and a few of their bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from ttm.datasets.access.find_files import find_files
from ttm.datasets.episode_file import open_file
from ttm.policy.errors import UserError


def recognise(path: Path) -> str:
    """Return the name of the format in `FORMATS`.

    Raises `UserError` for formats that are not read, with the next command to run, and for a path
    that has nothing of any known format.
    """
    for name, matches in RULES:
        if matches(path):
            return name
    for matches, advice in UNREAD:
        if matches(path):
            raise UserError(f"{path} {advice}")
    return _recognise_hdf5(path)


def _recognise_hdf5(path: Path) -> str:
    first = find_files(path)[0]
    with open_file(first) as file:
        members = set(file)
        if "data" in members:
            demos = file["data"]
            if "ttm_format" in demos.attrs:
                return "ttm"
            if any("states" in demos[name] and "obs" not in demos[name] for name in demos):
                raise UserError(f"{first} {RAW_ROBOSUITE}")
            return "robomimic"
    raise UserError(
        f"{first} has {', '.join(sorted(members)) or 'nothing'} at its top, which no known format "
        "has; see datasets/README.md for the formats, or write it with EpisodeWriter"
    )


def _lerobot_version(path: Path) -> str:
    try:
        return str(json.loads((path / "meta/info.json").read_text())["codebase_version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _is_rlds(path: Path) -> bool:
    return path.is_dir() and (
        (path / "features.json").is_file() or any(path.glob("**/*.tfrecord*"))
    )


def _is_hub_name(path: Path) -> bool:
    return not path.exists() and len(path.parts) == 2 and not path.suffix and not path.is_absolute()


RAW_ROBOSUITE = (
    "holds robosuite's simulator states without observations; render them first with robomimic's "
    "script: python robomimic/scripts/dataset_states_to_obs.py --dataset demo.hdf5 "
    "--output_name image.hdf5 --done_mode 2 --camera_names agentview --camera_height 84 "
    "--camera_width 84"
)

RULES: tuple[tuple[str, Callable[[Path], bool]], ...] = (
    ("lerobot", lambda path: _lerobot_version(path).startswith("v3")),
    ("lerobot-v2.1", lambda path: (path / "meta/info.json").is_file()),
)
"""(name, whether a path has this format), for all formats but HDF5; the first that matches."""

UNREAD: tuple[tuple[Callable[[Path], bool], str], ...] = (
    (
        _is_rlds,
        "is an RLDS data set (TensorFlow records), which is not read; convert it to LeRobot with "
        "Open X-Embodiment's port: python any4lerobot/openx2lerobot/openx_rlds.py --raw-dir RLDS "
        "--local-dir lerobot, then ttm data convert lerobot TO",
    ),
    (
        _is_hub_name,
        "is not here; if it is the name of a data set on a hub, download it first: "
        "hf download --repo-type dataset NAME --local-dir FOLDER",
    ),
)
"""(whether a path has a format that is not read, what to say about it)."""
