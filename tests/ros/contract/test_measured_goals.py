"""What keeps a robot where it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import goal_sources, load_contract, measured_goals


def test_joints_are_kept_and_velocities_are_zero() -> None:
    contract = load_contract()
    joints = np.arange(9, dtype=np.float32)
    joints[8] = 0.8  # of the gripper's opening, whose command is 0 or 1
    goals = measured_goals(contract, SPEC, {"joint_positions": joints})
    assert goals.tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 0, 0]
    assert [source.name for source in goal_sources(contract)] == ["joint_positions"]


def test_what_is_not_measured_is_not_known() -> None:
    blind = replace(load_contract(), vectors=())
    assert np.isnan(measured_goals(blind, SPEC, {})[SPEC.action_slices["gripper"]]).all()
    assert goal_sources(blind) == ()
