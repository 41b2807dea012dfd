"""The newest message of every input, and the observation of a tick made from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from rclpy.node import Node
from rclpy.subscription import Subscription
from sensor_msgs.msg import JointState

from ttm.policy.errors import MissingObservation
from ttm.policy.spec import PolicySpec
from ttm_policy.contract import ImageSource, RobotContract, VectorSource
from ttm_policy.control_loop import StampedObservation
from ttm_policy.conversions import MESSAGE_TYPES, image_to_frame, read_vector, stamp_to_ns
from ttm_policy.quality import LATCHED, SENSOR


class JointStates:
    """Merges messages that carry some of the joints each, as the arm and the gripper often publish apart."""

    def __init__(self) -> None:
        self._positions: dict[str, float] = {}
        self._stamps: dict[str, int] = {}

    def add(self, message: JointState) -> None:
        stamp_ns = stamp_to_ns(message.header.stamp)
        for name, position in zip(message.name, message.position, strict=False):
            self._positions[name], self._stamps[name] = position, stamp_ns

    def merged(self, source: VectorSource) -> tuple[JointState, int]:
        """All joints seen so far, and when the oldest of those the source needs was measured."""
        needed = [self._stamps[field.path] for field in source.fields if field.path in self._stamps]
        return JointState(name=list(self._positions), position=list(self._positions.values())), min(
            needed, default=0
        )


class Inputs:
    """Subscribes to all topics of the contract; frames are converted only when a tick wants them."""

    def __init__(
        self,
        node: Node,
        contract: RobotContract,
        spec: PolicySpec,
        *,
        lockstep: bool,
        on_message: Callable[[], None],
    ):
        self._node, self._spec, self._lockstep, self._on_message = node, spec, lockstep, on_message
        sources: tuple[ImageSource | VectorSource, ...] = (*contract.images, *contract.vectors)
        self._sources = {source.name: source for source in sources}
        self._newest: dict[str, Any] = {}
        self._joints = {
            name: JointStates()
            for name, s in self._sources.items()
            if s.type == "sensor_msgs/JointState"
        }
        self._subscriptions = [self._subscribe(source) for source in self._sources.values()]

    def _subscribe(self, source: ImageSource | VectorSource) -> Subscription[Any]:
        def receive(message: Any) -> None:
            self._newest[source.name] = message
            if source.name in self._joints:
                self._joints[source.name].add(message)
            self._on_message()

        qos = LATCHED if self._lockstep else SENSOR
        return self._node.create_subscription(
            MESSAGE_TYPES[source.type], source.topic, receive, qos
        )

    def missing(self) -> list[str]:
        """Inputs of which nothing came yet, as `name (topic)`."""
        return [
            f"{name} ({self._node.resolve_topic_name(source.topic)})"
            for name, source in self._sources.items()
            if name not in self._newest
        ]

    def complete_stamp_ns(self) -> int | None:
        """The stamp that all newest messages share, or None while they are of different instants."""
        if self.missing():
            return None
        stamps = {stamp_to_ns(message.header.stamp) for message in self._newest.values()}
        return stamps.pop() if len(stamps) == 1 else None

    def observation(self) -> StampedObservation:
        """The newest of each input. Raises `ObservationError` if one is missing or malformed."""
        if missing := self.missing():
            raise MissingObservation(
                f"nothing received yet from: {', '.join(missing)}; is it published?"
            )
        values, stamps = {}, {}
        for name, source in self._sources.items():
            values[name], stamps[name] = self._convert(source)
        cameras = [stamps[camera.name] for camera in self._spec.cameras]
        return StampedObservation(values, min(cameras or stamps.values()), min(stamps.values()))

    def _convert(self, source: ImageSource | VectorSource) -> tuple[npt.NDArray[Any], int]:
        message = self._newest[source.name]
        stamp_ns = stamp_to_ns(message.header.stamp)
        if isinstance(source, ImageSource):
            return image_to_frame(message, source, self._spec.camera(source.name)), stamp_ns
        if source.name in self._joints:
            message, stamp_ns = self._joints[source.name].merged(source)
        return np.asarray(read_vector(message, source)), stamp_ns

    def forget(self) -> None:
        """Drop everything received, so that the next tick waits for new messages."""
        self._newest.clear()
        self._joints = {name: JointStates() for name in self._joints}

    def close(self) -> None:
        """Unsubscribe."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions.clear()
