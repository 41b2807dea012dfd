"""`drawer`, `knock_over` and `place_upright`: what counts as solved, and how their experts recover."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from mink import SO3

from ttm.sim import KitchenEnv
from ttm.sim.kitchen.objects import HOUSEHOLD
from ttm.sim.kitchen.scene import COUNTER_TOP_Z_M, DRAWER_Z_M
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.kitchen.world import both_fingers_touch
from ttm.sim.tasks.motions import pulled_m

TASKS = ("drawer", "knock_over", "place_upright")
ON_COUNTER_M = (1.2, 0.3)


@pytest.fixture(scope="module")
def env() -> Iterator[KitchenEnv]:
    made = KitchenEnv("drawer")
    yield made
    made.close()


@pytest.mark.filterwarnings("ignore:.*observation space (minimum|maximum) value is")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("task", TASKS)
def test_gymnasiums_checker_passes(task: str) -> None:
    made = gymnasium.make("ttm/Kitchen-v0", task=task)
    check_env(made.unwrapped)
    made.close()


@pytest.mark.parametrize(
    ("goal", "out_m", "solved"),
    [
        ("open top", 0.16, True),
        ("open top", 0.14, False),
        ("close middle", 0.04, True),
        ("close middle", 0.06, False),
    ],
)
def test_a_drawer_is_open_or_closed_from_a_distance_on(
    env: KitchenEnv, goal: str, out_m: float, solved: bool
) -> None:
    env.reset(seed=0, options={"task": "drawer"})
    for name in DRAWER_Z_M:  # the others stand where they would solve it
        env.data.joint(f"drawer_{name}").qpos[:] = 0.2 if goal.startswith("open") else 0.0
    env.data.joint(f"drawer_{goal.split()[1]}").qpos[:] = out_m
    env.world.start = replace(env.world.start, goal=goal)
    assert env.task.predicate(env.world) == solved


def test_drawers_begin_where_their_instruction_makes_sense(env: KitchenEnv) -> None:
    others_stand_out = set()
    for seed in range(12):
        env.reset(seed=seed, options={"task": "drawer"})
        verb, named = env.goal.split()
        out_m = {name: pulled_m(env.world, name) for name in DRAWER_Z_M}
        low_m, high_m = (0.11, 0.26) if verb == "close" else (-0.01, 0.01)
        assert low_m < out_m.pop(named) < high_m
        others_stand_out |= {(verb, value > 0.1) for value in out_m.values()}
    assert len(others_stand_out) == 4


def test_the_expert_leaves_other_drawers_alone(env: KitchenEnv) -> None:
    for seed in range(4):
        env.reset(seed=seed, options={"task": "drawer"})
        others = set(DRAWER_Z_M) - {env.goal.split()[1]}
        before = [pulled_m(env.world, name) for name in others]
        assert run(env)
        assert [pulled_m(env.world, name) for name in others] == pytest.approx(before, abs=0.01)


def put(
    env: KitchenEnv, lean_deg: float, above_m: float = 0.0, x_y_m: object = ON_COUNTER_M
) -> None:
    """Put the named object somewhere, leaning to the left, its lowest edge so far above the counter."""
    item, rotation = HOUSEHOLD[env.goal], SO3.from_x_radians(-np.radians(lean_deg))
    z_m = np.abs(rotation.as_matrix()[2]) @ (*item.half_m, item.height_m / 2)
    place_m = (*np.array(x_y_m), COUNTER_TOP_Z_M + above_m + z_m)
    env.data.joint(env.goal).qpos[:] = (*place_m, *rotation.wxyz)
    mujoco.mj_forward(env.model, env.data)


@pytest.mark.parametrize(
    ("lean_deg", "above_m", "knocked", "upright"),
    [
        (0, 0.0, False, True),
        (5, 0.0, False, True),
        (12, 0.0, False, False),
        (60, 0.0, False, False),
        (90, 0.0, True, False),
        (90, 0.05, False, False),
        (0, 0.03, False, False),
        (180, 0.0, False, False),
    ],
)
def test_an_object_lies_or_stands(
    env: KitchenEnv, lean_deg: float, above_m: float, knocked: bool, upright: bool
) -> None:
    for task, solved in (("knock_over", knocked), ("place_upright", upright)):
        env.reset(seed=0, options={"task": task})
        put(env, lean_deg, above_m)
        assert env.task.predicate(env.world) == solved
        assert not env.task.is_lost(env.world)


def test_an_object_on_the_floor_is_lost(env: KitchenEnv) -> None:
    for task, lean_deg in (("knock_over", 90.0), ("place_upright", 0.0)):
        env.reset(seed=0, options={"task": task})
        put(env, lean_deg, -COUNTER_TOP_Z_M, (0.9, 0.3))
        assert env.task.is_lost(env.world)
        assert not env.task.predicate(env.world)


def test_what_the_robot_still_touches_is_not_placed(env: KitchenEnv) -> None:
    env.reset(
        seed=0, options={"task": "place_upright", "instruction": "place the water bottle upright"}
    )
    put(env, 0.0)
    assert env.task.predicate(env.world)
    put(env, 0.0, x_y_m=env.data.geom("fetch/robot0:r_gripper_finger_link").xpos[:2])
    assert not env.task.predicate(env.world)


@pytest.mark.parametrize("task", TASKS)
def test_the_same_seed_gives_the_same_episode(env: KitchenEnv, task: str) -> None:
    def episode() -> list[np.ndarray]:
        first, _ = env.reset(seed=5, options={"task": task, "vary": {"camera": 1, "noise": 1}})
        expert = env.expert()
        return [first["head"]] + [env.step(expert.action())[0]["head"] for _ in range(8)]

    assert all(map(np.array_equal, episode(), episode()))


@pytest.mark.parametrize("task", ["drawer", "place_upright"])
def test_the_expert_grasps_again_what_it_lost(env: KitchenEnv, task: str) -> None:
    env.reset(seed=1, options={"task": task})
    assert run(env, slips=2)


def run(env: KitchenEnv, slips: int = 0) -> bool:
    """Return whether the expert solves the episode, though its gripper opens when it first holds a thing."""
    expert = env.expert()
    while True:
        action, grasp = expert.action(), env.task.grasp(env.world)
        if slips and grasp is not None and both_fingers_touch(env.world, grasp.body):
            action[SPEC.action_slices["gripper"]] = 1.0
            slips -= 1
        *_, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            assert not slips
            return terminated
