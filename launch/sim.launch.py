"""The simulated mobile manipulator behind the topics of a real one; the launch ends with its last episode.

ros2 launch ttm_policy sim.launch.py task:=open_drawer episodes:=20 out:=results
"""

# ruff: noqa: I001  (this folder's name makes ruff take ROS's launch for a module of ours)

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

ARGUMENTS = {
    "task": ("pick", str, "which task of the simulated kitchen: pick, open_drawer"),
    "instruction": ("", str, "only initial states that ask for just this"),
    "episodes": ("1", int, "how many initial states, one after the other"),
    "first_seed": ("0", int, "number of the first initial state"),
    "lockstep": ("true", bool, "wait for the command of each observation; false: time runs on"),
    "rate": (
        "0.0",
        float,
        "simulated seconds a second; 0: as fast as possible in lockstep, else 1",
    ),
    "contract": ("", str, "YAML file of topics; empty: the simulated robot's"),
    "cmd_vel_stamped": ("true", bool, "false: base commands are Twist instead of TwistStamped"),
    "out": ("", str, "folder for result.json and actions.npz"),
    "video": ("", str, "path of an .mp4 of the first episode"),
}


def generate_launch_description():
    """Arguments and the simulator."""
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, _, text) in ARGUMENTS.items()
    ]
    parameters = {
        name: ParameterValue(LaunchConfiguration(name), value_type=kind)
        for name, (_, kind, _) in ARGUMENTS.items()
    }
    simulator = Node(
        package="ttm_policy",
        executable="sim_node",
        name="sim_node",
        output="screen",
        parameters=[parameters],
        on_exit=Shutdown(reason="the last episode is over"),
    )
    return LaunchDescription([*arguments, simulator])
