"""Policies that are told how late their command will be in force."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ttm.policy.checkpoint import load_checkpoint, save_checkpoint
from ttm.policy.errors import UserError
from ttm.policy.policy import Policy
from ttm.policy.presets import PolicyConfig
from ttm.policy.runner import PolicyRunner
from ttm.policy.spec import Observation, PolicySpec

LONGEST_S = 0.4
Observe = Callable[..., Observation]


@pytest.fixture
def told(spec: PolicySpec, config: PolicyConfig) -> Policy:
    policy = Policy(spec, replace(config, longest_delay_s=LONGEST_S))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return policy


def actions(
    runner: PolicyRunner, observation: Observation, embedding: np.ndarray, *delays_s: float
) -> list[np.ndarray]:
    """The probabilities and values of a first tick, for each delay."""
    taken = []
    for delay_s in delays_s:
        runner.reset("open the drawer", embedding=embedding)
        taken.append(runner.step(observation, delay_s=delay_s).probabilities)
    return taken


@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_the_action_depends_on_the_delay_up_to_the_longest_one(
    engine: str, told: Policy, observe: Observe, embedding: np.ndarray, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path / "told.safetensors", told, {})
    policy, _ = load_checkpoint(tmp_path / "told.safetensors")
    assert policy.config.longest_delay_s == LONGEST_S
    runner = PolicyRunner(policy, engine=engine)  # type: ignore[arg-type]
    none, some, longest, beyond, before = actions(
        runner, observe(1), embedding, 0.0, 0.1, LONGEST_S, 3.0, -1.0
    )
    assert not np.allclose(none, some)
    assert not np.allclose(some, longest)
    assert np.array_equal(longest, beyond)
    assert np.array_equal(none, before)
    reference = PolicyRunner(told, engine="torch")
    (expected,) = actions(reference, observe(1), embedding, 0.1)
    assert np.allclose(some, expected, atol=1e-4)


def test_other_policies_ignore_the_delay(
    policy: Policy, observe: Observe, embedding: np.ndarray
) -> None:
    runner = PolicyRunner(policy, engine="torch")
    one, other = actions(runner, observe(1), embedding, 0.0, 0.3)
    assert np.array_equal(one, other)
    assert not any(name.startswith("delay_code") for name in policy.state_dict())


def test_a_delay_that_is_no_number_is_refused(
    policy: Policy, observe: Observe, embedding: np.ndarray
) -> None:
    runner = PolicyRunner(policy, engine="torch")
    with pytest.raises(UserError, match="delay_s is NaN; give the seconds"):
        actions(runner, observe(1), embedding, math.nan)
