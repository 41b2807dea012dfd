"""Names and conventions of the HDF5 layout: robomimic's, with a few more attributes (see `EpisodeWriter`).

    data                      attrs: total, env_args (JSON), ttm_spec (JSON: the PolicySpec), ttm_format
    data/demo_<i>             attrs: num_samples, language_instruction, task, success, seed
      actions                 (T, A) float32, in the spec's units
      obs/<camera>            (T, H, W, 3) uint8; or (T,) variable-length uint8, each a JPEG, encoding="jpeg"
      obs/<proprioception>    (T, K) float32
      timestamps              (T,) float64, seconds: when the newest sensor message was captured
      rewards, dones          (T,)
      executed_actions        (T, A) float32, optional: what was done, where `actions` is what should have been
      language_embedding      (L,) float32, optional; attr language_model
    mask/<filter_key>         (n,) fixed-length bytes: names of demos ("train", "valid")

`obs` at t is what was seen before `actions[t]` was taken.
"""

from __future__ import annotations

import re
from pathlib import Path

FORMAT_VERSION = 1
SUFFIXES = (".hdf5", ".h5")
JPEG = "jpeg"


def natural_key(text: str | Path) -> list[tuple[int, int, str]]:
    """Sort key that puts demo_2 before demo_10."""
    parts = re.split(r"(\d+)", str(text))
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part]


def partial_path(path: Path) -> Path:
    """Where an episode lies while it is being recorded: beside its place, under a name no reader takes."""
    return path.with_name(f".{path.name}.partial")


def next_episode_path(folder: str | Path) -> Path:
    """The first free `episode_<number>.hdf5` in `folder`, which need not exist yet.

    Episodes in progress count as taken, so that a second recorder takes another name.
    """
    folder = Path(folder)
    names = [item.name for item in folder.iterdir()] if folder.is_dir() else []
    found = [re.fullmatch(r"\.?episode_(\d+)\.(?:hdf5|h5)(?:\.partial)?", name) for name in names]
    numbers = [int(match.group(1)) for match in found if match]
    return folder / f"episode_{max(numbers, default=-1) + 1:05d}.hdf5"
