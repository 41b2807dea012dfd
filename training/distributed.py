"""The processes that train one policy together, and what they exchange.

What a training does depends on the batch of all processes, and not on how many share it: batch,
hidden inputs and augmentation are drawn for the whole batch, of which each process takes some
windows, and everything that a decision depends on is summed over them or taken from the first.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.nn.functional import all_reduce

from ttm.policy.cores.core import CoreState
from ttm.policy.errors import UserError
from ttm.training.options import TrainOptions

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.loggers import Logger
else:  # their import takes seconds, and only a training that starts needs it
    Fabric = Logger = Any

Value = TypeVar("Value")


@dataclass(frozen=True)
class Processes:
    """This process among those that train together; by default it is alone.

    What they exchange goes over the CPU. All of them must make the same calls in the same order.
    """

    rank: int = 0
    """The number of this process, from 0. The first one alone writes files and messages."""
    count: int = 1
    """The number of processes of all machines together."""
    on_machine: int = 1
    """The number of processes of this machine, which share its memory and its cores."""

    @classmethod
    def of(cls, fabric: Fabric) -> Processes:
        """Return the processes that `fabric` has launched."""
        nodes = getattr(fabric.strategy, "num_nodes", 1)
        return cls(fabric.global_rank, fabric.world_size, fabric.world_size // nodes)

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files and messages."""
        return self.rank == 0

    def rows(self, total: int) -> slice:
        """Return which of the `total` windows of a batch are those of this process."""
        return shares(total, self.count)[self.rank]

    def mine(self, values: list[Value]) -> list[Value]:
        """Return every n-th of `values`, where n is the number of processes."""
        return values[self.rank :: self.count]

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over all processes, on the CPU."""
        if self.count == 1:
            return values
        total = values.detach().to("cpu", copy=True)
        distributed.all_reduce(total)
        return total

    def from_first(self, value: Value) -> Value:
        """Return the `value` of the first process."""
        values = [value]
        if self.count > 1:
            distributed.broadcast_object_list(values)
        return values[0]

    def gathered(self, value: Value) -> list[Value]:
        """Return the `value` of each process, in the order of their numbers."""
        values = [value] * self.count
        if self.count > 1:
            distributed.all_gather_object(values, value)
        return values

    def windows_of_all(self, state: CoreState | None) -> CoreState | None:
        """Return the memory of all windows of a batch, given that of the windows of this process."""
        if state is None or self.count == 1:
            return state
        parts = self.gathered({name: value.cpu() for name, value in state.items()})
        return {name: torch.cat([part[name] for part in parts]) for name in state}

    def windows_of_this(self, state: CoreState | None) -> CoreState | None:
        """Return the memory of the windows of this process, given that of all windows of a batch."""
        return state and {name: value[self.rows(len(value))] for name, value in state.items()}

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.sum(torch.zeros(1))

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Raise the `UserError` that any process meets in the context, in the first one. The others exit."""
        error = None
        try:
            yield
        except UserError as met:
            error = met
        found = next((each for each in self.gathered(error) if each is not None), None)
        if found is None:
            return
        if self.first:
            raise found
        raise SystemExit(0)  # another code would make the launcher kill the first process


