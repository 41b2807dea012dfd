"""The Fetch mobile manipulator in a MuJoCo scene: joints, actuators and cameras.

The kinematics and meshes are those of the package gymnasium-robotics. Its model has no arm actuators,
a base that cannot turn, and a weld to a mocap body, which are replaced here. The torque limits are
those of the datasheet (Fetch Robotics).
"""

from __future__ import annotations

from pathlib import Path

import mujoco

from ttm.sim.kitchen.spec import ARM_JOINTS

MODEL_PREFIX = "robot0:"
"""The prefix of all names in the package's model."""
SCENE_PREFIX = "fetch/"
"""The prefix that all names of the robot get in the scene."""
PREFIX = SCENE_PREFIX + MODEL_PREFIX
BASE_JOINTS = ("slide0", "slide1", "slide2")
"""World x (m), world y (m) and yaw (rad). `FetchController` drives along the heading alone, as wheels do."""
FINGER_JOINTS = ("r_gripper_finger_joint", "l_gripper_finger_joint")
FINGER_TRAVEL_M = 0.05
GRIP_SITE = "grip"
BASE_LINK = "base_link"
HEAD_CAMERA = "head"
WRIST_CAMERA = "wrist"

TORSO_HEIGHT_M = 0.15
HEAD_TILT_RAD = 0.62
ARM_GAINS = {  # joint: (stiffness N m / rad, damping N m s / rad, torque limit N m)
    "shoulder_pan_joint": (4000.0, 160.0, 120.0),
    "shoulder_lift_joint": (4000.0, 160.0, 130.0),
    "upperarm_roll_joint": (3000.0, 110.0, 80.0),
    "elbow_flex_joint": (3000.0, 110.0, 80.0),
    "forearm_roll_joint": (1500.0, 50.0, 50.0),
    "wrist_flex_joint": (1500.0, 50.0, 50.0),
    "wrist_roll_joint": (1000.0, 35.0, 30.0),
}
_COLLIDING = (
    "base_link", "forearm_roll_link", "wrist_flex_link", "wrist_roll_link", "gripper_link",
)  # fmt: skip


def add_fetch(scene: mujoco.MjSpec, model_xml: Path) -> None:
    """Attach the robot at the scene's origin, with a base that can drive and an arm with actuators."""
    robot = mujoco.MjSpec.from_file(str(model_xml))
    strip_to_robot(robot)
    _tune_joints(robot)
    _choose_contacts(robot)
    _add_actuators(robot)
    robot.body(MODEL_PREFIX + "gripper_link").add_camera(  # 25 degrees down, over the fingertips
        name=WRIST_CAMERA, pos=(-0.09, 0, 0.095), xyaxes=(0, -1, 0, 0.42, 0, 0.91), fovy=65
    )
    for camera in robot.cameras:
        if camera.name == "head_camera_rgb":
            camera.name, camera.fovy = HEAD_CAMERA, 56.0  # sees the whole counter
    robot.option.timestep = scene.option.timestep
    scene.attach(robot, prefix=SCENE_PREFIX, frame=scene.worldbody.add_frame())


def strip_to_robot(robot: mujoco.MjSpec) -> None:
    """Keep the Fetch alone: remove the package's floor, table, block, light, weld and external camera."""
    for item in (*robot.equalities, *robot.actuators, *robot.sensors):
        robot.delete(item)
    for body in robot.worldbody.bodies:
        if body.name != MODEL_PREFIX + BASE_LINK:
            robot.delete(body)
    for item in (*robot.worldbody.geoms, *robot.worldbody.lights):
        robot.delete(item)
    for texture in robot.textures:
        robot.delete(texture)
    robot.delete(robot.body(MODEL_PREFIX + "external_camera_body_0"))
    robot.body(MODEL_PREFIX + BASE_LINK).pos = (0, 0, 0)


def _tune_joints(robot: mujoco.MjSpec) -> None:
    """Free the base, compensate gravity as the real arm's controllers do, and add the motors' inertia."""

    def tune(name: str, damping: float, armature: float | None = None) -> None:
        joint = robot.joint(MODEL_PREFIX + name)
        joint.damping, joint.stiffness = (damping, 0, 0), (0, 0, 0)  # coefficients of polynomials
        if armature is not None:
            joint.armature = armature

    for body in robot.bodies:
        body.gravcomp = 1.0
    for name in BASE_JOINTS:
        tune(name, 0.0, armature=1.0)
    robot.joint(MODEL_PREFIX + "slide2").type = mujoco.mjtJoint.mjJNT_HINGE
    for name in ARM_JOINTS:
        tune(name, 5.0, armature=0.8)
    for name in ("torso_lift_joint", "head_tilt_joint", "head_pan_joint"):
        tune(name, 1.0)  # the servos can hold it
    for name in FINGER_JOINTS:
        tune(name, 20.0, armature=0.5)
        finger = robot.body(MODEL_PREFIX + name.replace("_joint", "_link"))
        finger.mass = 0.1
        finger.inertia = (1e-4, 1e-4, 1e-4)
        for geom in finger.geoms:
            geom.friction = (1.6, 0.05, 0.002)
            geom.solref = (0.01, 1)


def _choose_contacts(robot: mujoco.MjSpec) -> None:
    """Let the parts that can hit furniture collide (bit 2, against the world's 1); the rest is only seen."""
    colliding = {MODEL_PREFIX + name for name in _COLLIDING}
    fingers = {MODEL_PREFIX + name.replace("_joint", "_link") for name in FINGER_JOINTS}
    for geom in robot.geoms:
        touches = geom.name in colliding | fingers
        geom.contype, geom.conaffinity = (2, 1) if touches else (0, 0)
        geom.group = 1


def _add_actuators(robot: mujoco.MjSpec) -> None:
    def actuator(joint: str, limit: float) -> mujoco.MjsActuator:
        added = robot.add_actuator(
            name=joint, target=MODEL_PREFIX + joint, trntype=mujoco.mjtTrn.mjTRN_JOINT
        )
        added.forcerange, added.forcelimited = (-limit, limit), True
        return added

    for name in BASE_JOINTS:
        actuator(name, 900.0).set_to_velocity(kv=2500.0)
    servos = {
        **ARM_GAINS,
        "torso_lift_joint": (60000.0, 6000.0, 3000.0),
        "head_pan_joint": (200.0, 20.0, 50.0),
        "head_tilt_joint": (200.0, 20.0, 50.0),
        **dict.fromkeys(FINGER_JOINTS, (3000.0, 100.0, 60.0)),
    }
    for name, (stiffness, damping, limit) in servos.items():
        actuator(name, limit).set_to_position(kp=stiffness, kv=damping)
