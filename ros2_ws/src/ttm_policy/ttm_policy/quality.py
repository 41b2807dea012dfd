"""Qualities of service, and why."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

SENSOR = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Takes from reliable and best-effort publishers alike, and only ever the newest."""

COMMAND = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
"""Not kept for who joins late: a base controller that starts again must not find an old velocity."""

LATCHED = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
"""Nothing is lost, and who joins late gets the last message: instructions, and everything in lockstep, where a
message that is missed because two processes have not yet found each other would be waited for in vain."""
