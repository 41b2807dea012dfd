"""The layers that a sight memory applies to every cell of every frame, and the sums over the cells.

A batch has hundreds of frames of hundreds of cells, with few channels each, so that a step would
mostly wait for memory. Here a block of frames passes through all layers while it is in the cache of
the processor, and its gradients do so too.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ttm.policy.layers.linear import product, product_gelu, sum_of_products

BLOCK = 64
"""Frames that pass through all layers together."""
FEW = 8
"""Channels below which oneDNN multiplies faster than PyTorch's library where it sums over all cells."""
GELU_K, GELU_A = (2 / math.pi) ** 0.5, 0.044715
"""The constants of GELU's tanh approximation, x / 2 (1 + tanh(k (x + a x^3)))."""


class CellLayers(NamedTuple):
    """The weights of the layers, of which each is (out, in)."""

    colour: Tensor
    """(E, 3)."""
    hidden: Tensor
    """(H, 3)."""
    hidden_bias: Tensor
    out: Tensor
    """(E, H)."""
    out_bias: Tensor
    of_embedding: Tensor
    """(H, E)."""
    of_position: Tensor
    """(P, H): what the position of each cell adds, and the bias."""
    select: Tensor
    """(J, H)."""
    select_bias: Tensor


class SeenCells(NamedTuple):
    """What is made of the cells of U frames."""

    embedded: Tensor
    """(U, P, E): e_p = out gelu(hidden c_p) + colour c_p, the first GELU being its approximation."""
    sums: Tensor
    """(U, J, E + C): the sums of [e_p ‖ positions_p], weighted by the softmax of the logits over P, which
    are l_p = select gelu(of_embedding e_p + of_position_p)."""
    log_weight: Tensor
    """(U, J): the logarithm of the sum of the exponentials of the logits."""
    mean: Tensor
    """(U, E): the mean of e_p."""


def seen_cells(colours: Tensor, positions: Tensor, layers: CellLayers) -> SeenCells:
    """Run the layers. colours: (U, P, 3) float32; positions: (P, C), which get no gradient."""
    return SeenCells(*_SeenCells.apply(colours, positions, *layers))  # type: ignore[no-untyped-call]


class _SeenCells(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, colours: Tensor, positions: Tensor, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        layers = CellLayers(*weights)
        parts = [_forward(block, positions, layers) for block in torch.split(colours, BLOCK)]
        *seen, portions = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(colours, positions, *layers, seen[0], portions)
        return tuple(seen)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        colours, positions, *weights, embedded, portions = ctx.saved_tensors
        layers, whole = CellLayers(*weights), (colours, embedded, portions, *gradients)
        of_colours, slopes = [], []
        for block in zip(*(torch.split(each, BLOCK) for each in whole), strict=True):
            of_cells, *of_layers = _backward(positions, layers, *block)
            slopes.append(of_layers)
            if ctx.needs_input_grad[0]:
                of_colours.append(_of_colours(layers, *of_cells))
        of_layers = [torch.stack(part).sum(dim=0) for part in zip(*slopes, strict=True)]
        return torch.cat(of_colours) if of_colours else None, None, *of_layers


def _forward(colours: Tensor, positions: Tensor, layers: CellLayers) -> tuple[Tensor, ...]:
    """Return the fields of `SeenCells`, and what `_backward` needs of a block of frames."""
    shade = product_gelu(colours, layers.hidden, layers.hidden_bias)
    embedded = product(shade, layers.out, layers.out_bias)
    embedded.flatten(0, 1).addmm_(colours.flatten(0, 1), layers.colour.t())
    hidden = F.gelu(product(embedded, layers.of_embedding).add_(layers.of_position))
    logits = product(hidden, layers.select, layers.select_bias).transpose(1, 2).contiguous()
    largest = logits.amax(dim=-1, keepdim=True)
    portions = logits.sub_(largest).exp_()  # (n, J, P)
    total = portions.sum(dim=-1, keepdim=True)
    portions /= total
    sums = torch.cat([portions @ embedded, portions @ positions], dim=-1)
    log_weight = (largest + total.log()).squeeze(-1)
    return embedded, sums, log_weight, embedded.mean(dim=1), portions


def _backward(
    positions: Tensor,
    layers: CellLayers,
    colours: Tensor,
    embedded: Tensor,
    portions: Tensor,
    of_embedded: Tensor,
    of_sums: Tensor,
    of_log_weight: Tensor,
    of_mean: Tensor,
) -> tuple[Any, ...]:
    """Return the gradients of [hidden c] and of e, and those of the weights, of a block of frames."""
    size = embedded.shape[2]
    of_portions = of_sums[..., size:] @ positions.t()  # (n, J, P)
    of_portions.baddbmm_(of_sums[..., :size], embedded.transpose(1, 2))
    of_portions -= (of_portions * portions).sum(dim=-1, keepdim=True) - of_log_weight.unsqueeze(-1)
    of_logits = of_portions.mul_(portions).transpose(1, 2).contiguous()  # (n, P, J)

    before = product(embedded, layers.of_embedding).add_(layers.of_position)
    of_select = _slope(of_logits, F.gelu(before))
    of_hidden = torch.ops.aten.gelu_backward(product(of_logits, layers.select.t()), before)
    of_embedded = torch.baddbmm(of_embedded, portions.transpose(1, 2), of_sums[..., :size])
    of_embedded += product(of_hidden, layers.of_embedding.t())
    of_embedded += of_mean.unsqueeze(1) / embedded.shape[1]

    before = product(colours, layers.hidden, layers.hidden_bias)
    shade = product_gelu(colours, layers.hidden, layers.hidden_bias)
    of_shade = product(of_embedded, layers.out.t()).mul_(_gelu_slope(before, shade))
    return (
        (of_shade, of_embedded),
        _slope(of_embedded, colours),
        _slope(of_shade, colours),
        of_shade.sum(dim=(0, 1)),
        _slope(of_embedded, shade),
        of_embedded.sum(dim=(0, 1)),
        _slope(of_hidden, embedded),
        of_hidden.sum(dim=0),
        of_select,
        of_logits.sum(dim=(0, 1)),
    )


def _gelu_slope(x: Tensor, gelu: Tensor) -> Tensor:
    """Return the derivative of GELU's tanh approximation at x, given its value: x s(2 k (x + a x^3)).

    With s the sigmoid it is s + GELU (1 - s) 2 k (1 + 3 a x^2). PyTorch's own takes twice the time.
    """
    sigmoid = (gelu / x).nan_to_num_(0.5)  # 0 / 0 at 0
    inner = torch.addcmul(x.new_tensor(2 * GELU_K), x, x, value=6 * GELU_K * GELU_A)
    rest = torch.addcmul(gelu, gelu, sigmoid, value=-1)
    return sigmoid.addcmul_(rest, inner)


def _of_colours(layers: CellLayers, of_shade: Tensor, of_embedded: Tensor) -> Tensor:
    return product(of_shade, layers.hidden.t()) + product(of_embedded, layers.colour.t())


def _slope(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of the weights of a layer that maps x, (n, P, in), to (n, P, out)."""
    rows, of_rows = x.flatten(0, 1), gradient.flatten(0, 1)
    return sum_of_products(of_rows, rows) if x.shape[2] < FEW else of_rows.t() @ rows
