"""Whether ROS 2 can be used."""

from __future__ import annotations

from importlib.util import find_spec

from ttm.policy.errors import UserError


def require_rclpy() -> None:
    """Raise `UserError` that says how to get ROS 2 if its Python package is missing."""
    if find_spec("rclpy") is None:
        raise UserError(
            'ROS 2 is missing; run: pip install "ttm-policy-stack[ros]" '
            "or source a ROS 2 install: source /opt/ros/<distro>/setup.bash"
        )
