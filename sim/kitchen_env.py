"""The kitchen as a Gymnasium environment. `ttm.sim.kitchen.spec` says what is seen and commanded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import mujoco
import numpy as np

from ttm.policy.errors import UserError, require_choice
from ttm.sim.environment import EXECUTED, HELD
from ttm.sim.kitchen import fetch
from ttm.sim.kitchen.controller import FetchController
from ttm.sim.kitchen.spec import SPEC, action_limits
from ttm.sim.kitchen.variation import DIMENSIONS
from ttm.sim.kitchen.view import MujocoRobotView
from ttm.sim.kitchen.world import InitialState, KitchenWorld, both_fingers_touch
from ttm.sim.tasks.memory.cue import OPTIONS, CueState, CueTask, start_of
from ttm.sim.tasks.motions import TURNED_RAD, reach
from ttm.sim.tasks.table import TASKS, instructions_of, load_task, task_groups
from ttm.sim.tasks.task import Motion, Task

CAMERAS = {
    "head": fetch.SCENE_PREFIX + fetch.HEAD_CAMERA,
    "wrist": fetch.SCENE_PREFIX + fetch.WRIST_CAMERA,
}
"""The cameras of the policy's spec, and their names in the scene."""
TURN_RAD = 0.1
"""The expert turns the gripper by no more than this about each axis in one tick."""
GRIPPER = SPEC.action_slices["gripper"]
HOLD_TICKS = 3
"""An episode succeeds once its predicate has held for this many ticks in a row (0.6 s)."""
LOST_TICKS = 5
"""An episode is cut off once it could not be solved any more for this many ticks (1 s)."""


class KitchenExpert:
    """The scripted demonstrator: drives up, lines up and grasps, and then does what the task says.

    The task says what to grasp (`Task.grasp`) and what to do once it is held (`Task.carry`). The expert
    keeps no state, so that it can say in any state that a policy reached what it would do there.
    """

    def __init__(self, world: KitchenWorld, task: Task):
        self.world, self.task = world, task

    def action(self) -> np.ndarray:
        """Return the action in the present state, (A,) float32, within the limits of the spec."""
        if not self.task.go(self.world):
            return self.world.start.stand_still()
        _, rotation = self.world.controller.gripper_pose()
        motion, closed = self._motion()
        limits_m = SPEC.actions[0]
        step_m = np.clip(motion.translation_m, limits_m.low, limits_m.high)
        turn = np.clip(0.5 * (motion.rotation @ rotation.inverse()).log(), -TURN_RAD, TURN_RAD)
        action = [*step_m, *turn, float(not closed), *motion.base, float(self.world.success)]
        return np.array(action, np.float32)

    def _motion(self) -> tuple[Motion, bool]:
        """Return how to move, and whether to close the gripper."""
        grasp = self.task.grasp(self.world)
        if grasp is None:
            motion = self.task.carry(self.world)
            return motion, motion.closed
        grasp_m = self.world.controller.to_base_frame(grasp.point_m)
        gripper_m, rotation = self.world.controller.gripper_pose()
        away_m = grasp.rotation.inverse().apply(grasp_m - gripper_m)
        to_turn_rad = float(np.linalg.norm((grasp.rotation.inverse() @ rotation).log()))
        closed = self._closed_on(grasp.body, np.abs(away_m), to_turn_rad)
        if closed and both_fingers_touch(self.world, grasp.body):
            return self.task.carry(self.world), closed
        return reach(grasp, grasp_m, gripper_m, to_turn_rad), closed

    def _closed_on(self, body: str, away_m: np.ndarray, to_turn_rad: float) -> bool:
        """Return whether to close: when the grasp lies between the fingers, and as long as both touch it."""
        if both_fingers_touch(self.world, body):
            return bool((away_m < (0.06, 0.045, 0.07)).all())
        if self.world.controller.gripper_opening() < 0.95:  # it is closing
            return bool((away_m < (0.02, 0.02, 0.03)).all())
        return to_turn_rad < TURNED_RAD and bool((away_m < (0.015, 0.015, 0.025)).all())


