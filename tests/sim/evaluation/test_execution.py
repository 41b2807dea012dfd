"""Policies that predict chunks of actions, evaluated by several executions at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from ttm.policy import Policy, PolicyConfig, PolicyRunner, UserError, save_checkpoint
from ttm.policy.cores.baselines import LstmConfig
from ttm.policy.execution import NEWEST, PLAN
from ttm.sim import evaluate, load_evaluation, make_env
from ttm.sim.actors import PolicyActor
from ttm.sim.condition import Condition, conditions_of
from ttm.sim.environment import spec_of
from ttm.sim.evaluation import evaluate_conditions

MEMORY_POINT = "memory_point_env:test/MemoryPoint-v0"
EXECUTIONS = (NEWEST, "receding:3", "ensemble:0.01")
TEXT = "go"
pytestmark = pytest.mark.usefixtures("without_openvino")


@pytest.fixture
def policy(points: ModuleType) -> Policy:
    torch.manual_seed(0)
    config = PolicyConfig(width=32, language_size=16, core=LstmConfig(num_layers=1), chunk=3)
    made = Policy(spec_of(make_env("test/MemoryPoint-v0")), config)
    made.known_instructions |= {TEXT: np.ones(384, np.float32) / 384**0.5}
    return made


@pytest.fixture
def chunked(policy: Policy, points: ModuleType, tmp_path: Path) -> Path:
    """The checkpoint of a policy that predicts three actions at each tick."""
    texts = [text for texts in points.MemoryPointEnv.tasks.values() for text in texts]
    policy.known_instructions |= dict.fromkeys(texts, policy.known_instructions[TEXT])
    save_checkpoint(tmp_path / "chunked.safetensors", policy, {})
    return tmp_path / "chunked.safetensors"


def test_each_execution_is_a_condition() -> None:
    conditions = conditions_of([4], ["live"], "hidden", 0.5, EXECUTIONS)
    folders = ["gap_4_live", "gap_4_live_receding_3", "gap_4_live_ensemble_0.01"]
    assert [condition.folder for condition in conditions] == folders
    assert [condition.series for condition in conditions][1:] == [
        "live, receding:3",
        "live, ensemble:0.01",
    ]
    assert Condition(execution=NEWEST).to_dict() == {}


def test_executions_are_run_and_told(chunked: Path, tmp_path: Path) -> None:
    conditions = dict.fromkeys(conditions_of([], ["live"], "hidden", 0.5, EXECUTIONS))
    found = evaluate_conditions(str(chunked), "touch", conditions, episodes=1, env=MEMORY_POINT)
    told = [json.loads(evaluation.to_json()).get("execution") for evaluation in found]
    assert told == [None, "receding:3", "ensemble:0.01"]
    assert load_evaluation(found[1].save(tmp_path)) == found[1]


@pytest.mark.parametrize(
    ("source", "execution", "words"),
    [
        ("expert", "receding:2", "receding:2 is for a policy, not for the expert"),
        ("none", "receding:2", "this policy predicts 1 a tick"),
        ("none", "newest", "'newest' is unknown"),
    ],
)
def test_executions_that_do_not_fit_are_refused(
    points: ModuleType, source: str, execution: str, words: str
) -> None:
    condition = Condition(execution=execution)
    with pytest.raises(UserError, match=words):
        evaluate(source, "touch", episodes=1, env=MEMORY_POINT, condition=condition)


@pytest.mark.parametrize(
    "replaced",
    [lambda actor: actor.set_memory(actor.memory()), lambda actor: actor.reset(TEXT)],
    ids=["memory", "episode"],
)
def test_a_replaced_memory_begins_a_new_chunk(
    policy: Policy, replaced: Callable[[PolicyActor], None]
) -> None:
    """Else what was planned by the old memory would tell of it after a probe."""
    runner = PolicyRunner(policy, engine="torch", execution="receding:3")
    actor = PolicyActor(runner, {})
    actor.reset(TEXT)
    observation, _ = make_env("test/MemoryPoint-v0").reset(seed=0)
    actor.act(observation)
    assert runner.snapshot()[f"{PLAN}left"] == 2
    replaced(actor)
    assert runner.snapshot()[f"{PLAN}left"] == 0
