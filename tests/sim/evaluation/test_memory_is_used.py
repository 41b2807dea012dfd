"""A policy that remembers, under all probes: the proof that the probes tell whether memory is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ttm.policy import Policy, PolicyConfig, PolicyRunner, UserError
from ttm.policy.config import EngineName
from ttm.policy.cores.baselines import LstmConfig
from ttm.policy.cores.registry import NAMES, sized_like
from ttm.sim import Evaluation, evaluate, load_evaluation, make_env
from ttm.sim.actors import PolicyActor, load_policy
from ttm.sim.condition import Condition, conditions_of
from ttm.sim.environment import spec_of
from ttm.sim.evaluation import evaluate_conditions
from ttm.sim.probes import PROBES, Trial
from ttm.sim.rollout import run_episode

MEMORY_POINT = "memory_point_env:test/MemoryPoint-v0"
EPISODES = 16
ALL = conditions_of([5], list(PROBES), "hidden", 0.3)


@pytest.fixture(scope="module")
def probed(remembering: Path) -> dict[str, Evaluation]:
    """Probe -> the evaluation of the policy that remembers, at a gap of 5."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1]))
        evaluations = evaluate_conditions(
            str(remembering), "recall", dict.fromkeys(ALL), episodes=EPISODES, env=MEMORY_POINT
        )
    return {evaluation.condition.probe: evaluation for evaluation in evaluations}


@pytest.mark.parametrize("probe", ["live", "freeze", "noise"])
def test_what_leaves_the_cue_in_memory_leaves_the_choice(
    probed: dict[str, Evaluation], probe: str
) -> None:
    result = probed[probe].tasks["recall"]
    assert result.choices is not None
    assert result.choices.count == result.successes == EPISODES


@pytest.mark.parametrize("probe", ["zero", "erase"])
def test_without_its_memory_the_policy_knows_no_cue(
    probed: dict[str, Evaluation], probe: str
) -> None:
    """It goes to the same side from every state, which is right for those that ask for that side."""
    choices = [outcome.choice for outcome in probed[probe].tasks["recall"].outcomes]
    assert len({choice.made for choice in choices if choice}) == 1
    assert {choice.right_choice for choice in choices if choice} == {"red", "blue"}
    rate = probed[probe].tasks["recall"].choices
    assert rate is not None
    assert 0.25 <= rate.rate <= 0.75


def test_with_anothers_memory_it_takes_the_others_choice(probed: dict[str, Evaluation]) -> None:
    result = probed["swap"].tasks["recall"]
    assert result.donor_choices is not None
    assert result.donor_choices.count == EPISODES
    assert result.choices is not None
    assert result.choices.count == result.successes == 0
    for choice in (outcome.choice for outcome in result.outcomes):
        assert choice
        assert choice.donor_choice != choice.right_choice
    assert probed["live"].tasks["recall"].donor_choices is None


def test_two_workers_give_the_same(
    probed: dict[str, Evaluation], remembering: Path, points: ModuleType
) -> None:
    conditions = dict.fromkeys(
        condition for condition in ALL if condition.probe in ("swap", "noise")
    )
    again = evaluate_conditions(
        str(remembering), "recall", conditions, episodes=EPISODES, env=MEMORY_POINT, workers=2
    )
    for evaluation in again:
        assert evaluation.to_json() == probed[evaluation.condition.probe].to_json()


@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_memory_is_exchanged_in_both_engines(
    remembering: Path, points: ModuleType, engine: EngineName
) -> None:
    env = make_env("test/MemoryPoint-v0")
    policy = load_policy(str(remembering), spec_of(env))
    actor = PolicyActor(PolicyRunner(policy, engine=engine), {})
    for seed in range(3):
        probe = PROBES["swap"](Trial(env, actor, "recall", seed, Condition(4, "swap")))
        outcome = run_episode(
            env, actor, spec=spec_of(env), task="recall", seed=seed, gap=4,
            on_tick=lambda _, info, probe=probe: probe.before_tick(info["tick"], info["go"]),
        )  # fmt: skip
        assert probe.donor
        assert outcome.choice
        assert outcome.choice.made == probe.donor.choice != outcome.choice.right_choice


class Counting:
    """Remembers how often it acted in how many episodes."""

    def __init__(self) -> None:
        self.reset("")
        self.instructions: list[str] = []

    def reset(self, instruction: str) -> None:
        """Forget all."""
        self.ticks = 0
        if instruction:
            self.instructions.append(instruction)

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        """Stand still."""
        self.ticks += 1
        return np.zeros(2, np.float32)

    def executed(self, action: np.ndarray) -> None:
        """Do nothing."""

    def memory(self) -> dict[str, np.ndarray]:
        """Return the count."""
        return {"ticks": np.array(self.ticks)}

    def set_memory(self, memory: Mapping[str, np.ndarray]) -> None:
        """Take a count over."""
        self.ticks = int(memory["ticks"])


