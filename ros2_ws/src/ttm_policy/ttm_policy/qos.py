"""The QoS profiles of all topics, with the reasons for them."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

SENSOR = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Receives from reliable and from best-effort publishers, and keeps only the newest message."""

COMMAND = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
"""Not kept for late subscribers: a restarted base controller must not receive old velocities."""

LATCHED = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
"""Late subscribers receive the last message. This serves instructions, and all topics in lockstep:
a message that is lost while two processes discover each other would never be sent again, and both
would wait."""
