"""The simulated robot's contract with everything declared that makes an input implausible.

python -m ttm_policy faults.strict_contract '{"out": "robot.yaml"}'
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from ttm_policy.contract import default_contract

MAX_SKEW_S = 0.3
MIN_CONTRAST = 5.0
FRAME = "base_link"
LARGEST_SPEED = 10.0


def strict_contract() -> dict[str, Any]:
    """Return the contract as it stands in a YAML file."""
    data: dict[str, Any] = yaml.safe_load(default_contract().read_text())
    data["max_skew_s"] = MAX_SKEW_S
    data["observations"]["wrist"]["min_contrast"] = MIN_CONTRAST
    data["observations"]["ee_pose"]["frame_id"] = FRAME
    data["observations"]["base_velocity"]["fields"] = [
        {"field": path, "min": -LARGEST_SPEED, "max": LARGEST_SPEED}
        for path in ("twist.twist.linear.x", "twist.twist.angular.z")
    ]
    return data


def main(arguments: str) -> int:
    """Write the contract to the path `out` of a JSON object; return the exit code."""
    Path(json.loads(arguments)["out"]).write_text(yaml.safe_dump(strict_contract()))
    return 0
