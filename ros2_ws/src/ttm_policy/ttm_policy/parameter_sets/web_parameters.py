"""The parameters of `web_node`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ttm_policy.parameter_sets.declared_parameter import Parameter
from ttm_policy.parameter_sets.driving_parameters import DrivingParameters


@dataclass(frozen=True)
class WebParameters(DrivingParameters):
    """The parameters of `web_node`."""

    folder: Annotated[
        str, Parameter("Folder of the episodes that the page lists.", is_path=True)
    ] = "episodes"
    recorder: Annotated[str, Parameter("Name of the recorder that the page starts and stops.")] = (
        "recorder_node"
    )
    simulator: Annotated[
        str,
        Parameter("Name of the simulated robot, whose scenes the page changes. Empty for none."),
    ] = ""
    host: Annotated[
        str,
        Parameter(
            "Address at which the page is served. By default only programs on this machine can reach it; "
            "0.0.0.0 serves it to the whole network, without encryption."
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        Parameter("Port of the page; 0 takes one that is free.", minimum=0, maximum=65535),
    ] = 8700
    token: Annotated[
        str,
        Parameter(
            "Secret part of the page's address, of letters, digits, - and _. By default it is new at each "
            "start."
        ),
    ] = ""
    page_timeout_s: Annotated[
        float,
        Parameter(
            "Longest silence of the page that drives. After it the robot stops, and another page may "
            "drive.",
            unit="s",
            positive=True,
        ),
    ] = 0.5
