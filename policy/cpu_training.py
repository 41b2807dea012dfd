"""What makes training faster on a CPU: modules that compute the same, but for rounding, in less time.

`quicker_on_cpu(model)` is the one switch. It gives modules of the network a subclass that overrides how
they compute in training; parameters, names and hooks stay. Without a gradient a quick module is the plain
one, to the bit. Its gradients have no gradients of their own.

PyTorch multiplies float32 matrices by Intel's MKL, which leaves the AVX-512 units of processors of other
makers idle; oneDNN uses them. Attention of few queries to many tokens makes keys and values of which
little is used, and so do camera tokens of features that are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ttm.policy.cores.ttm_variants import GatedWrite
from ttm.policy.layers import AttentionBlock, Mlp, SelfAttention
from ttm.policy.vision import CameraTokens

Model = TypeVar("Model", bound=nn.Module)

FEWEST_PRODUCTS = 2**20
"""Multiplications of a matrix product from which on oneDNN is worth its call."""


def quicker_on_cpu(model: Model) -> Model:
    """Make the modules of `model` quick, in place, and return it."""
    for module in model.modules():
        module.__class__ = QUICK.get(type(module), type(module))
        for owner, names in QUICK_LINEARS.items():
            for name in names if isinstance(module, owner) else ():
                module.get_submodule(name).__class__ = QuickLinear
    return model


# Matrix products by oneDNN


class QuickLinear(nn.Linear):
    """`nn.Linear`, whose larger products run in oneDNN while it trains."""

    def forward(self, x: Tensor) -> Tensor:
        return (linear if self.training else F.linear)(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b, by oneDNN if a gradient is asked for and it is faster.

    x: (..., in); weight: (out, in); bias: (out,). Returns (..., out).
    """
    gains = (
        x.dim() > 1
        and x.shape[-1] == weight.shape[-1]  # if not, PyTorch's error is the clearer one
        and x.numel() * len(weight) >= FEWEST_PRODUCTS
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and has_onednn()
    )
    if not gains:
        return F.linear(x, weight, bias)
    return _OneDnnLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]


def has_onednn() -> bool:
    """Whether oneDNN and its linear operator are there, and not switched off (`mkldnn.flags`)."""
    backend = torch.backends.mkldnn
    usable = backend.is_available() and backend.enabled  # type: ignore[no-untyped-call]
    return bool(usable) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class _OneDnnLinear(torch.autograd.Function):
    """x W^T + b and its gradients, all three matrix products by oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous()  # oneDNN takes a thousand times as long for rows of a larger matrix
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)  # (P, out)
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if of_x else None,
            _sum_of_products(rows, x.flatten(0, -2)) if of_weight else None,
            rows.sum(dim=0) if of_bias else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _sum_of_products(x: Tensor, y: Tensor) -> Tensor:
    """Return x^T y, (I, O), of x (P, I) and y (P, O). oneDNN copies the one that is given first."""
    if x.shape[1] > y.shape[1]:
        return _product(y.t(), x.t()).t()
    return _product(x.t(), y.t())


# Attention without keys and values


class QuickSelfAttention(SelfAttention):
    """Self-attention of a few of the tokens, folded."""

    def forward(self, x: Tensor, outputs: int | None = None) -> Tensor:
        if outputs is None or not _folding_gains(self, x[:, :outputs], x):
            return super().forward(x, outputs)
        width = self.qkv.in_features
        (query, key_value), (query_bias, biases) = (
            torch.split(part, [width, 2 * width]) for part in (self.qkv.weight, self.qkv.bias)
        )
        projections = (query, query_bias, key_value, biases, self.out.weight, self.out.bias)
        return folded_attention(x[:, :outputs], x, projections, self.num_heads)


class QuickAttentionBlock(AttentionBlock):
    """Attention of few queries to a longer context, folded."""

    def attend(self, x: Tensor, context: Tensor) -> Tensor:
        if not _folding_gains(self, x, context):
            return super().attend(x, context)
        layers = (self.query, self.key_value, self.out)
        projections = [part for layer in layers for part in (layer.weight, layer.bias)]
        queries, tokens = self.query_norm(x), self.context_norm(context)
        x = x + folded_attention(queries, tokens, projections, self.num_heads)
        return x + self.mlp(self.mlp_norm(x))


def _folding_gains(module: SelfAttention | AttentionBlock, x: Tensor, context: Tensor) -> bool:
    """Return whether a module trains, and `folded_attention` takes less time."""
    (asking, width), tokens = x.shape[1:], context.shape[1]
    few = asking * module.num_heads * (width + tokens) < tokens * width * 2
    return few and module.training and torch.is_grad_enabled()


def folded_attention(
    x: Tensor, context: Tensor, projections: Sequence[Tensor], heads: int
) -> Tensor:
    """Return multi-head attention, (B, r, D), of x to `context`, (B, N, D), without keys and values.

    Head h weighs token c of the context by <Q_h x + a, K_h c + b>. But for a number that is the same
    for all tokens, that is <K_h^T Q_h x + K_h^T a, c>. Its result is O_h (V_h s + d) with s the
    weighted sum of the tokens. So two products of matrices that are multiplied beforehand, K_h^T Q_h
    and O_h V_h, are left, and both are of x and s alone.

    projections: weight and bias of the query, of key and value at once, (2 D, D), and of the output.
    """
    width = x.shape[-1]
    query, query_bias, both, biases, out, out_bias = projections
    key, value = both.view(2, heads, -1, width)  # (nh, hs, D) each
    scaled_key = key.transpose(1, 2) * (heads / width) ** 0.5
    question = (scaled_key @ query.view(heads, -1, width)).flatten(0, 1)  # (nh * D, D)
    question_bias = (scaled_key @ query_bias.view(heads, -1, 1)).flatten()
    of_heads = out.view(width, heads, -1).transpose(0, 1)  # (nh, D, hs)
    answer = (of_heads @ value).transpose(0, 1).flatten(1)  # (D, nh * D)
    answer_bias = torch.addmv(out_bias, out, biases[width:])
    asked = linear(x, question, question_bias).view(len(x), -1, width)  # (B, r * nh, D)
    found: Tensor = _SharedAttention.apply(asked, context)  # type: ignore[no-untyped-call]
    return linear(found.view(len(x), -1, heads * width), answer, answer_bias)


class _SharedAttention(torch.autograd.Function):
    """softmax(q x^T) x: tokens x, (B, N, D), are both keys and values of queries q, (B, Q, D).

    PyTorch would make the gradients of the tokens as keys and as values, and then add them.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, tokens: Tensor) -> Tensor:
        tokens = tokens.to(queries.dtype)
        weights = (queries @ tokens.transpose(1, 2)).softmax(dim=-1).to(queries.dtype)
        ctx.save_for_backward(queries, tokens, weights)
        return weights @ tokens

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        queries, tokens, weights = ctx.saved_tensors
        of_logits = gradient @ tokens.transpose(1, 2)
        of_logits -= (of_logits * weights).sum(dim=-1, keepdim=True)
        of_logits *= weights
        of_tokens = weights.transpose(1, 2) @ gradient
        of_tokens.baddbmm_(of_logits.transpose(1, 2), queries)
        return of_logits @ tokens, of_tokens


