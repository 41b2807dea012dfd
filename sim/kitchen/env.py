"""The kitchen as a `gymnasium.Env`: what the policy sees and commands, at 5 Hz.

Observation (dict)
    head, wrist        (64, 64, 3) uint8    RGB
    joint_positions    (9,) float32         torso lift (m), seven arm joints (rad), gripper opening (0 to 1)
    ee_pose            (7,) float32         x y z (m) and quaternion x y z w of the gripper in the base frame
    base_velocity      (2,) float32         forward (m/s), yaw rate (rad/s)

Action (10,) float32
    arm_translation    3   m a tick, base frame      in [-0.05, 0.05]
    arm_rotation       3   axis-angle, rad a tick    in [-0.15, 0.15]
    gripper            1   1 open, 0 closed
    base               2   forward m/s, yaw rad/s    in [-0.4, 0.4], [-0.8, 0.8]
    terminate          1   the policy's own word that it is done; noted, never believed
"""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np

os.environ.setdefault("MUJOCO_GL", "egl")  # before mujoco is imported: no screen is needed

import mujoco

from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec
from ttm.sim.kitchen import fetch
from ttm.sim.kitchen.controller import ArmKinematics, FetchController
from ttm.sim.kitchen.scene import build_kitchen, robotics_assets
from ttm.sim.rendering import no_rendering
from ttm.sim.tasks import TASKS, Task

FRAME_PX = 64
SPEC = PolicySpec(
    robot="fetch_kitchen",
    cameras=(CameraSpec("head", FRAME_PX, FRAME_PX), CameraSpec("wrist", FRAME_PX, FRAME_PX)),
    proprioception=(
        ProprioceptionSpec(
            "joint_positions",
            (
                "torso_lift_joint (m)",
                *(f"{name} (rad)" for name in fetch.ARM_JOINTS),
                "gripper opening (0 to 1)",
            ),
        ),
        ProprioceptionSpec("ee_pose", ("x (m)", "y (m)", "z (m)", "qx", "qy", "qz", "qw")),
        ProprioceptionSpec("base_velocity", ("forward (m/s)", "yaw (rad/s)")),
    ),
    actions=(
        ActionPart("arm_translation", 3, "m/tick", low=-0.05, high=0.05),
        ActionPart("arm_rotation", 3, "rad/tick", low=-0.15, high=0.15),
        ActionPart("gripper", 1, "1 open, 0 closed", kind="binary", low=0.0, high=1.0),
        ActionPart("base", 2, "m/s, rad/s", low=-0.8, high=0.8),
        ActionPart("terminate", 1, "1 done", kind="binary", low=0.0, high=1.0),
    ),
    rate_hz=5.0,
)
BASE_LIMITS = np.array([0.4, 0.8])
"""Forward m/s and yaw rad/s that the base obeys; larger commands are cut."""
HOLD_TICKS = 3
"""Success counts once its predicate held for this many ticks in a row (0.6 s)."""


