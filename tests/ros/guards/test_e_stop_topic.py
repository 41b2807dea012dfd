"""From whom the emergency stop is heard."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from rclpy.qos import DurabilityPolicy, ReliabilityPolicy

from ttm_policy.guards.e_stop import EStop
from ttm_policy.guards.e_stop_topic import EStopTopic

RELIABLE, BEST_EFFORT = ReliabilityPolicy.RELIABLE, ReliabilityPolicy.BEST_EFFORT
VOLATILE, LATCHED = DurabilityPolicy.VOLATILE, DurabilityPolicy.TRANSIENT_LOCAL


@pytest.mark.parametrize(
    "offered", [(RELIABLE, VOLATILE), (RELIABLE, LATCHED), (BEST_EFFORT, VOLATILE)]
)
def test_no_message_is_lost_that_its_publisher_offers_to_keep(
    offered: tuple[ReliabilityPolicy, DurabilityPolicy],
) -> None:
    """A best-effort subscription lost every fourth `ros2 topic pub --once`, which ends after its message."""
    node = MagicMock()
    EStopTopic(node, EStop(rearm=True, timeout_s=0.0), lambda: None)
    profiles = [call.args[3] for call in node.create_subscription.call_args_list]
    assert offered in [(profile.reliability, profile.durability) for profile in profiles]
