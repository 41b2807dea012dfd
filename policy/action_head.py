"""Action heads: from the output tokens of the core to actions, and the losses of their parts.

Continuous dimensions are regressed, or classified into bins as in RT-1 (Brohan et al. 2022). Binary
dimensions (gripper, terminate) are one logit each in both cases. A head predicts a chunk of K actions
at each tick, that of the tick and those of the K - 1 ticks after it (Zhao et al. 2023).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.config import ActionHeadConfig
from ttm.policy.layers import Mlp
from ttm.policy.spec import PolicySpec


class ActionHead(nn.Module, ABC):
    """Map R output tokens of D channels to K * F raw predictions. F depends on the kind of head."""

    binary: Tensor

    def __init__(
        self, spec: PolicySpec, num_tokens: int, width: int, config: ActionHeadConfig, chunk: int
    ) -> None:
        """num_tokens: R. chunk: K."""
        super().__init__()
        self._spec, self.config, self.chunk = spec, config, chunk
        self.norm = nn.LayerNorm(num_tokens * width)
        num_raw = self.raw_per_value(config) * spec.action_size
        self.mlp = Mlp(num_tokens * width, config.hidden_size, chunk * num_raw)
        with torch.no_grad():
            self.mlp.out.weight.mul_(0.1)  # so that training starts near the mean action
        self.register_buffer("binary", torch.from_numpy(spec.binary_mask), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens, (B, T, R, D), to raw predictions, (B, T, K * F)."""
        return self.mlp(self.norm(tokens.flatten(-2)))

    def of_actions(self, raw: Tensor) -> Tensor:
        """Map raw predictions, (..., K * F), to those of each action, (..., K, F)."""
        return raw.reshape(*raw.shape[:-1], self.chunk, -1)

    def raw_per_value(self, config: ActionHeadConfig) -> int:
        """Return F / A, the raw predictions for one dimension of an action."""
        return 1

    @abstractmethod
    def decode(self, raw: Tensor) -> Tensor:
        """Map raw predictions, (..., F), to normalised values and binary probabilities, (..., A)."""

    @abstractmethod
    def elementwise_loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        """Return one loss for each dimension, (..., A), of raw, (..., F), to normalised targets."""

    def losses(
        self,
        raw: Tensor,
        targets: Tensor,
        *,
        valid: Tensor | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return part name -> scalar: the weighted mean over the actions and dimensions of the part.

        raw: (..., F); targets: (..., A), normalised; valid: (...) bool, False where there is no target;
        weights: part name -> (...), 1 for parts that it does not name.
        """
        assert raw.shape[:-1] == targets.shape[:-1], "one target for each action"
        loss = self.elementwise_loss(raw, targets)
        counts = torch.ones_like(loss[..., 0]) if valid is None else valid.to(loss.dtype)
        losses = {}
        for name, dims in self._spec.action_slices.items():
            weight = counts if weights is None or name not in weights else counts * weights[name]
            weighted = weight * loss[..., dims].mean(dim=-1)
            losses[name] = weighted.sum() / weight.sum().clamp_min(1e-6)
        return losses


class ContinuousActionHead(ActionHead):
    """Predict the normalised value of continuous dimensions and the logit of binary ones: F = A."""

    def decode(self, raw: Tensor) -> Tensor:
        return torch.where(self.binary, raw.sigmoid(), raw)

    def elementwise_loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        # The Huber loss over delta tends to the L1 loss as delta goes to 0; torch takes 0 as L1.
        delta = self.config.huber_delta if self.config.loss == "huber" else 0.0
        continuous = F.smooth_l1_loss(raw, targets, reduction="none", beta=delta)
        return torch.where(self.binary, _binary_loss(raw, targets), continuous)


class BinnedActionHead(ActionHead):
    """Predict the logits of the bins of each dimension: F = A * bins.

    Of the logits of a binary dimension only the first is used.
    """

    centers: Tensor

    def __init__(
        self, spec: PolicySpec, num_tokens: int, width: int, config: ActionHeadConfig, chunk: int
    ) -> None:
        super().__init__(spec, num_tokens, width, config, chunk)
        edges = torch.linspace(-config.bin_range, config.bin_range, config.num_bins + 1)
        self.register_buffer("centers", (edges[1:] + edges[:-1]) / 2, persistent=False)

    def raw_per_value(self, config: ActionHeadConfig) -> int:
        return config.num_bins

    def decode(self, raw: Tensor) -> Tensor:
        """Return the centre of the most likely bin; see `ActionHead.decode`."""
        logits = self._logits(raw)
        likeliest = self.centers[logits.argmax(dim=-1)]
        return torch.where(self.binary, logits[..., 0].sigmoid(), likeliest)

    def elementwise_loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy with the bin of the target, the outermost for those beyond."""
        logits = self._logits(raw)
        width = self.centers[1] - self.centers[0]
        index = ((targets - self.centers[0]) / width).round().clamp(0, len(self.centers) - 1).long()
        continuous = F.cross_entropy(logits.flatten(0, -2), index.flatten(), reduction="none")
        binary = _binary_loss(logits[..., 0], targets)
        return torch.where(self.binary, binary, continuous.view_as(targets))

    def _logits(self, raw: Tensor) -> Tensor:
        return raw.view(*raw.shape[:-1], -1, len(self.centers))  # (..., A, bins)


def _binary_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, targets.clamp(0, 1), reduction="none")


def build_action_head(
    spec: PolicySpec, num_tokens: int, width: int, config: ActionHeadConfig, chunk: int = 1
) -> ActionHead:
    """Return the head of the kind `config.kind`, which predicts `chunk` actions at each tick."""
    kinds = {"continuous": ContinuousActionHead, "bins": BinnedActionHead}
    return kinds[config.kind](spec, num_tokens, width, config, chunk)
