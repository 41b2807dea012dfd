"""The processes that train one policy together, and what they tell each other.

What a training does depends on the batch of all processes, and not on how many share it: batch,
hidden inputs and augmentation are drawn for the whole batch, of which each process takes some
windows, and everything that a decision depends on is summed over them or taken from the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from lightning.fabric import Fabric
from torch import Tensor, distributed

from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.errors import UserError

Value = TypeVar("Value")


@dataclass(frozen=True)
class Processes:
    """This process among those that train together; by default it is alone.

    What they tell each other goes over the CPU. All of them must make the same calls in the same
    order.
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
        if self.count == 1:
            return value
        values = [value]
        distributed.broadcast_object_list(values)
        return values[0]

    def gathered(self, value: Value) -> list[Value]:
        """Return the `value` of each process, in the order of their numbers."""
        if self.count == 1:
            return [value]
        values: list[Value] = [value] * self.count
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
        if state is None:
            return None
        return {name: value[self.rows(len(value))] for name, value in state.items()}

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.sum(torch.zeros(1))

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Raise the `UserError` of any process in all of them; see `agree`."""
        error = None
        try:
            yield
        except UserError as met:
            error = met
        self.agree(error)

    def agree(self, error: UserError | None) -> None:
        """Raise the error that a process has met, if any: the first process raises it.

        The others leave without a word, so that it is told once.
        """
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
