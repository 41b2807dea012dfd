"""The recall loss: the core's outputs must tell what has been seen and is not seen now.

Behaviour cloning alone rewards a memory only at the few ticks whose action depends on the past, and
only once the whole chain from seeing to acting works. This loss, which is ours, rewards the memory
at every tick for what it keeps. It needs neither labels nor a known task.

Its limits: the target holds the extremes of the past, so that it cannot tell how often something
was seen, in which order, or when. Something that looks like what is seen now, in the codes, cannot
be told apart from it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.layers.mlp import Mlp

HIDDEN_SIZE = 256
RECALL = ("recall", "recall_ratio")
"""The names of the results of `RecallLoss`."""


class RecallLoss(nn.Module):
    """Tell the targets of `RecallTargets` from the mean of the core's output tokens, by an MLP.

    The network belongs to the training; checkpoints do not hold it.
    """

    def __init__(self, width: int, size: int, weight: float) -> None:
        """width: D of the tokens. size: C of the targets. weight: of this loss in the total."""
        super().__init__()
        self.weight = weight
        self.mlp = Mlp(width, HIDDEN_SIZE, size)

    def forward(self, outputs: Tensor, targets: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Return the smooth L1 error as "recall", and its ratio to that of telling nothing.

        outputs: (B, T, R, D). targets: (B, T, C). valid: (B, T) bool, False at padding. The ratio,
        "recall_ratio", is about 1 as long as the outputs hold nothing of the past, and falls when
        the memory learns.
        """
        told: Tensor = self.mlp(outputs.mean(dim=2))
        error = F.smooth_l1_loss(told[valid], targets[valid])
        nothing = F.smooth_l1_loss(torch.zeros_like(targets[valid]), targets[valid])
        return {"recall": error, "recall_ratio": (error / nothing.clamp_min(1e-12)).detach()}
