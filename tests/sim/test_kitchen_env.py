"""The kitchen: observations, actions, seeds, its expert, and its place in Gymnasium's registry."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from ttm.policy import UserError
from ttm.sim import TASK_NAMES, KitchenEnv, kitchen_env
from ttm.sim.condition import KITCHEN
from ttm.sim.environment import inspect_env
from ttm.sim.kitchen.rendering import register_kitchen
from ttm.sim.kitchen.scene import DRAWER_Z_M
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.kitchen_env import HOLD_TICKS


def command(**parts):
    """An action (A,) that keeps the gripper open and moves nothing but the parts given."""
    action = np.zeros(SPEC.action_size, dtype=np.float32)
    action[SPEC.action_slices["gripper"]] = 1.0
    for name, value in parts.items():
        action[SPEC.action_slices[name]] = value
    return action


def test_observation_is_what_the_spec_says(env):
    observation, _ = env.reset(seed=0)
    SPEC.validate_observation(observation)
    assert env.observation_space.contains(observation)
    assert set(observation) == {"head", "wrist", "joint_positions", "ee_pose", "base_velocity"}


def test_no_scene_is_compiled_to_ask_what_the_kitchen_can_do(monkeypatch):
    monkeypatch.delattr(kitchen_env, "KitchenWorld")
    assert set(inspect_env(KITCHEN).tasks) == set(TASK_NAMES)


@pytest.mark.parametrize("task", TASK_NAMES)
def test_a_seed_fixes_the_initial_state_and_the_episode(env, task):
    def episode(seed):
        first, info = env.reset(seed=seed, options={"task": task})
        last, *_ = env.step(command(arm_translation=(0.02, 0.01, -0.01), base=(0.2, 0.1)))
        return info["instruction"], [*first.values(), *last.values()]

    instruction, arrays = episode(3)
    again, arrays_again = episode(3)
    other = episode(4)[1]
    assert instruction == again
    assert all(np.array_equal(a, b) for a, b in zip(arrays, arrays_again, strict=True))
    assert not np.array_equal(arrays[0], other[0])


def test_arm_moves_by_the_commanded_displacement_in_the_base_frame(env):
    env.reset(seed=1)
    before, _ = env.controller.gripper_pose()
    for _ in range(3):
        env.step(command(arm_translation=(0.02, -0.02, 0.01)))
    env.step(command())
    after, rotation = env.controller.gripper_pose()
    assert after - before == pytest.approx([0.06, -0.06, 0.03], abs=0.005)
    assert np.abs(rotation.log()).max() < 0.02  # pointing forward all along


def test_the_executed_action_is_what_the_limits_leave_of_the_command(env):
    env.reset(seed=1)
    *_, info = env.step(within := command(arm_translation=(0.02, 0, 0), base=(0.1, -0.2)))
    assert info["executed_action"].dtype == np.float32
    assert np.array_equal(info["executed_action"], within)
    *_, info = env.step(command(arm_translation=(0.02, 0, -0.2), base=(0.7, -0.9)))
    cut = command(arm_translation=(0.02, 0, -0.05), base=(0.4, -0.8))
    assert np.array_equal(info["executed_action"], cut)


def test_gripper_turns_by_the_commanded_rotation(env):
    env.reset(seed=1)
    for _ in range(3):
        env.step(command(arm_rotation=(0.0, 0.0, 0.1)))
    env.step(command())
    _, rotation = env.controller.gripper_pose()
    assert rotation.log() == pytest.approx([0, 0, 0.3], abs=0.02)


def test_base_drives_along_its_heading_and_turns_but_never_slips_sideways(env):
    env.reset(seed=2)
    x, y, yaw = env.controller.base_pose()
    for _ in range(5):
        observation, *_ = env.step(command(base=(0.2, 0.0)))
    assert observation["base_velocity"] == pytest.approx([0.2, 0.0], abs=0.02)
    moved = env.controller.base_pose() - (x, y, yaw)
    assert np.hypot(*moved[:2]) == pytest.approx(0.2, abs=0.03)  # 1 s at 0.2 m/s
    assert -np.sin(yaw) * moved[0] + np.cos(yaw) * moved[1] == pytest.approx(0.0, abs=0.005)
    for _ in range(5):
        env.step(command(base=(0.0, 0.4)))
    assert env.controller.base_pose()[2] - yaw == pytest.approx(0.4, abs=0.05)


def test_base_stops_at_the_counter(env):
    env.reset(seed=0)
    for _ in range(40):
        env.step(command(base=(0.4, 0.0), arm_translation=(0, 0, 0.05)))
    x, *_ = env.controller.base_pose()
    assert x < 1.04 - 0.2  # the counter's front less the base's own radius


def test_gripper_closes_and_opens(env):
    env.reset(seed=0)
    for _ in range(5):
        observation, *_ = env.step(command(gripper=0.0))
    assert observation["joint_positions"][-1] < 0.1
    for _ in range(5):
        observation, *_ = env.step(command())
    assert observation["joint_positions"][-1] > 0.9


def test_success_needs_the_predicate_to_hold_for_a_moment(env):
    env.reset(seed=0, options={"task": "open_drawer"})
    joint = env.data.joint(f"drawer_{env.goal}")
    for tick in range(HOLD_TICKS):
        joint.qpos[:] = 0.2
        joint.qvel[:] = 0.0
        *_, terminated, truncated, info = env.step(command())
        assert info["success"] == terminated == (tick == HOLD_TICKS - 1)
    assert not truncated


def test_another_drawer_does_not_count(env):
    env.reset(seed=0, options={"task": "open_drawer"})
    for goal in set(DRAWER_Z_M) - {env.goal}:
        env.data.joint(f"drawer_{goal}").qpos[:] = 0.2
    for _ in range(HOLD_TICKS + 1):
        *_, info = env.step(command())
    assert not info["success"]


def test_time_limit_truncates(env):
    env.reset(seed=0)
    env.world.tick = env.task.max_ticks - 1
    *_, terminated, truncated, _ = env.step(command())
    assert truncated
    assert not terminated


def test_an_instruction_can_be_asked_for(env):
    _, info = env.reset(seed=5, options={"task": "pick", "instruction": "pick up the red can"})
    assert info["instruction"] == "pick up the red can"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"task": "dance"}, "open_drawer"),
        ({"instruction": "pick up the moon"}, "pick up the red can"),
    ],
)
def test_unknown_task_or_instruction_is_an_error_that_lists_the_known(env, options, names):
    with pytest.raises(UserError, match=names):
        env.reset(seed=0, options=options)


@pytest.mark.parametrize("action", [np.zeros(3), np.full(SPEC.action_size, np.nan)])
def test_malformed_action_is_refused(env, action):
    env.reset(seed=0)
    with pytest.raises(UserError, match="finite values"):
        env.step(action)


def test_cameras_see_the_goal(env):
    """The asked-for object's colour fills some pixels of both cameras at the start."""
    env.reset(seed=0, options={"task": "pick", "instruction": "pick up the red can"})
    observation = env.observe()
    for camera in ("head", "wrist"):
        red, green, blue = np.moveaxis(observation[camera].astype(int), -1, 0)
        assert ((red > 90) & (red > 3 * green) & (red > 3 * blue)).sum() >= 4, camera


