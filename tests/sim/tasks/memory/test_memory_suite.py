"""The memory suite: experts, gaps, choices, and the options of a reset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ttm.policy import UserError
from ttm.sim import TASK_NAMES, KitchenEnv
from ttm.sim.kitchen_env import LOST_TICKS
from ttm.sim.tasks.memory.content import ContentState
from ttm.sim.tasks.memory.cue import GAPS, MOST_BLANK, OPTIONS, CueTask
from ttm.sim.tasks.memory.sequence import SequenceState
from ttm.sim.tasks.table import GROUP_NAMES, MEMORY_NAMES, SKILL_NAMES, load_task

KEYS = {"go", "gap", "choice", "choices", "right_choice"}
CONTENT = ("colour_shown", "shape_shown", "sequence")
EXPERT_SEEDS = range(8)


@pytest.fixture
def env(blind: KitchenEnv) -> KitchenEnv:
    return blind


def run_expert(env: KitchenEnv, believed: str | None = None) -> list[dict[str, Any]]:
    """Return the infos of the episode that was begun. believed: what the expert takes for right."""
    expert, right = env.expert(), env.goal
    infos: list[dict[str, Any]] = []
    while True:
        env.world.start = replace(env.world.start, goal=believed or right)
        action = expert.action()
        env.world.start = replace(env.world.start, goal=right)
        *_, terminated, truncated, info = env.step(action)
        infos.append(info)
        if terminated or truncated:
            return infos


@pytest.mark.parametrize("task", MEMORY_NAMES)
def test_the_expert_solves_it(env: KitchenEnv, task: str) -> None:
    """In 200 of 200 states when it was measured; of few, all are asked for."""
    for seed in EXPERT_SEEDS:
        env.reset(seed=seed, options={"task": task, "gap": 1})
        last = run_expert(env)[-1]
        assert last["success"], seed
        assert last["choice"] == last["right_choice"]


@pytest.mark.parametrize("task", MEMORY_NAMES)
def test_the_expert_solves_the_control_too(env: KitchenEnv, task: str) -> None:
    env.reset(seed=0, options={"task": task, "gap": 1, "cue": "left_on"})
    assert run_expert(env)[-1]["success"]


@pytest.mark.parametrize("task", MEMORY_NAMES)
def test_a_wrong_choice_is_noted_and_soon_ends_the_episode(env: KitchenEnv, task: str) -> None:
    _, info = env.reset(seed=1, options={"task": task, "gap": 1})
    right = info["right_choice"]
    wrong = next(choice for choice in env.world.start.choices if choice != right)  # type: ignore[attr-defined]
    infos = run_expert(env, believed=wrong)
    made = [info["choice"] for info in infos]
    first = made.index(wrong)
    assert set(made[:first]) == {None}
    assert made[first:] == [wrong] * LOST_TICKS
    assert not infos[-1]["success"]
    assert infos[-1]["right_choice"] == right


def test_a_sequence_in_another_order_soon_ends_though_its_choice_is_right(env: KitchenEnv) -> None:
    env.reset(seed=1, options={"task": "sequence", "gap": 1})
    start = env.world.start
    assert isinstance(start, SequenceState)
    first, second, third = start.order
    swapped = tuple(start.choices.index(choice) for choice in (first, third, second))
    env.world.start = replace(start, circle=swapped)
    expert, truncated = env.expert(), False
    while env.world.notes != [first, third]:
        env.step(expert.action())
    env.world.start = start
    for _ in range(LOST_TICKS):
        assert not truncated
        *_, truncated, info = env.step(np.zeros(env.action_space.shape))
    assert truncated
    assert info["choice"] == info["right_choice"] == first
    assert not info["success"]


@pytest.mark.parametrize("task", MEMORY_NAMES)
def test_gaps_are_drawn_and_can_be_fixed(env: KitchenEnv, task: str) -> None:
    drawn = {env.reset(seed=seed, options={"task": task})[1]["gap"] for seed in range(12)}
    assert min(drawn) >= GAPS[0]
    assert max(drawn) <= GAPS[1]
    assert len(drawn) > 3
    states = []
    for gap in (0, 45):
        _, info = env.reset(seed=5, options={"task": task, "gap": gap})
        assert info["gap"] == gap
        states.append((info["right_choice"], *env.data.qpos))
        ticks = 0
        while not info["go"]:
            *_, info = env.step(env.action_space.low)
            ticks += 1
        assert ticks == env.task.cue_ticks + gap  # type: ignore[attr-defined]
    assert states[0] == states[1]


def test_the_time_limit_counts_from_go(env: KitchenEnv) -> None:
    _, info = env.reset(seed=0, options={"task": "side_shown", "gap": 120})
    while not info["go"]:
        *_, truncated, info = env.step(env.expert().action())
        assert not truncated
    env.world.tick += env.task.max_ticks - 1
    assert env.step(np.zeros(env.action_space.shape))[3]


def test_no_single_tick_of_the_blinks_tells_their_number(env: KitchenEnv) -> None:
    """Each slot is lit for each number, in some initial state."""
    lit: dict[str, set[int]] = {}
    for seed in range(30):
        env.reset(seed=seed, options={"task": "count", "gap": 0})
        for tick in range(CueTask.go_tick(env.task, env.world)):  # type: ignore[arg-type]
            if env.model.geom("lamp_left").rgba[1] == pytest.approx(0.35):
                lit.setdefault(env.goal, set()).add(tick)
            env.step(env.expert().action())
    assert lit == {number: {0, 2, 4, 6, 8} for number in ("top", "middle", "bottom")}


@pytest.mark.parametrize("task", MEMORY_NAMES)
def test_the_instruction_does_not_tell_the_answer(task: str) -> None:
    assert len(load_task(task).instructions) == 1


@pytest.mark.parametrize("task", SKILL_NAMES)
def test_other_tasks_have_neither_keys_nor_options(env: KitchenEnv, task: str) -> None:
    _, info = env.reset(seed=0, options={"task": task})
    assert not KEYS & set(info)
    for name in OPTIONS:
        with pytest.raises(UserError, match=f"'{task}' shows no cue.*'{name}'.*side_shown"):
            env.reset(seed=0, options={"task": task, name: 5})


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("gap", -1, "whole number of ticks"),
        ("gap", 2.5, "whole number of ticks"),
        ("cue", "loud", "hidden, left_on"),
        ("right_choice", "up", "right, middle, left"),
    ],
)
def test_an_impossible_option_is_an_error(
    env: KitchenEnv, option: str, value: Any, told: str
) -> None:
    with pytest.raises(UserError, match=told):
        env.reset(seed=0, options={"task": "side_shown", option: value})


@pytest.mark.parametrize("task", CONTENT)
def test_what_a_cue_means_is_out_of_sight_until_go(env: KitchenEnv, task: str) -> None:
    """So that nothing can be bound to a place."""
    _, info = env.reset(seed=3, options={"task": task, "gap": 2})
    start = env.world.start
    assert isinstance(start, ContentState)
    while not info["go"]:
        assert all(env.data.body(body).xpos[0] < -3 for body in start.bodies.values())
        *_, info = env.step(env.action_space.low)
    stand = [env.data.body(start.bodies[choice]).xpos[1] for choice in info["choices"]]
    assert sorted(stand) == stand == pytest.approx([place[1] for place in start.places_m])


@pytest.mark.parametrize("task", CONTENT)
def test_a_cue_that_is_held_out_is_never_drawn_otherwise(env: KitchenEnv, task: str) -> None:
    seen: dict[str, set[str]] = {"hidden": set(), "held_out": set()}
    for seed in range(30):
        for cue, names in seen.items():
            _, info = env.reset(seed=seed, options={"task": task, "cue": cue})
            assert info["right_choice"] in info["choices"]
            names |= set(info["choices"])
    assert not seen["hidden"] & seen["held_out"]
    assert seen["hidden"] | seen["held_out"] == set(env.task.goals)


def test_a_place_cannot_be_held_out(env: KitchenEnv) -> None:
    with pytest.raises(UserError, match="cue is 'held_out'; give one of hidden, left_on"):
        env.reset(seed=0, options={"task": "side_shown", "cue": "held_out"})


@pytest.mark.parametrize("task", MEMORY_NAMES)
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_decoys_come_before_the_cue_and_ask_for_something_else(task: str, level: int) -> None:
    """Neither their number nor their times depend on the cue, and what is drawn stays as it is."""
    made, counts = load_task(task), set()
    for seed in range(30):
        rng, times = np.random.default_rng(seed), set()
        plain = made.sample(rng)
        state = rng.bit_generator.state
        for right in plain.choices:
            start = made.with_decoys(plain.with_options({"right_choice": right}), level, rng)
            assert all(decoy.choice in set(start.choices) - {right} for decoy in start.decoys)
            begins = [*(decoy.first_tick for decoy in start.decoys), start.cue_tick]
            ends = [decoy.first_tick + decoy.ticks for decoy in start.decoys]
            blanks = [begin - end for begin, end in zip(begins[1:], ends, strict=True)]
            assert begins[0] == 0
            assert all(1 <= blank <= MOST_BLANK for blank in blanks)
            times.add((*begins, *ends))
        assert len(times) == 1
        assert rng.bit_generator.state == state
        counts.add(len(start.decoys))
    one_cue = level == 0 or task in ("count", "search", "shell")
    assert counts == ({0} if one_cue else {1: {0, 1}, 2: {1, 2}, 3: {1, 2, 3}}[level])


def test_the_expert_follows_the_cue_and_not_its_decoys(env: KitchenEnv) -> None:
    env.reset(seed=0, options={"task": "sequence", "gap": 1, "vary": {"decoy": 2}})
    assert run_expert(env)[-1]["success"]


def test_words_for_several_tasks(env: KitchenEnv) -> None:
    assert env.task_groups == {
        "all": SKILL_NAMES,
        "groups": GROUP_NAMES,
        "memory": MEMORY_NAMES,
    }
    assert tuple(env.tasks) == TASK_NAMES
