"""Keeps the newest message of every input, and makes the observation of a tick from them."""

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
from ttm_policy.contract.conversions import (
    MESSAGE_TYPES,
    image_to_frame,
    read_vector,
    stamp_to_ns,
)
from ttm_policy.contract.robot_contract import (
    EXECUTED_ACTION,
    ImageSource,
    RobotContract,
    VectorSource,
)
from ttm_policy.control.control_loop import StampedObservation
from ttm_policy.qos import LATCHED, SENSOR


class JointStates:
    """Merges messages with some of the joints: arm and gripper often publish separately."""

    def __init__(self) -> None:
        self._positions: dict[str, float] = {}
        self._stamps: dict[str, int] = {}

    def add(self, message: JointState) -> None:
        """Take over the positions of the joints in `message`."""
        stamp_ns = stamp_to_ns(message.header.stamp)
        for name, position in zip(message.name, message.position, strict=False):
            self._positions[name], self._stamps[name] = position, stamp_ns

    def merged(self, source: VectorSource) -> tuple[JointState, int]:
        """Return all joints seen so far, and the oldest stamp (ns) of those in the source."""
        needed = [self._stamps[field.path] for field in source.fields if field.path in self._stamps]
        return JointState(name=list(self._positions), position=list(self._positions.values())), min(
            needed, default=0
        )


class Inputs:
    """Subscribes to all observation topics of the contract.

    Frames are converted only when a tick needs them.
    """

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
        self._sources = {source.name: source for source in contract.inputs}
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
        """Return the inputs from which nothing was received yet, as `name (topic)`."""
        return [
            f"{name} ({self._node.resolve_topic_name(source.topic)})"
            for name, source in self._sources.items()
            if name not in self._newest
        ]

    def complete_stamp_ns(self) -> int | None:
        """Return the stamp that all newest messages share, or None while their stamps differ."""
        if self.missing():
            return None
        stamps = {stamp_to_ns(message.header.stamp) for message in self._newest.values()}
        return stamps.pop() if len(stamps) == 1 else None

    def observation(self) -> StampedObservation:
        """Return the newest value of each input.

        Raises `ObservationError` if one is missing or malformed.
        """
        if missing := self.missing():
            raise MissingObservation(
                f"nothing received yet from: {', '.join(missing)}; is it published?"
            )
        values, stamps = {}, {}
        for name, source in self._sources.items():
            values[name], stamps[name] = self._convert(source)
        cameras = [stamps[camera.name] for camera in self._spec.cameras]
        executed = values.pop(EXECUTED_ACTION, None)
        return StampedObservation(
            values, min(cameras or stamps.values()), min(stamps.values()), executed
        )

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
        """Destroy all subscriptions."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions.clear()