class KitchenEnv(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """Fetch in a kitchen. `reset(seed=n, options={"task": "pick"})` gives the numbered initial state n of a task.

    The seed determines everything: which objects stand where, which is asked for, and where the robot starts.
    `options["instruction"]` keeps drawing initial states until one asks for just that.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012  (gymnasium's own attribute)
    policy_spec = SPEC

    def __init__(self, task: str = "pick", render_mode: str | None = "rgb_array"):
        self.render_mode = render_mode
        self._default_task = task
        self.model = build_kitchen().compile()
        self.data = mujoco.MjData(self.model)
        self._initial = mujoco.MjData(self.model)
        model_xml = robotics_assets() / "fetch" / "pick_and_place.xml"
        self.controller = FetchController(self.model, self.data, ArmKinematics(model_xml))
        self._substeps = round(SPEC.control_dt_s / self.model.opt.timestep)
        # Made at once, so that a machine that cannot render is found out here, and before any exit handler of
        # the caller's: MuJoCo ends EGL in an exit handler of its own.
        small = (FRAME_PX, FRAME_PX)
        self._renderers = {small: _renderer(self.model, *small)}
        self.task: Task = TASKS[task]
        self.goal = ""
        self.instruction = ""
        self.tick = 0
        self._held_ticks = 0
        self.observation_space: gymnasium.spaces.Dict = _observation_space()  # type: ignore[assignment]
        low, high = _action_limits()
        self.action_space: gymnasium.spaces.Box = gymnasium.spaces.Box(low, high, dtype=np.float32)

    @property
    def time_s(self) -> float:
        """Simulated seconds since the episode began."""
        return float(self.data.time)

    @property
    def success(self) -> bool:
        """Whether the task's predicate has held for `HOLD_TICKS` ticks."""
        return self._held_ticks >= HOLD_TICKS

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """options: `task` (name), `instruction` (text that the initial state must ask for)."""
        super().reset(seed=seed)
        options = options or {}
        self.task = _task(options.get("task", self._default_task))
        wanted = options.get("instruction")
        if wanted is not None and wanted not in self.task.instructions:
            known = ", ".join(f"'{text}'" for text in self.task.instructions)
            raise UserError(
                f"no initial state of task '{self.task.name}' asks for '{wanted}'; it knows: {known}"
            )
        while True:
            self._place_everything()
            if wanted is None or self.instruction == wanted:
                break
        self.tick = 0
        self._held_ticks = 0
        return self.observe(), self._info()

    def _place_everything(self) -> None:
        mujoco.mj_resetData(self.model, self.data)
        start = self.task.sample(self.np_random)
        self.goal = start.goal
        self.instruction = self.task.instruction(start.goal)
        for name, position_m in start.objects_m.items():
            self.data.joint(name).qpos[:] = (*position_m, 1, 0, 0, 0)
        self.controller.place(start.base_pose, start.gripper_m)
        self._advance(np.zeros(3), np.zeros(3), 1.0, np.zeros(2))  # let things settle
        self.data.time = 0.0

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """One control tick of 0.2 s. Reward is 1 on success; terminated means success, truncated the time limit."""
        action = np.asarray(action, dtype=np.float64)
        if action.shape != (SPEC.action_size,) or not np.isfinite(action).all():
            raise UserError(
                f"action {action} must be {SPEC.action_size} finite values; see ttm.sim.kitchen.env for their order"
            )
        action = np.clip(action, self.action_space.low, self.action_space.high)
        parts = {name: action[where] for name, where in SPEC.action_slices.items()}
        self._advance(
            parts["arm_translation"], parts["arm_rotation"], parts["gripper"][0], parts["base"]
        )
        self.tick += 1
        self._held_ticks = self._held_ticks + 1 if self.task.predicate(self) else 0
        truncated = self.tick >= self.task.max_ticks and not self.success
        return self.observe(), float(self.success), self.success, truncated, self._info()

    def _advance(
        self, translation_m: np.ndarray, rotation_rad: np.ndarray, opening: float, base: np.ndarray
    ) -> None:
        self.controller.command(translation_m, rotation_rad, opening, base)
        for step in range(self._substeps):
            self.controller.drive((step + 1) / self._substeps)
            mujoco.mj_step(self.model, self.data)
        mujoco.mj_forward(self.model, self.data)

    def _info(self) -> dict[str, Any]:
        return {
            "task": self.task.name,
            "instruction": self.instruction,
            "success": self.success,
            "tick": self.tick,
            "time_s": self.time_s,
        }

    def observe(self) -> dict[str, np.ndarray]:
        """What the policy sees now; renders both cameras."""
        position_m, rotation = self.controller.gripper_pose()
        w, x, y, z = rotation.wxyz if rotation.wxyz[0] >= 0 else -rotation.wxyz
        joints = (
            self.controller.torso_height(),
            *self.controller.arm_joints(),
            self.controller.gripper_opening(),
        )
        return {
            "head": self.frame(fetch.SCENE_PREFIX + fetch.HEAD_CAMERA),
            "wrist": self.frame(fetch.SCENE_PREFIX + fetch.WRIST_CAMERA),
            "joint_positions": np.array(joints, dtype=np.float32),
            "ee_pose": np.array((*position_m, x, y, z, w), dtype=np.float32),
            "base_velocity": self.controller.base_velocity().astype(np.float32),
        }

    def frame(self, camera: str, height_px: int = FRAME_PX, width_px: int = FRAME_PX) -> np.ndarray:
        """(height, width, 3) uint8 RGB from a camera of the scene: fetch/head, fetch/wrist, overview."""
        size = (height_px, width_px)
        if size not in self._renderers:
            self._renderers[size] = _renderer(self.model, *size)
        renderer = self._renderers[size]
        renderer.update_scene(self.data, camera)
        return renderer.render().copy()

    def render(self) -> np.ndarray:
        """(360, 480, 3) uint8: the kitchen from outside, for videos."""
        return self.frame("overview", 360, 480)

    def close(self) -> None:
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()


def _task(name: str) -> Task:
    if name not in TASKS:
        raise UserError(f"task '{name}' does not exist; choose one of: {', '.join(TASKS)}")
    return TASKS[name]


def _renderer(model: mujoco.MjModel, height_px: int, width_px: int) -> mujoco.Renderer:
    try:
        return mujoco.Renderer(model, height_px, width_px)
    except Exception as error:  # the GL loader raises whatever its binding raises
        raise no_rendering(error) from error


def _action_limits() -> tuple[np.ndarray, np.ndarray]:
    low = np.concatenate([np.full(part.size, part.low, np.float32) for part in SPEC.actions])
    high = np.concatenate([np.full(part.size, part.high, np.float32) for part in SPEC.actions])
    where = SPEC.action_slices["base"]
    low[where], high[where] = -BASE_LIMITS, BASE_LIMITS
    return low, high


def _observation_space() -> gymnasium.spaces.Dict:
    spaces: dict[str, gymnasium.Space[Any]] = {
        camera.name: gymnasium.spaces.Box(0, 255, (camera.height, camera.width, 3), np.uint8)
        for camera in SPEC.cameras
    }
    for vector in SPEC.proprioception:
        spaces[vector.name] = gymnasium.spaces.Box(-np.inf, np.inf, (vector.size,), np.float32)
    return gymnasium.spaces.Dict(spaces)
