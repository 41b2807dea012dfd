"""A linear layer that trains faster on CPUs.

PyTorch multiplies float32 matrices by Intel's MKL, which leaves the AVX-512 units of processors of
other makers idle. oneDNN, which PyTorch holds for convolutions, uses them, and is then about twice as
fast. Without a gradient, as in a control tick, the layer is `nn.Linear` to the bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

FEWEST_PRODUCTS = 2**20
"""Multiplications of a matrix product from which on oneDNN is worth its call."""


class Linear(nn.Linear):
    """`nn.Linear`, whose larger products run in oneDNN while it trains on a CPU in float32.

    The results differ from those of `nn.Linear` by rounding. Its gradients have no gradients of their
    own: asking for them is an error. Under `torch.compile` it is `nn.Linear`.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map x of shape (..., in) to (..., out)."""
        compute = linear if self.training else F.linear
        return compute(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b, where a gradient is asked for by oneDNN, if that is faster.

    x: (..., in); weight: (out, in); bias: (out,). Returns (..., out).
    """
    if torch.is_grad_enabled() and not torch.compiler.is_compiling() and _gains(x, weight):
        out: Tensor = _OneDnnLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return out
    return F.linear(x, weight, bias)


def _gains(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is there, can compute this product, and is worth its call."""
    return (
        x.dim() > 1
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.shape[-1] == weight.shape[-1]  # if not, PyTorch's error is the clearer one
        and x.numel() * len(weight) >= FEWEST_PRODUCTS
        and not torch.is_autocast_enabled("cpu")
        and has_onednn()
    )


def has_onednn() -> bool:
    """Whether oneDNN and its linear operator are there, and not switched off.

    `torch.backends.mkldnn.flags(enabled=False)` switches oneDNN off.
    """
    backend = torch.backends.mkldnn
    usable = backend.is_available() and backend.enabled  # type: ignore[no-untyped-call]
    return bool(usable) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class _OneDnnLinear(torch.autograd.Function):
    """x W^T + b and its gradients, all three matrix products by oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)  # (P, out)
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            product(gradient, weight.t()) if of_x else None,
            sum_of_products(rows, x.flatten(0, -2)) if of_weight else None,
            rows.sum(dim=0) if of_bias else None,
        )


def sum_of_products(x: Tensor, y: Tensor) -> Tensor:
    """Return x^T y, (I, O), of x (P, I) and y (P, O). oneDNN copies the one that is given first."""
    if x.shape[1] > y.shape[1]:
        return product(y.t(), x.t()).t()
    return product(x.t(), y.t())


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b by oneDNN, of float32 on a CPU; see `has_onednn`."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def product_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return GELU(x W^T + b) by its tanh approximation, as `product` and five times as fast as `F.gelu`."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], "tanh")
    return out
