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
Autostart = Annotated[
    bool,
    Parameter(
        "Configure and activate the node at the start. If false, it waits for life-cycle transitions."
    ),
]
StampedBaseCommands = Annotated[
    bool, Parameter("Base commands are TwistStamped messages. If false, they are Twist messages.")
]
SpecSource = Annotated[
    str,
    Parameter(
        "What the episodes are like: a checkpoint, other episodes, or a YAML file. The YAML file is "
        "that of `ttm data show --spec`, and gives the parts of the action their limits; without "
        "one, they have none. `shipped` is the policy that ships with the project, and the default for "
        "its own contract.",
        is_path=True,
    ),
]
ControlRate = Annotated[
    float,
    Parameter("Ticks a second; 0 for those of the contract or the spec.", unit="Hz", minimum=0),
]
BondHeartbeatPeriod = Annotated[
    float,
    Parameter(
        "Time between heartbeats for Nav2; 0 for no bond. They tell its lifecycle manager that the "
        "active node is alive, and need the ROS package bond.",
        unit="s",
        minimum=0,
        maximum=2,
    ),
]
EStopRearm = Annotated[
    bool,
    Parameter(
        "Whether an emergency stop ends only with the service rearm. If false, the robot goes on "
        "by itself as soon as the emergency stop is released."
    ),
]
EStopTimeout = Annotated[
    float,
    Parameter(
        "Longest silence of e_stop without a stop; 0 for any. With a value above 0 "
        "the robot does not move before the first message, either.",
        unit="s",
        minimum=0,
        maximum=60,
    ),
]
LONGEST_AGE_S = 60.0
"""The upper end of `max_age_s`. A robot that may see nothing for longer moves blindly."""
