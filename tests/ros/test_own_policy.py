"""A policy in plain PyTorch drives the simulated robot over ROS 2, as `ttm robot --sim --actor` runs it."""

from __future__ import annotations

import os
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ttm.policy import UserError
from ttm.policy.spec import SHIPPED_CHECKPOINT, read_checkpoint_spec
from ttm.sim import evaluate, load_evaluation
from ttm.sim.condition import Condition
from ttm.training.robot.robot import RobotCommand
from ttm_policy.contract import default_contract
from ttm_policy.inference import Instructions, load_policy
from ttm_policy.parameters import PolicyParameters

ACTOR, TICKS = "own_policy:OwnPolicy", 9
PATIENT: Any = {"startup_timeout_s": 600.0, "command_timeout_s": 600.0}  # for a busy machine


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(Path(__file__).parents[1] / "sim")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")


def test_in_lockstep_actions_and_outcomes_are_those_in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a memory that is left alone until "go", and then erased."""
    command = RobotCommand(
        sim=True, actor=ACTOR, task="side_shown", gap=1, probe="erase", seed=3, episodes=2,
        max_ticks=TICKS, out=tmp_path, **PATIENT,
    )  # fmt: skip
    assert command.run() == 0
    there, acted = load_evaluation(tmp_path), []
    own = import_module("own_policy").OwnPolicy
    act = own.act
    noted = lambda *given: (acted.append(act(*given)), acted[-1])[1]  # noqa: E731
    monkeypatch.setattr(own, "act", noted)
    here = evaluate(
        tasks="side_shown", actor=ACTOR, condition=Condition(1, "erase"), first_seed=3, episodes=2,
        max_ticks=TICKS, videos=0,
    )  # fmt: skip
    assert there.tasks == here.tasks
    assert there.condition == here.condition
    with np.load(tmp_path / "actions.npz") as actions:
        sent = np.concatenate([actions["seed_3"], actions["seed_4"]])
        assert np.array_equal(
            sent[:, :6], np.stack(acted)[:, :6]
        )  # the arm's, which are not rounded
        assert np.ptp(actions["seed_3"], axis=0).any()


def test_the_node_refuses_what_does_not_fit() -> None:
    for wrong in (
        {"actor": ACTOR, "checkpoint": "policy.safetensors"},
        {"actor": "own_policy:Nothing"},
        {"actor": "ws://127.0.0.1:1"},
        {"actor": "own_policy:np"},
    ):
        with pytest.raises(UserError):
            load_policy(PolicyParameters(**wrong), Instructions())


def test_on_another_robot_a_spec_tells_what_its_topics_do_not(tmp_path: Path) -> None:
    contract = tmp_path / "mine.yaml"
    shutil.copy(default_contract(), contract)
    own = {"actor": ACTOR, "contract": str(contract)}
    for wrong, named in (
        (own, "give spec"),
        ({**own, "actor": "lerobot:some/checkpoint"}, "give spec"),
        ({**own, "actor": "robomimic:model.pth"}, "give spec"),
        ({**own, "spec": str(tmp_path / "none.safetensors")}, "none.safetensors"),
        ({"checkpoint": str(SHIPPED_CHECKPOINT), "spec": "shipped"}, "spec is for an actor"),
    ):
        with pytest.raises(UserError, match=named):
            load_policy(PolicyParameters(**wrong), Instructions())
    loaded = load_policy(PolicyParameters(**own, spec="shipped"), Instructions())
    assert loaded.runner.spec == read_checkpoint_spec(SHIPPED_CHECKPOINT)
