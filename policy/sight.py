"""A memory of what a camera has seen, and where it is seen now. Ours, not of the papers.

A frame is divided into P cells, 16 x 16 by default. The mean colour of each is embedded, e_p = E(c_p),
and beside it stands its position, x_p = [e_p ‖ pos_p]. J selectors give each cell a logit,
l_jp = f_j(x_p). From these come three tokens for each selector:

    now_j   = sum over p of softmax_p(l_jp) x_p                      TokenLearner (Ryoo et al. 2021)
    seen_j  = sum over all ticks so far and p of softmax(l_jp) x_p   the same over space and time
    found_j = sum over p of softmax_p(s <q_j, e_p - e> + b_p) x_p    q_j = normalised e part of seen_j - e

e is the mean of e_p over the frame. `seen` needs no past frames: the memory holds, for each selector,
the mean so far and the logarithm of its weight, and a tick adds its own. Nothing fades, and the gradient
reaches every tick in one step. The token of `seen` also holds that logarithm, the amount of what was
seen, by which ticks can be counted. `found` searches the cells of now for what was seen. One embedding
serves both, so that equal colours agree before anything is learned.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.config import SIGHT_CELLS
from ttm.policy.cores.core import CoreState
from ttm.policy.layers import Mlp, position_waves

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
        """width: D. num_selectors: J. cells: along each side of a frame, so that P = cells²."""
        super().__init__()
        self.cells = cells
        self.num_selectors = num_selectors
        self.colour = nn.Linear(3, EMBEDDING, bias=False)
        nn.init.orthogonal_(self.colour.weight)
        self.shade = Mlp(3, HIDDEN, EMBEDDING)
        positions = position_waves((cells, cells), POSITION)
        self.register_buffer("positions", positions, persistent=False)
        self.of_embedding = nn.Linear(EMBEDDING, HIDDEN)
        self.of_position = nn.Linear(POSITION, HIDDEN, bias=False)
        self.select = nn.Linear(HIDDEN, num_selectors)
        self.sharpness = nn.Parameter(torch.tensor(SHARPNESS).log())
        self.prior = nn.Linear(CHANNELS, 1, bias=False)
        sizes = (CHANNELS, CHANNELS + 1, CHANNELS)  # `seen` has the amount beside it
        self.tokens = nn.ModuleList(nn.Linear(size, width) for size in sizes)

    @property
    def num_tokens(self) -> int:
        """3 J, the tokens that it makes at each tick."""
        return len(SOURCES) * self.num_selectors

    def initial_state(self, batch_size: int) -> CoreState:
        like, size = self.prior.weight, (batch_size, self.num_selectors)
        return {MEAN: like.new_zeros(*size, CHANNELS), LOG_WEIGHT: like.new_full(size, NOTHING)}

    def forward(
        self, colours: Tensor, index: Tensor, state: CoreState, episode_start: Tensor | None
    ) -> tuple[Tensor, CoreState]:
        """Return the tokens, (B, T, 3 J, D), and the new memory.

        colours: (U, 3, cells, cells), see `cell_colours`. index: (B, T), which of them each tick sees.
        episode_start: (B, T) bool, True where the memory is emptied before the tick.
        """
        flat = (colours.float().flatten(2).transpose(1, 2) - 0.5) * COLOUR_GAIN  # (U, P, 3)
        embedded = self.colour(flat) + self.shade(flat)  # (U, P, E)
        hidden = F.gelu(self.of_embedding(embedded) + self.of_position(self.positions))
        logits = self.select(hidden).transpose(1, 2)  # (U, J, P)
        sums, log_weight = self._sums(logits.softmax(dim=-1), embedded), logits.logsumexp(dim=-1)
        mean, ticks = embedded.mean(dim=1), index.flatten()
        now, log_weight = (
            each.index_select(0, ticks).view(*index.shape, *each.shape[1:])
            for each in (sums, log_weight)
        )
        seen, amount, state = _accumulated(now, log_weight, state, episode_start)
        found = self._found(seen.flatten(0, 1), embedded, mean, ticks).view_as(seen)
        seen = torch.cat([seen, amount.unsqueeze(-1) - math.log(self.cells**2)], dim=-1)
        groups = zip(self.tokens, (now, seen, found), strict=True)
        return torch.cat([layer(group) for layer, group in groups], dim=2), state

    def _sums(self, weights: Tensor, embedded: Tensor) -> Tensor:
        """Return the sums of x_p, (B, J, C), with weights (B, J, P)."""
        return torch.cat([weights @ embedded, weights @ self.positions], dim=-1)

    def _found(self, seen: Tensor, embedded: Tensor, mean: Tensor, ticks: Tensor) -> Tensor:
        """Return where the embeddings in memory are now: seen (B * T, J, C) to (B * T, J, C).

        embedded and mean: e_p of U frames, (U, P, E), and e, (U, E). <q, e> and the constant of b are
        the same for all cells, so that no weight depends on them.
        """
        prior = self.prior.weight[0]
        query = seen[..., :EMBEDDING] - mean.unsqueeze(1).index_select(0, ticks)
        query = F.normalize(query, dim=-1, eps=1e-3) * self.sharpness.exp()
        here = embedded.index_select(0, ticks)  # (B * T, P, E)
        bias = embedded @ prior[:EMBEDDING] + self.positions @ prior[EMBEDDING:]  # (U, P)
        logits = query @ here.transpose(1, 2) + bias.index_select(0, ticks).unsqueeze(1)
        return self._sums(logits.softmax(dim=-1), here)


def cell_colours(images: Tensor, cells: int) -> Tensor:
    """Return the mean colours of cells, (U, 3, cells, cells), of uint8 or float frames (U, 3, H, W)."""
    frames = images.float() / 255 if images.dtype == torch.uint8 else images
    return F.adaptive_avg_pool2d(frames, cells)


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
        known = known & (episode.unsqueeze(2) == F.pad(episode, (1, 0)).unsqueeze(1))
    # (B, T, 1 + T, J)
    logits = weight.unsqueeze(1).masked_fill(~known.unsqueeze(-1), float("-inf"))
    seen = torch.einsum("btsj,bsjc->btjc", logits.softmax(dim=2), value)
    amount = logits.logsumexp(dim=2)
    return seen, amount, {MEAN: seen[:, -1], LOG_WEIGHT: amount[:, -1]}
