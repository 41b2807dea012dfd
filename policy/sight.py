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
SEEN = "sight: seen"
SOURCES = ("sight: now", SEEN, "sight: found")
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


STORED, WRITES = "sight_stored", "sight_writes"
"""The names of the two tensors of a `ContentMemory`, (B, J, C) and (B, J)."""
OWN = (MEAN, LOG_WEIGHT, STORED, WRITES)
"""What of a policy's state is not the core's."""
CONTENT_SHARPNESS = 16.0
"""s at the start: a body covers few of the cells, and outweighs all others only with so much."""
STRETCH = 0.05
"""How far a gate is stretched beyond 0 and 1 before it is cut off there."""
MOST = 1 - 1e-4
"""The highest value of a gate, so that what a slot keeps has a logarithm."""


class ContentMemory(nn.Module):
    """Keep what a camera has shown in J slots, and find it again where it is now. Ours.

    A frame is P cells of the first layer of vision, of C channels. Each is embedded, e_p = E(c_p), and
    its position is beside it, x_p = [e_p ‖ pos_p]. Each slot has a logit for each cell, l_jp, which also
    depends on the mean of the frame and on the instruction. At each tick

        now_j    = sum over p of softmax_p(l_jp) x_p         TokenLearner (Ryoo et al. 2021)
        g_j      = cut(stretch(sigmoid(logsumexp_p(l_jp) - k_j)))
        stored_j = (1 - g_j) stored_j + g_j now_j             the write: TokenLearner over slot and cells
        found_j  = sum over p of softmax_p(s <q_j, k_p> + b_p) x_p                             the read

    Without stretch, the write is the token summary of Token Turing Machines (Ryoo et al. 2022) over
    the slot, whose logit is k_j, and the cells of now. The stretched gate (hard concrete, Louizos et al.
    2018) becomes exactly 0, so that a slot does not fade with the ticks. Its gradient is that without the
    cut, so that a gate which is shut can learn to open. The sum of a slot's gates so far,
    by which events can be counted, is beside it. q_j and k_p are the normalised e parts of stored_j and
    x_p, less the mean of the frame. One embedding serves both, so that equal things agree before
    anything is learned. All ticks of a window are computed at once.
    """

    positions: Tensor

    def __init__(
        self, width: int, num_slots: int, channels: int, condition_size: int, cells: int
    ) -> None:
        """width: D. num_slots: J. channels: C. condition_size: E, the width of the instruction's code."""
        super().__init__()
        self.cells, self.num_selectors = cells, num_slots
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.embed = nn.Linear(channels, EMBEDDING, bias=False)
        nn.init.orthogonal_(self.embed.weight)
        # No `Mlp`: oneDNN is slow at gradients of weights so small over so many cells.
        self.bend = nn.Sequential(
            nn.Linear(channels, HIDDEN), nn.GELU("tanh"), nn.Linear(HIDDEN, EMBEDDING)
        )
        self.register_buffer(
            "positions", position_waves((cells, cells), POSITION), persistent=False
        )
        self.of_embedding = nn.Linear(EMBEDDING, HIDDEN)
        self.of_position = nn.Linear(POSITION, HIDDEN, bias=False)
        self.of_frame = nn.Linear(EMBEDDING + condition_size, HIDDEN, bias=False)
        self.select = nn.Linear(HIDDEN, num_slots)
        self.keep = nn.Parameter(torch.full((num_slots,), math.log(cells**2) + 1.0))
        self.sharpness = nn.Parameter(torch.tensor(CONTENT_SHARPNESS).log())
        self.prior = nn.Linear(CHANNELS, 1, bias=False)
        self.look = nn.Softmax(dim=-1)  # over the cells: to write, to find; hooks see both
        sizes = (CHANNELS, CHANNELS + 1, CHANNELS)  # `seen` has the number of writes beside it
        self.tokens = nn.ModuleList(nn.Linear(size, width) for size in sizes)

    @property
    def num_tokens(self) -> int:
        """3 J, the tokens that it makes at each tick."""
        return len(SOURCES) * self.num_selectors

    def initial_state(self, batch_size: int) -> CoreState:
        like, size = self.prior.weight, (batch_size, self.num_selectors)
        return {STORED: like.new_zeros(*size, CHANNELS), WRITES: like.new_zeros(size)}

    def forward(
        self,
        maps: Tensor,
        index: Tensor,
        state: CoreState,
        episode_start: Tensor | None,
        condition: Tensor,
        repeats: Tensor | None = None,
    ) -> tuple[Tensor, CoreState]:
        """Return the tokens, (B, T, 3 J, D), and the new memory.

        maps: (U, C, cells, cells), see `ttm.policy.policy.cells_of`. index: (B, T), which of them each
        tick sees. episode_start: (B, T) bool, True where the memory is emptied before the tick.
        condition: (B, E), the code of the instruction. repeats: (B, T), for how many ticks each frame
        lasted; None for one each.
        """
        batch, ticks = index.shape
        maps = maps.index_select(0, index.flatten()).float()
        cells = self.norm(maps).flatten(2).transpose(1, 2).contiguous()  # (B * T, P, C)
        embedded = self.embed(cells) + self.bend(cells)
        mean = embedded.mean(dim=1, keepdim=True)
        frame = torch.cat([mean[:, 0], condition.repeat_interleave(ticks, dim=0)], dim=-1)
        offset = self.of_position(self.positions) + self.of_frame(frame).unsqueeze(1)
        hidden = F.gelu(self.of_embedding(embedded) + offset, approximate="tanh")
        logits = self.select(hidden).transpose(1, 2)  # (B * T, J, P)
        now = self._sums(logits, embedded).view(batch, ticks, -1, CHANNELS)
        gate = self.gate(logits).view(batch, ticks, -1)
        kept = torch.log1p(-gate) * (1 if repeats is None else repeats.unsqueeze(-1))
        stored, writes, state = self._write(now, kept, state, episode_start)
        away = embedded - mean
        query = F.normalize(stored.flatten(0, 1)[..., :EMBEDDING] - mean, dim=-1, eps=1e-3)
        likeness = query @ away.transpose(1, 2) / away.norm(dim=-1).clamp_min(0.1).unsqueeze(1)
        prior = self.prior.weight[0]
        bias = embedded @ prior[:EMBEDDING] + self.positions @ prior[EMBEDDING:]  # (B * T, P)
        scores = self.sharpness.exp() * likeness + bias.unsqueeze(1)
        found = self._sums(scores, embedded).view_as(now)
        seen = torch.cat([stored, torch.log1p(writes).unsqueeze(-1)], dim=-1)
        groups = zip(self.tokens, (now, seen, found), strict=True)
        return torch.cat([layer(group) for layer, group in groups], dim=2), state

    def gate(self, logits: Tensor) -> Tensor:
        """Return how far each slot opens, (B, J), given the logits of its cells, (B, J, P)."""
        strength = (logits.logsumexp(dim=-1) - self.keep).sigmoid()
        stretched = strength * (1 + 2 * STRETCH) - STRETCH
        return stretched + (stretched.clamp(0, MOST) - stretched).detach()

    def _sums(self, logits: Tensor, embedded: Tensor) -> Tensor:
        """Return the sums of x_p with the weights softmax_p(logits), (B, J, P), as (B, J, C)."""
        weights = self.look(logits)
        return torch.cat([weights @ embedded, weights @ self.positions], dim=-1)

    def _write(
        self, now: Tensor, kept: Tensor, state: CoreState, episode_start: Tensor | None
    ) -> tuple[Tensor, Tensor, CoreState]:
        """Return the slots after each tick, (B, T, J, C), the number of writes, (B, T, J), and the memory.

        now: (B, T, J, C). kept: (B, T, J), the logarithms of what each tick leaves of a slot.
        """
        known = _known(kept, episode_start)  # (B, T, 1 + T)
        gate = -torch.expm1(kept)
        counted = torch.cat([state[WRITES].unsqueeze(1), gate], dim=1)
        writes = known.to(counted.dtype) @ counted  # (B, T, J)
        total = kept.cumsum(dim=1)  # the logarithm of what is kept of the first tick
        since = total.unsqueeze(2) - F.pad(total, (0, 0, 1, 0)).unsqueeze(1)  # (B, T, 1 + T, J)
        written = torch.cat([torch.ones_like(gate[:, :1]), gate], dim=1)
        weight = since.masked_fill(~known.unsqueeze(-1), float("-inf")).exp() * written.unsqueeze(1)
        value = torch.cat([state[STORED].unsqueeze(1), now], dim=1)
        stored = torch.einsum("btsj,bsjc->btjc", weight, value)
        return stored, writes, {STORED: stored[:, -1], WRITES: writes[:, -1]}


