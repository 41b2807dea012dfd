"""The files of a training in its folder: checkpoints, result, state to resume."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttm.policy.errors import UserError
from ttm.policy.network.policy import Policy
from ttm.policy.run.checkpoint import save_checkpoint
from ttm.training.common.folders import make_folder

BEST, LAST, RESULT, CONFIG = "best.safetensors", "last.safetensors", "result.json", "run.yaml"
LOGS = ("tensorboard", "csv", "wandb")
"""Folders of the loggers, by their names."""
CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints that --save-every asks for."""


def resume_path(out: Path) -> Path:
    """Return the file that `--resume` reads, given the folder of the training."""
    return out / "resume" / "state.safetensors"


def prepare_folder(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Make the folder, and empty it of an earlier training if that is to be overwritten.

    Raises `UserError` if it holds a training that is neither resumed nor overwritten.
    """
    if overwrite:
        for name in ("resume", *LOGS):
            shutil.rmtree(out / name, ignore_errors=True)
        for path in (
            *(out / name for name in (BEST, LAST, RESULT, CONFIG)),
            *step_checkpoints(out),
        ):
            path.unlink(missing_ok=True)
    elif not resume and resume_path(out).exists():
        raise UserError(
            f"{out} holds a training; go on with it by --resume, or give --overwrite or another --out"
        )
    make_folder(out)


def step_checkpoints(out: Path) -> list[Path]:
    """Return the checkpoints that `save_step` has written, from the first step to the last."""
    return sorted((out / CHECKPOINTS).glob("step_*.safetensors"))


def save_step(
    out: Path, step: int, policy: Policy, info: Mapping[str, Any], keep: int | None
) -> None:
    """Write the checkpoint of a step, and remove all but the newest `keep`; None removes none."""
    save_checkpoint(out / CHECKPOINTS / f"step_{step:08d}.safetensors", policy, info)
    if keep is not None:
        for path in step_checkpoints(out)[:-keep]:
            path.unlink()
