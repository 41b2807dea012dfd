"""What a training writes into its folder, and its log: for loggers, and on a bar in the terminal."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from ttm.policy.checkpoint import save_checkpoint
from ttm.policy.errors import UserError
from ttm.policy.policy import Policy
from ttm.training.console import make_folder, say
from ttm.training.distributed import Logger, Processes
from ttm.training.options import QUICKER, LoggerName

BEST, LAST, RESULT, CONFIG = "best.safetensors", "last.safetensors", "result.json", "run.yaml"
LOGS = ("tensorboard", "csv", "wandb")
"""Folders of the loggers, by their names."""
CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints that `save-every` asks for."""
LINE_EVERY_S = 30.0
"""Seconds between two lines of progress where the output is no terminal."""


def open_logger(name: LoggerName, out: Path, first_step: int = 0) -> Logger:
    """Return the logger of that name, whose files are in the folder OUT/`name`."""
    from lightning_fabric.loggers import CSVLogger, TensorBoardLogger

    if name == "tensorboard":
        # Events of later steps are those of a training that was cut off after it had saved.
        return TensorBoardLogger(out, name=name, version="", purge_step=first_step)
    if name == "csv":
        return CSVLogger(out, name=name, flush_logs_every_n_steps=1)
    return WandbLogger(out)


class WandbLogger:
    """A run of Weights & Biases, with the methods of Fabric's loggers that a training calls."""

    def __init__(self, out: Path) -> None:
        wandb = import_module("wandb")
        (out / "wandb").mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            dir=out,
            name=out.absolute().name,
            project=os.environ.get("WANDB_PROJECT", "ttm"),
            mode=os.environ.get("WANDB_MODE", "offline"),
        )
        self._image = wandb.Image

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def log_image(self, name: str, image: Any, step: int) -> None:
        self._run.log({name: self._image(image)}, step=step)

    def save(self) -> None:
        """Nothing: it saves what it logs."""

    def finalize(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "success" else 1)


