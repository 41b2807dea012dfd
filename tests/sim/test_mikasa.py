"""MIKASA-Robo as an environment. Where the benchmark is not installed, its experts are tested on points."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest

from ttm.policy import UserError
from ttm.sim import make_env
from ttm.sim.mikasa import MIKASA, TASKS, carry, touch

Env = gymnasium.Env


def test_the_experts_hand_comes_down_on_the_cube_and_flies_over_the_others() -> None:
    tcp, cube = np.array([-0.1, 0.0, 0.3]), np.array([0.05, 0.12, 0.02])
    for _ in range(25):
        step = touch(tcp, cube)
        assert np.linalg.norm(step) <= 0.05 + 1e-9
        tcp = tcp + step
        if np.linalg.norm((tcp - cube)[:2]) > 0.05:
            assert tcp[2] >= 0.085, "a cube on the way is touched"
    assert np.linalg.norm(tcp - cube) < 0.05


@pytest.mark.parametrize("slips_at", [None, 20])
def test_the_expert_grasps_slides_and_grasps_again_what_slipped(slips_at: int | None) -> None:
    """A cube as a point that moves with closed fingers around it."""
    tcp, cube, fingers_m = np.array([-0.07, 0.0, 0.3]), np.array([0.03, 0.14, 0.02]), 0.04
    goal, was_open = np.array([0.24, -0.01]), []
    for tick in range(70):
        translation, is_open = carry(tcp, fingers_m, cube, goal)
        is_open = is_open or tick == slips_at
        was_open.append(is_open)
        holds = not is_open and np.linalg.norm((cube - tcp)[:2]) < 0.03 and tcp[2] < 0.04
        if holds and fingers_m < 0.03:
            cube = cube + translation * (1, 1, 0)
        fingers_m = 0.018 if holds else 0.04
        tcp = tcp + translation
    assert np.linalg.norm(cube[:2] - goal) < 0.08
    assert tcp[0] < 0.16, "the arm does not reach so far"
    assert was_open[0]
    assert not was_open[-1]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sapien", None)
    with pytest.raises(UserError, match=r"needs .*sapien.*install"):
        make_env(MIKASA)


@pytest.fixture(scope="module")
def env() -> Iterator[Env]:
    """The benchmark itself, where it and a Vulkan driver are installed."""
    pytest.importorskip("mikasa_robo_suite")
    made = make_env(MIKASA)
    yield made
    made.close()


def drive(env: Env, task: str, seed: int, **options: object) -> tuple[list, list[dict]]:
    """Let the expert drive; return all observations and infos."""
    observation, info = env.reset(seed=seed, options={"task": task, **options})
    expert, over = env.get_wrapper_attr("expert")(), False
    observations, infos = [observation], [info]
    while not over:
        observation, _, terminated, truncated, info = env.step(expert.action())
        over = terminated or truncated
        observations.append(observation)
        infos.append(info)
    return observations, infos


def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("task", TASKS)
def test_the_expert_succeeds_and_an_episode_is_the_same_again(env: Env, task: str) -> None:
    seen, infos = drive(env, task, 3)
    assert infos[-1]["success"]
    assert infos[-1]["choice"] == infos[-1]["right_choice"]
    drive(env, task, 4)
    again, _ = drive(env, task, 3)
    assert len(seen) == len(again)
    assert all(map(same, seen, again))


def test_the_cubes_are_hidden_for_the_gap_and_then_back(env: Env) -> None:
    _, infos = drive(env, "remember_color_3", 0, gap=12)
    assert [info["go"] for info in infos].index(True) == 5 + 12
    assert infos[-1]["success"]


@pytest.mark.parametrize(("task", "cue_ticks"), [("remember_color_3", 5), ("take_it_back", 1)])
def test_another_cue_changes_the_cue_alone(env: Env, task: str, cue_ticks: int) -> None:
    own = env.reset(seed=1, options={"task": task})[1]
    other = next(each for each in own["choices"] if each != own["right_choice"])
    seen = {}
    for right in (own["right_choice"], other):
        observation, info = env.reset(seed=1, options={"task": task, "right_choice": right})
        assert info["right_choice"] == right
        seen[right] = [observation]
        for _ in range(8):
            observation, *_ = env.step(np.zeros(8, np.float32))
            seen[right].append(observation)
    ticks = list(map(same, *seen.values()))
    assert not any(ticks[:cue_ticks])
    assert task == "take_it_back" or all(ticks[cue_ticks:])


def test_the_own_way_of_take_it_back_is_its_gap(env: Env) -> None:
    with pytest.raises(UserError, match="leave --gap out"):
        env.reset(seed=0, options={"task": "take_it_back", "gap": 5})
    _, info = env.reset(seed=0, options={"task": "take_it_back"})
    assert not info["go"]
    assert not info["held"], "the robot moves before go"
