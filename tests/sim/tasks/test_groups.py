"""The groups of skills: household objects, initial states, instructions, what is solved, and the experts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from mink import SO3

from ttm.sim import KitchenEnv
from ttm.sim.evaluation import EvaluateCommand
from ttm.sim.kitchen import fetch
from ttm.sim.kitchen.objects import HOUSEHOLD, add_household
from ttm.sim.kitchen.scene import COUNTER_TOP_Z_M, DRAWER_Z_M
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.kitchen.world import KitchenWorld, both_fingers_touch
from ttm.sim.kitchen_env import CAMERAS
from ttm.sim.tasks.groups import above_rest_m
from ttm.sim.tasks.motions import pulled_m
from ttm.sim.tasks.table import GROUP_NAMES, TASKS, instructions_of, load_task
from ttm.sim.tasks.task import NEAR

ON_COUNTER_M = (1.2, 0.3)


def test_objects_differ_and_fit_into_the_gripper() -> None:
    assert len(HOUSEHOLD) >= 17
    assert len({item.kind for item in HOUSEHOLD.values()}) >= 8
    looks = {(item.shape, item.rings_m.tobytes(), str(item.labels)) for item in HOUSEHOLD.values()}
    assert len(looks) == len(HOUSEHOLD)
    assert max(item.half_m[1] for item in HOUSEHOLD.values()) < fetch.FINGER_TRAVEL_M - 0.01
    for item in HOUSEHOLD.values():
        assert any(item.is_like(other) for other in HOUSEHOLD.values() if other is not item)


def test_objects_rest_as_they_were_put(env: KitchenEnv) -> None:
    env.reset(seed=0, options={"task": "pick_object"})
    still = env.world.start.stand_still()
    for _ in range(5):
        env.step(still)
    for name, (*place_m, w, x, y, z) in env.world.start.objects_m.items():
        body = env.data.body(name)
        assert body.xpos == pytest.approx(place_m, abs=0.004), name
        assert abs(body.xquat @ (w, x, y, z)) > 0.999, name


def test_the_groups_share_one_scene_which_others_do_not_see(env: KitchenEnv) -> None:
    scenes = {type(load_task(name)).add_to_scene for name in GROUP_NAMES}
    assert len(scenes) == 1
    for name in set(TASKS) - set(GROUP_NAMES):
        assert type(load_task(name)).add_to_scene not in scenes
    env.reset(seed=0, options={"task": "pick_object"})
    bodies = {env.model.body(i).name for i in range(env.model.nbody)}
    assert bodies >= HOUSEHOLD.keys()
    assert "red can" not in bodies


def test_the_floor_looks_like_that_of_the_other_tasks(env: KitchenEnv) -> None:
    """It is drawn as one square. Theirs consists of many, which costs as much as half of the scene."""

    def with_squares(scene: mujoco.MjSpec) -> None:
        squares_m = scene.geom("floor").size[2]
        add_household(scene)
        assert scene.geom("floor").size[2] >= 2 * scene.geom("floor").size[0]
        scene.geom("floor").size[2] = squares_m

    other, most = KitchenWorld(with_squares), 0
    for seed in range(3):
        seen, _ = env.reset(seed=seed, options={"task": GROUP_NAMES[seed]})
        other.data.qpos[:] = env.data.qpos
        mujoco.mj_forward(other.model, other.data)
        for name, camera in CAMERAS.items():
            apart = np.abs(seen[name].astype(int) - other.cameras.frame(camera)).max(axis=2)
            most = max(most, int(apart.max()))
            assert (apart > 0).sum() <= 8
    other.cameras.close()
    assert most <= 2, "of 255, by rounding"


@pytest.mark.parametrize("name", ["pick_object", "move_near"])
def test_initial_states_have_other_objects_one_of_them_alike(name: str) -> None:
    task, numbers, lying = load_task(name), set(), set()
    for seed in range(40):
        start = task.sample(np.random.default_rng(seed))
        on_counter = {each: pose for each, pose in start.objects_m.items() if pose[0] > 0}
        numbers.add(len(on_counter))
        first, *_ = named = task.names(start.goal)
        assert on_counter.keys() > set(named)
        others = [HOUSEHOLD[each] for each in HOUSEHOLD if each not in named]
        if any(map(HOUSEHOLD[first].is_like, others)):
            assert any(item.is_like(HOUSEHOLD[first]) for item in others if item.name in on_counter)
        places = np.array([pose[:2] for pose in on_counter.values()])
        gaps_m = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1))
        assert gaps_m[~np.eye(len(places), dtype=bool)].min() > 0.09
        lying |= {
            abs(pose[5]) > 0.3 for each, pose in on_counter.items() if HOUSEHOLD[each].topples
        }
    assert numbers == {4, 5, 6, 7, 8}
    assert lying == {True, False}


def test_the_head_looks_elsewhere_in_each_episode(env: KitchenEnv) -> None:
    poses = []
    for seed in range(3):
        env.reset(seed=seed, options={"task": "pick_object"})
        joints = [env.data.joint(f"{fetch.PREFIX}head_{way}_joint") for way in ("pan", "tilt")]
        poses.append([float(joint.qpos[0]) for joint in joints])
        assert poses[-1] == pytest.approx(env.world.start.head_rad, abs=0.01)
    assert np.ptp(poses, axis=0).min() > 0.01


def test_there_are_as_many_instructions_as_in_the_paper(tmp_path: Path) -> None:
    """They are listed by one command, with two paraphrases each, which are no instructions themselves."""
    assert EvaluateCommand(out=tmp_path, task="groups", episodes=0).run() == 0
    lines = (tmp_path / "instructions.txt").read_text("utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    assert len(rows) >= 551
    assert [row[0] for row in rows] == [
        text for name in GROUP_NAMES for text in instructions_of(name)
    ]
    assert {len(row) for row in rows} == {3}
    words = [text for row in rows for text in row]
    assert len(set(words)) == len(words)


@pytest.mark.filterwarnings("ignore:.*observation space (minimum|maximum) value is")
@pytest.mark.filterwarnings("error")
def test_gymnasiums_checker_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their one scene. What a task of them changes is in the test below, for each."""
    monkeypatch.setattr(KitchenEnv, "render_px", 120)
    made = gymnasium.make("ttm/Kitchen-v0", task="move_near")
    check_env(made.unwrapped)
    made.close()


