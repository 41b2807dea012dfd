"""Start the simulated mobile manipulator. The launch ends with its last episode.

ros2 launch ttm_policy sim.launch.py task:=open_drawer episodes:=20 out:=results
"""

from ttm_policy.launch_files import launch_description, simulator
from ttm_policy.launching import LaunchParameters
from ttm_policy.parameters import SimParameters


def generate_launch_description():
    """Return one argument for each parameter of sim_node, and what starts it."""
    return launch_description("sim.launch.py", (LaunchParameters, SimParameters), simulator)
