"""What a policy of the simulated Fetch sees and commands, without importing MuJoCo.

Poses are those of the gripper in the base frame, translations and rotations (axis-angle) too. The task
ignores `terminate`.
"""

from __future__ import annotations

import numpy as np

from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec

FRAME_PX = 64
"""Height and width of both cameras' frames."""
ARM_JOINTS = (
    "shoulder_pan_joint", "shoulder_lift_joint", "upperarm_roll_joint", "elbow_flex_joint",
    "forearm_roll_joint", "wrist_flex_joint", "wrist_roll_joint",
)  # fmt: skip
BASE_LIMITS = np.array([0.4, 0.8])
"""The fastest base command that is obeyed: forward (m/s) and yaw (rad/s). Faster ones are cut."""

JOINT_POSITIONS = (
    "torso_lift_joint (m)", *(f"{name} (rad)" for name in ARM_JOINTS), "gripper opening (0 to 1)",
)  # fmt: skip
SPEC = PolicySpec(
    robot="fetch_kitchen",
    cameras=(CameraSpec("head", FRAME_PX, FRAME_PX), CameraSpec("wrist", FRAME_PX, FRAME_PX)),
    proprioception=(
        ProprioceptionSpec("joint_positions", JOINT_POSITIONS),
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


def action_limits() -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest action that the robot obeys, (A,) float32 each.

    They are the spec's limits, except that the spec has one limit for both values of the base.
    """
    low, high = SPEC.action_limits
    where = SPEC.action_slices["base"]
    low[where], high[where] = -BASE_LIMITS, BASE_LIMITS
    return low, high
