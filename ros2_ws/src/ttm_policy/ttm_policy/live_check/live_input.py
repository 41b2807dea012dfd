"""Listens to one observation of a contract for a while, and judges what came."""

from __future__ import annotations

import math
import time
from itertools import pairwise
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState

from ttm.policy.errors import MalformedObservation, ObservationError, printable
from ttm.policy.spec import CameraSpec
from ttm_policy.contract.conversions import (
    MESSAGE_TYPES,
    image_to_frame,
    read_vector,
    stamp_to_ns,
)
from ttm_policy.contract.robot_contract import ImageSource, VectorSource
from ttm_policy.guards.plausibility import require_contrast, require_frame_id, require_plausible
from ttm_policy.inputs.inputs import JointStates
from ttm_policy.live_check.finding import Finding
from ttm_policy.live_check.graph import names_of, nobody, wrong_types

SLOWER = 0.9
"""The share of the policy's rate that an input must reach."""


class LiveInput:
    """Messages of one observation, as they arrive."""

    def __init__(self, node: Node, source: ImageSource | VectorSource):
        self.source, self._node = source, node
        self._arrivals_s: list[float] = []
        self._stamps_ns: list[int] = []
        self._ages_s: list[float] = []
        self._newest: Any = None
        self._joints = JointStates.of(source)
        # Best effort hears every publisher; the depth keeps a burst from looking like a loss.
        qos = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)
        node.create_subscription(MESSAGE_TYPES[source.type], source.topic, self._add, qos)

    def _add(self, message: Any) -> None:
        own_ns = stamp_ns = stamp_to_ns(message.header.stamp)
        self._newest = message
        if isinstance(self.source, VectorSource) and isinstance(message, JointState):
            self._joints.add(message)
            # As in the node, the slowest of the joints that the source needs says how old it is.
            stamp_ns = self._joints.oldest_ns(self.source)
            before_ns = self._stamps_ns[-1] if self._stamps_ns else 0
            if stamp_ns == before_ns != own_ns:
                return  # other joints
        self._arrivals_s.append(time.monotonic())
        self._stamps_ns.append(stamp_ns)
        now_ns = self._node.get_clock().now().nanoseconds
        if now_ns:  # simulated time is 0 until the first /clock
            self._ages_s.append((now_ns - stamp_ns) * 1e-9)

    def finding(
        self, end_s: float, *, max_age_s: float, rate_hz: float, camera: CameraSpec | None
    ) -> Finding:
        """Return what is wrong with the input.

        end_s: the steady time at which listening ended. rate_hz: the policy's rate, 0 if it is not
        known. camera: what the policy was trained with, or None to accept any size.
        """
        problems = self._endpoints()
        if self._newest is None:
            return Finding(self.source.topic, "no message", tuple(problems or ["no message came"]))
        if not self._stamps_ns:
            return Finding(self.source.topic, "", tuple(problems + self._contents(camera)))
        problems += self._timing(end_s, max_age_s, rate_hz)
        problems += self._stamps(max_age_s) + self._contents(camera)
        age = f", {self._ages_s[-1]:.2f} s old" if self._ages_s else ""
        seen = f"{self.rate_hz:.1f} Hz{age}"
        return Finding(self.source.topic, f"{seen}{self._size()}", tuple(problems))

    @property
    def rate_hz(self) -> float:
        """The mean rate of the messages; 0 for fewer than two."""
        span_s = self._arrivals_s[-1] - self._arrivals_s[0] if self._arrivals_s else 0.0
        return (len(self._arrivals_s) - 1) / span_s if span_s > 0 else 0.0

    @property
    def stamp_ns(self) -> int | None:
        """The stamp of the newest message, or None if there is none."""
        return self._stamps_ns[-1] if self._stamps_ns else None

    def _size(self) -> str:
        image = self._newest
        if not hasattr(image, "width"):
            return ""
        return f", {image.width}x{image.height} {printable(image.encoding, 50)}"

    def _endpoints(self) -> list[str]:
        topic = self._node.resolve_topic_name(self.source.topic)
        infos = self._node.get_publishers_info_by_topic(topic)
        if not infos:
            published = [
                name
                for name, _ in self._node.get_topic_names_and_types()
                if self._node.count_publishers(name)
            ]
            return [nobody(self._node, self.source.type, "publishes", published)]
        problems = wrong_types(infos, self.source.type, "published")
        if not problems and len(infos) > self.source.publishers:
            problems.append(
                f"it has {len(infos)} publishers ({names_of(infos)}), and the contract accepts "
                f"{self.source.publishers}; end the others, or set publishers"
            )
        return problems

    def _timing(self, end_s: float, max_age_s: float, rate_hz: float) -> list[str]:
        times = [*self._arrivals_s, end_s]
        silence_s = max(b - a for a, b in pairwise(times))
        if silence_s > max_age_s:
            return [
                f"it was silent for {silence_s:.2f} s, and the policy holds after {max_age_s:g} s; "
                "raise the driver's rate, or max_age_s"
            ]
        repeats = isinstance(self.source, ImageSource) and self.source.repeat
        if self.rate_hz < SLOWER * rate_hz and not repeats:
            return [
                f"it is slower than the {rate_hz:g} Hz of the policy, which waits for it; raise the "
                "driver's rate" + (", or set repeat: true" if self._is_image else "")
            ]
        return []

    @property
    def _is_image(self) -> bool:
        return isinstance(self.source, ImageSource)

    def _stamps(self, max_age_s: float) -> list[str]:
        if not all(self._stamps_ns):
            return ["its stamps are 0; let the driver set header.stamp to the time of capture"]
        if len(self._stamps_ns) > 1 and len(set(self._stamps_ns)) == 1:
            return ["its stamp never changes; let the driver set it to the time of capture"]
        if not self._ages_s:
            return ["nobody publishes /clock; start the simulator, or leave --use-sim-time out"]
        age_s = max(self._ages_s, key=abs)
        if abs(age_s) > max_age_s:
            side = "old" if age_s > 0 else "ahead of the clock"
            return [
                f"its stamps are {abs(age_s):.3g} s {side}, and the policy accepts {max_age_s:g} s; "
                "synchronise the computers' clocks, or use --use-sim-time with a simulator"
            ]
        return []

    def _contents(self, camera: CameraSpec | None) -> list[str]:
        try:
            require_frame_id(self._newest, self.source)
            if isinstance(self.source, ImageSource):
                self._require_frame(self.source, camera)
            else:
                self._require_values(self.source)
        except ObservationError as error:
            return [str(error)]
        return []

    def _require_values(self, source: VectorSource) -> None:
        """Raise `ObservationError` if the newest values cannot be used."""
        joints = source.type == "sensor_msgs/JointState"
        values = read_vector(self._joints.merged() if joints else self._newest, source)
        require_plausible(values, source)
        for value, field in zip(values, source.fields, strict=True):
            if not math.isfinite(value):
                raise MalformedObservation(f"'{field.path}' is {value}; check the sensor")

    def _require_frame(self, source: ImageSource, camera: CameraSpec | None) -> None:
        """Raise `ObservationError` if the newest frame cannot be used."""
        any_size = ImageSource(source.name, source.topic, source.type, resize=True)
        expected = camera or CameraSpec(source.name, 8, 8)
        frame = image_to_frame(self._newest, source if camera else any_size, expected)
        require_contrast(frame, source)
