"""Run a policy over chains of recorded episodes, with and without a reset of the memory between episodes.

At each seam between two episodes the instruction changes. With the memory kept, it continues over the
seam, as by `PolicyRunner.reset(instruction, keep_memory=True)`, and so does the previous action. What
changes with the tick number is then the age of the memory. Previous actions are those of the
demonstrator, as in validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ttm.datasets.statistics import VectorStatistics
from ttm.datasets.windows.window_dataset import WindowDataset
from ttm.policy.cores.temporal_core import reset_where
from ttm.policy.network.inputs import FeatureMaps
from ttm.policy.network.policy import PREVIOUS_ACTION, Policy
from ttm.training.bench.drift.bootstrap import Floats
from ttm.training.bench.drift.chains import Bools, Chain, seams
from ttm.training.common.recorded.action_errors import squared_errors
from ttm.training.common.recorded.window_inputs import policy_inputs

TICKS_AT_ONCE = 32
"""Ticks that pass through the vision at once. This limits its use of memory; results do not depend on it."""


@dataclass(frozen=True)
class ChainRun:
    """C chains of T ticks, run in one way."""

    norms: Floats
    """(C, T): mean Euclidean norm of the tokens of the memory after the tick."""
    errors: Floats
    """(C, T): mean over action dimensions of the squared normalised error; see `squared_errors`."""


@dataclass(frozen=True)
class DriftRuns:
    """The same ticks with the memory kept over the seams, and with it reset there, as in use."""

    kept: ChainRun
    control: ChainRun
    seams: Bools
    """(C, T): True at the first tick of every episode but the first of the chain."""


def measure(
    policy: Policy, episodes: WindowDataset, statistics: VectorStatistics, chains: list[Chain]
) -> DriftRuns:
    """Run `policy`, in evaluation mode, over `chains`.

    episodes: one window for each whole episode.
    statistics: of the actions; their standard deviations are the unit of the errors.
    """
    needed = sorted({stretch.episode for chain in chains for stretch in chain})
    seen = {number: _encode(policy, episodes, number) for number in needed}
    reset = np.stack([seams(chain) for chain in chains])
    actions = np.stack(
        [np.concatenate([seen[s.episode].actions[s.first : s.stop] for s in c]) for c in chains]
    )
    separate = torch.stack(
        [torch.cat([seen[s.episode].tokens[s.first : s.stop] for s in c]) for c in chains]
    )
    joined = torch.stack(
        [_carry_actions(policy, c, t, seen) for c, t in zip(chains, separate, strict=True)]
    )
    colours = _colours(chains, seen)
    measured = {
        vector.name: torch.stack(
            [
                torch.cat([seen[s.episode].measured[vector.name][s.first : s.stop] for s in c])
                for c in chains
            ]
        )
        for vector in policy.spec.proprioception
    }

    def run(tokens: Tensor, reset: Bools) -> ChainRun:
        norms, predicted = run_core(policy, tokens, colours, torch.from_numpy(reset), measured)
        alike = policy.relative.nearest(torch.from_numpy(predicted), torch.from_numpy(actions))
        return ChainRun(norms, squared_errors(alike.numpy(), actions, statistics.std))

    return DriftRuns(run(joined, np.zeros_like(reset)), run(separate, reset), reset)


@torch.no_grad()
def run_core(
    policy: Policy,
    tokens: Tensor,
    colours: Tensor | None,
    reset: Tensor,
    measured: Mapping[str, Tensor] | None = None,
) -> tuple[Floats, Floats]:
    """Run the sight memory, the core and the action head over C chains of T ticks.

    tokens: (C, T, N, D) without those of the sight memory. colours: (C, T, 3, cells, cells), what that
    sees; None where there is none. reset: (C, T) bool, whether the state is reset
    before the tick. measured: the proprioception, name -> (C, T, K), for actions relative to it.

    Returns the norms of the memory, (C, T), and the actions, (C, T, A).
    """
    initial = policy.initial_state(len(tokens))
    state, norms, actions = initial, [], []
    reset = reset.to(tokens.device)
    chain = torch.arange(len(tokens), device=tokens.device).unsqueeze(1)
    for tick in range(tokens.shape[1]):
        state = reset_where(reset[:, tick], state, initial)
        seen = None if colours is None else FeatureMaps(colours[:, tick], chain)
        raw, state = policy.step_encoded(tokens[:, tick, None], seen, state)
        norms.append(policy.core.memory_norms(state).mean(dim=1))
        now = {name: values[:, tick, None] for name, values in (measured or {}).items()}
        actions.append(policy.decode(raw, now))
    return torch.stack(norms, dim=1).cpu().numpy(), torch.cat(actions, dim=1).cpu().numpy()


class _EncodedEpisode(NamedTuple):
    """The inputs of the core for an episode of T ticks, and the demonstrator's actions."""

    tokens: Tensor
    """(T, N, D), without those of the sight memory."""
    colours: Tensor | None
    """(T, 3, cells, cells): what the sight memory sees; None where there is none."""
    measured: dict[str, Tensor]
    """The proprioception, name -> (T, K)."""
    actions: Floats
    """(T, A)."""
    last_action: Floats
    """(A,): the action that was executed at the last tick."""


@torch.no_grad()
def _encode(policy: Policy, episodes: WindowDataset, number: int) -> _EncodedEpisode:
    length, device = episodes.episode_lengths[number], next(policy.parameters()).device
    batch = episodes.gather([number])
    inputs = policy_inputs(batch)
    starts = range(0, length, TICKS_AT_ONCE)
    parts = (inputs.at_ticks(slice(start, min(start + TICKS_AT_ONCE, length))) for start in starts)
    tokens = torch.cat([policy.encode(part.to(device))[0] for part in parts])
    colours = policy.colours(inputs.to(device))
    last = episodes.episodes[number].executed_actions[-1]
    actions = batch["actions"][0, :length].cpu().numpy()
    sighted = None if colours is None else colours.maps[:length]
    measured = {n: v[0, :length].to(device) for n, v in inputs.proprioception.items()}
    return _EncodedEpisode(tokens, sighted, measured, actions, last)


def _colours(chains: list[Chain], seen: Mapping[int, _EncodedEpisode]) -> Tensor | None:
    """Return what the sight memory sees at the ticks of the chains, (C, T, 3, cells, cells)."""
    of_chains = []
    for chain in chains:
        parts = [(seen[s.episode].colours, s) for s in chain]
        found = [each[s.first : s.stop] for each, s in parts if each is not None]
        if not found:
            return None
        of_chains.append(torch.cat(found))
    return torch.stack(of_chains)


@torch.no_grad()
def _carry_actions(
    policy: Policy, chain: Chain, tokens: Tensor, seen: Mapping[int, _EncodedEpisode]
) -> Tensor:
    """Put the last action of each episode into the first tick of the next one, as its previous action.

    tokens: (T, N, D) of the chain. Returns a changed copy.
    """
    tokens, where, tick = tokens.clone(), policy.token_sources[PREVIOUS_ACTION], 0
    for before in chain[:-1]:
        tick += before.num_ticks
        last = torch.from_numpy(seen[before.episode].last_action).to(tokens)
        normalized = policy.normalizer.normalize_executed(last[None, None])
        tokens[tick, where] = policy.action_token(normalized, None)[0, 0]  # of (1, 1, 1, D)
    return tokens
