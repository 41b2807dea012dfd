"""Starts the conversion of bags, which needs the ROS package, as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ttm.policy.checks import require_above_0
from ttm.policy.errors import UserError


def run_conversion(options: Mapping[str, Any]) -> int:
    """Run `ttm_policy.bags.convert_bags` with its options, and return the exit code.

    Raises `UserError` if ROS or the package that reads bags are missing.
    """
    require_above_0({"--rate-hz": options["rate_hz"]})
    for package, extra in (("rclpy", "ros"), ("rosbags", "convert")):
        if find_spec(package) is None:
            raise UserError(
                f'{package} is missing, which reads bags; run: pip install "ttm-policy-stack[{extra}]"'
            )
    command = [sys.executable, "-m", "ttm_policy.bags.convert_bags", json.dumps(options)]
    return subprocess.run(command, check=False).returncode
