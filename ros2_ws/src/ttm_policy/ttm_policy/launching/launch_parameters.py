"""The arguments of the launch files that are no parameters of a node.

They are declared as the nodes' parameters are. This module imports no ROS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from ttm_policy.parameters import NodeParameters, Parameter

TOPICS: Mapping[str, str] = {
    "cmd_vel": "cmd_vel",
    "servo": "servo_node/delta_twist_cmds",
    "gripper": "gripper_controller/joint_trajectory",
    "joint_states": "joint_states",
    "odom": "odom",
}
"""Launch argument -> the topic of the contract that it remaps."""


def _topic(name: str) -> Parameter:
    return Parameter(f"The topic to use in place of {TOPICS[name]}, for all nodes.")


@dataclass(frozen=True)
class LaunchParameters(NodeParameters):
    """The arguments of every launch file."""

    namespace: Annotated[
        str,
        Parameter(
            "Namespace of the nodes and their topics, such as left_robot. A simulated robot in a "
            "namespace publishes its clock and its transforms there, too."
        ),
    ] = ""
    params_file: Annotated[
        str,
        Parameter(
            "YAML file with parameters of the nodes. Arguments that are given take precedence over it.",
            is_path=True,
        ),
    ] = ""
    cmd_vel: Annotated[str, _topic("cmd_vel")] = TOPICS["cmd_vel"]
    servo: Annotated[str, _topic("servo")] = TOPICS["servo"]
    gripper: Annotated[str, _topic("gripper")] = TOPICS["gripper"]
    joint_states: Annotated[str, _topic("joint_states")] = TOPICS["joint_states"]
    odom: Annotated[str, _topic("odom")] = TOPICS["odom"]


@dataclass(frozen=True)
class SimulatedLaunchParameters(LaunchParameters):
    """The arguments of launch files that can start the simulated robot too."""

    sim: Annotated[bool, Parameter("Start the simulated robot too.")] = False
    use_sim_time: Annotated[
        bool,
        Parameter(
            "Take the time from /clock. By default this is what params_file says, or else the value of sim."
        ),
    ] = False


@dataclass(frozen=True)
class RobotLaunchParameters(SimulatedLaunchParameters):
    """The arguments of `robot.launch.py` beside those of the nodes."""

    respawn: Annotated[
        bool,
        Parameter(
            "Start the policy again after a crash, with the memory that it had. Wrong parameters "
            "and orderly ends are not followed by another start."
        ),
    ] = False


@dataclass(frozen=True)
class RecordLaunchParameters(SimulatedLaunchParameters):
    """The arguments of `record.launch.py` beside those of the nodes."""

    web: Annotated[
        bool,
        Parameter(
            "Serve a web page on this machine by which a person drives the robot and records. By default "
            "this is the value of sim, unless teleop is true and there is no checkpoint."
        ),
    ] = False
    teleop: Annotated[
        bool,
        Parameter("Start teleop_node too, by which a person drives the robot with a gamepad."),
    ] = False
    checkpoint: Annotated[
        str,
        Parameter(
            "With sim:=true, let this policy drive, and take over from it by the page or the gamepad. "
            "`shipped` is the one that comes with the project. Each episode begins its scene anew, and has "
            "who drove.",
            is_path=True,
        ),
    ] = ""
