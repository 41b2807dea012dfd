"""Parameters that several nodes have."""

from __future__ import annotations

from typing import Annotated

from ttm_policy.parameter_sets.declared_parameter import Parameter

ContractPath = Annotated[
    str,
    Parameter(
        "YAML file that maps topics to the policy's inputs and outputs. By default the contract of "
        "the simulated robot is used.",
        is_path=True,
    ),
]
StampedBaseCommands = Annotated[
    bool, Parameter("Base commands are TwistStamped messages. If false, they are Twist messages.")
]
