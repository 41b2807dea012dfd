"""Drive a robot with a policy: a real robot, or with sim:=true the simulated one in lockstep.

ros2 launch ttm_policy robot.launch.py sim:=true task:=pick
ros2 launch ttm_policy robot.launch.py checkpoint:=/path/policy.safetensors \
    contract:=/path/robot.yaml instruction:="open the top drawer" cmd_vel:=/base_controller/cmd_vel
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

from ttm_policy.launch_arguments import declare_arguments, parameter_values
from ttm_policy.parameters import PolicyParameters

TOPICS = {
    "cmd_vel": "cmd_vel",
    "servo": "servo_node/delta_twist_cmds",
    "gripper": "gripper_controller/joint_trajectory",
    "joint_states": "joint_states",
    "odom": "odom",
}
"""Launch argument -> the contract's topic that it remaps."""


def generate_launch_description():
    """Return the arguments, the policy, and the simulator for sim:=true."""
    sim = LaunchConfiguration("sim")
    arguments = [
        DeclareLaunchArgument(
            "sim", default_value="false", description="Start the simulated robot too."
        ),
        # A simulator waits for commands and publishes the time, so that both follow `sim`.
        *declare_arguments(PolicyParameters, lockstep=sim),
        DeclareLaunchArgument(
            "use_sim_time", default_value=sim, description="Take the time from /clock."
        ),
        *(
            DeclareLaunchArgument(
                name, default_value=topic, description=f"The topic to use in place of {topic}."
            )
            for name, topic in TOPICS.items()
        ),
    ]
    return LaunchDescription([*arguments, _policy(), _simulator()])


def _policy():
    use_sim_time = ParameterValue(LaunchConfiguration("use_sim_time"), value_type=bool)
    return Node(
        package="ttm_policy",
        executable="policy_node",
        name="policy_node",
        output="screen",
        parameters=[{**parameter_values(PolicyParameters), "use_sim_time": use_sim_time}],
        remappings=[(topic, LaunchConfiguration(name)) for name, topic in TOPICS.items()],
    )


def _simulator():
    """Include sim.launch.py.

    Arguments of the same name are shared; its own come from the command line.
    """
    path = PathJoinSubstitution([FindPackageShare("ttm_policy"), "launch", "sim.launch.py"])
    return IncludeLaunchDescription(
        PythonLaunchDescriptionSource(path), condition=IfCondition(LaunchConfiguration("sim"))
    )
