"""What the simulated robot does to a policy's memory, and to commands that are under way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from ttm.policy import ActionPart, PolicySpec, ProprioceptionSpec
from ttm.sim.rollout import DelayedActor
from ttm_policy.simulator.episodes import Episodes

SPEC = PolicySpec(
    "point", (), (ProprioceptionSpec("x", ("x (m)",)),), (ActionPart("step", 1, "m"),), rate_hz=5.0
)


def test_commands_of_the_old_memory_are_not_carried_out_after_it_was_erased() -> None:
    actor = MagicMock()
    actor.act.return_value = np.array([0.1], np.float32)
    has = {"policy_spec": SPEC}
    env: Any = SimpleNamespace(has_wrapper_attr=has.__contains__, get_wrapper_attr=has.__getitem__)
    late = DelayedActor(actor, env, 2 * SPEC.control_dt_s)
    episodes = object.__new__(Episodes)
    values = {"_node": MagicMock(), "_env": env, "actor": actor, "_late": late, "_to_erase": True}
    vars(episodes).update(values, _show=lambda *_: None)
    done = []
    for tick in range(6):
        episodes._on_tick({}, {"tick": tick, "go": tick >= 3}, None)
        assert actor.erase_memory.call_count == (tick >= 3)
        done.append(late.act({})[0])
    assert done == pytest.approx([0, 0, 0.1, 0, 0, 0.1])
