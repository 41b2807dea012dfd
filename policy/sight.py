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
EMBEDDING, POSITION, HIDDEN, SELECTOR = 16, 32, 32, 64
"""Channels of e_p, channels of pos_p, the hidden width of E and f, and that of l_p."""
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
    def group_sizes(self) -> tuple[int, int, int]:
        """The tokens of each of `SOURCES` at each tick."""
        return (self.num_selectors,) * 3

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


STORED, EVENTS, OPEN = "sight_stored", "sight_events", "sight_open"
"""The names of the tensors of a `ContentMemory`, (B, J, C + 32), (B,) and (B,)."""
OWN = (MEAN, LOG_WEIGHT, STORED, EVENTS, OPEN)
"""What of a policy's state is not the core's."""
CONTENT_SHARPNESS = 16.0
"""s at the start: a body covers few of the cells, and outweighs all others only with so much."""


class ContentMemory(nn.Module):
    """Keep the last J things that a camera has shown and shows no more, and find them where they are now.

    Ours. A frame is P cells of the first layer of vision, c_p, with C normalised channels, each with its
    position beside it, x_p = [c_p ‖ pos_p]. Each cell has a logit, l_p, for that what is seen there, alone
    or among others in the frame, will be gone (`ttm.training.losses.learn_memory`). At each tick

        now = sum over p of softmax_p(l_p) x_p                       TokenLearner (Ryoo et al. 2021)
        open = max_p l_p > 0                                         the write, where it is true:
        stored_1 = now, and stored_j = stored_(j-1) before it if an event begins
        found_j = sum over p of softmax_p(s <q_j, k_p> + b_p) x_p    the read

    An event begins where the memory was closed at the tick before, or now differs from stored_1 by more
    than the cells of the frame do from their mean. The write is that of a Token Turing Machine (Ryoo et al.
    2022) whose weights are 0 or 1: what a slot holds is as it was, however many ticks pass. q_j and k_p are
    the normalised codes E(stored_j) and E(c_p), less the mean code of the frame; one E serves both, so that
    equal things agree before anything is learned. Beside now is whether the memory is open, beside stored_j
    the number of events, by which they can be counted, and beside found_j the likeness of the best cell.
    All ticks of a window are computed at once. The write has no gradient.
    """

    positions: Tensor
    offset: Tensor
    scale: Tensor

    def __init__(self, width: int, num_slots: int, channels: int, cells: int) -> None:
        """width: D. num_slots: J. channels: C."""
        super().__init__()
        self.cells, self.num_slots, size = cells, num_slots, channels + POSITION
        self.register_buffer("offset", torch.zeros(channels, 1, 1))
        self.register_buffer("scale", torch.zeros(channels, 1, 1))
        self.register_buffer(
            "positions", position_waves((cells, cells), POSITION), persistent=False
        )
        # No `Mlp`: oneDNN is slow at gradients of weights so small over so many cells.
        self.of_cell = nn.Linear(channels, SELECTOR)
        self.of_position = nn.Linear(POSITION, SELECTOR, bias=False)
        self.of_frame = nn.Linear(SELECTOR, SELECTOR, bias=False)
        self.select = nn.Linear(SELECTOR, 1)
        nn.init.constant_(self.select.bias, -4.0)  # closed until it has learned
        for each in self.selector():
            each.requires_grad_(False)
        self.embed = nn.Linear(channels, channels, bias=False)
        nn.init.orthogonal_(self.embed.weight)
        self.bend = nn.Sequential(
            nn.Linear(channels, HIDDEN), nn.GELU("tanh"), nn.Linear(HIDDEN, channels)
        )
        self.sharpness = nn.Parameter(torch.tensor(CONTENT_SHARPNESS).log())
        self.prior = nn.Linear(size, 1, bias=False)
        self.look = nn.Softmax(dim=-1)  # over the cells: to write, to find; hooks see both
        self.tokens = nn.ModuleList(nn.Linear(size + 1, width) for _ in SOURCES)

    @property
    def group_sizes(self) -> tuple[int, int, int]:
        """The tokens of each of `SOURCES` at each tick."""
        return 1, self.num_slots, self.num_slots

    def selector(self) -> list[nn.Parameter]:
        """Return the parameters of l_p, which learn apart from all others."""
        layers = (self.of_cell, self.of_position, self.of_frame, self.select)
        return [each for layer in layers for each in layer.parameters()]

    @property
    def is_new(self) -> bool:
        """Whether it has not learned yet what to keep; then it keeps nothing."""
        return not self.scale.any()

    def initial_state(self, batch_size: int) -> CoreState:
        like = self.prior.weight
        slots = like.new_zeros(batch_size, self.num_slots, like.shape[1])
        return {STORED: slots, EVENTS: like.new_zeros(batch_size), OPEN: like.new_zeros(batch_size)}

    def forward(
        self,
        maps: Tensor,
        index: Tensor,
        state: CoreState,
        episode_start: Tensor | None,
        *to_write: Tensor,
    ) -> tuple[Tensor, CoreState]:
        """Return the tokens, (B, T, 1 + 2 J, D), and the new memory.

        maps: (U, C, cells, cells), see `ttm.policy.policy.cells_of`. index: (B, T), which of them each
        tick sees. episode_start: (B, T) bool, True where it is emptied before the tick. to_write: if known.
        """
        cells, (batch, ticks) = self.normalized(maps), index.shape
        with torch.no_grad():
            now, least, opened = (each[index] for each in to_write or self.to_write(cells))
            stored, events, state = self._write(now, least, opened, state, episode_start)
        codes = self.embed(cells) + self.bend(cells)  # (U, P, C)
        mean = codes.mean(dim=1, keepdim=True)
        away, every = codes - mean, index.flatten()
        keys = away / away.norm(dim=-1, keepdim=True).clamp_min(0.1)
        held = stored.flatten(0, 1)[..., : cells.shape[2]]  # (B * T, J, C)
        query = F.normalize(self.embed(held) + self.bend(held) - mean[every], dim=-1, eps=1e-3)
        likeness = query @ keys[every].transpose(1, 2)  # (B * T, J, P)
        bias = (cells @ self.prior.weight[0, : cells.shape[2]])[every]
        bias = bias + self.positions @ self.prior.weight[0, cells.shape[2] :]
        found = self._sums(self.sharpness.exp() * likeness + bias.unsqueeze(1), cells[every])
        found = torch.cat([found, likeness.amax(dim=-1, keepdim=True)], dim=-1)
        count = torch.log1p(events)[..., None, None].expand(-1, -1, self.num_slots, 1)
        is_held = events.unsqueeze(-1) > torch.arange(self.num_slots, device=events.device)
        groups = (
            torch.cat([now, opened.unsqueeze(-1).to(now)], dim=-1).unsqueeze(2),
            torch.cat([stored, count], dim=-1),
            found.view(batch, ticks, self.num_slots, -1) * is_held.unsqueeze(-1),
        )
        made = zip(self.tokens, groups, strict=True)
        return torch.cat([layer(group) for layer, group in made], dim=2), state

    def to_write(self, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return now, (U, C + 32), `least` of `_write`, (U,), and open, (U,) bool, of c_p, (U, P, C)."""
        logits = self.logits(cells).unsqueeze(1)  # (U, 1, P)
        spread = (cells - cells.mean(dim=1, keepdim=True)).square().sum(dim=-1).mean(dim=1)
        return self._sums(logits, cells)[:, 0], spread, self.opens(logits[:, 0])

    def normalized(self, maps: Tensor) -> Tensor:
        """Return c_p, (U, P, C), of maps (U, C, cells, cells)."""
        return ((maps.float() - self.offset) * self.scale).flatten(2).transpose(1, 2).contiguous()

    def logits(self, cells: Tensor) -> Tensor:
        """Return l_p, (U, P), of c_p, (U, P, C): each cell alone, and with the most of all cells."""
        alone = self.of_cell(cells) + self.of_position(self.positions)
        among = self.of_frame(F.gelu(alone, approximate="tanh").amax(dim=1))
        hidden = F.gelu(alone + among.unsqueeze(1), approximate="tanh")
        return self.select(hidden)[..., 0]

    @staticmethod
    def opens(logits: Tensor) -> Tensor:
        """Return whether the memory is open, (...) bool, given l_p, (..., P)."""
        return logits.amax(dim=-1) > 0

    def _sums(self, logits: Tensor, cells: Tensor) -> Tensor:
        """Return the sums of x_p with the weights softmax_p(logits), (U, J, P), as (U, J, C + 32)."""
        weights = self.look(logits)
        return torch.cat([weights @ cells, weights @ self.positions], dim=-1)

    def _write(
        self,
        now: Tensor,
        least: Tensor,
        opened: Tensor,
        state: CoreState,
        episode_start: Tensor | None,
    ) -> tuple[Tensor, Tensor, CoreState]:
        """Return the slots after each tick, (B, T, J, C + 32), the number of events, (B, T), and the memory.

        now: (B, T, C + 32). least: (B, T), the squared difference at which something is another one.
        opened: (B, T) bool. What a slot holds is looked up: the slots of `state` and the ticks are one
        sequence of J + T entries, the oldest first, of which each slot holds one.
        """
        slots = self.num_slots
        reset = torch.zeros_like(opened) if episode_start is None else episode_start
        entries = torch.cat([state[STORED].flip(1), now], dim=1)
        held = state[EVENTS].unsqueeze(1) > torch.arange(slots - 1, -1, -1, device=now.device)
        written = _latest(torch.cat([held, opened], dim=1))
        before = F.pad(written, (1, 0), value=-1)  # the entry that was written last before each one
        first = _latest(F.pad(reset, (slots, 0))).clamp_min(0)[:, slots:]  # of the same episode
        last = before[:, slots:-1]
        change = now - entries.gather(1, _wide(last, entries))
        far = change[..., :-POSITION].square().sum(dim=-1) > least
        goes_on = torch.cat([state[OPEN].unsqueeze(1) > 0, opened[:, :-1]], dim=1) & ~reset
        begins = opened & (far | ~goes_on | (last < first))
        start = _latest(F.pad(begins, (slots, 0), value=True))  # where the event of an entry begins
        place, stored = written[:, slots:], []
        for _ in range(slots):
            known = (place >= first).unsqueeze(-1)
            stored.append(entries.gather(1, _wide(place, entries)) * known)
            place = before.gather(1, start.gather(1, place.clamp_min(0)))
        count = begins.cumsum(dim=1)
        earlier = _highest(torch.where(reset, count - begins.long(), 0))  # of other episodes
        events = (count - earlier).to(now.dtype) + state[EVENTS].unsqueeze(1) * (first == 0)
        slots_now = torch.stack(stored, dim=2)
        state = {
            STORED: slots_now[:, -1],
            EVENTS: events[:, -1],
            OPEN: opened[:, -1].to(now.dtype),
        }
        return slots_now, events, state


def _wide(places: Tensor, entries: Tensor) -> Tensor:
    """Return places (B, T), those below 0 as 0, for `gather` of entries (B, S, C)."""
    return places.clamp_min(0).unsqueeze(-1).expand(-1, -1, entries.shape[2])


def _latest(marked: Tensor) -> Tensor:
    """Return the place of the last mark up to each place, or -1: (B, S) bool to (B, S) int64."""
    return _highest(torch.where(marked, torch.arange(marked.shape[1], device=marked.device), -1))


def _highest(values: Tensor) -> Tensor:
    """Return the highest value up to each place, (B, S) int64; `cummax`, which ONNX does not have."""
    places = torch.arange(values.shape[1], device=values.device)
    return torch.where(places <= places[:, None], values.unsqueeze(1), -1).amax(dim=2)


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