class KitchenEnv(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """A Fetch robot in a kitchen, registered with Gymnasium as `ttm/Kitchen-v0`.

    It is a `ttm.sim.environment.PolicyEnv`. The seed of a reset determines which objects stand where,
    which one the instruction names, and where the robot starts. Tasks of the memory suite hold the robot
    still until "go" (`ttm.sim.tasks.memory.cue`). The reward is 1 in a tick in which the task is solved.
    task: that of resets without one.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012  (Gymnasium's own attribute)
    policy_spec = SPEC
    render_px = 720
    """The height of pictures for people. Small ones are made faster."""

    def __init__(self, task: str = "pick", render_mode: str | None = "rgb_array"):
        self.render_mode = render_mode
        self._default_task = task
        self._worlds: dict[Callable[[mujoco.MjSpec], None], KitchenWorld] = {}
        self._task_name, self.task = task, load_task(task)
        spaces: dict[str, gymnasium.Space[Any]] = {
            camera.name: gymnasium.spaces.Box(0, 255, (camera.height, camera.width, 3), np.uint8)
            for camera in SPEC.cameras
        }
        for vector in SPEC.proprioception:
            spaces[vector.name] = gymnasium.spaces.Box(-np.inf, np.inf, (vector.size,), np.float32)
        self.observation_space: gymnasium.spaces.Dict = gymnasium.spaces.Dict(spaces)  # type: ignore[assignment]
        low, high = action_limits()
        self.action_space: gymnasium.spaces.Box = gymnasium.spaces.Box(low, high, dtype=np.float32)

    @property
    def world(self) -> KitchenWorld:
        """The scene with what the present task needs; made when first used, which takes most of a second."""
        scene = type(self.task).add_to_scene
        if scene not in self._worlds:
            self._worlds[scene] = KitchenWorld(scene)
        return self._worlds[scene]

    @property
    def tasks(self) -> dict[str, tuple[str, ...]]:
        return {name: instructions_of(name) for name in TASKS}

    @property
    def paraphrases(self) -> dict[str, tuple[str, ...]]:
        tasks = map(load_task, TASKS)
        return {
            task.instruction(goal): task.rewordings(goal) for task in tasks for goal in task.goals
        }

    @property
    def variations(self) -> tuple[str, ...]:
        return DIMENSIONS

    @property
    def task_groups(self) -> dict[str, tuple[str, ...]]:
        return task_groups()

    def expert(self) -> KitchenExpert:
        return KitchenExpert(self.world, self.task)

    def named_places(self) -> dict[str, dict[str, dict[str, np.ndarray]]]:
        tasks, scene = {name: load_task(name) for name in TASKS}, type(self.task).add_to_scene
        here = {name: task for name, task in tasks.items() if type(task).add_to_scene is scene}
        return {name: self._places(task) for name, task in here.items()}

    def _places(self, task: Task) -> dict[str, dict[str, np.ndarray]]:
        """Return where the cameras have what each instruction of a task names."""
        places_m = [task.places(self.world, goal) for goal in task.goals]
        points_m = np.array([point for each in places_m for point in each]).reshape(-1, 3)
        ends = np.cumsum([len(each) for each in places_m])[:-1]
        seen = {c: self.world.cameras.places(place, points_m) for c, place in CAMERAS.items()}
        parts = {camera: np.split(found, ends) for camera, found in seen.items()}
        texts = map(task.instruction, task.goals)
        return {text: {c: parts[c][i] for c in parts} for i, text in enumerate(texts)}

    def robot_view(self) -> MujocoRobotView:
        base = fetch.PREFIX + fetch.BASE_LINK
        return MujocoRobotView(self.model, self.data, base, fetch.PREFIX, CAMERAS)

    @property
    def model(self) -> mujoco.MjModel:
        return self.world.model

    @property
    def data(self) -> mujoco.MjData:
        return self.world.data

    @property
    def controller(self) -> FetchController:
        return self.world.controller

    @property
    def goal(self) -> str:
        return self.world.start.goal

    @property
    def instruction(self) -> str:
        others = self.task.rewordings(self.goal)
        return self.world.variation.worded(self.task.instruction(self.goal), others)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Begin an episode and return its first observation and its info.

        Beside the options of `PolicyEnv`, there may be `instruction`, the text that the initial state must
        ask for. Raises `UserError` if the task is unknown, or does not know an option.
        """
        super().reset(seed=seed)
        options = options or {}
        name = options.get("task", self._default_task)
        self._task_name, self.task = name, load_task(name)
        wanted = options.get("instruction")
        if wanted is not None:
            require_choice(
                f"the instruction of '{self._task_name}'", wanted, self.task.instructions
            )
        self.world.variation.begin(options.get("vary", {}), self.np_random)
        start = self._sample(options)
        while wanted not in (None, self.task.instruction(start.goal)):
            start = self._sample(options)
        if clutter := self.world.variation.clutter:
            start = self.task.with_clutter(start, *clutter)
        self.world.begin(start.moved(self.world.variation.start))
        self._held_ticks = self._lost_ticks = self._free_ticks = self._paused_ticks = 0
        self._executed = self.world.start.stand_still()
        self._choice: str | None = None
        self.task.update(self.world)
        return self._arrived(acts=False), self._info()

    def _sample(self, options: dict[str, Any]) -> InitialState:
        """Draw an initial state, with what `options` fix of its cue."""
        start = self.task.sample(self.np_random)
        if isinstance(start, CueState) and isinstance(self.task, CueTask):
            start, variation = start.with_options(options), self.world.variation
            variation.rate = max(variation.rate, self.task.least_rate)
            gap = start.gap if "gap" in options else round(variation.rate * start.gap)
            level = options.get("vary", {}).get("decoy", 0)
            return self.task.with_decoys(replace(start, gap=gap), level, self.np_random)
        if unknown := [name for name in OPTIONS if name in options]:
            why = f"task '{self._task_name}' shows no cue, so that it has no option '{unknown[0]}'"
            raise UserError(f"{why}; tasks that have one: {', '.join(self.task_groups['memory'])}")
        return start

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Simulate one control tick of 0.2 s. As long as the robot is held, `action` is ignored.

        Raises `UserError` if `action` is not (A,) or not finite. Larger commands than the robot
        obeys are cut.
        """
        action = np.asarray(action, dtype=np.float64)
        if action.shape != (SPEC.action_size,) or not np.isfinite(action).all():
            raise UserError(f"action {action} must be {SPEC.action_size} finite values")
        go = self.task.go(self.world)
        paused = go and self._free_ticks in self.world.variation.pause
        held = paused or not go
        self._free_ticks += go
        self._paused_ticks += paused
        still = self.world.start.stand_still()
        still[GRIPPER] = self._executed[GRIPPER]
        limits = self.action_space.low, self.action_space.high
        self._executed = still if held else np.clip(action, *limits)
        if go:
            self.world.step(self._executed)
        else:
            task = self.task
            self.world.hold(task.cue_end(self.world) if isinstance(task, CueTask) else 0)
        self.task.update(self.world)
        self._held_ticks = self._held_ticks + 1 if self._is_solved() else 0
        self.world.success = self._held_ticks >= HOLD_TICKS
        lost = self._choice not in (None, self.goal) or self.task.is_lost(self.world)
        self._lost_ticks = self._lost_ticks + 1 if lost else 0
        late = self.world.tick >= self.task.tick_limit(self.world) + self._paused_ticks
        truncated = not self.world.success and (late or self._lost_ticks >= LOST_TICKS)
        info = self._info() | {EXECUTED: self._executed.astype(np.float32), HELD: held}
        return (
            self._arrived(acts=go),
            float(self.world.success),
            self.world.success,
            truncated,
            info,
        )

    def _arrived(self, *, acts: bool) -> dict[str, np.ndarray]:
        """Return what the policy gets in this tick. acts: whether it could act in the one before."""
        self.world.variation.tick(acts=acts)
        return self.world.variation.arrived(self.observe(), acts=acts)

    def _is_solved(self) -> bool:
        """Return whether the predicate holds now, and note the first choice of a memory task."""
        if isinstance(self.task, CueTask):
            if not self.task.go(self.world):
                return False
            self._choice = self._choice or self.task.choice(self.world)
            if self._choice != self.goal:
                return False
        return self.task.predicate(self.world)

    def _info(self) -> dict[str, Any]:
        world, task = self.world, self.task
        info = {"task": self._task_name, "instruction": self.instruction, "success": world.success}
        info |= {"tick": world.ticks, "time_s": world.time_s}
        if isinstance(task, CueTask):
            start = start_of(world, CueState)
            info |= {"go": task.go(world), "gap": start.gap, "choice": self._choice}
            info |= {"choices": start.choices, "right_choice": self.goal}
        return info

    def observe(self) -> dict[str, np.ndarray]:
        """Return what the policy sees now. Both cameras are rendered."""
        robot = self.controller
        position_m, rotation = robot.gripper_pose()
        w, x, y, z = rotation.wxyz if rotation.wxyz[0] >= 0 else -rotation.wxyz
        joints = (robot.torso_height(), *robot.arm_joints(), robot.gripper_opening())
        frames = {name: self.world.cameras.frame(camera) for name, camera in CAMERAS.items()}
        return {
            **self.world.variation.seen(frames),
            "joint_positions": np.array(joints, dtype=np.float32),
            "ee_pose": np.array((*position_m, x, y, z, w), dtype=np.float32),
            "base_velocity": robot.base_velocity().astype(np.float32),
        }

    def render(self) -> np.ndarray:
        """Return robot and place of work from outside, (render_px, 4/3 render_px, 3) uint8 RGB."""
        x_m, y_m, yaw_rad = self.world.start.base_pose
        ahead_m = 0.5 * (1.2 - x_m)  # half way to what it works at
        middle_m = np.array([x_m + ahead_m, y_m + ahead_m * np.tan(yaw_rad) - 0.05, 0.76])
        return self.world.cameras.picture(self.render_px, middle_m)

    def close(self) -> None:
        """Free the renderers."""
        for world in self._worlds.values():
            world.cameras.close()
