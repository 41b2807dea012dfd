"""The recall loss, by which a memory learns to keep what was seen and is seen no more. Ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from ttm.policy.layers import Mlp
from ttm.policy.policy import Policy
from ttm.policy.sight import SEEN, SOURCES, ContentMemory
from ttm.training.frozen_vision import EpisodeFeatures


def recalling(policy: Policy, tokens: Tensor, outputs: Tensor) -> Tensor:
    """Return what the recall loss looks at, (B, T, C).

    It is what the slots of a `ContentMemory` hold, else the mean of the core's output tokens.
    tokens: (B, T, N, D), the inputs of the core. outputs: (B, T, R, D).
    """
    if isinstance(policy.sight, ContentMemory):
        return tokens[:, :, policy.token_sources[SEEN]].flatten(2)
    return outputs.mean(dim=2)


def recalling_size(policy: Policy) -> int:
    """Return C of `recalling`."""
    slots = policy.sight.num_selectors if isinstance(policy.sight, ContentMemory) else 1
    return slots * policy.config.width


HIDDEN_SIZE = 256
EPISODES, LONGEST, LEARNING_RATE = 48, 32, 2e-3
"""Of `learn_memory`: episodes in a batch, the most ticks of each, and the peak learning rate."""
LASTING, LONGEST_FRAME = 0.3, 100.0
"""Of its ticks: the portion that last longer, up to so many times."""
RECALL = ("recall", "recall_ratio")
"""The names of the results of `RecallLoss`."""


class RecallLoss(nn.Module):
    """Predict the targets of `RecallTargets` from what `recalling` returns, by an MLP.

    This loss, which is ours, rewards the memory at every tick for what it keeps, without labels, where
    behaviour cloning does so only at the few ticks whose action depends on the past. It teaches neither
    counts nor orders. Checkpoints do not hold its network.
    """

    def __init__(self, width: int, size: int, weight: float) -> None:
        """width: C of what `recalling` returns. size: C of the targets. weight: of this loss in the total."""
        super().__init__()
        self.weight = weight
        self.mlp = Mlp(width, HIDDEN_SIZE, size)

    def forward(self, held: Tensor, targets: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Return the smooth L1 error as "recall", and its ratio to that of predicting zero.

        held: (B, T, C) of `recalling`. targets: (B, T, size). valid: (B, T) bool, the ticks that have
        one. The ratio, "recall_ratio", is about 1 as long as nothing of the past is held, and falls
        when the memory learns.
        """
        recalled: Tensor = self.mlp(held)
        found, wanted = recalled[valid], targets[valid]
        count = max(1, wanted.numel())  # no tick may have a target
        error = F.smooth_l1_loss(found, wanted, reduction="sum") / count
        zero = F.smooth_l1_loss(torch.zeros_like(wanted), wanted, reduction="sum") / count
        return {"recall": error, "recall_ratio": (error / zero.clamp_min(1e-12)).detach()}


ROWS_AT_ONCE = 1024


