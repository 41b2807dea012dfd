"""Starting the processes of a training by Lightning Fabric, and telling when one of them is lost.

Fabric finds out whether torchrun or SLURM has started the processes. Otherwise it starts those of
this machine itself: each runs the same command again.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.fabric.strategies import DDPStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException

from ttm.policy.errors import UserError
from ttm.training.cloning.options import TrainOptions
from ttm.training.cloning.processes.group import Processes

ENDED = (
    "another process of this training has ended; what it said last tells why. Go on with --resume"
)
OBSERVER = "lightning.fabric.strategies.launchers.subprocess_script"
"""The logger to which Fabric tells, before it kills a process, that one that it started has ended."""


def launched(options: TrainOptions) -> Fabric:
    """Start the processes that the options ask for. Each of them returns from here.

    Raises `UserError` if there are fewer devices, or if others have been started.
    """
    with warnings.catch_warnings():
        # Fabric advises srun wherever it is installed, on login nodes, too.
        warnings.filterwarnings("ignore", "The `srun` command is available")
        return _launched(options)


def _launched(options: TrainOptions) -> Fabric:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "--device cuda, but PyTorch sees no GPU here; give --device cpu, or install its CUDA build"
        )
    devices, nodes = _wanted(options)
    _require_windows(options, devices * nodes)
    alone = devices * nodes == 1
    if not alone:
        tell_only_losses()
    try:
        fabric = Fabric(
            accelerator=options.device,
            strategy="auto" if alone else _strategy(options),
            devices=devices,
            num_nodes=nodes,
            precision="bf16-mixed" if options.precision == "bf16" else "32-true",
            plugins=_environment(),
        )
        fabric.launch()
    except (MisconfigurationException, ValueError, RuntimeError) as error:
        raise UserError(f"{devices} devices on each of {nodes} machines: {error}") from error
    return fabric


@contextmanager
def together(processes: Processes) -> Iterator[None]:
    """Train with the others, and leave them at the end.

    What a process meets when it no longer reaches another one becomes a `UserError`.
    """
    try:
        yield
    except RuntimeError as error:
        if processes.count == 1 or not _is_loss(error):
            raise
        number = f"process {processes.rank + 1} of {processes.count} stops: "
        raise UserError(number + ENDED) from error
    if processes.count > 1:
        torch.distributed.destroy_process_group()


def _wanted(options: TrainOptions) -> tuple[int, int]:
    """Return how many devices of each machine train, and how many machines."""
    given = options.processes.devices, options.processes.nodes
    started = _started()
    if started is None:
        devices, nodes = (number or 1 for number in given)
        if nodes > 1 and not {"MASTER_ADDR", "NODE_RANK"} <= os.environ.keys():
            raise UserError(
                f"--nodes is {nodes}, but nothing has started the training on each of them; start it by "
                "torchrun or srun, or on each with MASTER_ADDR, MASTER_PORT and NODE_RANK set"
            )
        return devices, nodes
    for name, number, found in zip(("devices", "nodes"), given, started, strict=True):
        if number not in (None, found):
            raise UserError(
                f"--{name} is {number}, but torchrun or SLURM has started processes for {found}; leave it "
                "out, or start as many"
            )
    return started


def _started() -> tuple[int, int] | None:
    """Return the processes on each machine and the machines, if torchrun or SLURM started them."""
    if TorchElasticEnvironment.detect():
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        return local, int(os.environ["WORLD_SIZE"]) // local
    if SLURMEnvironment.detect() and _by_srun():
        nodes = int(os.environ.get("SLURM_NNODES", 1))
        return int(os.environ["SLURM_NTASKS"]) // nodes, nodes
    return None


def _by_srun() -> bool:
    """Whether srun has started this process. The script of a SLURM job is no step of it."""
    return "SLURM_STEP_ID" in os.environ


def _environment() -> list[ClusterEnvironment]:
    """Return Fabric's own launcher in the script of a SLURM job; else Fabric finds out by itself."""
    return [LightningEnvironment()] if SLURMEnvironment.detect() and not _by_srun() else []


def _require_windows(options: TrainOptions, processes: int) -> None:
    """Raise `UserError` if there are fewer windows in a batch than parts to cut it into."""
    parts = options.processes.accumulate
    if options.batch_size < processes * parts:
        raise UserError(
            f"--batch-size is {options.batch_size}, which is shared by {processes} devices that cut their "
            f"windows into --accumulate {parts} parts; give at least {processes * parts}"
        )


def _strategy(options: TrainOptions) -> DDPStrategy:
    """Return data parallelism. Tensors on a CPU are exchanged by Gloo, also where GPUs train."""
    on_gpus = options.device != "cpu" and torch.cuda.is_available()
    # Buckets of gradients are not rebuilt where unused parameters are looked for, so that a resumed
    # training adds up in the same order as an unbroken one.
    return DDPStrategy(
        find_unused_parameters=True,
        process_group_backend="cpu:gloo,cuda:nccl" if on_gpus else None,
    )


def _is_loss(error: RuntimeError) -> bool:
    """Whether the error is that of a backend which cannot reach another process."""
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)


class _LossHandler(logging.Handler):
    """Says in one line why Fabric kills this process."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"ttm: error: {ENDED}", file=sys.stderr, flush=True)


def tell_only_losses() -> None:
    """Silence Fabric's messages about its start, and replace that about its end."""
    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)
    observer = logging.getLogger(OBSERVER)
    observer.setLevel(logging.INFO)
    observer.propagate = False
    observer.handlers = [_LossHandler()]
