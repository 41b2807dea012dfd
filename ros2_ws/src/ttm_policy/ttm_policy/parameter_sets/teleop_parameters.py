"""The parameters of `teleop_node`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ttm_policy.parameter_sets.declared_parameter import Parameter
from ttm_policy.parameter_sets.driving_parameters import DrivingParameters

TeleopDevice = Literal["keyboard", "gamepad", "pose", "leader"]
"""What a person may hold in his hands."""


@dataclass(frozen=True)
class TeleopParameters(DrivingParameters):
    """The parameters of `teleop_node`."""

    source: Annotated[
        TeleopDevice,
        Parameter(
            "What the person drives with. That is the keys of the terminal, a gamepad, the pose of a tracked "
            "hand, or a leader arm."
        ),
    ] = "keyboard"
    joystick: Annotated[
        str,
        Parameter(
            "Device of a gamepad of this computer. It is published on the topic `joy` while nobody else "
            "publishes that, as `joy_node` would. Empty for none."
        ),
    ] = "/dev/input/js0"
    controls: Annotated[
        str,
        Parameter(
            "YAML file that says which control drives which value of the action. By default they follow "
            "from the contract; the node prints them at the start.",
            is_path=True,
        ),
    ] = ""
    recorder: Annotated[
        str,
        Parameter(
            "Name of the recorder that space, f, d and u on the keyboard call. Empty for none."
        ),
    ] = ""
