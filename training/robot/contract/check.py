"""Starts the check of a contract, which needs the ROS package, as a process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ttm.policy.checks import require_above_0
from ttm.training.robot.processes import run_program


def run_check(options: Mapping[str, Any]) -> int:
    """Run `ttm_policy.live_check.check_contract` with its options, and return the exit code.

    Raises `UserError` if ROS is missing or a number is out of range.
    """
    require_above_0({"--seconds": options["seconds"], "--max-age-s": options["max_age_s"]})
    return run_program("live_check.check_contract", options)
