"""The kitchen as a Gymnasium environment. `ttm.sim.kitchen.spec` says what is seen and commanded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import mujoco
import numpy as np

from ttm.policy.errors import UserError
from ttm.sim.kitchen import fetch
from ttm.sim.kitchen.controller import FetchController
from ttm.sim.kitchen.spec import SPEC, action_limits
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.kitchen_expert import KitchenExpert
from ttm.sim.tasks.table import TASKS, instructions_of, load_task
from ttm.sim.tasks.task import Task

HOLD_TICKS = 3
"""An episode succeeds once its predicate has held for this many ticks in a row (0.6 s)."""


class KitchenEnv(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """A Fetch robot in a kitchen, registered with Gymnasium as `ttm/Kitchen-v0`.

    `reset(seed=n, options={"task": "pick"})` gives the numbered initial state n of a task. The seed
    determines everything: which objects stand where, which one the instruction names, and where the
    robot starts. With `options["instruction"]`, initial states are drawn until one of them asks for
    exactly that. A reset without a seed goes on with the random numbers of the last one.

    The reward is 1 in a tick in which the task is solved and 0 otherwise. An episode terminates
    when the task is solved, and is truncated after the task's number of ticks.

    Parameters
    ----------
    task : str
        The task when `reset` is not told one.
    render_mode : str, optional
        Only "rgb_array" is known.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012  (Gymnasium's own attribute)
    policy_spec = SPEC

    def __init__(self, task: str = "pick", render_mode: str | None = "rgb_array"):
        self.render_mode = render_mode
        self._default_task = task
        self._worlds: dict[Callable[[mujoco.MjSpec], None], KitchenWorld] = {}
        self._held_ticks = 0
        self._enter(task)
        self.observation_space: gymnasium.spaces.Dict = _observation_space()  # type: ignore[assignment]
        low, high = action_limits()
        self.action_space: gymnasium.spaces.Box = gymnasium.spaces.Box(low, high, dtype=np.float32)

    def _enter(self, task: str) -> None:
        """Make the named task the present one, in a scene that holds what it needs."""
        self.task: Task = load_task(task)
        self._task_name = task
        scene = type(self.task).add_to_scene
        if scene not in self._worlds:
            self._worlds[scene] = KitchenWorld(scene)
        self.world = self._worlds[scene]

    @property
    def tasks(self) -> dict[str, tuple[str, ...]]:
        """The names of all tasks, and the instructions that each may give."""
        return {name: instructions_of(name) for name in TASKS}

    def expert(self) -> KitchenExpert:
        """Return the scripted demonstrator of the present episode."""
        return KitchenExpert(self.world, self.task)

    @property
    def model(self) -> mujoco.MjModel:
        """The simulator's model of the present scene."""
        return self.world.model

    @property
    def data(self) -> mujoco.MjData:
        """The simulator's state."""
        return self.world.data

    @property
    def controller(self) -> FetchController:
        """What measures and commands the robot."""
        return self.world.controller

    @property
    def goal(self) -> str:
        """What the instruction names."""
        return self.world.start.goal

    @property
    def instruction(self) -> str:
        """What the present episode asks for."""
        return self.task.instruction(self.goal)

    @property
    def success(self) -> bool:
        """Whether the task's predicate has held for `HOLD_TICKS` ticks."""
        return self.world.success

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Begin an episode and return its first observation and its info.

        `options` may hold `task`, the name of a task, and `instruction`, the text that the initial
        state must ask for. Raises `UserError` if there is no such task or instruction.
        """
        super().reset(seed=seed)
        options = options or {}
        self._enter(options.get("task", self._default_task))
        wanted = options.get("instruction")
        if wanted is not None and wanted not in self.task.instructions:
            known = ", ".join(f"'{text}'" for text in self.task.instructions)
            raise UserError(
                f"no initial state of task '{self._task_name}' asks for '{wanted}'; it knows: {known}"
            )
        while True:
            self.world.begin(self.task.sample(self.np_random))
            if wanted is None or self.instruction == wanted:
                break
        self._held_ticks = 0
        self.task.update(self.world)
        return self.observe(), self._info()

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Simulate one control tick of 0.2 s.

        Raises `UserError` if `action` is not (A,) or not finite. Larger commands than the robot
        obeys are cut.
        """
        action = np.asarray(action, dtype=np.float64)
        if action.shape != (SPEC.action_size,) or not np.isfinite(action).all():
            raise UserError(
                f"action {action} must be {SPEC.action_size} finite values; "
                "see ttm.sim.kitchen.spec for their order"
            )
        self.world.step(np.clip(action, self.action_space.low, self.action_space.high))
        self.task.update(self.world)
        self._held_ticks = self._held_ticks + 1 if self.task.predicate(self.world) else 0
        self.world.success = self._held_ticks >= HOLD_TICKS
        truncated = self.world.tick >= self.task.max_ticks and not self.success
        return self.observe(), float(self.success), self.success, truncated, self._info()

    def _info(self) -> dict[str, Any]:
        return {
            "task": self._task_name,
            "instruction": self.instruction,
            "success": self.success,
            "tick": self.world.tick,
            "time_s": self.world.time_s,
        }

    def observe(self) -> dict[str, np.ndarray]:
        """Return what the policy sees now. Both cameras are rendered."""
        position_m, rotation = self.controller.gripper_pose()
        w, x, y, z = rotation.wxyz if rotation.wxyz[0] >= 0 else -rotation.wxyz
        joints = (
            self.controller.torso_height(),
            *self.controller.arm_joints(),
            self.controller.gripper_opening(),
        )
        return {
            "head": self.world.cameras.frame(fetch.SCENE_PREFIX + fetch.HEAD_CAMERA),
            "wrist": self.world.cameras.frame(fetch.SCENE_PREFIX + fetch.WRIST_CAMERA),
            "joint_positions": np.array(joints, dtype=np.float32),
            "ee_pose": np.array((*position_m, x, y, z, w), dtype=np.float32),
            "base_velocity": self.controller.base_velocity().astype(np.float32),
        }

    def render(self) -> np.ndarray:
        """Return the kitchen from outside, (360, 480, 3) uint8 RGB, for videos."""
        return self.world.cameras.frame("overview", 360, 480)

    def close(self) -> None:
        """Free the renderers."""
        for world in self._worlds.values():
            world.cameras.close()


def _observation_space() -> gymnasium.spaces.Dict:
    spaces: dict[str, gymnasium.Space[Any]] = {
        camera.name: gymnasium.spaces.Box(0, 255, (camera.height, camera.width, 3), np.uint8)
        for camera in SPEC.cameras
    }
    for vector in SPEC.proprioception:
        spaces[vector.name] = gymnasium.spaces.Box(-np.inf, np.inf, (vector.size,), np.float32)
    return gymnasium.spaces.Dict(spaces)
