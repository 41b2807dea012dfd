"""A memory that is erased in the middle of an episode: the memory alone is lost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ttm.policy.config import EngineName
from ttm.policy.cores.registry import with_options
from ttm.policy.policy import Policy
from ttm.policy.presets import PolicyConfig
from ttm.policy.runner import STATE, PolicyRunner
from ttm.policy.spec import Observation, PolicySpec


@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_only_the_memory_is_lost(
    spec: PolicySpec,
    config: PolicyConfig,
    embedding: np.ndarray,
    observe: Callable[[int], Observation],
    engine: EngineName,
) -> None:
    learned = with_options(config.core, ("initial_memory=learned",))
    policy = Policy(spec, PolicyConfig(**{**vars(config), "core": learned}))
    runner = PolicyRunner(policy, engine=engine)
    runner.reset("open the drawer", embedding=embedding)
    initial = runner.snapshot()
    for tick in range(3):
        runner.step(observe(tick))
    before = runner.snapshot()
    assert any(not np.array_equal(before[name], initial[name]) for name in initial if STATE in name)
    runner.erase_memory()
    after = runner.snapshot()
    for name, value in after.items():
        assert np.array_equal(value, (initial if name.startswith(STATE) else before)[name]), name
    erased = runner.step(observe(3))
    assert runner.tick == 4
    runner.restore(before)
    assert not np.array_equal(erased.probabilities, runner.step(observe(3)).probabilities)
