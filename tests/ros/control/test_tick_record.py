"""What a session knows about its ticks, and what the policy is told of the time until its command."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from builtin_interfaces.msg import Time

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.control_loop import Inference, PendingTick
from ttm_policy.diagnostics import TickRecord
from ttm_policy.inputs import StampedObservation

NOW_NS = 100_000_000_000


def record(*, lockstep: bool = False) -> TickRecord:
    node, loop, inputs = MagicMock(), MagicMock(), SimpleNamespace(lockstep=lockstep)
    node.get_clock().now().nanoseconds = NOW_NS
    loop.runner.spec = SPEC
    return TickRecord(node, loop, inputs, MagicMock(), MagicMock())  # type: ignore[arg-type]


def pending(age_s: float = 0.0) -> PendingTick:
    stamp_ns = NOW_NS - round(age_s * 1e9)
    return PendingTick(StampedObservation({}, stamp_ns, stamp_ns), 5.0, Time(), 0)


def test_each_part_that_the_limits_changed_is_counted() -> None:
    kept = record()
    action: Any = np.full(SPEC.action_size, 0.1, np.float32)
    command = action.copy()
    command[SPEC.action_slices["base"]] = 0.0
    for sent in (command, action, command):
        kept.finish(pending(), Inference(action), sent)
    assert kept.statistics.limits_hit == {"base": 2}


def test_the_delay_is_the_age_of_the_input_and_the_usual_time_of_a_tick() -> None:
    kept = record()
    assert kept.begin(pending(0.05), NOW_NS) == pytest.approx(0.05)
    for seconds in (9.0, *[0.03] * 6, 9.0, *[0.03] * 4):  # outliers do not count
        kept.statistics.answer(5.0, 5.0 + seconds, 0.1)
    assert kept.begin(pending(0.07), NOW_NS) == pytest.approx(0.1)


def test_in_lockstep_nothing_is_late() -> None:
    assert record(lockstep=True).begin(pending(0.05), NOW_NS) == 0.0
