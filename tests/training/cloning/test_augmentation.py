from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ttm.training.augmentation import ImageChanges, gathered_shift, shift_images
from ttm.training.options import AugmentationConfig

STILL = AugmentationConfig(shift=0, brightness=0, contrast=0, saturation=0, hue_rad=0)


def augment(
    images: torch.Tensor, config: AugmentationConfig, rng: np.random.Generator
) -> torch.Tensor:
    size = images.shape[-2], images.shape[-1]
    return ImageChanges.drawn(len(images), size, config, rng).applied(images)


def images(batch: int = 3, ticks: int = 4) -> torch.Tensor:
    """(B, T, 3, 16, 16) uint8, the same at all ticks of a window."""
    torch.manual_seed(0)
    return (
        torch.randint(0, 256, (batch, 1, 3, 16, 16), dtype=torch.uint8)
        .expand(-1, ticks, -1, -1, -1)
        .contiguous()
    )


@pytest.mark.parametrize("channels_last", [False, True])
def test_shape_and_type_stay(channels_last: bool) -> None:
    frames = images()
    if channels_last:
        frames = frames.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    changed = augment(frames, AugmentationConfig(), np.random.default_rng(0))
    assert changed.shape == frames.shape
    assert changed.dtype == torch.uint8
    assert not torch.equal(changed, frames)


def test_all_ticks_of_a_window_change_alike_and_windows_do_not() -> None:
    frames = images(batch=1).expand(4, -1, -1, -1, -1).contiguous()
    changed = augment(frames, AugmentationConfig(), np.random.default_rng(0))
    assert torch.equal(changed[:, :1].expand_as(changed), changed)
    assert len({window.numpy().tobytes() for window in changed}) == 4


def test_nothing_changes_when_all_limits_are_zero() -> None:
    frames = images()
    assert torch.equal(augment(frames, STILL, np.random.default_rng(0)), frames)


def test_the_same_generator_gives_the_same_change() -> None:
    first, second = (
        augment(images(), AugmentationConfig(), np.random.default_rng(5)) for _ in range(2)
    )
    assert torch.equal(first, second)


def test_a_shift_moves_whole_pixels_and_repeats_the_edge() -> None:
    column = torch.arange(16, dtype=torch.uint8).expand(16, 1, 3, 16, 16).contiguous()
    config = replace(STILL, shift=0.2)
    shifted = augment(column, config, np.random.default_rng(0))
    for window in shifted:
        dx = int(window[0, 0, 8, 8]) - 8
        assert abs(dx) <= 3
        expected = torch.arange(16).add(dx).clamp(0, 15).to(torch.uint8)
        assert torch.equal(window, expected.expand_as(window))
    assert len({int(window[0, 0, 8, 8]) for window in shifted}) > 1


def test_the_shift_of_a_gpu_is_that_of_a_cpu() -> None:
    frames, shifts = images(), torch.tensor([[2, -3], [0, 0], [-15, 5]])
    assert torch.equal(gathered_shift(frames, shifts), shift_images(frames, shifts))


def test_some_windows_change_as_they_do_among_all() -> None:
    frames, config = images(batch=5), AugmentationConfig()
    changes = ImageChanges.drawn(5, (16, 16), config, np.random.default_rng(0))
    some = changes.of_windows(slice(1, 3)).applied(frames[1:3])
    assert torch.equal(some, augment(frames, config, np.random.default_rng(0))[1:3])


def test_grey_stays_grey_under_changes_of_saturation_and_hue() -> None:
    grey = torch.full((8, 1, 3, 4, 4), 100, dtype=torch.uint8)
    config = replace(STILL, saturation=0.5, hue_rad=1.0)
    changed = augment(grey, config, np.random.default_rng(0)).int()
    assert (changed - 100).abs().max() <= 1


def test_colours_do_not_depend_on_the_layout_in_memory() -> None:
    frames = images()
    last = frames.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    first, second = (
        augment(each, AugmentationConfig(shift=0), np.random.default_rng(1))
        for each in (frames, last)
    )
    assert torch.equal(first, second)


def test_brightness_and_contrast_follow_their_definition() -> None:
    """Values are scaled about the mean grey of the window by the contrast, and by the brightness."""
    frames = images(batch=2)
    config = AugmentationConfig(shift=0, brightness=0.2, contrast=0.2, saturation=0, hue_rad=0)
    changed = augment(frames, config, np.random.default_rng(7))
    draws = np.random.default_rng(7)
    bright, _, _, contrast = (1 + draws.uniform(-x, x, 2) for x in (0.2, 0, 0, 0.2))
    for window, result, b, c in zip(frames, changed, bright, contrast, strict=True):
        mean = window.flatten(2)[:, :, ::16].float().mean()
        wanted = (window * b * c + mean * (1 - c) + 0.5).clamp(0, 255).floor()
        assert (result - wanted).abs().max() <= 1
