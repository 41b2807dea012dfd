"""Lets a policy act: all episodes side by side, one batched step of the core a tick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ttm.training.study.babyai.level import BabyaiEnvironment
from ttm.training.study.babyai.policy import BabyaiPolicy, Vocabulary


@dataclass(frozen=True)
class Outcome:
    """How one episode ended."""

    success: bool
    steps: int


def roll_out(
    policy: BabyaiPolicy,
    vocabulary: Vocabulary,
    level: str,
    seeds: Sequence[int],
    sample: int | None = None,
) -> list[Outcome]:
    """One episode for each seed, in order, each until it is over; episodes that are over no longer cost anything.

    The policy takes the action of the highest score, or with `sample`, a seed, draws by its probabilities.
    """
    environments = [BabyaiEnvironment(level) for _ in seeds]
    seen = [environment.reset(seed) for environment, seed in zip(environments, seeds, strict=True)]
    generator = None if sample is None else torch.Generator().manual_seed(sample)
    outcomes: dict[int, Outcome] = {}
    policy.eval()
    with torch.inference_mode():
        instructions = policy.instruct(
            vocabulary.sentences([observation.mission for observation in seen])
        )
        state = policy.core.initial_state(len(seeds))
        going = torch.arange(len(seeds))
        steps = 0
        while len(going):
            steps += 1
            tiles = vocabulary.tiles(np.stack([seen[i].image for i in going]))
            directions = torch.tensor([[seen[i].direction] for i in going])
            scores, state = policy(
                instructions, going, torch.from_numpy(tiles).long().unsqueeze(1), directions, state
            )
            kept = []
            for place, (i, action) in enumerate(
                zip(going.tolist(), _choose(scores[:, 0], generator), strict=True)
            ):
                seen[i], success, over = environments[i].step(action)
                if over:
                    outcomes[i] = Outcome(success, steps)
                else:
                    kept.append(place)
            going, state = going[kept], {name: value[kept] for name, value in state.items()}
    return [outcomes[i] for i in range(len(seeds))]


def _choose(scores: torch.Tensor, generator: torch.Generator | None) -> list[int]:
    """scores: (B, 7)."""
    if generator is None:
        return scores.argmax(dim=1).tolist()
    return torch.multinomial(scores.softmax(dim=1), 1, generator=generator).squeeze(1).tolist()
