"""That the memory suite needs memory: at "go" nothing of the cue is left, in no bit of any observation.

And that its controls do not: with the cue left on, the answer can be seen at "go".
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from ttm.sim import KitchenEnv
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.tasks.table import MEMORY_NAMES

Observation = dict[str, np.ndarray]


def choices_of(env: KitchenEnv, task: str, seed: int) -> tuple[str, ...]:
    env.reset(seed=seed, options={"task": task})
    return env.world.start.choices  # type: ignore[attr-defined]


def until_go(env: KitchenEnv, actions: np.random.Generator, **options: Any) -> list[Observation]:
    """Begin an episode and act at random; return the observations, of which the last one says "go"."""
    seed = options.pop("seed")
    observation, info = env.reset(seed=seed, options=options)
    seen = [observation]
    while not info["go"]:
        action = actions.uniform(env.action_space.low, env.action_space.high)
        observation, _, terminated, truncated, info = env.step(action.astype(np.float32))
        assert not terminated
        assert not truncated
        assert info["choice"] is None
        seen.append(observation)
    return seen


def equal(first: Observation, second: Observation) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("task", MEMORY_NAMES)
@pytest.mark.parametrize(("seed", "gap", "decoy"), [(0, 3, 0), (1, 9, 0), (2, 3, 3)])
def test_at_go_no_observation_tells_the_cue(
    env: KitchenEnv, task: str, seed: int, gap: int, decoy: int
) -> None:
    """Same state, other cue, and other actions: every observation at "go" is equal to the bit.

    So is the whole state of the simulator, hence all that is seen later if the actions are equal.
    """
    episodes, states = [], []
    for number, choice in enumerate(choices_of(env, task, seed)):
        actions = np.random.default_rng(number)
        fixed = {"task": task, "gap": gap, "right_choice": choice, "vary": {"decoy": decoy}}
        episodes.append(until_go(env, actions, seed=seed, **fixed))
        states.append(np.concatenate([env.data.qpos, env.data.qvel, env.data.ctrl]))
        assert len(episodes[-1]) == env.task.go_tick(env.world) + 1  # type: ignore[attr-defined]
    for first, second in combinations(episodes, 2):
        assert equal(first[-1], second[-1])
        assert all(equal(a, b) for a, b in zip(first[-gap - 1 :], second[-gap - 1 :], strict=True))
        assert any(not equal(a, b) for a, b in zip(first, second, strict=True)), "no cue was shown"
    assert all(np.array_equal(states[0], state) for state in states)


@pytest.mark.parametrize(
    ("task", "seed", "chosen", "speed"),
    [(task, 4, 0, 1.0) for task in MEMORY_NAMES]
    + [("search", seed, chosen, 0.4) for seed in (5, 6) for chosen in range(3)],
)
def test_until_the_robot_has_chosen_no_observation_tells_the_cue(
    env: KitchenEnv, task: str, seed: int, chosen: int, speed: float
) -> None:
    """Same state and same actions, other cue: nobody can look whether a choice is right before making it.

    A drawer can be pulled slowly, and be looked into before that counts as a choice.
    """
    others = list(choices_of(env, task, seed))
    first = others.pop(chosen)
    actions: list[np.ndarray] = []
    expected = until_choice(env, task, seed, speed, first, actions)
    assert len(expected) > 3
    for right in others:
        seen = until_choice(env, task, seed, speed, right, actions)
        assert len(seen) == len(expected)
        assert all(equal(a, b) for a, b in zip(seen, expected, strict=True))


def until_choice(
    env: KitchenEnv, task: str, seed: int, speed: float, right: str, actions: list[np.ndarray]
) -> list[Observation]:
    """Repeat `actions`, or if there are none yet let the expert act and append what it does.

    speed: the share of the expert's movement that is made.

    Returns the observations from "go" to the last before the choice.
    """
    expert_acts, steps, seen = not actions, 0, []
    _, info = env.reset(seed=seed, options={"task": task, "gap": 3, "right_choice": right})
    scale = np.full(SPEC.action_size, speed, np.float32)
    scale[SPEC.action_slices["gripper"]] = 1.0
    expert = env.expert()
    while info["choice"] is None:
        if expert_acts:
            actions.append(scale * expert.action())
        observation, *_, info = env.step(actions[steps])
        steps += 1
        if info["go"] and info["choice"] is None:
            seen.append(observation)
    return seen


@pytest.mark.parametrize("task", MEMORY_NAMES)
def test_go_can_be_seen(env: KitchenEnv, task: str) -> None:
    """The gap's last observation and the one that says "go" differ in what the cameras see."""
    *_, gap, go = until_go(env, np.random.default_rng(0), seed=2, task=task, gap=3)
    assert not np.array_equal(gap["head"], go["head"])


@pytest.mark.parametrize("task", MEMORY_NAMES)
def test_with_the_cue_left_on_one_look_is_enough(env: KitchenEnv, task: str) -> None:
    """The control: at "go" the cues differ in a patch of pixels of a camera."""
    last = [
        until_go(
            env,
            np.random.default_rng(0),
            seed=3,
            task=task,
            gap=3,
            cue="left_on",
            right_choice=choice,
        )[-1]
        for choice in choices_of(env, task, 3)
    ]
    for first, second in combinations(last, 2):
        changed = [
            int((np.abs(first[name].astype(int) - second[name]) > 60).any(axis=-1).sum())
            for name in ("head", "wrist")
        ]
        assert max(changed) >= 4


@pytest.mark.parametrize("task", MEMORY_NAMES)
def test_the_robot_stands_still_until_go_and_its_expert_too(env: KitchenEnv, task: str) -> None:
    """Neither pose nor previous action carries the answer; the first action after "go" tells it.

    Whatever is commanded, what counts as executed is the expert's own action, which is recorded.
    """
    first_actions, rng = [], np.random.default_rng(0)
    for choice in choices_of(env, task, 4):
        observation, info = env.reset(
            seed=4, options={"task": task, "gap": 3, "right_choice": choice}
        )
        stand_still = np.zeros(SPEC.action_size, np.float32)
        stand_still[SPEC.action_slices["gripper"]] = 0.0 if task == "take_back" else 1.0
        while not info["go"]:
            action = env.expert().action()
            assert np.array_equal(action, stand_still)
            commanded = rng.uniform(env.action_space.low, env.action_space.high)
            later, *_, info = env.step(commanded)
            assert info["executed_action"].dtype == np.float32
            assert np.array_equal(info["executed_action"], stand_still)
            for vector in SPEC.proprioception:
                assert np.array_equal(observation[vector.name], later[vector.name])
        first_actions.append(env.expert().action())
    for first, second in combinations(first_actions, 2):
        assert np.abs(first - second).max() > 0.01
