"""A policy drives a robot: the real one, or with sim:=true the simulated one in lockstep.

ros2 launch ttm_policy robot.launch.py sim:=true task:=pick
ros2 launch ttm_policy robot.launch.py checkpoint:=/path/policy.safetensors contract:=/path/robot.yaml \
    instruction:="open the top drawer" cmd_vel:=/base_controller/cmd_vel
"""

# ruff: noqa: I001  (this folder's name makes ruff take ROS's launch for a module of ours)

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription
from launch.conditions import IfCondition
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

ARGUMENTS = {
    "sim": ("false", "start the simulated robot too"),
    "checkpoint": (
        "",
        "the policy's .safetensors file; empty: the one that ships with the project",
    ),
    "instruction": ("", "what to do, in words; the topic `instruction` can give it later"),
    "contract": ("", "YAML file of topics; empty: the simulated robot's"),
    "device": ("cpu", "torch device of the network"),
    "engine": ("auto", "what runs the network: openvino, torch, or auto: openvino on a CPU"),
    "precision": (
        "float32",
        "bfloat16: ticks of large networks on a CPU take less, and err by 0.4 % of the command",
    ),
    "autostart": ("true", "false: wait for life-cycle transitions"),
    "cmd_vel_stamped": ("true", "false: base commands as Twist instead of TwistStamped"),
    "snapshot_path": (
        "policy_memory.npz",
        "file of the services snapshot_memory and restore_memory",
    ),
}
FOLLOW_SIM = {
    "use_sim_time": "take time from /clock",
    "lockstep": "tick when a complete observation arrives, for a simulator that waits",
}
TOPICS = {
    "cmd_vel": "cmd_vel",
    "servo": "servo_node/delta_twist_cmds",
    "gripper": "gripper_controller/joint_trajectory",
    "joint_states": "joint_states",
    "odom": "odom",
}
TYPES = {"autostart": bool, "cmd_vel_stamped": bool, "use_sim_time": bool, "lockstep": bool}


def generate_launch_description():
    """Arguments, the policy, and the simulator where it is wanted."""
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in ARGUMENTS.items()
    ]
    arguments += [
        DeclareLaunchArgument(
            name, default_value=LaunchConfiguration("sim"), description=f"{text}; default: as sim"
        )
        for name, text in FOLLOW_SIM.items()
    ]
    arguments += [
        DeclareLaunchArgument(name, default_value=topic, description=f"topic in place of {topic}")
        for name, topic in TOPICS.items()
    ]
    return LaunchDescription([*arguments, _policy(), _simulator()])


def _policy():
    names = [name for name in (*ARGUMENTS, *FOLLOW_SIM) if name != "sim"]
    # Typed, since launch would otherwise read an instruction such as `yes` as YAML.
    parameters = {
        name: ParameterValue(LaunchConfiguration(name), value_type=TYPES.get(name, str))
        for name in names
    }
    return Node(
        package="ttm_policy",
        executable="policy_node",
        name="policy_node",
        output="screen",
        parameters=[parameters],
        remappings=[(topic, LaunchConfiguration(name)) for name, topic in TOPICS.items()],
    )


def _simulator():
    """Shares the arguments of this file, and takes its own (task, episodes, …) from the command line."""
    path = PathJoinSubstitution([FindPackageShare("ttm_policy"), "launch", "sim.launch.py"])
    return IncludeLaunchDescription(
        PythonLaunchDescriptionSource(path), condition=IfCondition(LaunchConfiguration("sim"))
    )
