"""The memory that a forward pass keeps for the backward pass, counted exactly rather than measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def bytes_for_backward(forward: Callable[[], object], besides: Iterable[Tensor] = ()) -> int:
    """Return the bytes of the storages that autograd keeps after `forward`.

    Each storage counts once, even if there are several views of it.

    besides: parameters and inputs, which exist anyway and do not count.
    """
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> None:
        # The storage is held, so that no other tensor can get its address.
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage

    with saved_tensors_hooks(pack, _no_backward):
        forward()
    for tensor in besides:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in kept.values())


def _no_backward(packed: object) -> Tensor:
    raise AssertionError
