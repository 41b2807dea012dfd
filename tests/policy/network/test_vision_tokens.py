"""Camera tokens without the channels of the cells are those with them, and so are their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from ttm.policy.vision import CameraTokens


def tokens_and_gradients(module: CameraTokens, maps: Tensor, folded: bool) -> list[Tensor]:
    module.zero_grad()
    tokens = module(maps, folded=folded)
    tokens.backward(torch.linspace(-1, 1, tokens.numel(), dtype=maps.dtype).reshape(tokens.shape))
    gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    assert len(gradients) == len(list(module.parameters()))
    return [tokens.detach(), *gradients]


def test_folded_tokens_and_their_gradients() -> None:
    torch.manual_seed(0)
    module = CameraTokens(6, (4, 5), 16, 3).double()
    with torch.no_grad():
        for parameter in module.parameters():  # away from zeros and ones
            parameter.add_(torch.randn_like(parameter) * 0.3)
    maps = torch.randn(7, 6, 4, 5, dtype=torch.float64)
    plain, folded = (tokens_and_gradients(module, maps, how) for how in (False, True))
    for expected, found in zip(plain, folded, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_folded_tokens_in_single_precision() -> None:
    torch.manual_seed(0)
    module = CameraTokens(24, (8, 8), 128, 6)
    maps = torch.randn(20, 24, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(module(maps, folded=True), module(maps), rtol=0, atol=1e-5)


@torch.no_grad()
def test_folded_summaries_are_of_single_precision_under_autocast() -> None:
    torch.manual_seed(0)
    module = CameraTokens(24, (8, 8), 128, 6)
    maps, summaries = torch.randn(20, 24, 8, 8), []
    module.norm.register_forward_pre_hook(lambda _, args: summaries.append(args[0]))
    module(maps)
    with torch.autocast("cpu", torch.bfloat16):
        module(maps, folded=True)
    torch.testing.assert_close(summaries[1], summaries[0], rtol=0, atol=1e-5)


def test_folded_tokens_of_cells_that_are_equal_in_all_channels() -> None:
    """Their variance is zero, and a difference of large numbers when they are folded."""
    torch.manual_seed(0)
    module, maps = CameraTokens(8, (4, 4), 32, 2), 10 * torch.randn(3, 8, 4, 4)
    cells = maps[0].flatten(1).T
    with torch.no_grad():
        module.project.bias.zero_()
        module.camera.zero_()
        module.position.copy_(-(cells @ module.project.weight.T))
    assert all(found.isfinite().all() for found in tokens_and_gradients(module, maps, folded=True))
