"""Checks a contract on the live graph. `ttm contract check` runs this module as a program.

It listens for a while, and says of each topic what there is, what is wrong, and how to mend it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSCompatibility, QoSProfile, ReliabilityPolicy, qos_check_compatible
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from ttm.policy.errors import ObservationError, UserError, printable
from ttm.policy.spec import CameraSpec, read_checkpoint_spec
from ttm_policy.contract import JOINT_TYPES, ImageSource, RobotContract, VectorSource, load_contract
from ttm_policy.guards import E_STOP_TOPIC, require_contrast, require_frame_id, require_plausible
from ttm_policy.inputs import JointStates
from ttm_policy.launching import check_name
from ttm_policy.limits import DESCRIPTION_TOPIC, read_joint_limits
from ttm_policy.messages import (
    MESSAGE_TYPES,
    check_fields,
    image_to_frame,
    read_vector,
    stamp_to_ns,
)
from ttm_policy.programs import run_for_ttm
from ttm_policy.qos import COMMAND, LATCHED

OURS = "policy_node"
"""The node that sends the commands, and hears them in order to notice other senders."""
E_STOP_TYPE = "std_msgs/Bool"
SLOWER = 0.9
"""The share of the policy's rate that an input must reach."""
MOST_WAITING = 500
"""More messages than wait at the end of listening."""


@dataclass(frozen=True)
class CheckOptions:
    """What `ttm contract check` asks for."""

    contract: str
    checkpoint: str | None = None
    seconds: float = 5.0
    max_age_s: float = 0.5
    namespace: str = ""
    use_sim_time: bool = False


@dataclass(frozen=True)
class Finding:
    """What the live graph says about one topic: what there is, and each problem with its remedy."""

    topic: str
    seen: str
    problems: tuple[str, ...] = ()


def check_contract(options: CheckOptions) -> list[Finding]:
    """Listen to the topics of a contract, and return a finding for each. Raises `UserError`."""
    if options.namespace:
        check_name("--namespace", options.namespace)
    contract = load_contract(options.contract)
    check_fields(contract)
    cameras: dict[str, CameraSpec] = {}
    rate_hz = contract.rate_hz or 0.0
    if options.checkpoint is not None:
        spec = read_checkpoint_spec(options.checkpoint)
        contract = contract.for_policy(spec)
        cameras, rate_hz = {camera.name: camera for camera in spec.cameras}, spec.rate_hz
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)  # so that Ctrl-C interrupts
    try:
        node = Node(
            "contract_check",
            namespace=options.namespace,
            parameter_overrides=[Parameter("use_sim_time", value=options.use_sim_time)],
        )
        inputs = [
            LiveInput(node, source, options.max_age_s, rate_hz, cameras.get(source.name))
            for source in contract.inputs
        ]
        found = _listen(node, contract, inputs, options.seconds)
        node.destroy_node()
        return found
    finally:
        rclpy.try_shutdown()


def report(findings: Sequence[Finding], file: str) -> str:
    """Return a line for each finding and problem, and a summary."""
    width = max(len(finding.topic) for finding in findings)
    lines = []
    for finding in findings:
        mark = "WRONG" if finding.problems else "ok"
        lines.append(f"{mark:5}  {finding.topic:{width}}  {finding.seen}".rstrip())
        lines += [f"{'':7}{problem}" for problem in finding.problems]
    if wrong := sum(bool(finding.problems) for finding in findings):
        lines.append(f"{wrong} of {len(findings)} topics do not fit {file}; mend robot or contract")
    else:
        lines.append(f"all {len(findings)} topics fit {file}")
    return "\n".join(lines)


def _listen(
    node: Node, contract: RobotContract, inputs: list[LiveInput], seconds: float
) -> list[Finding]:
    descriptions: deque[String] = deque(maxlen=1)
    # A lambda, since rclpy looks at the callback's signature, which a method of deque does not have.
    node.create_subscription(String, DESCRIPTION_TOPIC, lambda m: descriptions.append(m), LATCHED)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    end_s = _hear(executor, seconds)
    findings = [live.finding(end_s) for live in inputs] + _skew(inputs, contract)
    types = {sink.topic: sink.type for sink in contract.actions}
    findings += [command_finding(node, topic, kind) for topic, kind in types.items()]
    return [*findings, e_stop_finding(node), _description(descriptions, contract)]


