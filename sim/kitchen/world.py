"""The kitchen and the robot in it during an episode: what tasks and experts look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import mujoco
import numpy as np

from ttm.sim.kitchen import fetch
from ttm.sim.kitchen.cameras import Cameras
from ttm.sim.kitchen.controller import ArmKinematics, FetchController
from ttm.sim.kitchen.scene import build_kitchen, fetch_xml
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.kitchen.variation import Variation

HELD_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
"""What `KitchenWorld.hold` restores: all that the next physics step depends on."""
LOOK_M = 1.2
"""About how far ahead of the robot lies what it looks at."""


@dataclass(frozen=True)
class InitialState:
    """How one episode starts. A task that needs more derives its own class from this one."""

    goal: str
    """What the instruction names."""
    objects_m: Mapping[str, tuple[float, ...]]
    """Where each joint that a task places begins, by its name. Free bodies, whose joint has their name: x y z
    in the world, m, and a quaternion w x y z unless they stand upright. Drawers: how far they are out, m."""
    base_pose: np.ndarray
    """(3,): x (m), y (m) and yaw (rad) of the robot's base in the world."""
    gripper_m: np.ndarray
    """(3,): position of the gripper in the base frame, m."""
    grip_m: float | None = None
    """How far each finger is from the middle, m, around what it holds. None: it is open and empty."""
    head_rad: tuple[float, float] = (0.0, fetch.HEAD_TILT_RAD)
    """How far the head is turned to the left, and down."""

    @property
    def opening(self) -> float:
        """The command that leaves the gripper as it is: 1 open, 0 closed."""
        return 1.0 if self.grip_m is None else 0.0

    def moved(self, by: np.ndarray) -> InitialState:
        """Return the same state with the robot elsewhere: x, y (m), yaw, pan and tilt (rad) of `by`, (5,).

        The head is turned to the same point as before, and then by `by`. A robot that holds something stays.
        """
        if self.grip_m is not None or not by.any():
            return self
        base, (pan_rad, tilt_rad) = self.base_pose + by[:3], self.head_rad
        look_rad = self.base_pose[2] + pan_rad
        x_m, y_m = LOOK_M * np.array([np.cos(look_rad), np.sin(look_rad)]) - by[:2]
        pan_rad = float(np.arctan2(y_m, x_m) - base[2] + by[3])
        return replace(self, base_pose=base, head_rad=(pan_rad, tilt_rad + float(by[4])))

    def stand_still(self) -> np.ndarray:
        """Return the action that moves nothing and leaves the gripper as it is, (A,) float32."""
        action = np.zeros(SPEC.action_size, dtype=np.float32)
        action[SPEC.action_slices["gripper"]] = self.opening
        return action


class KitchenWorld:
    """A compiled scene with the robot in it, and the state of the present episode.

    `model` and `data` are the simulator's own.
    """

    start: InitialState
    """How the episode began, and what it asks for."""
    tick: int
    """The time by the task's clock: control ticks since the episode began, unless a cue's rate varies."""
    ticks: int
    """Number of control ticks since the episode began."""
    notes: list[str]
    """What the task noted in this episode in `Task.update`, such as what was touched, in order."""
    success: bool
    """Whether the environment counts the episode as solved now."""

    def __init__(self, add_to_scene: Callable[[mujoco.MjSpec], None]):
        """add_to_scene: adds bodies to the scene's `MjSpec` before it is compiled."""
        self.model = build_kitchen(add_to_scene).compile()
        self.data = mujoco.MjData(self.model)
        self.controller = FetchController(self.model, self.data, ArmKinematics(fetch_xml()))
        self.cameras = Cameras(self.model, self.data)
        self.variation = Variation(self.model, self.data)
        self._first_state = np.zeros(mujoco.mj_stateSize(self.model, HELD_STATE))

    @property
    def time_s(self) -> float:
        return float(self.data.time)

    def begin(self, start: InitialState) -> None:
        """Place the robot and all objects for a new episode, and let them settle for one tick."""
        mujoco.mj_resetData(self.model, self.data)
        self.start, self.tick, self.ticks, self.notes, self.success = start, 0, 0, [], False
        for name, place in start.objects_m.items():
            qpos = self.data.joint(name).qpos
            qpos[:] = (*place, 1, 0, 0, 0)[: qpos.size]
        self.controller.place(start.base_pose, start.gripper_m, start.grip_m, start.head_rad)
        self._advance(np.zeros(3), np.zeros(3), start.opening, np.zeros(2))
        self.data.time = 0.0
        mujoco.mj_getState(self.model, self.data, self._first_state, HELD_STATE)

    def step(self, action: np.ndarray) -> None:
        """Simulate one control tick of 0.2 s. action: (A,), within the robot's limits."""
        translation_m, rotation_rad, opening, base, _ = (
            action[x] for x in SPEC.action_slices.values()
        )
        self._advance(translation_m, rotation_rad, opening[0], base)
        self.tick, self.ticks = self.tick + 1, self.ticks + 1

    def hold(self, cue_ticks: int) -> None:
        """Let one control tick pass in which all bodies return to where they were at tick 0, to the bit.

        A task moves what it shows in `Task.update`. cue_ticks: when its cue ends by its clock.
        """
        self.ticks += 1
        self.tick = self.variation.clock(self.ticks, cue_ticks)
        mujoco.mj_setState(self.model, self.data, self._first_state, HELD_STATE)
        self.data.time = self.ticks * SPEC.control_dt_s
        mujoco.mj_forward(self.model, self.data)

    def _advance(
        self, translation_m: np.ndarray, rotation_rad: np.ndarray, opening: float, base: np.ndarray
    ) -> None:
        self.controller.command(translation_m, rotation_rad, opening, base)
        for step in range(self.controller.steps):
            self.controller.drive(step)
            mujoco.mj_step(self.model, self.data)
        mujoco.mj_forward(self.model, self.data)


def bodies_touching(world: KitchenWorld, body: str) -> set[str]:
    """Return the names of the bodies that touch the named one."""
    model = world.model
    wanted = model.body(body).id
    pairs = [set(pair) for pair in model.geom_bodyid[world.data.contact.geom].tolist()]
    touching = {other for pair in pairs if wanted in pair for other in pair - {wanted}}
    return {model.body(other).name for other in touching}


def robot_touches(world: KitchenWorld, body: str) -> bool:
    """Return whether any part of the robot touches the body."""
    return any(other.startswith(fetch.PREFIX) for other in bodies_touching(world, body))


def both_fingers_touch(world: KitchenWorld, body: str) -> bool:
    """Return whether the body is between the fingers, touched by both."""
    fingers = {fetch.PREFIX + joint.replace("_joint", "_link") for joint in fetch.FINGER_JOINTS}
    return fingers <= bodies_touching(world, body)
