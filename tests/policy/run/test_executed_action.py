"""What the robot did in place of the last command is the previous action of the next tick."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ttm.policy.errors import MalformedObservation, UserError
from ttm.policy.policy import Policy
from ttm.policy.presets import PolicyConfig
from ttm.policy.runner import PolicyRunner
from ttm.policy.spec import Observation, PolicySpec

Observe = Callable[[int], Observation]


@pytest.fixture
def runner(spec: PolicySpec, config: PolicyConfig, embedding: np.ndarray) -> PolicyRunner:
    made = PolicyRunner(Policy(spec, config), engine="torch")
    made.reset("open the drawer", embedding=embedding)
    return made


def test_the_next_tick_sees_what_was_executed(runner: PolicyRunner, observe: Observe) -> None:
    command = runner.step(observe(0)).values
    assert np.array_equal(runner.previous_action, command)
    start, did = runner.snapshot(), command + np.float32(0.5)
    runner.executed(did)
    told = runner.step(observe(1)).probabilities
    runner.restore({**start, "previous_action": did})
    assert np.array_equal(told, runner.step(observe(1)).probabilities)
    runner.restore(start)
    assert not np.array_equal(told, runner.step(observe(1)).probabilities)


def test_it_counts_for_one_tick(runner: PolicyRunner, observe: Observe) -> None:
    runner.step(observe(0))
    runner.executed(np.full(runner.spec.action_size, 0.5))
    assert np.array_equal(runner.step(observe(1)).values, runner.previous_action)


def test_a_snapshot_keeps_it(runner: PolicyRunner, observe: Observe) -> None:
    runner.step(observe(0))
    did = np.full(runner.spec.action_size, 0.25, np.float32)
    runner.executed(did)
    did[:] = 9.0  # callers cannot reach into the state
    snapshot = runner.snapshot()
    assert np.array_equal(snapshot["previous_action"], np.full(len(did), 0.25, np.float32))
    expected = runner.step(observe(1)).probabilities
    respawned = PolicyRunner(runner.policy, engine="torch")
    respawned.restore(snapshot)
    assert np.array_equal(respawned.step(observe(1)).probabilities, expected)


def test_what_is_no_action_changes_nothing(runner: PolicyRunner, observe: Observe) -> None:
    command = runner.step(observe(0)).values
    no_numbers: tuple[object, ...] = (
        ["up"] * len(command),
        [[1.0], 2.0],
        [None] * len(command),
        10**400,
        {},
    )
    values = (command[:-1], command[None], np.zeros(3000), command * np.nan, command + np.inf)
    for wrong in (*values, *no_numbers):
        with pytest.raises(
            MalformedObservation, match="finite values in the spec's units"
        ) as error:
            runner.executed(wrong)  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
        assert np.array_equal(runner.previous_action, command)


def test_step_before_reset_is_an_error(policy: Policy, observe: Observe) -> None:
    runner = PolicyRunner(policy, engine="torch")
    assert (runner.tick, runner.instruction, policy.training) == (0, None, False)
    assert not runner.memory_norms.any()  # the engine's warm-up leaves no trace
    with pytest.raises(UserError, match="reset"):
        runner.step(observe(0))


def test_before_the_first_step_nothing_was_executed(runner: PolicyRunner) -> None:
    with pytest.raises(UserError, match="executed before step"):
        runner.executed(np.zeros(runner.spec.action_size))
