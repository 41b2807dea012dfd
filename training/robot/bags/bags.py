"""Starts the conversion of bags, or to bags, which needs the ROS package, as a process."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ttm.policy.checks import require_above_0
from ttm.policy.errors import UserError
from ttm.training.robot.processes import run_program


def run_conversion(options: Mapping[str, Any]) -> int:
    """Run `ttm_policy.bags.convert_bags` with its options, and return the exit code.

    Raises `UserError` if ROS or the package that reads bags are missing.
    """
    require_above_0({"--rate-hz": options["rate_hz"]})
    _require_rosbags()
    return run_program("bags.convert_bags", options)


def run_writing(options: Mapping[str, Any]) -> int:
    """Run `ttm_policy.bags.write_bags` with its options, and return the exit code.

    Raises `UserError` if ROS or the package that writes bags are missing.
    """
    _require_rosbags()
    return run_program("bags.write_bags", options)


def _require_rosbags() -> None:
    if find_spec("rosbags") is None:
        raise UserError(
            "rosbags is missing, which reads and writes bags; "
            'run: pip install "ttm-policy-stack[convert]"'
        )
