"""The places where a training can be logged: a table of Lightning's loggers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from lightning.fabric.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.loggers import WandbLogger
from torch import Tensor

from ttm.training.cloning.settings.groups import LoggerName


def _tensorboard(out: Path, first_step: int) -> Logger:
    # Events of later steps are those of a training that was cut off after it had saved.
    return TensorBoardLogger(out, name="tensorboard", version="", purge_step=first_step)


def _csv(out: Path, first_step: int) -> Logger:
    """Return a logger that writes OUT/csv/version_0/metrics.csv; a resumed training version_1."""
    return CSVLogger(out, name="csv", flush_logs_every_n_steps=1)


def _wandb(out: Path, first_step: int) -> Logger:
    """Return a logger whose runs have the name of the folder; a resumed training makes another run."""
    mode = os.environ.get("WANDB_MODE", "offline")
    (out / "wandb").mkdir(parents=True, exist_ok=True)
    project = os.environ.get("WANDB_PROJECT", "ttm")
    return WandbLogger(out.absolute().name, out, project=project, mode=mode)


LOGGERS: Mapping[LoggerName, Callable[[Path, int], Logger]] = MappingProxyType(
    {"tensorboard": _tensorboard, "csv": _csv, "wandb": _wandb}
)
"""Value of `ttm train --logger` -> constructor, which is called with the folder of the training and
its first step. The files are in the folder of that name, which `run_folder.LOGS` lists."""


class Loggers:
    """Several loggers as one."""

    def __init__(self, names: Sequence[LoggerName], out: Path, first_step: int = 0) -> None:
        self._loggers = [LOGGERS[name](out, first_step) for name in dict.fromkeys(names)]

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by name."""
        for logger in self._loggers:
            logger.log_metrics(dict(values), step)

    def image(self, step: int, name: str, image: Tensor) -> None:
        """Write an image (3, H, W) uint8; a table of numbers takes none."""
        for logger in self._loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_image(name, image, step)
            elif isinstance(logger, WandbLogger):
                logger.log_image(name, [np.asarray(image.permute(1, 2, 0))], step)

    def flush(self) -> None:
        """Write out what is kept back."""
        for logger in self._loggers:
            logger.save()

    def close(self, *, success: bool) -> None:
        """Write out everything; nothing may be logged afterwards."""
        for logger in self._loggers:
            logger.finalize("success" if success else "failed")
            if isinstance(logger, WandbLogger):
                logger.experiment.finish(exit_code=0 if success else 1)