def _hear(executor: SingleThreadedExecutor, seconds: float) -> float:
    """Handle messages for so long, and then those that wait; return the steady time of the end.

    On a busy computer, what waits would else look as if the robot had not sent it.
    """
    end_s = time.monotonic() + seconds
    while (rest_s := end_s - time.monotonic()) > 0:
        executor.spin_once(timeout_sec=rest_s)
    for _ in range(MOST_WAITING):
        executor.spin_once(timeout_sec=0.0)
    return end_s


class LiveInput:
    """Listens to one observation of a contract for a while, and judges what came."""

    def __init__(
        self,
        node: Node,
        source: ImageSource | VectorSource,
        max_age_s: float,
        rate_hz: float = 0.0,
        camera: CameraSpec | None = None,
    ):
        """rate_hz: the policy's, 0 if it is not known. camera: the policy's, None to accept any size."""
        self.source, self._node = source, node
        self._max_age_s, self._rate_hz, self._camera = max_age_s, rate_hz, camera
        self._arrivals_s: list[float] = []
        self._stamps_ns: list[int] = []
        self._ages_s: list[float] = []
        self._newest: Any = None
        self._joints = JointStates.of(source)
        # Best effort hears every publisher; the depth keeps a burst from looking like a loss.
        qos = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)
        node.create_subscription(MESSAGE_TYPES[source.type], source.topic, self._add, qos)

    @property
    def stamp_ns(self) -> int | None:
        """The stamp of the newest message, or None if there is none."""
        return self._stamps_ns[-1] if self._stamps_ns else None

    def _add(self, message: Any) -> None:
        own_ns = stamp_ns = stamp_to_ns(message.header.stamp)
        self._newest = message
        if isinstance(self.source, VectorSource) and isinstance(message, JointState):
            self._joints.add(message)
            # As in the node, the slowest of the joints that the source needs says how old it is.
            stamp_ns = self._joints.oldest_ns(self.source)
            if stamp_ns == (self.stamp_ns or 0) != own_ns:
                return  # other joints
        self._arrivals_s.append(time.monotonic())
        self._stamps_ns.append(stamp_ns)
        now_ns = self._node.get_clock().now().nanoseconds
        if now_ns:  # simulated time is 0 until the first /clock
            self._ages_s.append((now_ns - stamp_ns) * 1e-9)

    def finding(self, end_s: float) -> Finding:
        """Return what is wrong with the input. end_s: the steady time at which listening ended."""
        topic, problems = self.source.topic, self._endpoints()
        if self._newest is None:
            return Finding(topic, "no message", tuple(problems or ["no message came"]))
        contents = self._contents()
        if not self._stamps_ns:
            return Finding(topic, "", (*problems, *contents))
        span_s = self._arrivals_s[-1] - self._arrivals_s[0]
        rate_hz = (len(self._arrivals_s) - 1) / span_s if span_s > 0 else 0.0
        seen = f"{rate_hz:.1f} Hz"
        if self._ages_s:
            seen += f", {self._ages_s[-1]:.2f} s old"
        if hasattr(self._newest, "width"):
            size = f"{self._newest.width}x{self._newest.height}"
            seen += f", {size} {printable(self._newest.encoding, 50)}"
        times = filter(None, (self._timing(end_s, rate_hz), self._stamps()))
        return Finding(topic, seen, (*problems, *times, *contents))

    def _endpoints(self) -> list[str]:
        node, source = self._node, self.source
        infos = node.get_publishers_info_by_topic(node.resolve_topic_name(source.topic))
        if not infos:
            return [_nobody(node, source.type, "publishes", node.count_publishers)]
        problems = _wrong_types(infos, source.type, "published")
        if not problems and len(infos) > source.publishers:
            problems.append(
                f"it has {len(infos)} publishers ({_names(infos)}), and the contract accepts "
                f"{source.publishers}; end the others, or set publishers"
            )
        return problems

    def _timing(self, end_s: float, rate_hz: float) -> str:
        """Return what is wrong with the times at which messages came, or an empty text."""
        silence_s = max(b - a for a, b in pairwise([*self._arrivals_s, end_s]))
        if silence_s > self._max_age_s:
            return (
                f"it was silent for {silence_s:.2f} s, and the policy holds after {self._max_age_s:g} s; "
                "raise the driver's rate, or max_age_s"
            )
        source = self.source
        repeats = isinstance(source, ImageSource) and source.repeat
        if rate_hz < SLOWER * self._rate_hz and not repeats:
            hint = ", or set repeat: true" if isinstance(source, ImageSource) else ""
            return (
                f"it is slower than the {self._rate_hz:g} Hz of the policy, which waits for it; raise the "
                f"driver's rate{hint}"
            )
        return ""

    def _stamps(self) -> str:
        """Return what is wrong with the stamps, or an empty text."""
        if not all(self._stamps_ns):
            return "its stamps are 0; let the driver set header.stamp to the time of capture"
        if len(self._stamps_ns) > 1 and len(set(self._stamps_ns)) == 1:
            return "its stamp never changes; let the driver set it to the time of capture"
        if not self._ages_s:
            return "nobody publishes /clock; start the simulator, or leave --use-sim-time out"
        age_s = max(self._ages_s, key=abs)
        if abs(age_s) > self._max_age_s:
            side = "old" if age_s > 0 else "ahead of the clock"
            return (
                f"its stamps are {abs(age_s):.3g} s {side}, and the policy accepts {self._max_age_s:g} s; "
                "synchronise the computers' clocks, or use --use-sim-time"
            )
        return ""

    def _contents(self) -> list[str]:
        """Return why the newest message cannot be used."""
        source = self.source
        try:
            require_frame_id(self._newest, source)
            if isinstance(source, ImageSource):
                require_contrast(image_to_frame(self._newest, source, self._camera), source)
                return []
            joints = source.type == "sensor_msgs/JointState"
            values = read_vector(self._joints.merged() if joints else self._newest, source)
            require_plausible(values, source)
        except ObservationError as error:
            return [str(error)]
        return [
            f"'{field.path}' is {value}; check the sensor"
            for value, field in zip(values, source.fields, strict=True)
            if not math.isfinite(value)
        ][:1]


