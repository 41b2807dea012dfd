"""The policy of `ttm study memory`, whose first weights are the same around every core."""

from __future__ import annotations

import torch

from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.study.minigrid.policy import MinigridPolicy, Vocabulary


class MemoryPolicy(MinigridPolicy):
    """A `MinigridPolicy` whose weights outside the core depend on torch's seed alone.

    What comes before the core is made first and does so anyway. The head comes last, after as many
    random numbers as the core needs, and is therefore drawn anew.
    """

    def __init__(self, config: CoreConfig, vocabulary: Vocabulary, width: int) -> None:
        """See `MinigridPolicy`. Call `torch.manual_seed` before."""
        super().__init__(config, vocabulary, width)
        with torch.random.fork_rng():
            torch.manual_seed(torch.initial_seed())
            self.head.reset_parameters()
