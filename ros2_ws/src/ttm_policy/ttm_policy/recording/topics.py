"""Subscribes to all topics of a contract, and passes on every message with its stamp."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message
from rclpy.subscription import Subscription

from ttm.datasets.dataset import open_dataset
from ttm.datasets.description import SpecFile, read_spec_file
from ttm.policy.errors import UserError
from ttm.policy.files import read_checkpoint_spec
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec
from ttm.sim.shipped import SHIPPED, checkpoint_path
from ttm_policy.contract import ActionSink, RobotContract
from ttm_policy.inputs import WARN_EVERY_S
from ttm_policy.messages import MESSAGE_TYPES
from ttm_policy.qos import LossCounter, MessageInfo
from ttm_policy.recording.matching import JointTopics, Stamper, header_ns

DEPTH = 200
"""So many messages of a topic may wait while another one is handled."""

UPDATE_S = 0.2
"""Wall time between two looks at the publishers."""

Qos = tuple[ReliabilityPolicy, DurabilityPolicy]
FIRST_QOS: Qos = (ReliabilityPolicy.RELIABLE, DurabilityPolicy.VOLATILE)
"""That of commands before there is a publisher."""


class RecordedTopics:
    """Receives the messages of all topics as they were serialised, so that taking one is quick.

    The QoS follows that of the publishers: reliable if all are, and with what was published before if all
    keep it, as a simulator in lockstep does. Commands are subscribed to before there is a publisher.

    Parameters
    ----------
    node
        Makes the subscriptions.
    types
        Topic -> message type.
    observed
        The topics of the observation. Their stamps tell what time it is in simulation.
    joints
        Completes messages with some of the joints.
    stamper
        Takes every message.
    on_loss
        Called with a topic and the number of its messages that were published and never arrived.
    """

    def __init__(
        self,
        node: Node,
        types: Mapping[str, str],
        observed: frozenset[str],
        joints: JointTopics,
        stamper: Stamper,
        on_loss: Callable[[str, int], None],
    ) -> None:
        self._node, self._types, self._observed = node, types, observed
        self._joints, self._stamper, self._on_loss = joints, stamper, on_loss
        self._losses = LossCounter()
        self._newest: dict[str, bytes] = {}
        self._qos: dict[str, Qos] = {}
        self._subscriptions: dict[str, Subscription[Any]] = {}
        for topic in types.keys() - observed:
            self._subscribe(topic, FIRST_QOS)
        self._updated_s = -math.inf
        self.update()

    def update(self) -> None:
        """Subscribe again where the publishers' QoS has changed. This may be called at any rate."""
        if time.monotonic() - self._updated_s < UPDATE_S:
            return
        self._updated_s = time.monotonic()
        for topic in self._types:
            publishers = self._node.get_publishers_info_by_topic(topic)
            offered = [publisher.qos_profile for publisher in publishers]
            if offered and (qos := _qos_for(offered)) != self._qos.get(topic):
                self._subscribe(topic, qos)

    def newest(self, topic: str) -> Any:
        """Return the newest message of a topic that was received. Raises `UserError` if it is damaged."""
        return _unpacked(topic, self._newest[topic], self._types[topic])

    def close(self) -> None:
        """Destroy all subscriptions."""
        for subscription in self._subscriptions.values():
            self._node.destroy_subscription(subscription)
        self._subscriptions.clear()

    def _subscribe(self, topic: str, qos: Qos) -> None:
        """Subscribe, and then destroy the subscription before, so that nothing is missed."""
        kind = MESSAGE_TYPES[self._types[topic]]
        stamped = hasattr(kind, "header")

        def receive(data: bytes, info: MessageInfo) -> None:
            self._take(topic, data, header_ns(data) if stamped else 0, info)

        before, self._qos[topic] = self._subscriptions.get(topic), qos
        profile = QoSProfile(depth=DEPTH, reliability=qos[0], durability=qos[1])
        self._subscriptions[topic] = self._node.create_subscription(
            kind, topic, receive, profile, raw=True
        )
        if before is not None:
            self._node.destroy_subscription(before)

    def _take(self, topic: str, data: bytes, stamp_ns: int, info: MessageInfo) -> None:
        published_ns = info["source_timestamp"] or self._node.get_clock().now().nanoseconds
        lost = self._losses.lost(topic, info, self._node.count_publishers(topic))
        if lost:
            self._on_loss(topic, lost)
        message: Any = data
        self._newest[topic] = data
        if topic in self._joints.topics:
            try:
                message = self._joints.completed(topic, self.newest(topic))
            except UserError as error:
                self._node.get_logger().error(str(error), throttle_duration_sec=WARN_EVERY_S)
                return
        if topic in self._observed and stamp_ns:
            self._stamper.note(stamp_ns, published_ns)
        self._stamper.take(topic, stamp_ns, published_ns, message)


