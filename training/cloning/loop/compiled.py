"""Compiling what a training step computes, by `torch.compile`.

The losses of a batch with their gradients become one graph, in which the ticks of a window stand one
after the other, so that the recurrence of the memory is a part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ttm.policy.errors import UserError, first_line

BACKEND: str | Callable[..., Any] = "inductor"
"""What compiles the graph; another one in tests, which is quick."""


def compile_module(module: nn.Module, device: torch.device, *, graphs: bool) -> None:
    """Have `module` compiled when it is first called, in place.

    graphs: whether a GPU may record CUDA graphs, for which the shapes of a step must always be the same
    and its gradients used before the next call. Raises `UserError` if no compiler works here.
    """
    _require_compiler(device)
    mode = "reduce-overhead" if graphs and device.type == "cuda" else "default"
    module.compile(backend=BACKEND, mode=mode)


def kept(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return copies, without gradient, that the next call of a compiled module does not overwrite."""
    return {name: value.detach().clone() for name, value in values.items()}


def _require_compiler(device: torch.device) -> None:
    """Compile a small function, and raise `UserError` if that fails."""

    def more(x: Tensor) -> Tensor:
        return (x + 1).sin()

    try:
        torch.compile(more, backend=BACKEND)(torch.zeros(8, device=device))
    except (RuntimeError, ImportError, OSError) as error:
        cause = getattr(error, "inner_exception", error)
        raise UserError(
            f"--compile: torch.compile does not work here ({first_line(cause)}); install a C++ compiler (on "
            "Debian or Ubuntu: sudo apt-get install -y g++), for a GPU also PyTorch's triton, or leave it out"
        ) from error