Sight = SightMemory | ContentMemory


def cell_colours(images: Tensor, cells: int) -> Tensor:
    """Return the mean colours of cells, (U, 3, cells, cells), of uint8 or float frames (U, 3, H, W)."""
    frames = images.float() / 255 if images.dtype == torch.uint8 else images
    return F.adaptive_avg_pool2d(frames, cells)


def without_sight(state: CoreState) -> CoreState:
    """Return the part of a policy's state that is the core's."""
    return {name: value for name, value in state.items() if name not in OWN}


def _known(values: Tensor, episode_start: Tensor | None) -> Tensor:
    """Return which ticks each tick knows, (B, T, 1 + T) bool: the memory before the first, and itself.

    values: (B, T, ...). episode_start: (B, T) bool.
    """
    batch, ticks = values.shape[:2]
    past = torch.ones(ticks, ticks + 1, dtype=torch.bool, device=values.device).tril(1)
    known = past.expand(batch, -1, -1)
    if episode_start is not None:
        episode = episode_start.cumsum(dim=1)
        known = known & (episode.unsqueeze(2) == F.pad(episode, (1, 0)).unsqueeze(1))
    return known


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
    known = _known(log_weight, episode_start)
    # (B, T, 1 + T, J)
    logits = weight.unsqueeze(1).masked_fill(~known.unsqueeze(-1), float("-inf"))
    seen = torch.einsum("btsj,bsjc->btjc", logits.softmax(dim=2), value)
    amount = logits.logsumexp(dim=2)
    return seen, amount, {MEAN: seen[:, -1], LOG_WEIGHT: amount[:, -1]}