@pytest.mark.parametrize("task", GROUP_NAMES)
def test_the_same_seed_gives_the_same_episode(env: KitchenEnv, task: str) -> None:
    def episode() -> list[np.ndarray]:
        first, _ = env.reset(
            seed=5, options={"task": task, "vary": dict.fromkeys(env.variations, 1)}
        )
        expert = env.expert()
        seen = [first, *(env.step(expert.action())[0] for _ in range(16))]
        assert all(map(env.observation_space.contains, seen))
        return [value for observation in seen for value in observation.values()]

    once, again = episode(), episode()
    assert all(map(np.array_equal, once, again))
    assert not any(map(np.shares_memory, once, again))


@pytest.mark.parametrize("name", ["banana", "white bowl", "cereal box", "water bottle"])
def test_the_expert_picks_what_is_asked_for(env: KitchenEnv, name: str) -> None:
    options = {"task": "pick_object", "instruction": f"pick up the {name}"}
    _, info = env.reset(seed=1, options=options)
    assert info["instruction"] == options["instruction"]
    assert run(env)
    assert above_rest_m(env.world, name) > 0.05


@pytest.mark.parametrize(
    ("task", "seed"), [("pick_object", 2), ("move_near", 2), ("drawer", 1), ("place_upright", 1)]
)
def test_the_expert_grasps_again_what_it_lost(env: KitchenEnv, task: str, seed: int) -> None:
    env.reset(seed=seed, options={"task": task})
    assert run(env, slips=2)


@pytest.mark.parametrize(
    ("away_m", "above_m", "third_m", "solved"),
    [
        (0.13, 0.0, 0.3, True),
        (0.19, 0.0, 0.3, False),
        (0.13, 0.05, 0.3, False),
        (0.13, 0.0, 0.1, False),
    ],
)
def test_near_is_on_the_counter_beside_it_and_nearer_than_others(
    env: KitchenEnv, away_m: float, above_m: float, third_m: float, solved: bool
) -> None:
    env.reset(seed=0, options={"task": "move_near"})
    env.world.start = replace(env.world.start, goal=NEAR.join(("cola can", "apple")))
    assert env.instruction == "move the cola can near the apple"
    for name in set(HOUSEHOLD) - {"cola can", "apple"}:
        env.data.joint(name).qpos[:2] = (-4.0, 0.0)
    for name, y_m, z_m in (("apple", 0, 0), ("cola can", away_m, above_m), ("pear", -third_m, 0)):
        middle_m = COUNTER_TOP_Z_M + HOUSEHOLD[name].height_m / 2 + z_m
        env.data.joint(name).qpos[:] = (1.2, 0.3 + y_m, middle_m, 1, 0, 0, 0)
    mujoco.mj_forward(env.model, env.data)
    assert env.task.predicate(env.world) == solved
    assert not env.task.is_lost(env.world)
    env.data.joint("cola can").qpos[2] = 0.1
    mujoco.mj_forward(env.model, env.data)
    assert env.task.is_lost(env.world)


def test_the_expert_sets_down_what_hangs_on_any_side_of_the_other(env: KitchenEnv) -> None:
    env.reset(seed=2, options={"task": "move_near"})
    expert, (moved, other) = env.expert(), env.goal.split(NEAR)
    while above_rest_m(env.world, moved) < 0.1:
        env.step(expert.action())
    for name in set(HOUSEHOLD) - {moved, other}:
        env.data.joint(name).qpos[:2] = (-4.0, 0.0)
    for side_rad in np.linspace(0, 2 * np.pi, 8):
        for away_m, down in ((0.12, True), (0.3, False)):
            aside_m = away_m * np.array([np.cos(side_rad), np.sin(side_rad)])
            env.data.joint(other).qpos[:2] = env.data.body(moved).xpos[:2] + aside_m
            mujoco.mj_forward(env.model, env.data)
            assert (expert.action()[2] < -0.01) == down


def test_the_expert_keeps_what_it_holds_by_the_fingertips(env: KitchenEnv) -> None:
    env.reset(seed=2, options={"task": "pick_object", "instruction": "pick up the apple"})
    expert, gripper = env.expert(), SPEC.action_slices["gripper"]
    while away_from_grasp_m(env) > 0.02:
        env.step(expert.action())
    env.data.joint("apple").qpos[0] += 0.04
    env.step(np.zeros(SPEC.action_size, np.float32))  # the gripper closes
    assert both_fingers_touch(env.world, "apple")
    assert away_from_grasp_m(env) > 0.035
    assert expert.action()[gripper] == 0.0


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


def away_from_grasp_m(env: KitchenEnv) -> float:
    """Return how far the gripper has yet to move in until it shall close."""
    grasp, (gripper_m, _) = env.task.grasp(env.world), env.controller.gripper_pose()
    assert grasp is not None
    away_m = env.controller.to_base_frame(grasp.point_m) - gripper_m
    return float(grasp.rotation.inverse().apply(away_m)[0])


def run(env: KitchenEnv, slips: int = 0) -> bool:
    """Return whether the expert solves the episode, though its gripper opens when it holds something."""
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