def _skew(inputs: list[LiveInput], contract: RobotContract) -> list[Finding]:
    """Return whether the inputs were captured together, if the contract asks for it and all came."""
    stamps = [(live.stamp_ns, live.source.topic) for live in inputs if live.stamp_ns]
    if len(stamps) < len(inputs) or math.isinf(contract.max_skew_s):
        return []
    (oldest_ns, first), (newest_ns, last) = min(stamps), max(stamps)
    skew_s, most_s = (newest_ns - oldest_ns) * 1e-9, contract.max_skew_s
    problem = (
        f"{first} is {skew_s:.3f} s older than {last}, and the contract accepts {most_s:g} s; make it "
        "quicker, or raise max_skew_s"
    )
    return [Finding("max_skew_s", f"{skew_s:.3f} s", (problem,) if skew_s > most_s else ())]


def command_finding(node: Node, topic: str, kind: str) -> Finding:
    """Return whether somebody listens to a command, and nobody else sends it."""

    def listeners_of(name: str) -> list[Any]:
        infos = node.get_subscriptions_info_by_topic(name)
        return [info for info in infos if info.node_name != OURS]

    resolved = node.resolve_topic_name(topic)
    listeners = listeners_of(resolved)
    problems = _wrong_types(listeners, kind, "taken")
    if not listeners:
        problems.append(_nobody(node, kind, "listens to", listeners_of))
    for info in listeners:
        reason = _mismatch(info.qos_profile)
        if reason and info.topic_type == _full_type(kind):
            problems.append(f"{info.node_name} would not hear it ({reason}); use the default QoS")
    infos = node.get_publishers_info_by_topic(resolved)
    if senders := [info for info in infos if info.node_name != OURS]:
        problems.append(f"{_names(senders)} sends it, too; end that node before the policy starts")
    heard = f"heard by {_names(listeners)}" if listeners else "no listener"
    return Finding(topic, f"{kind}, {heard}", tuple(problems))


