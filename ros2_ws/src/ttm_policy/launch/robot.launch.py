"""Drive a robot with a policy: a real robot, or with sim:=true the simulated one in lockstep.

ros2 launch ttm_policy robot.launch.py sim:=true task:=pick
ros2 launch ttm_policy robot.launch.py checkpoint:=/path/policy.safetensors \
    contract:=/path/robot.yaml instruction:="open the top drawer" cmd_vel:=/base_controller/cmd_vel
"""

from ttm_policy.launch_files import launch_description, robot
from ttm_policy.launching import RobotLaunchParameters
from ttm_policy.parameters import PolicyParameters, SimParameters


def generate_launch_description():
    """Return one argument for each parameter of both nodes, and what starts them."""
    kinds = (RobotLaunchParameters, PolicyParameters, SimParameters)
    return launch_description("robot.launch.py", kinds, robot)
