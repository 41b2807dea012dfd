"""A memory of what a camera has seen, and where it is seen now. Ours, not of the papers.

A frame is divided into P cells, 16 x 16 by default. The mean colour of each is embedded, e_p = E(c_p),
and beside it stands its position, x_p = [e_p ‖ pos_p]. J selectors give each cell a logit,
l_jp = f_j(x_p). From these come three tokens for each selector:

    now_j   = sum over p of softmax_p(l_jp) x_p                      TokenLearner (Ryoo et al. 2021)
    seen_j  = sum over all ticks so far and p of softmax(l_jp) x_p   the same over space and time
    found_j = sum over p of softmax_p(s <q_j, e_p - e> + b_p) x_p    q_j = normalised e part of seen_j - e

e is the mean of e_p over the frame. `seen` needs no past frames: the memory holds, for each selector,
the mean so far and the logarithm of its weight, and a tick adds its own. Its gradient reaches every tick
in one step, and nothing fades. Beside it stands that logarithm, the amount of what was seen, by which
ticks can be counted. `found` looks for what is remembered in what is seen now. One embedding
serves both, so that equal colours agree before anything is learned.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ttm.policy.attention import shared_attention
from ttm.policy.cores.core import CoreState
from ttm.policy.errors import UserError
from ttm.policy.layers import Linear, Mlp, has_onednn, product, product_gelu, sum_of_products
from ttm.policy.presets import SIGHT_CELLS, PolicyConfig
from ttm.policy.spec import PolicySpec
from ttm.policy.vision import position_waves

# The layers that a sight memory applies to every cell of every frame, and the sums over the cells.
#
# A batch has hundreds of frames of hundreds of cells, with few channels each, so that a step would
# mostly wait for memory. Here a block of frames passes through all layers while it is in the cache of
# the processor, and its gradients do so too.

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


MEAN, LOG_WEIGHT = "sight_mean", "sight_log_weight"
"""The names of the two tensors of the memory, (B, J, C) and (B, J)."""
SOURCES = ("sight: now", "sight: seen", "sight: found")
"""The names of the three groups of J tokens, as sources of the core's inputs."""
EMBEDDING, POSITION, HIDDEN = 16, 32, 32
"""Channels of e_p, channels of pos_p, and the hidden width of E and f."""
CHANNELS = EMBEDDING + POSITION
"""Channels of x_p."""
COLOUR_GAIN = 4.0
"""Colours in [0, 1] are mapped to [-2, 2]."""
SHARPNESS = 4.0
"""s at the start."""
NOTHING = -1e4
"""The logarithm of the weight of an empty memory."""


class SightMemory(nn.Module):
    """Make 3 J tokens a tick of the cells of one camera, and keep the memory for `seen`."""

    positions: Tensor

    def __init__(self, width: int, num_selectors: int, cells: int = SIGHT_CELLS) -> None:
        """width: D of the tokens. num_selectors: J. cells: along each side of a frame, so that P = cells²."""
        super().__init__()
        self.cells = cells
        self.num_selectors = num_selectors
        self.colour = Linear(3, EMBEDDING, bias=False)
        nn.init.orthogonal_(self.colour.weight)
        self.shade = Mlp(3, HIDDEN, EMBEDDING)
        positions = position_waves((cells, cells), POSITION)
        self.register_buffer("positions", positions, persistent=False)
        self.of_embedding = Linear(EMBEDDING, HIDDEN)
        self.of_position = nn.Linear(POSITION, HIDDEN, bias=False)
        self.select = Linear(HIDDEN, num_selectors)
        self.sharpness = nn.Parameter(torch.tensor(SHARPNESS).log())
        self.prior = nn.Linear(CHANNELS, 1, bias=False)
        sizes = (CHANNELS, CHANNELS + 1, CHANNELS)  # `seen` has the amount beside it
        self.tokens = nn.ModuleList(Linear(size, width) for size in sizes)

    @property
    def num_tokens(self) -> int:
        """3 J, the tokens that it makes at each tick."""
        return len(SOURCES) * self.num_selectors

    def initial_state(self, batch_size: int) -> CoreState:
        """Return the memory in which nothing was seen."""
        like = self.prior.weight
        size = (batch_size, self.num_selectors)
        return {
            MEAN: like.new_zeros(*size, CHANNELS),
            LOG_WEIGHT: like.new_full(size, NOTHING),
        }

    def forward(
        self, colours: Tensor, index: Tensor, state: CoreState, episode_start: Tensor | None
    ) -> tuple[Tensor, CoreState]:
        """Return the tokens, (B, T, 3 J, D), and the new memory.

        colours: (U, 3, cells, cells), see `cell_colours`. index: (B, T), which of them each tick sees.
        episode_start: (B, T) bool, True where the memory is emptied before the tick.
        """
        flat = (colours.float().flatten(2).transpose(1, 2) - 0.5) * COLOUR_GAIN  # (U, P, 3)
        cells, ticks = self._cells(flat), index.flatten()
        now, log_weight = (
            each.index_select(0, ticks).view(*index.shape, *each.shape[1:])
            for each in (cells.sums, cells.log_weight)
        )
        seen, amount, state = _accumulated(now, log_weight, state, episode_start)
        found = self._found(seen.flatten(0, 1), cells, ticks).view_as(seen)
        seen = torch.cat([seen, amount.unsqueeze(-1) - math.log(self.cells**2)], dim=-1)
        groups = zip(self.tokens, (now, seen, found), strict=True)
        return torch.cat([layer(group) for layer, group in groups], dim=2), state

    def _cells(self, colours: Tensor) -> SeenCells:
        """Return what is made of the cells: colours (U, P, 3), in the range of `COLOUR_GAIN`."""
        if self._fuses(colours):
            return seen_cells(colours, self.positions, self._layers())
        embedded = self.colour(colours) + self.shade(colours)  # (U, P, E)
        hidden = F.gelu(self.of_embedding(embedded) + self.of_position(self.positions))
        logits = self.select(hidden).transpose(1, 2)  # (U, J, P)
        sums = self._sums(logits.softmax(dim=-1), embedded)  # (U, J, C)
        return SeenCells(embedded, sums, logits.logsumexp(dim=-1), embedded.mean(dim=1))

    def _fuses(self, x: Tensor) -> bool:
        """Whether the layers of the cells are computed at once: where they train on a CPU in float32."""
        return (
            self.training
            and torch.is_grad_enabled()
            and x.device.type == "cpu"
            and self.select.weight.dtype == torch.float32
            and not torch.is_autocast_enabled("cpu")
            and has_onednn()
        )

    def _layers(self) -> CellLayers:
        shade = self.shade
        return CellLayers(
            self.colour.weight,
            shade.hidden.weight,
            shade.hidden.bias,
            shade.out.weight,
            shade.out.bias,
            self.of_embedding.weight,
            self.of_position(self.positions) + self.of_embedding.bias,
            self.select.weight,
            self.select.bias,
        )

    def _sums(self, weights: Tensor, embedded: Tensor) -> Tensor:
        """Return the sums of x_p, (B, J, C), with weights (B, J, P)."""
        return torch.cat([weights @ embedded, weights @ self.positions], dim=-1)

    def _found(self, seen: Tensor, cells: SeenCells, ticks: Tensor) -> Tensor:
        """Return where the remembered embeddings are now: seen (B * T, J, C) to (B * T, J, C).

        <q, e> and the constant of b are the same for all cells, so that no weight depends on them.
        """
        prior = self.prior.weight[0]
        query = seen[..., :EMBEDDING] - cells.mean.unsqueeze(1).index_select(0, ticks)
        query = F.normalize(query, dim=-1, eps=1e-3) * self.sharpness.exp()
        here = cells.embedded.index_select(0, ticks)  # (B * T, P, E)
        if self._fuses(here):
            bias = self.positions @ prior[EMBEDDING:]
            found, weights = shared_attention(query + prior[:EMBEDDING], here, bias)
            return torch.cat([found, weights @ self.positions], dim=-1)
        bias = cells.embedded @ prior[:EMBEDDING] + self.positions @ prior[EMBEDDING:]  # (U, P)
        logits = query @ here.transpose(1, 2) + bias.index_select(0, ticks).unsqueeze(1)
        return self._sums(logits.softmax(dim=-1), here)