class RunLog:
    """Averages scalars over several steps, since reading one off a GPU waits, and writes the means."""

    def __init__(
        self,
        loggers: Sequence[Logger],
        console: Console,
        start_progress: float,
        processes: Processes,
    ) -> None:
        """start_progress: portion of the training that was done before, in [0, 1].

        processes: those that train together, whose scalars add up.
        """
        self._processes, self.console, self.loggers = processes, console, loggers
        self._line_s = time.monotonic()
        columns = (
            BarColumn(bar_width=12),
            TextColumn("{task.percentage:3.0f}%"),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.bar = Progress(
            *columns, console=console, disable=not console.is_terminal, speed_estimate_period=600
        )
        self._task = self.bar.add_task("starting", total=1.0)
        self.bar.update(self._task, completed=start_progress)
        self.restart_clock()

    def __enter__(self) -> RunLog:
        self.bar.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.bar.stop()
        for logger in self.loggers:
            logger.finalize("success" if error is None else "failed")

    def restart_clock(self) -> None:
        """Forget the steps since the last `write`. Call this after a pause in training."""
        self._since_s = time.monotonic()
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def add(self, scalars: Mapping[str, Tensor]) -> None:
        """Add one step: 0-d tensors on any device."""
        for name, value in scalars.items():
            now = value.detach()
            self._sums[name] = self._sums[name] + now if name in self._sums else now
        self._count += 1

    def write(self, step: int, progress: float, learning_rate: float) -> None:
        """Write the means since the last call to the loggers and to the terminal."""
        seconds = time.monotonic() - self._since_s
        means = {name: (value / self._count).item() for name, value in self._sums.items()}
        total = self._processes.sum(torch.tensor(list(means.values()), dtype=torch.float64))
        means = dict(zip(means, total.tolist(), strict=True))
        steps_per_s = self._count / seconds
        scalars = {f"train/{name}": value for name, value in means.items()}
        scalars["train/learning_rate"] = learning_rate
        scalars["throughput/steps_per_s"] = steps_per_s
        for logger in self.loggers:
            logger.log_metrics(scalars, step)
        recall = f"  recall {means['recall_ratio']:.2f}" if "recall_ratio" in means else ""
        shown = f"step {step}  loss {means['loss']:.4f}{recall}  {steps_per_s:.2f} steps/s"
        self.bar.update(self._task, completed=progress, description=shown)
        if not self.console.is_terminal and time.monotonic() - self._line_s >= LINE_EVERY_S:
            self._line_s = time.monotonic()
            left_s = self.bar.tasks[self._task].time_remaining
            left = "" if left_s is None else f"  {timedelta(seconds=round(left_s))} left"
            self.say(f"{progress:4.0%}  {shown}{left}")
        self.restart_clock()

    def write_images(self, step: int, images: Mapping[str, Tensor]) -> None:
        """Write images (B, T, 3, H, W) uint8 by camera; rows are windows, columns are ticks."""
        for camera, frames in images.items():
            # each row: (3, H, T*W)
            rows = [torch.cat(list(window), dim=2) for window in frames[:4].cpu()]
            name, image = f"augmented/{camera}", torch.cat(rows, dim=1)
            for logger in self.loggers:  # a table of numbers takes none
                if hasattr(logger, "log_image"):  # Weights & Biases
                    logger.log_image(name, np.asarray(image.permute(1, 2, 0)), step)
                elif hasattr(logger.experiment, "add_image"):  # TensorBoard
                    logger.experiment.add_image(name, image, step)

    def write_validation(self, step: int, found: Mapping[str, Any]) -> None:
        """Write the errors on held-out episodes, by predictor, as `ActionErrors` has them."""
        normalized = {who: errors["normalized"] for who, errors in found.items()}
        scalars = {f"validation/normalized/{who}": error for who, error in normalized.items()}
        for who, errors in found.items():
            scalars |= {f"validation/{part}/{who}": e for part, e in errors["parts"].items()}
        for logger in self.loggers:
            logger.log_metrics(scalars, step)
            logger.save()
        self.say(
            f"step {step}: validation error {normalized['policy']:.3f} (without its previous action "
            f"{normalized['policy_without_previous_action']:.3f}, mean action "
            f"{normalized['mean_action']:.3f}, repeating the previous action "
            f"{normalized['previous_action']:.3f})"
        )

    def say(self, text: str) -> None:
        """Print a line above the progress bar."""
        say(self.console, text)


OVERFITTED = 2.0
"""A held-out error of more than so many times that of the episodes trained on asks for more of them."""


def outcome(found: Mapping[str, Any], best_step: int, out: Path, too_short: str = "") -> str:
    """Return lines that say what a finished training reached, what usually helps next, and the next command.

    found: the "step", and the errors of the "validation" and "training" episodes, by predictor.
    """
    policy = f"--checkpoint {out / BEST}"
    next_command = f"next: in simulation ttm evaluate {policy} --out {out / 'evaluation'}"
    next_command += f"; on your robot ttm robot {policy} --contract YOURS.yaml"
    if "validation" not in found:
        return next_command
    errors = {name: found[name]["policy"]["normalized"] for name in ("validation", "training")}
    held_out, known, step = errors["validation"], errors["training"], found["step"]
    simplest = min(found["validation"][w]["normalized"] for w in ("mean_action", "previous_action"))
    if held_out > simplest:
        longer = too_short or f"a longer training, or {QUICKER}, usually helps"
        advice = f"it is no better than no policy; {longer}"
    elif held_out > OVERFITTED * known:
        advice = "it knows its own episodes much better; more demonstrations usually help"
    elif best_step == step:
        advice = "the error was still falling; a longer training usually helps (--resume)"
    else:
        advice = "the error falls no more; demonstrations of what fails (ttm collect --policy) usually help"
    return (
        f"error on held-out episodes {held_out:.3f}, on those trained on {known:.3f}, by the simpler of mean "
        f"action and previous action {simplest:.3f}; {advice}\n{next_command}"
    )


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
        files = [out / name for name in (BEST, LAST, RESULT, CONFIG)]
        for path in (*files, *step_checkpoints(out)):
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
