"""The parameters of `policy_node`, declared once with their defaults and help."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rcl_interfaces.msg import ParameterDescriptor
from rclpy.node import Node

HELP = {
    "checkpoint": "path of the policy's .safetensors file",
    "instruction": "what to do, in words; may be given later on the topic `instruction`",
    "contract": "path of the YAML contract of topics; empty: the simulated Fetch's",
    "device": "torch device of the network: cpu, cuda",
    "threads": "CPU threads of the network; one gives the same bits on every run",
    "autostart": "configure and activate by itself; false: wait for life-cycle transitions",
    "lockstep": "tick when a complete observation arrives, instead of at the policy's rate: for simulators that wait",
    "max_age_s": "an observation older than this (s) is not used: the robot holds",
    "stop_after_s": "without a good observation for this long (s) the robot stops until somebody resumes it",
    "cmd_vel_stamped": "base commands as TwistStamped; false: Twist",
    "snapshot_path": "the .npz file that snapshot_memory writes and restore_memory reads",
    "max_forward_m_s": "limit of the base's speed, m/s",
    "max_yaw_rad_s": "limit of the base's turning, rad/s",
    "max_translation_m": "limit of the gripper's displacement, m a tick",
    "max_rotation_rad": "limit of the gripper's rotation, rad a tick",
}


@dataclass(frozen=True)
class PolicySettings:
    """One value for each parameter; see `HELP`. The tick rate is the checkpoint's own."""

    checkpoint: str = ""
    instruction: str = ""
    contract: str = ""
    device: str = "cpu"
    threads: int = 1
    autostart: bool = True
    lockstep: bool = False
    max_age_s: float = 0.5
    stop_after_s: float = 2.0
    cmd_vel_stamped: bool = True
    snapshot_path: str = "policy_memory.npz"
    max_forward_m_s: float = 0.5
    max_yaw_rad_s: float = 1.0
    max_translation_m: float = 0.1
    max_rotation_rad: float = 0.3


def declare_settings(node: Node) -> None:
    """Declare every parameter; a wrong type on the command line is then refused by ROS itself."""
    for field in fields(PolicySettings):
        node.declare_parameter(field.name, field.default, ParameterDescriptor(description=HELP[field.name]))


def read_settings(node: Node) -> PolicySettings:
    """The values now; read when the node is configured."""
    return PolicySettings(**{field.name: node.get_parameter(field.name).value for field in fields(PolicySettings)})