def _mismatch(listener: QoSProfile) -> str:
    """Return why a listener would not receive our commands, or an empty string.

    Deadlines are left out: the graph has an endless one in another form than a profile.
    """
    asked = QoSProfile(depth=1, reliability=listener.reliability, durability=listener.durability)
    verdict, reason = qos_check_compatible(COMMAND, asked)
    if verdict != QoSCompatibility.ERROR:
        return ""
    return reason.strip().rstrip(";").removeprefix("ERROR: ").lower()


def e_stop_finding(node: Node) -> Finding:
    """Return who sends the emergency stop. A robot may do without: its button may cut the power."""
    infos = node.get_publishers_info_by_topic(node.resolve_topic_name(E_STOP_TOPIC))
    if not infos:
        return Finding(E_STOP_TOPIC, "nobody publishes it: no button stops the policy")
    problems = tuple(_wrong_types(infos, E_STOP_TYPE, "published", f"send {E_STOP_TYPE}"))
    return Finding(E_STOP_TOPIC, f"sent by {_names(infos)}", problems)


def _description(descriptions: Sequence[String], contract: RobotContract) -> Finding:
    """Return whether the robot's description has the joints that the contract moves."""
    joints = [f.path for sink in contract.actions if sink.type in JOINT_TYPES for f in sink.fields]
    if not descriptions:
        return Finding(DESCRIPTION_TOPIC, "not published; the contract's ranges of joints hold")
    try:
        known = read_joint_limits(descriptions[-1].data)
    except UserError as error:
        return Finding(DESCRIPTION_TOPIC, "", (str(error),))
    missing = [joint for joint in joints if joint not in known]
    problem = f"it has no joint {', '.join(missing)}; mend the names in the contract"
    return Finding(DESCRIPTION_TOPIC, f"{len(known)} joints", (problem,) if missing else ())


def _full_type(kind: str) -> str:
    """Return a contract's type as the graph names it: `std_msgs/Bool` is `std_msgs/msg/Bool`."""
    return kind.replace("/", "/msg/")


def _wrong_types(
    infos: Collection[Any], kind: str, what: str, remedy: str = "write that type in the contract"
) -> list[str]:
    """Return a problem if endpoints of a topic have another type. what: `published` or `taken`."""
    others = sorted({info.topic_type for info in infos} - {_full_type(kind)})
    names = ", ".join(others).replace("/msg/", "/")
    return [f"it is {what} as {names}, not as {kind}; {remedy}"] if others else []


def _nobody(node: Node, kind: str, verb: str, has_endpoint: Callable[[str], object]) -> str:
    """Return the problem that a topic has no endpoint, with topics of the type that have one."""
    known = sorted(
        name
        for name, types in node.get_topic_names_and_types()
        if _full_type(kind) in types and has_endpoint(name)
    )
    hint = f"; {kind} is there as: {', '.join(known)}" if known else "; start the driver"
    return f"nobody {verb} it{hint}"


def _names(infos: Collection[Any]) -> str:
    """Return the nodes of endpoints, in the order of the alphabet."""
    return ", ".join(sorted({info.node_name for info in infos}))


def _run(options: CheckOptions) -> int:
    findings = check_contract(options)
    print(report(findings, options.contract))
    return int(any(finding.problems for finding in findings))


main = partial(run_for_ttm, CheckOptions, _run)
"""Checks what the JSON of `CheckOptions` says. The exit code is 0 if all fits, 1 if not, 2 for a mistake."""
