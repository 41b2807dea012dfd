"""Every task of the table: initial states, instructions, predicate, expert; a new one is one file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ttm.policy import UserError
from ttm.sim import TASK_NAMES, KitchenEnv, evaluate
from ttm.sim.tasks.table import TASKS, TaskEntry, instructions_of, load_task

SEEDS = range(3)


@pytest.mark.parametrize("name", TASK_NAMES)
def test_a_task_is_what_the_table_promises(
    env: KitchenEnv, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbered initial states, fitting instructions, a predicate, and an expert that solves them."""
    task = load_task(name)
    assert TASKS[name].description
    assert task.instructions
    assert env.tasks[name] == task.instructions
    first_frames = []
    for seed in SEEDS:
        observation, info = env.reset(seed=seed, options={"task": name})
        again, info_again = env.reset(seed=seed, options={"task": name})
        assert info == info_again
        assert all(np.array_equal(observation[key], again[key]) for key in observation)
        assert info["task"] == name
        assert info["instruction"] in task.instructions
        assert not env.task.predicate(env.world)
        first_frames.append(observation["head"])
        with monkeypatch.context() as patch:
            patch.setattr(env, "observe", dict)  # the expert does not look
            solved, ticks = run_expert(env)
        assert solved, f"the expert does not solve initial state {seed}"
        assert ticks <= env.task.tick_limit(env.world)
    assert not np.array_equal(first_frames[0], first_frames[1])


@pytest.mark.parametrize("name", TASK_NAMES)
def test_initial_states_are_drawn_from_the_generator_alone(name: str) -> None:
    first, second = (load_task(name).sample(np.random.default_rng(5)) for _ in range(2))
    assert first.goal == second.goal
    assert first.objects_m == second.objects_m
    assert np.array_equal(first.base_pose, second.base_pose)
    assert np.array_equal(first.gripper_m, second.gripper_m)


def run_expert(env: KitchenEnv) -> tuple[bool, int]:
    """Return whether the expert solved the episode that was begun, and after how many ticks."""
    expert = env.expert()
    while True:
        action = expert.action()
        assert env.action_space.contains(action)
        *_, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return terminated, info["tick"]


def test_an_instruction_names_one_task() -> None:
    """Of its suite, so that the task of an instruction can be found."""
    for suite in {entry.suite for entry in TASKS.values()}:
        names = [name for name, entry in TASKS.items() if entry.suite == suite]
        texts = [text for name in names for text in instructions_of(name)]
        assert len(set(texts)) == len(texts)


def test_an_unknown_task_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(UserError, match="task is 'dance'; give one of pick"):
        load_task("dance")


def test_the_table_is_read_without_mujoco() -> None:
    code = "import sys, ttm.sim.tasks.table; print('mujoco' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.fixture
def lift_ball(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new line."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setitem(TASKS, "lift_ball", TaskEntry("lift_ball:LiftBall", "lift a ball"))


@pytest.mark.usefixtures("lift_ball")
def test_the_new_task_can_be_evaluated() -> None:
    """As `ttm evaluate --checkpoint expert --task lift_ball` does."""
    result = evaluate("expert", "lift_ball", episodes=3).tasks["lift_ball"]
    assert [outcome.instruction for outcome in result.outcomes] == ["lift the orange ball"] * 3
    assert result.successes == 3


@pytest.mark.usefixtures("lift_ball")
def test_other_tasks_do_not_see_what_it_adds() -> None:
    plain = KitchenEnv()
    before, _ = plain.reset(seed=0)
    plain.close()
    env = KitchenEnv()
    with_ball, _ = env.reset(seed=0, options={"task": "lift_ball"})
    after, _ = env.reset(seed=0)
    names = [env.model.body(i).name for i in range(env.model.nbody)]
    env.close()
    assert "orange ball" not in names
    assert all(np.array_equal(before[key], after[key]) for key in before)
    assert not np.array_equal(with_ball["head"], after["head"])


@pytest.mark.usefixtures("lift_ball")
def test_it_changes_the_scene_as_time_goes_on() -> None:
    """The lamp is red at first, in every episode, and green after some ticks."""
    env = KitchenEnv("lift_ball")
    for _ in range(2):
        env.reset(seed=1)
        colours = []
        for _ in range(4):
            colours.append(env.model.geom("lamp").rgba[1] > 0.5)
            env.step(env.expert().action())
        assert colours == [False, False, False, True]
    env.close()
