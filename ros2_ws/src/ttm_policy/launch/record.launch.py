"""Record episodes from a robot that a person drives: a real one, or with sim:=true the simulated one.

ros2 launch ttm_policy record.launch.py sim:=true folder:=demos
ros2 launch ttm_policy record.launch.py contract:=/path/robot.yaml rate_hz:=10 web:=true folder:=demos
"""

from ttm_policy.launch_files import launch_description, recorder
from ttm_policy.launching import RecordLaunchParameters
from ttm_policy.parameters import (
    RecorderParameters,
    SimParameters,
    TeleopParameters,
    WebParameters,
)


def generate_launch_description():
    """Return one argument for each parameter of the nodes, and what starts them."""
    kinds = (
        RecordLaunchParameters,
        RecorderParameters,
        WebParameters,
        TeleopParameters,
        SimParameters,
    )
    return launch_description("record.launch.py", kinds, recorder)
