"""Decoding and losses of both kinds of head."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ttm.policy import PolicySpec
from ttm.policy.action_head import ActionHead, build_action_head
from ttm.policy.config import ActionHeadConfig

TARGETS = torch.tensor([[[0.5, -0.25, 1.0, 1.0], [0.0, 0.0, -1.0, 0.0]]])


def head(spec: PolicySpec, **settings: object) -> ActionHead:
    return build_action_head(spec, 3, 16, ActionHeadConfig(hidden_size=32, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["continuous", "bins"])
def test_overfits_one_window(spec: PolicySpec, kind: str) -> None:
    made = head(spec, kind=kind, num_bins=64)
    tokens = torch.randn(1, 2, 3, 16)
    optimizer = torch.optim.Adam(made.parameters(), lr=2e-2)
    for _ in range(80):
        optimizer.zero_grad()
        torch.stack(list(made.losses(made(tokens), TARGETS).values())).sum().backward()
        optimizer.step()
    torch.testing.assert_close(made.decode(made(tokens)), TARGETS, rtol=0, atol=0.07)


def test_each_part_has_its_loss(spec: PolicySpec) -> None:
    made = head(spec, loss="l1")
    raw = TARGETS.clone()
    raw[..., 3] = torch.tensor([20.0, -20.0])
    raw[..., 0] += 0.3
    losses = made.losses(raw, TARGETS)
    assert losses.keys() == {"arm", "gripper"}
    assert losses["arm"].item() == pytest.approx(0.1, abs=1e-6)
    assert losses["gripper"].item() == pytest.approx(0.0, abs=1e-6)


def test_huber_is_square_near_zero_and_linear_with_slope_one_far(spec: PolicySpec) -> None:
    made = head(spec, huber_delta=0.2)
    loss = made.elementwise_loss(torch.tensor([0.1, 2.0, 3.0, 0.0]), torch.zeros(4))
    assert loss[0].item() == pytest.approx(0.5 * 0.1**2 / 0.2)
    assert (loss[2] - loss[1]).item() == pytest.approx(1.0)


def test_invalid_ticks_do_not_count_and_weights_do(spec: PolicySpec) -> None:
    made = head(spec, loss="l1")
    raw = TARGETS.clone()
    raw[0, 1, :3] += 8
    valid = torch.tensor([[True, False]])
    assert made.losses(raw, TARGETS, valid=valid)["arm"].item() == 0
    weighted = made.losses(raw, TARGETS, weights={"arm": torch.tensor([[1.0, 3.0]])})
    assert weighted["arm"].item() == pytest.approx(6.0)


def test_bins_take_targets_beyond_their_range(spec: PolicySpec) -> None:
    made = head(spec, kind="bins", num_bins=16, bin_range=2.0)
    losses = made.losses(made(torch.randn(1, 2, 3, 16)), TARGETS * 100)
    assert all(np.isfinite(loss.item()) for loss in losses.values())
