"""A memory of the last J things that a camera has shown and shows no more, and of where they are now.

Ours, not of the papers. A frame is P cells of the first layer of vision, c_p, with C normalised
channels, each with its position beside it, x_p = [c_p ‖ pos_p]. Each cell has a logit, l_p, for that
what is seen there, alone or among others in the frame, will be gone
(`ttm.training.losses.learn_memory`). At each tick

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

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.core import CoreState
from ttm.policy.layers import position_waves

STORED, EVENTS, OPEN = OWN = ("sight_stored", "sight_events", "sight_open")
"""The names of the tensors of the memory, (B, J, C + 32), (B,) and (B,)."""
SOURCES = ("sight: now", "sight: seen", "sight: found")
"""The names of the three groups of tokens, as sources of the core's inputs."""
CELLS = 16
"""Cells along each side of a frame."""
POSITION, HIDDEN, SELECTOR = 32, 32, 64
"""Channels of pos_p, the hidden width of E, and that of l_p."""
SHARPNESS = 16.0
"""s at the start: a body covers few of the cells, and outweighs all others only with so much."""


class SightMemory(nn.Module):
    """Keep what one camera shows and will show no more, and find it: 1 + 2 J tokens a tick."""

    positions: Tensor
    offset: Tensor
    scale: Tensor

    def __init__(self, width: int, num_slots: int, channels: int, cells: int = CELLS) -> None:
        """width: D. num_slots: J. channels: C. cells: along each side of a frame, so that P = cells²."""
        super().__init__()
        self.num_slots, size = num_slots, channels + POSITION
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
        self.sharpness = nn.Parameter(torch.tensor(SHARPNESS).log())
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

    def take_lesson(self, other: SightMemory) -> None:
        """Keep from now on what `other` has learned to keep."""
        mine = (*self.selector(), self.offset, self.scale)
        for to, value in zip(mine, (*other.selector(), other.offset, other.scale), strict=True):
            to.data.copy_(value)

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

        maps: (U, C, cells, cells), see `ttm.policy.policy.Policy.cells`. index: (B, T), which of them each
        tick sees. episode_start: (B, T) bool, True where it is emptied before the tick. to_write: if known.
        """
        cells, (batch, ticks) = self.normalized(maps), index.shape
        with torch.no_grad():
            now, least, opened = (each[index] for each in to_write or self.to_write(cells))
            stored, events, state = self._write(now, least, opened, state, episode_start)
        codes = self.embed(cells) + self.bend(cells)  # (U, P, C)
        mean = codes.mean(dim=1, keepdim=True)
        away, every = codes + -mean, index.flatten()  # a difference would negate its gradient
        keys = away * away.square().sum(dim=-1, keepdim=True).clamp_min(0.01).rsqrt()
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
        begins = opened & (far | ~goes_on)
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


def without_sight(state: CoreState) -> CoreState:
    """Return the part of a policy's state that is the core's."""
    return {name: value for name, value in state.items() if name not in OWN}