class RecallTargets:
    """The targets of all ticks of a data set: what was seen and is seen no more.

    At tick t it is c_s - c_t, where c are the codes of ticks, and s is the tick before t of the same
    stand-still whose code is farthest from c_t. While the robot stands, what changes is the world and not
    the view of it. A tick at which a stand-still begins has no target, which NaN marks. A robot that
    never stands still is taken to stand in every episode.
    """

    def __init__(self, codes: Tensor, lengths: Sequence[int], stands: Tensor) -> None:
        """codes: (num_ticks, C), of episodes of these lengths one after another.

        stands: (num_ticks,), as `stand_stills` returns it.
        """
        self.codes, self._stands = codes, stands
        self._episodes = torch.repeat_interleave(torch.tensor(lengths))
        if not ((stands.diff() == 0) & (self._episodes.diff() == 0)).any():
            self._stands = self._episodes
        starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
        parts = zip(
            starts, codes.split(list(lengths)), self._stands.split(list(lengths)), strict=True
        )
        self._farthest = torch.cat(
            [start + _farthest(c[None], s[None])[0] for start, c, s in parts]
        )

    def longest_stands(self) -> list[Tensor]:
        """Return the dataset ticks of the longest stand-still of each episode, at most `LONGEST`."""
        found = []
        for number in self._episodes.unique():
            ticks = (self._episodes == number).nonzero()[:, 0]
            _, run, length = self._stands[ticks].unique_consecutive(
                return_inverse=True, return_counts=True
            )
            found.append(ticks[run == length.argmax()][:LONGEST])
        return found

    @property
    def size(self) -> int:
        """C, the dimensions of a target."""
        return self.codes.shape[1]

    def at(self, ticks: Tensor, *, whole_past: bool = False) -> Tensor:
        """Return the targets of windows of dataset ticks (B, T), as (B, T, C).

        whole_past: whether the ticks of the episode before the window count as seen, because its
        memory is carried over. Otherwise the past begins with the window.
        """
        codes, stands = self.codes[ticks], self._stands[ticks]
        if whole_past:
            targets, first = self.codes[self._farthest[ticks]] - codes, ticks == 0
            before = self._stands[(ticks - 1).clamp_min(0)]
        else:
            farthest = _farthest(codes, stands).unsqueeze(-1).expand_as(codes)
            targets, before = codes.gather(1, farthest) - codes, stands.roll(1, dims=1)
            first = torch.arange(ticks.shape[1]) == 0
        return targets.masked_fill(((before != stands) | first).unsqueeze(-1), float("nan"))


ROWS_AT_ONCE = 1024


def _farthest(codes: Tensor, stands: Tensor) -> Tensor:
    """Return which tick of the same stand-still up to each tick has the code farthest from its own.

    codes: (B, T, C). stands: (B, T). Returns (B, T).
    """
    found = []
    for start in range(0, codes.shape[1], ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, codes.shape[1])
        away = 1 + torch.cdist(codes[:, start:stop], codes[:, :stop])
        same = stands[:, start:stop, None] == stands[:, None, :stop]
        found.append((away * same).tril(start).argmax(dim=2))
    return torch.cat(found, dim=1)


def learn_memory(
    policy: Policy,
    recall: RecallLoss,
    targets: RecallTargets,
    features: EpisodeFeatures,
    instructions: Tensor,
    *,
    steps: int,
    seed: int,
) -> Iterator[float]:
    """Train a content memory by the recall loss alone, on the longest stand-still of each episode.

    These are short, and neither vision nor core take part, so that a step costs a fraction of one of the
    whole policy, and has three times the episodes. Yields the recall ratio of each step.

    instructions: (E, L), the embedding of each episode's instruction.
    """
    memory, stands = policy.sight, targets.longest_stands()
    assert isinstance(memory, ContentMemory)
    assert features.colours is not None
    store, rows = features.colours
    generator = torch.Generator().manual_seed(seed)
    trained = [*memory.parameters(), *recall.parameters()]
    optimizer = torch.optim.AdamW(trained, LEARNING_RATE, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1
    )
    for _ in range(steps):
        drawn = torch.randint(len(stands), (EPISODES,), generator=generator)
        ticks = pad_sequence([stands[i] for i in drawn], batch_first=True, padding_value=-1)
        wanted, seen = targets.at(ticks.clamp_min(0)), store.at(rows[ticks.clamp_min(0)])
        with torch.no_grad():
            code = policy.instruction_code(instructions[drawn])
        # A frame that lasts asks the gates to be closed where nothing is worth keeping.
        lasting = torch.rand(ticks.shape, generator=generator) < LASTING
        longer = LONGEST_FRAME ** torch.rand(ticks.shape, generator=generator)
        repeats = torch.where(lasting, longer, 1.0)
        empty = memory.initial_state(EPISODES)
        tokens, _ = memory(seen.maps, seen.index, empty, None, code, repeats)
        held = tokens.unflatten(2, (len(SOURCES), -1))[:, :, SOURCES.index(SEEN)].flatten(2)
        losses = recall(held, wanted, (ticks >= 0) & ~wanted[..., 0].isnan())
        optimizer.zero_grad()
        losses["recall"].backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        yield losses["recall_ratio"].item()
