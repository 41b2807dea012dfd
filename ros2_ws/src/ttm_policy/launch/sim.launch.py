"""Start the simulated mobile manipulator. The launch ends with its last episode.

ros2 launch ttm_policy sim.launch.py task:=open_drawer episodes:=20 out:=results
"""

from ttm_policy.launching import nodes
from ttm_policy.launching.entities import launch_description
from ttm_policy.launching.launch_parameters import LaunchParameters
from ttm_policy.parameters import SimParameters


def generate_launch_description():
    """Return one argument for each parameter of sim_node, and what starts it."""
    return launch_description("sim.launch.py", (LaunchParameters, SimParameters), nodes.simulator)
