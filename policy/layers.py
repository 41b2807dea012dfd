"""A multi-layer perceptron with one hidden layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# The layer normalisation that all layers and cores use.

LAYER_NORM_EPS = 1e-6
"""Flax's default, which the authors' weights were trained with. PyTorch's own default is 1e-5."""


def layer_norm(width: int) -> nn.LayerNorm:
    """Return a LayerNorm over the last axis, of `width` channels."""
    return nn.LayerNorm(width, eps=LAYER_NORM_EPS)


# A linear layer that trains faster on CPUs.
#
# PyTorch multiplies float32 matrices by Intel's MKL, which leaves the AVX-512 units of processors of
# other makers idle. oneDNN, which PyTorch holds for convolutions, uses them, and is then about twice as
# fast. Without a gradient, as in a control tick, the layer is `nn.Linear` to the bit.

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


class Mlp(nn.Module):
    """Apply Dense(in, hidden), GELU and Dense(hidden, out) to the last axis.

    GELU is computed by its tanh approximation, as in the code of the TTM authors.
    """

    def __init__(self, in_size: int, hidden_size: int, out_size: int) -> None:
        super().__init__()
        self.hidden = Linear(in_size, hidden_size)
        self.out = Linear(hidden_size, out_size)
        for layer in (self.hidden, self.out):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map x of shape (..., in) to (..., out)."""
        out: Tensor = self.out(F.gelu(self.hidden(x), approximate="tanh"))
        return out


# Indexing along the time axis, with an index of its own for each element of a batch.


def pick(x: Tensor, index: Tensor) -> Tensor:
    """Return the entries of x that each row of `index` names.

    x: (B, T, ...); index: (B, S) int64, values in [0, T). Returns (B, S, ...), where entry [b, s]
    is `x[b, index[b, s]]`.
    """
    index = index.reshape(*index.shape, *[1] * (x.dim() - 2))
    return x.gather(1, index.expand(-1, -1, *x.shape[2:]))


# The MLP-Mixer (Tolstikhin et al. 2021), as in Scenic.
#
# It normalises before each MLP, has no position embedding and no dropout, and ends with a LayerNorm.


class MixerBlock(nn.Module):
    """Add an MLP over the tokens of LN x, per channel, then an MLP over the channels of LN x."""

    def __init__(self, width: int, num_tokens: int, token_mixing_size: int, mlp_size: int) -> None:
        super().__init__()
        self.token_norm = layer_norm(width)
        self.token_mixing = Mlp(num_tokens, token_mixing_size, num_tokens)
        self.channel_norm = layer_norm(width)
        self.channel_mixing = Mlp(width, mlp_size, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map x of shape (B, N, D) to (B, N, D)."""
        x = x + self.token_mixing(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channel_mixing(self.channel_norm(x))
        return x


class MlpMixer(nn.Module):
    """An MLP-Mixer over `num_tokens` tokens."""

    def __init__(
        self, width: int, num_tokens: int, num_layers: int, token_mixing_size: int, mlp_size: int
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            MixerBlock(width, num_tokens, token_mixing_size, mlp_size) for _ in range(num_layers)
        )
        self.norm = layer_norm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens of shape (B, N, D) to (B, N, D)."""
        x = tokens
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out


# A token for a vector that may be hidden.


class OptionalVector(nn.Module):
    """Map a vector to one token by an MLP. A learned token replaces it where it is not valid."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.mlp = Mlp(size, width, width)
        self.none = nn.Parameter(torch.randn(width) * 0.02)

    def forward(self, vector: Tensor, valid: Tensor | None) -> Tensor:
        """Return the token, (B, T, 1, D).

        vector: (B, T, K); valid: (B, T) bool, or None for True everywhere.
        """
        token: Tensor = self.mlp(vector)
        if valid is not None:
            token = torch.where(valid.unsqueeze(-1), token, self.none)
        return token.unsqueeze(2)


# A number as something to add to a token.


class ScalarCode(nn.Module):
    """Map a number to a vector by an MLP. The vector is 0 at first, so that adding it changes nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = Mlp(1, width, width)
        nn.init.zeros_(self.mlp.out.weight)

    def forward(self, value: Tensor) -> Tensor:
        """Map value (B, T), of order 1, to (B, T, 1, D)."""
        code: Tensor = self.mlp(value[..., None, None])
        return code

    def rescale(self, factor: float) -> None:
        """From now on, map each value to the vector that `factor` times the value was mapped to."""
        with torch.no_grad():
            self.mlp.hidden.weight.mul_(factor)