def cell_colours(images: Tensor, cells: int) -> Tensor:
    """Return the mean colours of the cells, (U, 3, cells, cells), of frames (U, 3, H, W).

    images: uint8, or float in [0, 1].
    """
    frames = images.float() / 255 if images.dtype == torch.uint8 else images
    return F.adaptive_avg_pool2d(frames, cells)


def build_sight(spec: PolicySpec, config: PolicyConfig) -> SightMemory | None:
    """Return the sight memory of the first camera, if the policy is to have one.

    Raises `UserError` for a robot without cameras.
    """
    if not config.sight_tokens:
        return None
    if not spec.cameras:
        raise UserError(
            "a sight memory needs a camera, and this spec has none; leave out --sight-tokens"
        )
    return SightMemory(config.width, config.sight_tokens, config.sight_cells)


def without_sight(state: CoreState) -> CoreState:
    """Return the part of a policy's state that is the core's."""
    return {name: value for name, value in state.items() if name not in (MEAN, LOG_WEIGHT)}


def _accumulated(
    now: Tensor, log_weight: Tensor, state: CoreState, episode_start: Tensor | None
) -> tuple[Tensor, Tensor, CoreState]:
    """Accumulate over all ticks so far.

    now: (B, T, J, C). log_weight: (B, T, J), the logarithm of the weight of each tick. Returns the
    weighted means of `now`, (B, T, J, C), the logarithms of the sums of the weights, (B, T, J), and
    the new memory.
    """
    weight = torch.cat([state[LOG_WEIGHT].unsqueeze(1), log_weight], dim=1)  # (B, 1 + T, J)
    value = torch.cat([state[MEAN].unsqueeze(1), now], dim=1)  # (B, 1 + T, J, C)
    batch, ticks = log_weight.shape[:2]
    past = torch.ones(ticks, ticks + 1, dtype=torch.bool, device=now.device).tril(1)
    known = past.expand(batch, -1, -1)  # (B, T, 1 + T): the ticks that each tick knows
    if episode_start is not None:
        episode = episode_start.cumsum(dim=1)
        of_entry = F.pad(episode, (1, 0))
        known = known & (episode.unsqueeze(2) == of_entry.unsqueeze(1))
    logits = weight.unsqueeze(1).masked_fill(
        ~known.unsqueeze(-1), float("-inf")
    )  # (B, T, 1 + T, J)
    seen = torch.einsum("btsj,bsjc->btjc", logits.softmax(dim=2), value)
    amount = logits.logsumexp(dim=2)
    return seen, amount, {MEAN: seen[:, -1], LOG_WEIGHT: amount[:, -1]}