def _unpacked(topic: str, data: bytes, kind: str) -> Any:
    try:
        return deserialize_message(data, MESSAGE_TYPES[kind])
    except RuntimeError as error:  # RMWError of rclpy
        raise UserError(f"a message of '{topic}' is damaged ({error})") from error


def _qos_for(offered: Sequence[QoSProfile]) -> Qos:
    """Return the strongest QoS that all publishers offer."""
    reliable = all(qos.reliability == ReliabilityPolicy.RELIABLE for qos in offered)
    kept = reliable and all(qos.durability == DurabilityPolicy.TRANSIENT_LOCAL for qos in offered)
    return (
        ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        DurabilityPolicy.TRANSIENT_LOCAL if kept else DurabilityPolicy.VOLATILE,
    )


# The spec of what is recorded: from the contract, and what the user gives besides.

Sizes = Mapping[str, tuple[int, int]]
"""Camera -> height and width of its images."""


@dataclass(frozen=True)
class GivenSpec:
    """What is known before the first image came: all, or the parts of a spec file."""

    whole: PolicySpec | None
    file: SpecFile
    rate_hz: float

    def complete(self, contract: RobotContract, sizes: Sizes) -> PolicySpec:
        """Return the spec of episodes with cameras of these sizes. Raises `UserError` if it does not fit."""
        spec = self.whole or spec_of_contract(contract, self.file, self.rate_hz, sizes)
        try:
            contract.check(spec, whose="the spec")
        except UserError as error:
            if self.whole or self.file.actions:
                raise
            raise UserError(
                f"{error}. Without the parameter spec, each field of an action is a value of its own: if one "
                "value goes to several joints, such as two fingers, give a spec, a checkpoint or episodes"
            ) from error
        return spec


def read_given_spec(source: str, contract: RobotContract, rate_hz: float) -> GivenSpec:
    """Read what the parameter `spec` names: a checkpoint, a YAML file, episodes, or nothing.

    rate_hz: the control rate; 0 takes that of the contract, or else of the source. Raises `UserError` if
    none is known, or the source has another one.
    """
    rate_hz = rate_hz or contract.rate_hz or 0.0
    whole, file = None, SpecFile()
    if source == SHIPPED or source.endswith(".safetensors"):
        whole = read_checkpoint_spec(checkpoint_path(source))
    elif source.endswith((".yaml", ".yml")):
        file = read_spec_file(Path(source))
    elif source:
        whole = open_dataset(source).spec
    known = file.rate_hz if whole is None else whole.rate_hz
    if known is None and not rate_hz:
        raise UserError(
            "no control rate is known; set rate_hz, write it into the contract, or give a spec that has one"
        )
    require_rate(known, rate_hz or known, source)
    return GivenSpec(whole, file, rate_hz or known or 0.0)


def require_rate(known: float | None, rate_hz: float | None, source: str) -> None:
    """Raise `UserError` if `source` says another rate, in Hz, than the one that is used; None says none."""
    if known not in (None, rate_hz):
        raise UserError(
            f"{source} says {known:g} Hz, but the rate is {rate_hz:g}; give the same rate"
        )


def spec_of_contract(
    contract: RobotContract, given: SpecFile, rate_hz: float, sizes: Sizes
) -> PolicySpec:
    """Return a spec with the names of a contract.

    Parts of the action are those of the spec file, or else one for each entry of the contract, with a
    value for each field; a `std_msgs/Bool` is binary.
    """
    labels = given.proprioception or {}
    return PolicySpec(
        robot=contract.robot,
        cameras=tuple(CameraSpec(source.name, *sizes[source.name]) for source in contract.images),
        proprioception=tuple(
            ProprioceptionSpec(
                source.name, labels.get(source.name) or tuple(field.path for field in source.fields)
            )
            for source in contract.vectors
        ),
        actions=given.actions or tuple(_part(sink) for sink in contract.actions),
        rate_hz=rate_hz,
    )


def _part(sink: ActionSink) -> ActionPart:
    kind: Literal["continuous", "binary"] = (
        "binary" if sink.type == "std_msgs/Bool" else "continuous"
    )
    return ActionPart(sink.name, len(sink.fields), "unknown", kind)
