"""The parameters of both nodes, declared once with their defaults and help (`ros2 param describe`)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from rcl_interfaces.msg import ParameterDescriptor
from rclpy.node import Node

Settings = TypeVar("Settings")


def _parameter(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class PolicySettings:
    """Of `policy_node`. There is no tick rate among them: it is the checkpoint's own."""

    checkpoint: str = _parameter(
        "", "path of the policy's .safetensors file; empty: the shipped policy's"
    )
    instruction: str = _parameter(
        "", "what to do, in words; the topic `instruction` can give it later"
    )
    contract: str = _parameter(
        "", "path of the YAML contract of topics; empty: the simulated Fetch's"
    )
    device: str = _parameter("cpu", "torch device of the network: cpu, cuda")
    engine: str = _parameter(
        "auto", "what runs the network: openvino, torch, or auto: openvino on a CPU"
    )
    precision: str = _parameter(
        "float32",
        "bfloat16: ticks of large networks on a CPU take less, and err by 0.4 % of the command",
    )
    threads: int = _parameter(
        1, "CPU threads of the network; sums over several threads round differently"
    )
    autostart: bool = _parameter(
        True, "configure and activate by itself; false: wait for transitions"
    )
    lockstep: bool = _parameter(
        False, "tick when a complete observation arrives: for simulators that wait"
    )
    max_age_s: float = _parameter(
        0.5, "an observation older than this (s) is not used: the robot holds"
    )
    stop_after_s: float = _parameter(
        2.0, "without a good observation for so long (s) the robot stops for good"
    )
    cmd_vel_stamped: bool = _parameter(True, "base commands as TwistStamped; false: Twist")
    snapshot_path: str = _parameter(
        "policy_memory.npz", "file of snapshot_memory and restore_memory"
    )
    max_forward_m_s: float = _parameter(0.5, "limit of the base's speed, m/s")
    max_yaw_rad_s: float = _parameter(1.0, "limit of the base's turning, rad/s")
    max_translation_m: float = _parameter(0.1, "limit of the gripper's displacement, m a tick")
    max_rotation_rad: float = _parameter(0.3, "limit of the gripper's rotation, rad a tick")


@dataclass(frozen=True)
class SimSettings:
    """Of `sim_node`."""

    task: str = _parameter("pick", "which task of the simulated kitchen")
    instruction: str = _parameter(
        "", "only initial states that ask for just this; empty: whatever they ask for"
    )
    episodes: int = _parameter(1, "number of episodes; the node exits after the last")
    first_seed: int = _parameter(0, "number of the first initial state")
    max_ticks: int = _parameter(0, "end episodes after so many ticks; 0: the task's own limit")
    out: str = _parameter("", "folder for result.json; empty: none is written")
    video: str = _parameter("", "path of an .mp4 of the first episode; empty: none")
    contract: str = _parameter(
        "", "path of the YAML contract of topics; empty: the simulated Fetch's"
    )
    lockstep: bool = _parameter(
        True, "wait for the command of each observation; false: time runs on"
    )
    rate: float = _parameter(
        0.0, "simulated seconds a second; 0: as fast as possible in lockstep, else 1"
    )
    cmd_vel_stamped: bool = _parameter(True, "base commands are TwistStamped; false: Twist")
    policy_node: str = _parameter(
        "policy_node", "name of the node whose memory begins anew with each episode"
    )
    startup_timeout_s: float = _parameter(120.0, "wall seconds to wait for the policy to be there")
    command_timeout_s: float = _parameter(30.0, "wall seconds to wait for a command in lockstep")


def declare_settings(node: Node, settings: type[Any]) -> None:
    """Declare every parameter; a value of a wrong type is then refused by ROS itself."""
    for item in fields(settings):
        node.declare_parameter(
            item.name, item.default, ParameterDescriptor(description=item.metadata["help"])
        )


def read_settings(node: Node, settings: type[Settings]) -> Settings:
    """The values now."""
    names = [item.name for item in fields(settings)]  # type: ignore[arg-type]
    return settings(**{name: node.get_parameter(name).value for name in names})