def test_gymnasium_makes_the_kitchen() -> None:
    env = gymnasium.make("ttm/Kitchen-v0", task="open_drawer")
    _, info = env.reset(seed=0)
    assert isinstance(env.unwrapped, KitchenEnv)
    assert info["task"] == "open_drawer"
    env.close()


def test_gymnasium_alone_finds_the_kitchen_by_its_module() -> None:
    code = (
        "import gymnasium; env = gymnasium.make('ttm.sim:ttm/Kitchen-v0', task='pick'); "
        "print(env.reset(seed=0)[1]['instruction']); env.close()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("pick up the ")


# The proprioception has no limits that hold for every reading of a sensor.
@pytest.mark.filterwarnings("ignore:.*observation space (minimum|maximum) value is")
@pytest.mark.filterwarnings("error")
def test_the_kitchen_passes_gymnasiums_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KitchenEnv, "render_px", 120)  # of pictures for people
    env = gymnasium.make("ttm/Kitchen-v0")
    check_env(env.unwrapped)
    env.close()


def test_registering_twice_changes_nothing() -> None:
    before = gymnasium.registry["ttm/Kitchen-v0"]
    register_kitchen()
    assert gymnasium.registry["ttm/Kitchen-v0"] is before


def test_an_unknown_task_is_an_error() -> None:
    with pytest.raises(UserError, match="task is 'dance'"):
        gymnasium.make("ttm/Kitchen-v0", task="dance")


def run(env, disturb=lambda tick, action: action):
    """Return whether the expert solves the episode. `disturb` counts the ticks in which it may act."""
    expert, tick = env.expert(), 0
    while True:
        action = expert.action()
        assert env.action_space.contains(action)
        going = env.task.go(env.world)
        *_, terminated, truncated, _ = env.step(disturb(tick, action) if going else action)
        tick += going
        if terminated or truncated:
            return terminated


# What is dropped in `take_back` falls to the floor, where no expert reaches it.
@pytest.mark.parametrize("task", [name for name in TASK_NAMES if name != "take_back"])
def test_expert_recovers_from_a_push_and_a_lost_grip(blind, task):
    rng = np.random.default_rng(0)

    def disturb(tick, action):
        action = action.copy()
        if tick in (6, 7, 8):
            action[SPEC.action_slices["arm_translation"]] = rng.uniform(-0.05, 0.05, 3)
            action[SPEC.action_slices["base"]] = (-0.2, 0.5)
        if tick in (15, 16):
            action[SPEC.action_slices["gripper"]] = 1.0
        return action

    blind.reset(seed=7, options={"task": task})
    assert run(blind, disturb)


def test_expert_says_terminate_only_after_success(blind):
    blind.reset(seed=0, options={"task": "pick"})
    expert = blind.expert()
    where = SPEC.action_slices["terminate"]
    assert expert.action()[where] == 0
    assert run(blind)
    assert expert.action()[where] == 1
