"""What a session knows about its ticks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.control_loop import MemoryReport, PolicyTick, Question, Thought
from ttm_policy.inputs import StampedObservation
from ttm_policy.session import TickRecord


def test_each_part_that_the_limits_changed_is_counted() -> None:
    now = SimpleNamespace(nanoseconds=0)
    node: Any = SimpleNamespace(get_clock=lambda: SimpleNamespace(now=lambda: now))
    loop: Any = SimpleNamespace(runner=SimpleNamespace(spec=SPEC))
    unused: Any = None
    record = TickRecord(node, loop, unused, unused, unused)
    question = Question(StampedObservation({}, 0, 0), 0.0, Time(), 0)
    action = np.full(SPEC.action_size, 0.1, np.float32)
    command = action.copy()
    command[SPEC.action_slices["base"]] = 0.0
    for sent in (command, action, command):
        record.answered(PolicyTick(action, sent), question, Thought(action, MemoryReport(), 0.01))
    assert record.statistics.limits_hit == {"base": 2}
