"""Turns each tick's action into joint commands: inverse kinematics for the arm, wheels for the base.

The gripper's target is kept in the base frame and moved by each action, so that the arm travels with
the base. The differential inverse kinematics are those of the library mink.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mink
import mujoco
import numpy as np

from ttm.sim.kitchen import fetch
from ttm.sim.kitchen.spec import ARM_JOINTS, SPEC

READY_POSITION_M = (0.77, 0.0, 0.90)
"""Where the gripper waits, pointing forward, in the base frame."""
READY_JOINTS_RAD = (-0.70, 0.0, 1.45, 1.95, -0.05, -1.25, -1.45)
MAX_LAG_M = 0.06
"""The target stays within this distance of the measured gripper, so that a blocked arm does not wind up."""


class ArmKinematics:
    """Finds joint angles of the arm for a gripper pose in the base frame; all else stays where it is."""

    def __init__(self, model_xml: Path):
        spec = mujoco.MjSpec.from_file(str(model_xml))
        fetch.strip_to_robot(spec)
        moving = {fetch.MODEL_PREFIX + name for name in ARM_JOINTS}
        spec.body(fetch.MODEL_PREFIX + "torso_lift_link").pos[2] += fetch.TORSO_HEIGHT_M
        for joint in list(spec.joints):
            if joint.name not in moving:
                spec.delete(joint)
        self.model = spec.compile()
        self.configuration = mink.Configuration(self.model)
        self._limits = [mink.ConfigurationLimit(self.model)]
        self._task = mink.FrameTask(
            fetch.MODEL_PREFIX + fetch.GRIP_SITE,
            "site",
            position_cost=10.0,
            orientation_cost=2.0,
            lm_damping=1e-3,
        )
        self._posture = mink.PostureTask(self.model, cost=0.02)
        self._posture.set_target(np.array(READY_JOINTS_RAD))

    def solve(
        self,
        joints_rad: np.ndarray,
        position_m: np.ndarray,
        rotation: mink.SO3,
        iterations: int = 6,
    ) -> np.ndarray:
        """Return the joint angles (7,) rad that bring the gripper nearest to a pose.

        joints_rad: (7,), where the search starts; position_m: (3,); rotation: of the gripper.
        """
        self.configuration.update(joints_rad)
        self._task.set_target(mink.SE3.from_rotation_and_translation(rotation, position_m))
        for _ in range(iterations):
            velocity = mink.solve_ik(
                self.configuration,
                [self._task, self._posture],
                dt=1.0,
                solver="daqp",
                damping=1e-4,
                limits=self._limits,
            )
            self.configuration.integrate_inplace(np.clip(velocity, -0.3, 0.3), 1.0)
        return self.configuration.q.copy()


class FetchController:
    """Holds the gripper's target between ticks and writes actuator commands into `data.ctrl`."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, kinematics: ArmKinematics):
        self.model, self.data, self.kinematics = model, data, kinematics
        self.steps = round(SPEC.control_dt_s / model.opt.timestep)  # of physics in a tick

        def positions(joints: Sequence[str]) -> np.ndarray:
            return np.array([model.joint(fetch.PREFIX + name).qposadr[0] for name in joints])

        def actuators(joints: Sequence[str]) -> np.ndarray:
            return np.array([model.actuator(fetch.SCENE_PREFIX + name).id for name in joints])

        still = ("torso_lift_joint", "head_pan_joint", "head_tilt_joint")
        self._arm_q, self._arm_u = positions(ARM_JOINTS), actuators(ARM_JOINTS)
        self._base_q, self._base_u = positions(fetch.BASE_JOINTS), actuators(fetch.BASE_JOINTS)
        self._finger_q = positions(fetch.FINGER_JOINTS)
        self._finger_u = actuators(fetch.FINGER_JOINTS)
        self._still_q, self._still_u = positions(still), actuators(still)
        base = [model.joint(fetch.PREFIX + name) for name in fetch.BASE_JOINTS]
        self._base_v = np.array([joint.dofadr[0] for joint in base])
        self._site = model.site(fetch.PREFIX + fetch.GRIP_SITE).id
        self._base_body = model.body(fetch.PREFIX + fetch.BASE_LINK).id
        self.target_position_m = np.zeros(3)
        self.target_rotation = mink.SO3.identity()
        self._arm_to = np.array(READY_JOINTS_RAD)

    def place(
        self,
        base_x_y_yaw: np.ndarray,
        gripper_m: np.ndarray,
        grip_m: float | None = None,
        head_rad: tuple[float, float] = (0.0, fetch.HEAD_TILT_RAD),
    ) -> None:
        """Put the robot where an episode starts.

        base_x_y_yaw: (3,) m, m, rad in the world; gripper_m: (3,) in the base frame; grip_m: how far
        each finger is from the middle, m, or None for open fingers; head_rad: pan and tilt.
        """
        start, forward = np.array(READY_JOINTS_RAD), mink.SO3.identity()
        joints = self.kinematics.solve(start, gripper_m, forward, iterations=40)
        qpos, ctrl = self.data.qpos, self.data.ctrl
        qpos[self._base_q] = base_x_y_yaw
        qpos[self._arm_q] = ctrl[self._arm_u] = joints
        finger_m = fetch.FINGER_TRAVEL_M if grip_m is None else grip_m
        qpos[self._finger_q] = ctrl[self._finger_u] = finger_m
        qpos[self._still_q] = ctrl[self._still_u] = (fetch.TORSO_HEIGHT_M, *head_rad)
        self._arm_to = joints
        mujoco.mj_forward(self.model, self.data)
        self.target_position_m, self.target_rotation = self.gripper_pose()

    def command(
        self, translation_m: np.ndarray, rotation_rad: np.ndarray, opening: float, base: np.ndarray
    ) -> None:
        """Take one tick's action.

        translation_m: displacement (3,) of the gripper in the base frame; rotation_rad: axis-angle
        (3,) in the base frame; opening: 0 to 1; base: (2,) forward m/s and yaw rad/s.
        """
        measured, _ = self.gripper_pose()
        lag = self.target_position_m + translation_m - measured
        nearer = min(1.0, MAX_LAG_M / max(float(np.linalg.norm(lag)), 1e-9))
        self.target_position_m = measured + lag * nearer
        turn = mink.SO3.exp(np.asarray(rotation_rad, dtype=float))
        self.target_rotation = turn @ self.target_rotation
        begun, target = self._arm_to, (self.target_position_m, self.target_rotation)
        self._arm_to = self.kinematics.solve(begun, *target)
        portions = np.arange(1, self.steps + 1)[:, None] / self.steps
        self._arm_path = begun + portions * (self._arm_to - begun)  # (steps, 7)
        self.data.ctrl[self._finger_u] = fetch.FINGER_TRAVEL_M * float(opening)
        self._base_command = float(base[0]), float(base[1])

    def drive(self, step: int) -> None:
        """Write the actuator commands of one of the tick's physics steps, numbered from 0."""
        ctrl = self.data.ctrl
        ctrl[self._arm_u] = self._arm_path[step]
        yaw = self.data.qpos[self._base_q[2]]
        forward_m_s, yaw_rad_s = self._base_command
        ctrl[self._base_u] = forward_m_s * np.cos(yaw), forward_m_s * np.sin(yaw), yaw_rad_s

    def base_pose(self) -> np.ndarray:
        """Return x (m), y (m) and yaw (rad) of the base in the world, (3,)."""
        return self.data.qpos[self._base_q].copy()

    def base_velocity(self) -> np.ndarray:
        """Return forward m/s and yaw rad/s, (2,), as wheel odometry measures them."""
        x_m_s, y_m_s, yaw_rad_s = self.data.qvel[self._base_v]
        yaw = self.data.qpos[self._base_q[2]]
        return np.array([x_m_s * np.cos(yaw) + y_m_s * np.sin(yaw), yaw_rad_s])

    def arm_joints(self) -> np.ndarray:
        return self.data.qpos[self._arm_q].copy()

    def torso_height(self) -> float:
        return float(self.data.qpos[self._still_q[0]])

    def gripper_opening(self) -> float:
        """Return the mean opening of both fingers: 0 closed, 1 open."""
        opening = self.data.qpos[self._finger_q].mean() / fetch.FINGER_TRAVEL_M
        return float(np.clip(opening, 0.0, 1.0))

    def to_base_frame(self, point_m: np.ndarray) -> np.ndarray:
        """Return a point (3,) of the world in the base frame, m."""
        rotation = self.data.xmat[self._base_body].reshape(3, 3)
        return rotation.T @ (np.asarray(point_m) - self.data.xpos[self._base_body])

    def gripper_pose(self) -> tuple[np.ndarray, mink.SO3]:
        """Return the measured position (3,) m and rotation of the gripper in the base frame."""
        base = mink.SO3.from_matrix(self.data.xmat[self._base_body].reshape(3, 3))
        site = mink.SO3.from_matrix(self.data.site_xmat[self._site].reshape(3, 3))
        return self.to_base_frame(self.data.site_xpos[self._site]), base.inverse() @ site
