"""The policy of `ttm study memory`, its first weights, and its loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.study.minigrid.cloning import NO_LOSS, action_loss
from ttm.training.study.minigrid.policy import MinigridPolicy, Vocabulary
from ttm.training.study.minigrid.recall import RecallHead


class RecallingPolicy(MinigridPolicy):
    """A `MinigridPolicy` with a recall head, whose weights outside the core depend on the seed alone.

    What comes before the core is made first and does so anyway. The heads come last, after as many
    random numbers as the core needs, and are therefore drawn anew.
    """

    def __init__(self, config: CoreConfig, vocabulary: Vocabulary, width: int) -> None:
        """See `MinigridPolicy`. Call `torch.manual_seed` before."""
        super().__init__(config, vocabulary, width)
        with torch.random.fork_rng():
            torch.manual_seed(torch.initial_seed())
            self.head = nn.Linear(self.head.in_features, self.head.out_features)
            self.recall = RecallHead(width, len(vocabulary.codes) + 1)


def recall_and_cloning_loss(weight: float) -> Callable[..., Tensor]:
    """Return a loss for `clone`: that of the actions, and `weight` times that of the recall head."""
    return partial(_loss, weight)


def _loss(
    weight: float,
    policy: RecallingPolicy,
    sentences: Tensor,
    which: Tensor,
    tiles: Tensor,
    directions: Tensor,
    actions: Tensor,
) -> Tensor:
    """Return a scalar; see `EpisodeTensors`."""
    instructions = policy.instruct(sentences)
    tokens, outputs, _ = policy.remember(instructions, which, tiles, directions)
    cloning = action_loss(policy.score(tokens, outputs), actions)
    return cloning + weight * policy.recall.loss(outputs, tiles, actions != NO_LOSS)