def shares(total: int, count: int) -> list[slice]:
    """Return `count` runs of `range(total)`, one after another and of as equal length as can be."""
    cuts = [place * total // count for place in range(count + 1)]
    return [slice(*pair) for pair in itertools.pairwise(cuts)]


def share_batch_norm(module: nn.Module, processes: Processes, device: torch.device) -> None:
    """Make every BatchNorm within `module` one over the batch of all processes."""
    if processes.count == 1:
        return
    for name, child in module.named_children():
        if not isinstance(child, nn.BatchNorm2d):
            share_batch_norm(child, processes, device)
        elif device.type == "cuda":
            setattr(module, name, nn.SyncBatchNorm.convert_sync_batchnorm(child))
        else:
            setattr(module, name, SharedBatchNorm.like(child))


class SharedBatchNorm(nn.BatchNorm2d):
    """`BatchNorm2d` over the images of all processes. PyTorch's own `SyncBatchNorm` needs a GPU."""

    @classmethod
    def like(cls, norm: nn.BatchNorm2d) -> SharedBatchNorm:
        """Return one with the same weights and statistics as `norm`."""
        shared = cls(norm.num_features, norm.eps, norm.momentum)
        shared.load_state_dict(norm.state_dict())
        for mine, given in zip(shared.parameters(), norm.parameters(), strict=True):
            mine.requires_grad_(given.requires_grad)
        return shared.train(norm.training)

    def forward(self, images: Tensor) -> Tensor:
        """Map images, (n, C, H, W), to the same shape; n may differ between processes."""
        if not self.training:
            return super().forward(images)
        values = images.float()
        number = values.new_tensor([values.numel() / values.shape[1]])
        sums = all_reduce(torch.cat([values.sum((0, 2, 3)), number]))
        total = sums[-1].detach()
        mean = sums[:-1] / total
        centred = values - mean.view(1, -1, 1, 1)
        variance = all_reduce(centred.square().sum((0, 2, 3))) / total
        self._follow(mean, variance, total)
        scale = (variance + self.eps).rsqrt() * self.weight
        return centred * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor, total: Tensor) -> None:
        """Move the running statistics; without a momentum they are plain means over the batches."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = self.momentum
        if momentum is None:
            momentum = 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance * total / (total - 1), momentum)


ENDED = "another process of this training has ended; its last message says why. Go on with --resume"


def launched(options: TrainOptions) -> Fabric:
    """Start the processes that the options ask for, by Lightning Fabric. Each of them returns from here.

    Fabric finds out whether torchrun or SLURM has started them. Otherwise it starts those of this
    machine itself: each runs the same command again.

    Raises `UserError` if there are fewer devices, or if others have been started.
    """
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import LightningEnvironment, SLURMEnvironment
    from lightning_fabric.strategies import DDPStrategy
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    # Fabric advises srun wherever it is installed, on login nodes, too.
    warnings.filterwarnings("ignore", "The `srun` command is available")
    gpus = torch.cuda.is_available()
    if options.device == "cuda" and not gpus:
        raise UserError("--device cuda, but PyTorch sees no GPU here; give --device cpu")
    devices, nodes = _wanted(options)
    count, parts = devices * nodes, options.processes.accumulate
    if options.batch_size < count * parts:
        raise UserError(
            f"--batch-size is {options.batch_size}, which {count} devices share in {parts} parts each "
            f"(accumulate); give at least {count * parts}"
        )
    strategy: str | DDPStrategy = "auto"
    if count > 1:
        # Tensors on a CPU are exchanged by Gloo, also where GPUs train. Buckets of gradients are not
        # rebuilt where unused parameters are looked for, so that a resumed training adds up in the
        # same order as an unbroken one.
        backend = "cpu:gloo,cuda:nccl" if gpus and options.device != "cpu" else None
        strategy = DDPStrategy(find_unused_parameters=True, process_group_backend=backend)
    # In the script of a SLURM job, Fabric's own launcher; elsewhere Fabric finds out by itself.
    in_script = SLURMEnvironment.detect() and not _by_srun()
    try:
        fabric = Fabric(
            accelerator=options.device,
            strategy=strategy,
            devices=devices,
            num_nodes=nodes,
            precision="bf16-mixed" if options.precision == "bf16" else "32-true",
            plugins=[LightningEnvironment()] if in_script else [],
        )
        fabric.launch()
    except (MisconfigurationException, ValueError, RuntimeError) as error:
        raise UserError(f"{devices} devices on each of {nodes} machines: {error}") from error
    return fabric


@contextmanager
def together(processes: Processes) -> Iterator[None]:
    """Train with the others, and leave them at the end; the loss of one is a `UserError`.

    The trainer must be gone by then. If the gradients' reducer held the group last, its end would
    wait for Gloo's threads with the lock of the interpreter held, and they for that lock.
    """
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, torch.distributed.DistError) or "gloo" in str(error)
        if processes.count == 1 or not lost:
            raise
        number = f"process {processes.rank + 1} of {processes.count} stops: "
        raise UserError(number + ENDED) from error
    if processes.count > 1:
        torch.distributed.destroy_process_group()


def _wanted(options: TrainOptions) -> tuple[int, int]:
    """Return how many devices of each machine train, and how many machines."""
    from lightning_fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment

    given = options.processes.devices, options.processes.nodes
    if TorchElasticEnvironment.detect():
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        started = local, int(os.environ["WORLD_SIZE"]) // local
    elif SLURMEnvironment.detect() and _by_srun():
        nodes = int(os.environ.get("SLURM_NNODES", 1))
        started = int(os.environ["SLURM_NTASKS"]) // nodes, nodes
    else:
        devices, nodes = (number or 1 for number in given)
        if nodes > 1 and not {"MASTER_ADDR", "NODE_RANK"} <= os.environ.keys():
            raise UserError(
                f"nodes is {nodes}, but nothing has started the training on each; use torchrun or srun, "
                "or set MASTER_ADDR, MASTER_PORT and NODE_RANK on each"
            )
        return devices, nodes
    for name, number, found in zip(("--devices", "nodes"), given, started, strict=True):
        if number not in (None, found):
            raise UserError(
                f"{name} is {number}, but a launcher started processes for {found}; leave it out"
            )
    return started


def _by_srun() -> bool:
    """Whether srun has started this process. The script of a SLURM job is no step of it."""
    return "SLURM_STEP_ID" in os.environ
