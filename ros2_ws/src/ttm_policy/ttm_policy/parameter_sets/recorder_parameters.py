"""The parameters of `recorder_node`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ttm.datasets.layout import MOST_JPEG_QUALITY
from ttm_policy.parameter_sets.common_parameters import (
    Autostart,
    BondHeartbeatPeriod,
    ContractPath,
    ControlRate,
    SpecSource,
    StampedBaseCommands,
)
from ttm_policy.parameter_sets.declared_parameter import NodeParameters, Parameter


@dataclass(frozen=True)
class RecorderParameters(NodeParameters):
    """The parameters of `recorder_node`."""

    folder: Annotated[
        str,
        Parameter(
            "Folder of the episodes. Numbers go on after those that are there.", is_path=True
        ),
    ] = "episodes"
    contract: ContractPath = ""
    spec: SpecSource = ""
    rate_hz: ControlRate = 0.0
    instruction: Annotated[
        str, Parameter("What the robot is told. The topic `instruction` can set it later.")
    ] = ""
    jpeg_quality: Annotated[
        int,
        Parameter(
            "Quality of stored frames as JPEGs; 0 stores them without loss.",
            minimum=0,
            maximum=MOST_JPEG_QUALITY,
        ),
    ] = 0
    countdown_s: Annotated[
        float, Parameter("Time between start and the first tick.", unit="s", minimum=0)
    ] = 3.0
    preroll_s: Annotated[
        float,
        Parameter("How much of the time before the start is recorded too.", unit="s", minimum=0),
    ] = 0.0
    max_delay_s: Annotated[
        float,
        Parameter(
            "Longest time that a message takes to arrive. Ticks are written so much later.",
            unit="s",
            minimum=0,
        ),
    ] = 0.3
    min_fresh: Annotated[
        float,
        Parameter(
            "Smallest portion of ticks with new messages of every input. Episodes with fewer are "
            "refused; 0 keeps all.",
            minimum=0,
            maximum=1,
        ),
    ] = 0.9
    cmd_vel_stamped: StampedBaseCommands = True
    simulator: Annotated[
        str,
        Parameter(
            "Name of the simulated robot that begins its scene anew for each episode. That is for a policy "
            "that drives from the start of a scene. Empty for none."
        ),
    ] = ""
    keys: Annotated[bool, Parameter("Take keys from the terminal. ? lists them.")] = False
    autostart: Autostart = True
    bond_heartbeat_period: BondHeartbeatPeriod = 0.25