def test_an_interruption_keeps_the_memory_and_shows_seven_episodes(points: ModuleType) -> None:
    """The robot acts with what it remembers of its own cue and of the expert's other episodes."""
    env, actor, gap = make_env("test/MemoryPoint-v0"), Counting(), 4
    others = evaluate("expert", "touch", episodes=7, first_seed=21, env=MEMORY_POINT)
    outcomes = others.tasks["touch"].outcomes
    seen = sum(outcome.ticks for outcome in outcomes)
    probe = PROBES["interrupt"](Trial(env, actor, "recall", 3, Condition(gap, "interrupt")))
    assert actor.instructions[1:] == [outcome.instruction for outcome in outcomes]
    own = import_module("memory_point_env").CUE_TICKS + gap
    assert actor.ticks == own + seen
    actor.reset("recall")
    for tick in range(own + 1):
        probe.before_tick(tick, go=tick == own)
        assert actor.ticks == (own + seen if tick == own else 0)
    probe.before_tick(own + 1, go=True)
    assert actor.ticks == own + seen


@pytest.mark.parametrize("core", NAMES)
def test_the_memory_of_every_core_can_be_put_back(points: ModuleType, core: str) -> None:
    """After ticks that the memory has been made to forget, the policy acts as if without them."""
    env = make_env("test/MemoryPoint-v0")
    config = PolicyConfig(width=32, language_size=16, core=sized_like(core, LstmConfig()))
    runner = PolicyRunner(Policy(spec_of(env), config), engine="torch")
    runner.policy.known_instructions["go"] = np.ones(384, np.float32) / 384**0.5
    actor = PolicyActor(runner, {})
    observation, _ = env.reset(seed=0)
    actor.reset("go")
    actor.act(observation)
    kept, snapshot = actor.memory(), runner.snapshot()
    expected = actor.act(observation)
    for _ in range(3):
        actor.act(observation)
    runner.restore({**runner.snapshot(), "previous_action": snapshot["previous_action"]})
    actor.set_memory(kept)
    assert runner.tick == 5, "the tick count is no part of the memory"
    assert np.array_equal(actor.act(observation), expected)


def test_the_result_tells_choices_of_memory_tasks_alone(
    probed: dict[str, Evaluation], points: ModuleType, tmp_path: Path
) -> None:
    data = json.loads(probed["swap"].to_json())
    assert (data["gap"], data["probe"]) == (5, "swap")
    task = data["tasks"]["recall"]
    assert task["choices"] == {
        "count": 0,
        "rate": 0.0,
        "interval": [0.0, pytest.approx(0.194, abs=1e-3)],
    }
    assert task["donor_choices"]["count"] == EPISODES
    assert set(task["outcomes"][0]["choice"]) == {
        "made", "right_choice", "gap", "go_tick", "donor_choice", "donor_seed"
    }  # fmt: skip
    assert load_evaluation(probed["swap"].save(tmp_path)) == probed["swap"]
    other = json.loads(evaluate("expert", "touch", episodes=1, env=MEMORY_POINT).to_json())
    assert not {"gap", "probe", "cue", "noise"} & set(other)
    assert "choices" not in other["tasks"]["touch"]
    assert "choice" not in other["tasks"]["touch"]["outcomes"][0]


def test_the_control_leaves_the_cue_on(points: ModuleType) -> None:
    condition = Condition(2, cue="left_on")
    evaluation = evaluate("expert", "recall", episodes=2, env=MEMORY_POINT, condition=condition)
    assert evaluation.tasks["recall"].successes == 2
    assert json.loads(evaluation.to_json())["cue"] == "left_on"
    assert condition.series == "live, cue left on"


def test_the_expert_has_no_memory(points: ModuleType) -> None:
    with pytest.raises(UserError, match=r"--probe zero .* not for the expert; name a checkpoint"):
        evaluate(
            "expert", "recall", episodes=1, env=MEMORY_POINT, condition=Condition(probe="zero")
        )


@pytest.mark.parametrize(
    ("condition", "option"),
    [
        (Condition(gap=3), "--gap 3"),
        (Condition(probe="erase"), "--probe erase"),
        (Condition(cue="left_on"), "--cue left_on"),
    ],
)
def test_other_tasks_have_no_gap(points: ModuleType, condition: Condition, option: str) -> None:
    with pytest.raises(UserError, match=f"{option} needs a memory task.*'touch' is none"):
        evaluate("none", "all", episodes=1, env=MEMORY_POINT, condition=condition)


def test_any_task_can_be_run_without_memory() -> None:
    """Only what acts at "go" needs a task that says it."""
    assert Condition(probe="zero").needs_memory_task is None
    assert Condition(probe="noise").needs_memory_task is None