# Camera tokens of features that are given, as those of a frozen vision network


class QuickCameraTokens(CameraTokens):
    """Camera tokens of features without a gradient, whose cells of D channels are never made."""

    def forward(self, features: Tensor) -> Tensor:
        trains = self.training and torch.is_grad_enabled()
        if not trains or features.requires_grad or features.device.type != "cpu":
            return super().forward(features)
        with torch.autocast("cpu", enabled=False):  # variances need all digits
            summary = self._folded(features.flatten(2).transpose(1, 2))
        return summary + self.mlp(self.norm(summary))

    def _folded(self, cells: Tensor) -> Tensor:
        """Return the summary, (B, K, D), of the cells x = W f + e, whose features f are (B, P, C).

        The mean of W f + e over the D channels goes out of W and e beforehand, and its variance is
        a quadratic form of f. So the normalised cells need not exist: the hidden layer of the
        summariser's MLP is a linear map of f / deviation, and the sums of the cells are W times the
        sums of f, plus those of e.
        """
        norm, mlp = self.summarizer.norm, self.summarizer.mlp
        weight, offset = self.project.weight, self.project.bias + self.position + self.camera
        centred_weight = weight - weight.mean(dim=0)  # (D, C)
        centred_offset = offset - offset.mean(dim=1, keepdim=True)  # (P, D)
        square = centred_weight.T @ centred_weight / len(weight)  # (C, C)
        mixed = centred_offset @ centred_weight * (2 / len(weight))  # (P, C)
        constant = centred_offset.square().mean(dim=1, keepdim=True)  # (P, 1)
        variance = (cells * (cells @ square + mixed)).sum(dim=-1, keepdim=True) + constant
        scale = (variance.clamp_min(0) + norm.eps).rsqrt()  # (B, P, 1); rounding can go below 0
        to_hidden = mlp.hidden.weight * norm.weight  # (H, D)
        bias = mlp.hidden.bias + mlp.hidden.weight @ norm.bias
        centred = linear(cells, to_hidden @ centred_weight) + centred_offset @ to_hidden.T
        hidden = torch.addcmul(bias, scale, centred)  # (B, P, H)
        weights = mlp.out(F.gelu(hidden, approximate="tanh")).softmax(dim=1).transpose(1, 2)
        return F.linear(weights @ cells, weight) + weights @ offset


QUICK: Mapping[type[nn.Module], type[nn.Module]] = {
    SelfAttention: QuickSelfAttention,
    AttentionBlock: QuickAttentionBlock,
    CameraTokens: QuickCameraTokens,
}
"""Module -> its quick class, which has no state of its own."""
QUICK_LINEARS: Mapping[type[nn.Module], tuple[str, ...]] = {
    Mlp: ("hidden", "out"),
    SelfAttention: ("qkv", "out"),
    AttentionBlock: ("query", "key_value", "out"),
    GatedWrite: ("gate",),
}
"""Module -> its linear layers that become quick."""
