"""Start the simulated mobile manipulator. The launch ends with its last episode.

ros2 launch ttm_policy sim.launch.py task:=open_drawer episodes:=20 out:=results
"""

# ruff: noqa: I001  (this folder's name makes ruff take ROS's launch for a module of ours)

from launch import LaunchDescription
from launch.actions import Shutdown
from launch_ros.actions import Node

from ttm_policy.launch_arguments import declare_arguments, parameter_values
from ttm_policy.parameters import SimParameters


def generate_launch_description():
    """Return one argument for each parameter of sim_node, and the node."""
    simulator = Node(
        package="ttm_policy",
        executable="sim_node",
        name="sim_node",
        output="screen",
        parameters=[parameter_values(SimParameters)],
        on_exit=Shutdown(reason="the last episode is over"),
    )
    return LaunchDescription([*declare_arguments(SimParameters), simulator])
