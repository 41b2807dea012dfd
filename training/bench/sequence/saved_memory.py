"""How much memory a forward pass keeps for the backward pass: counted, so that it is the same in every run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def kept_for_backward(forward: Callable[[], object], besides: Iterable[Tensor] = ()) -> int:
    """Bytes of the storages that autograd keeps after `forward`, each once, whatever views of it there are.

    besides: parameters and inputs, which are there anyway and do not count.
    """
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = (
            storage  # held, so that no other tensor comes to lie at its address
        )

    with saved_tensors_hooks(pack, _never):
        forward()
    for tensor in besides:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in kept.values())


def _never(packed: object) -> Tensor:
    raise AssertionError  # there is no backward pass
