"""Lets a policy act in many episodes at once, with one batched step of the core for each tick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ttm.training.study.minigrid.level import Level
from ttm.training.study.minigrid.policy import MinigridPolicy, Vocabulary


@dataclass(frozen=True)
class EpisodeResult:
    """Whether an episode ended with success, and after how many ticks."""

    success: bool
    steps: int


def roll_out(
    policy: MinigridPolicy,
    vocabulary: Vocabulary,
    level: Level,
    seeds: Sequence[int],
    sample: int | None = None,
) -> list[EpisodeResult]:
    """Let the policy act in one episode for each seed; return the results in order.

    Episodes that are over take no more computation.

    sample: None for the action with the highest score; otherwise the seed with which actions are
        drawn by their probabilities.
    """
    environments = [level.environment() for _ in seeds]
    views = [environment.reset(seed) for environment, seed in zip(environments, seeds, strict=True)]
    generator = None if sample is None else torch.Generator().manual_seed(sample)
    results: dict[int, EpisodeResult] = {}
    policy.eval()
    with torch.inference_mode():
        instructions = policy.instruct(vocabulary.sentences([view.mission for view in views]))
        state = policy.core.initial_state(len(seeds))
        running = torch.arange(len(seeds))
        steps = 0
        while len(running):
            steps += 1
            tiles = torch.from_numpy(vocabulary.tiles(np.stack([views[i].image for i in running])))
            directions = torch.tensor([[views[i].direction] for i in running])
            scores, state = policy(
                instructions, running, tiles.long().unsqueeze(1), directions, state
            )
            actions = _choose(scores[:, 0], generator)
            kept = []
            for place, (i, action) in enumerate(zip(running.tolist(), actions, strict=True)):
                views[i], success, over = environments[i].step(action)
                if over:
                    results[i] = EpisodeResult(success, steps)
                else:
                    kept.append(place)
            running, state = running[kept], {name: value[kept] for name, value in state.items()}
    return [results[i] for i in range(len(seeds))]


def _choose(scores: Tensor, generator: torch.Generator | None) -> list[int]:
    """Return an action for each row of the scores (B, 7)."""
    if generator is None:
        return scores.argmax(dim=1).tolist()
    return torch.multinomial(scores.softmax(dim=1), 1, generator=generator).squeeze(1).tolist()
