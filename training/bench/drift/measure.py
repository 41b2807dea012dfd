"""Does a memory drift? Runs a policy over chains of recorded episodes, much longer than those it was trained on.

A chain is laid end to end from episodes of a data set. At each seam the instruction changes and the memory goes
on, as by `PolicyRunner.reset(instruction, keep_memory=True)`, and so does the previous action. A chain enters its
first episode at a tick drawn at random, so that every tick number meets the same mixture of moments, and what
changes with the tick number is the memory. Previous actions are the demonstrator's, as in validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain as joined
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ttm.datasets.statistics import VectorStatistics
from ttm.datasets.windows.windows import WindowDataset
from ttm.policy.cores.temporal_core import reset_where
from ttm.policy.network.policy import PREVIOUS_ACTION, Policy
from ttm.training.cloning.action_errors import squared_errors
from ttm.training.cloning.behavior_cloning import at_ticks
from ttm.training.cloning.training_data import policy_inputs

Floats = npt.NDArray[np.floating]
Bools = npt.NDArray[np.bool_]
TICKS_AT_ONCE = 32
"""Bound on what the vision holds in memory; results do not depend on it."""


class Stretch(NamedTuple):
    """Ticks `first` to before `stop` of an episode."""

    episode: int
    first: int
    stop: int


Chain = list[Stretch]


@dataclass(frozen=True)
class Run:
    """C chains of T ticks, run in one way."""

    norms: Floats
    """(C, T): mean Euclidean norm of the memory's tokens after the tick."""
    errors: Floats
    """(C, T): mean over action dimensions of the squared normalised error; see `action_errors`."""


@dataclass(frozen=True)
class DriftRuns:
    """The same ticks with the memory kept over the seams, and with it reset there, as in use."""

    kept: Run
    control: Run
    seams: Bools
    """(C, T): True at an episode's first tick, save the chain's own."""


def lay_chains(lengths: list[int], count: int, ticks: int, seed: int) -> list[Chain]:
    """`count` chains of `ticks` ticks over episodes of `lengths`; each is a function of (seed, its number) alone."""
    return [
        _lay_chain(lengths, ticks, np.random.default_rng([seed, number])) for number in range(count)
    ]


def _lay_chain(lengths: list[int], ticks: int, rng: np.random.Generator) -> Chain:
    entry = int(rng.integers(sum(lengths)))  # a tick of the whole data set
    ends = np.cumsum(lengths)
    first = int(np.searchsorted(ends, entry, side="right"))
    chain = [Stretch(first, entry - int(ends[first]) + lengths[first], lengths[first])]
    for episode in joined.from_iterable(
        rng.permutation(len(lengths)).tolist() for _ in range(ticks)
    ):
        missing = ticks - sum(stretch.stop - stretch.first for stretch in chain)
        if missing <= 0:
            return [*chain[:-1], chain[-1]._replace(stop=chain[-1].stop + missing)]
        chain.append(Stretch(episode, 0, lengths[episode]))
    raise AssertionError  # every episode has a tick


def measure(
    policy: Policy, episodes: WindowDataset, statistics: VectorStatistics, chains: list[Chain]
) -> DriftRuns:
    """Runs `policy`, in evaluation mode, over `chains`.

    episodes: one window for each whole episode; statistics: of the actions, whose deviations are the errors' unit.
    """
    seen = {
        number: _see(policy, episodes, number)
        for number in sorted({s.episode for c in chains for s in c})
    }
    seams = np.stack([_seams(chain) for chain in chains])
    actions = np.stack(
        [np.concatenate([seen[s.episode].actions[s.first : s.stop] for s in c]) for c in chains]
    )
    parted = torch.stack(
        [torch.cat([seen[s.episode].tokens[s.first : s.stop] for s in c]) for c in chains]
    )
    whole = torch.stack(
        [_carry_actions(policy, c, t, seen) for c, t in zip(chains, parted, strict=True)]
    )

    def run(tokens: Tensor, reset: Bools) -> Run:
        norms, predicted = run_core(policy, tokens, torch.from_numpy(reset))
        return Run(norms, squared_errors(predicted, actions, statistics.std))

    return DriftRuns(run(whole, np.zeros_like(seams)), run(parted, seams), seams)


class _Seen(NamedTuple):
    """What the core gets of an episode of T ticks, and what it should do."""

    tokens: Tensor
    """(T, N, D)."""
    actions: Floats
    """(T, A)."""
    last_action: Floats
    """(A,), the one executed at the last tick."""


@torch.no_grad()
def _see(policy: Policy, episodes: WindowDataset, number: int) -> _Seen:
    length, device = episodes.episode_lengths[number], next(policy.parameters()).device
    batch = episodes.gather([number])
    inputs = policy_inputs(batch)
    starts = range(0, length, TICKS_AT_ONCE)
    parts = (at_ticks(inputs, slice(start, min(start + TICKS_AT_ONCE, length))) for start in starts)
    tokens = torch.cat([policy.encode(part.to(device))[0] for part in parts])
    last = episodes.episodes[number].executed_actions[-1]
    return _Seen(tokens, batch["actions"][0, :length].cpu().numpy(), last)


@torch.no_grad()
def run_core(policy: Policy, tokens: Tensor, reset: Tensor) -> tuple[Floats, Floats]:
    """tokens: (C, T, N, D), reset: (C, T) bool, before which tick -> the memory's norms (C, T), actions (C, T, A)."""
    initial = policy.initial_state(len(tokens))
    state, norms, actions = initial, [], []
    reset = reset.to(tokens.device)
    for tick, now in enumerate(tokens.unbind(dim=1)):
        outputs, state = policy.core.step(now, reset_where(reset[:, tick], state, initial))
        norms.append(policy.core.memory_norms(state).mean(dim=1))
        actions.append(policy.decode(policy.action_head(outputs.unsqueeze(1))))
    return torch.stack(norms, dim=1).cpu().numpy(), torch.cat(actions, dim=1).cpu().numpy()


@torch.no_grad()
def _carry_actions(
    policy: Policy, chain: Chain, tokens: Tensor, seen: Mapping[int, _Seen]
) -> Tensor:
    """tokens (T, N, D) of a chain, with an episode's last action as the previous one of the next's first tick."""
    tokens, where, tick = tokens.clone(), policy.token_sources[PREVIOUS_ACTION], 0
    for before in chain[:-1]:
        tick += before.stop - before.first
        last = torch.from_numpy(seen[before.episode].last_action).to(tokens)
        token = policy.action_token(
            policy.normalizer.normalize_actions(last[None, None]), None
        )  # (1, 1, 1, D)
        tokens[tick, where] = token[0, 0]
    return tokens


def _seams(chain: Chain) -> Bools:
    ends = np.cumsum([stretch.stop - stretch.first for stretch in chain])
    seams = np.zeros(ends[-1], bool)
    seams[ends[:-1]] = True
    return seams
