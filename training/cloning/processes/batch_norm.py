"""BatchNorm over the batch of all processes, so that its statistics do not depend on their number.

PyTorch's own `SyncBatchNorm` does this on GPUs, and refuses tensors on a CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from ttm.training.cloning.processes.group import Processes


def share_batch_norm(module: nn.Module, processes: Processes, device: torch.device) -> None:
    """Make every BatchNorm within `module` one over the batch of all processes."""
    if processes.count == 1:
        return
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            shared = (
                nn.SyncBatchNorm.convert_sync_batchnorm(child)
                if device.type == "cuda"
                else SharedBatchNorm.like(child)
            )
            setattr(module, name, shared)
        else:
            share_batch_norm(child, processes, device)


class SharedBatchNorm(nn.BatchNorm2d):
    """`BatchNorm2d` with the mean and the variance of the images of all processes."""

    @classmethod
    def like(cls, norm: nn.BatchNorm2d) -> SharedBatchNorm:
        """Return one with the same weights and statistics as `norm`."""
        shared = cls(norm.num_features, norm.eps, norm.momentum)
        shared.load_state_dict(norm.state_dict())
        for mine, given in zip(shared.parameters(), norm.parameters(), strict=True):
            mine.requires_grad_(given.requires_grad)
        return shared.train(norm.training)

    def forward(self, images: Tensor) -> Tensor:
        """Map images, (n, C, H, W), to the same shape; n may differ between processes."""
        if not self.training:
            return super().forward(images)
        values = images.float()
        number = values.new_tensor([values.numel() / values.shape[1]])
        sums = all_reduce(torch.cat([values.sum((0, 2, 3)), number]))
        total = sums[-1].detach()
        mean = sums[:-1] / total
        centred = values - mean.view(1, -1, 1, 1)
        variance = all_reduce(centred.square().sum((0, 2, 3))) / total
        self._follow(mean, variance, total)
        scale = (variance + self.eps).rsqrt() * self.weight
        return centred * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor, total: Tensor) -> None:
        """Move the running statistics; without a momentum they are plain means over the batches."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = self.momentum
        if momentum is None:
            momentum = 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance * total / (total - 1), momentum)
