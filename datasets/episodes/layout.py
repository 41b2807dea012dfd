"""Names and conventions of the HDF5 layout: robomimic's, with a few more attributes.

    data                      attrs: total, env_args (JSON), ttm_spec (JSON of the PolicySpec),
                              ttm_format
    data/demo_<i>             attrs: num_samples, language_instruction, task, success, seed,
                              variation (of a simulation, such as "camera=1 light=2")
      actions                 (T, A) float32, in the spec's units
      obs/<camera>            (T, H, W, 3) uint8; or (T,) JPEGs as variable-length uint8,
                              with the attribute encoding="jpeg"
      obs/<proprioception>    (T, K) float32
      timestamps              (T,) float64, seconds: capture time of the newest sensor message
      rewards, dones          (T,)
      executed_actions        (T, A) float32, optional: the actions that were carried out,
                              where `actions` holds the ones that should have been
      interventions           (T,) uint8, optional: 1 where a person drove in the policy's place
      loss_weights            (T,) float32, optional: weight of each tick in the loss of a training
      language_embedding      (L,) float32, optional; attr language_model
    mask/<filter_key>         (n,) fixed-length bytes: names of demos ("train", "valid")

`obs` at tick t is what was seen before `actions[t]` was taken.
"""

from __future__ import annotations

import re
from pathlib import Path

FORMAT_VERSION = 1
SUFFIXES = (".hdf5", ".h5")
JPEG = "jpeg"

RECORDED = re.compile(r"\.?episode_(\d+)\.(?:hdf5|h5)(?:\.partial)?")
"""The names of `next_episode_path`, and those that its episodes have while they are recorded."""
DEFAULT_INSTRUCTION = "do the task"
"""The instruction of episodes that carry none. Give the policy the same one when it runs."""
MOST_JPEG_QUALITY = 95  # beyond it JPEGs grow, and become hardly better


def natural_key(text: str | Path) -> list[tuple[int, int, str]]:
    """Return a sort key that puts demo_2 before demo_10."""
    parts = re.split(r"(\d+)", str(text))
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part]


def next_episode_path(folder: str | Path) -> Path:
    """Return the first free `episode_<number>.hdf5` in `folder`, which need not exist yet.

    Episodes in progress count as taken, so that a second recorder takes another name.
    """
    folder = Path(folder)
    names = [item.name for item in folder.iterdir()] if folder.is_dir() else []
    numbers = [int(match.group(1)) for name in names if (match := RECORDED.fullmatch(name))]
    return folder / f"episode_{max(numbers, default=-1) + 1:05d}.hdf5"
