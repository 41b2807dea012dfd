"""The frame of the programs of this package: it starts ROS, tells mistakes, and makes the exit code."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Mapping
from types import FrameType
from typing import Any, NoReturn, TypeVar

import rclpy
from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rcl_interfaces.srv import (
    DescribeParameters,
    GetParameters,
    GetParameterTypes,
    ListParameters,
    SetParameters,
    SetParametersAtomically,
)
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.service import Service
from rclpy.signals import SignalHandlerOptions
from rclpy.subscription import Subscription

from ttm.policy.errors import UserError
from ttm_policy.parameters import DeclaredParameter, NodeParameters, parameters_of, require_known


def run_for_ttm(run: Callable[[], int]) -> int:
    """Run a program that `ttm` has started, and return its exit code.

    That is 2 if `run` raised a `UserError`, which is told in one line, or 130 after Ctrl-C, which `ttm` gets,
    too, and tells.
    """
    try:
        return run()
    except UserError as error:
        print(f"ttm: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def run_with_ros(name: str, run: Callable[[], int]) -> int:
    """Start ROS without its signal handlers, run the program called `name`, and end ROS.

    Returns the exit code: that of `run`, 2 if it raised a `UserError`, which is told in one line, or 1
    if it failed otherwise.
    """
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        return run()
    except UserError as error:
        print(f"{name}: error: {error}", file=sys.stderr, flush=True)
        return 2
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        rclpy.try_shutdown()


# Declares the parameters of a node from their dataclass, and reads their values back.

Parameters = TypeVar("Parameters", bound=NodeParameters)

MOST_IN_A_CALL = 200
"""So many names or values one call of a parameter service may have: more than any node declares.

A call holds the thread of the node, and with it the ticks, for as long as it takes.
"""

LARGEST_INTEGER = 2**63 - 1
"""The upper end of the range of an integer parameter that has only a lower limit."""


_LISTS = {
    SetParameters: "parameters",
    SetParametersAtomically: "parameters",
    GetParameters: "names",
    GetParameterTypes: "names",
    DescribeParameters: "names",
    ListParameters: "prefixes",
}
"""What a call of each parameter service has any number of."""


def declare_parameters(
    node: Node,
    node_parameters: type[NodeParameters],
    on_change: Callable[[], None] | None = None,
) -> None:
    """Declare all parameters with their help texts and ranges.

    on_change: called after a parameter of the running node was set, which only those marked as live
    allow; the others are read-only. Integers are accepted for numbers of type double.

    Raises `UserError` if the value that was given at the start has a wrong type or is out of range.
    From then on ROS refuses such values when somebody sets them, and says why. The node's parameter services
    refuse calls with more than `MOST_IN_A_CALL` names or values.
    """
    declared = {parameter.name: parameter for parameter in parameters_of(node_parameters)}
    for name in require_known("parameter", _given_names(node), declared):
        node.get_logger().warning(f"there is no parameter {name}; see `ros2 param list`")

    def check(values: list[Parameter[Any]]) -> SetParametersResult:
        try:
            for value in values:
                if value.name in declared:
                    declared[value.name].check(value.value)
        except UserError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    doubles = {name for name, parameter in declared.items() if parameter.type is float}
    integers = _given_integers(node, doubles)
    node.add_on_set_parameters_callback(check)
    for parameter in declared.values():
        _declare(node, parameter, integers.get(parameter.name))
    node.add_pre_set_parameters_callback(lambda values: [_as_double(v, doubles) for v in values])
    for service in node.services:
        if service.srv_type in _LISTS:
            service.callback = _bounded(node, service, _LISTS[service.srv_type])
    if on_change is not None:
        node.add_post_set_parameters_callback(
            lambda values: on_change() if any(v.name in declared for v in values) else None
        )


def _bounded(node: Node, service: Service[Any, Any], listing: str) -> Callable[[Any, Any], Any]:
    """Return the callback of a parameter service that refuses what is too long, as a whole.

    listing: the field of the request that is bounded.
    """
    answer = service.callback

    def serve(request: Any, response: Any) -> Any:
        given = len(getattr(request, listing))
        if given <= MOST_IN_A_CALL:
            return answer(request, response)
        reason = (
            f"{service.srv_name} was called with {given} {listing}; at most {MOST_IN_A_CALL} are "
            "accepted: make several calls"
        )
        node.get_logger().warning(reason, throttle_duration_sec=1.0)
        refusal = SetParametersResult(successful=False, reason=reason)
        if isinstance(response, SetParameters.Response):
            response.results = [refusal]  # one for all, since as many as were given take long, too
        elif isinstance(response, SetParametersAtomically.Response):
            response.result = refusal
        return response

    return serve


def _given_names(node: Node) -> list[str]:
    """Return the names of all parameters that were given at the start, without those of ROS itself."""
    return [
        name
        for name in node._parameter_overrides
        if not node.has_parameter(name) and not name.startswith("qos_overrides.")
    ]


def _given_integers(node: Node, doubles: Collection[str]) -> dict[str, float]:
    """Return the values of those parameters of type double that were given as integers."""
    given = {}
    for name in doubles:
        value = node.declare_parameter(name, 0.0, ParameterDescriptor(dynamic_typing=True)).value
        node.undeclare_parameter(name)
        if isinstance(value, int) and not isinstance(value, bool):
            given[name] = float(value)
    return given


def _declare(node: Node, parameter: DeclaredParameter, given: float | None) -> None:
    """given: the value that stands in place of the one that was given; None to take that one."""
    value = parameter.default if given is None else given
    try:
        node.declare_parameter(
            parameter.name, value, descriptor(parameter), ignore_override=given is not None
        )
    except (InvalidParameterTypeException, InvalidParameterValueException) as error:
        raise UserError(str(error)) from error


def _as_double(value: Parameter[Any], doubles: Collection[str]) -> Parameter[Any]:
    """Return an integer as a double where that is declared, and all else as it is."""
    if value.name in doubles and value.type_ is Parameter.Type.INTEGER:
        return Parameter(value.name, value=float(value.value))
    return value


def descriptor(parameter: DeclaredParameter) -> ParameterDescriptor:
    """Return what `ros2 param describe` shows: help text, range, and unit or choices."""
    about = parameter.about
    result = ParameterDescriptor(description=about.help, read_only=not about.live)
    constraints = [f"unit: {parameter.about.unit}"] if parameter.about.unit else []
    if parameter.range_text:
        constraints.append(f"accepted: {parameter.range_text}")
    result.additional_constraints = "; ".join(constraints)
    least = 0.0 if parameter.about.positive else parameter.about.minimum
    most = about.maximum
    if least is not None and parameter.type is float:
        # ROS writes the bits of an int that stands where a float belongs: 10 arrives as 5e-324.
        ends = {"from_value": float(least), "to_value": math.inf if most is None else float(most)}
        result.floating_point_range = [FloatingPointRange(**ends)]
    elif least is not None and parameter.type is int:
        smallest = int(least) + parameter.about.positive
        largest_integer = LARGEST_INTEGER if most is None else int(most)
        result.integer_range = [IntegerRange(from_value=smallest, to_value=largest_integer)]
    return result


def read_parameters(node: Node, node_parameters: type[Parameters]) -> Parameters:
    """Return the values of all parameters as they are now."""
    names = [parameter.name for parameter in parameters_of(node_parameters)]
    return node_parameters(**{name: node.get_parameter(name).value for name in names})


def given_parameters(program: str, node_parameters: type[Parameters]) -> Parameters:
    """Return the parameters of a program that needs them before it makes its nodes."""
    node = Node(program)
    try:
        declare_parameters(node, node_parameters)
        return read_parameters(node, node_parameters)
    finally:
        node.destroy_node()


# The signals that end a process as a flag, so that no callback is interrupted.

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Ctrl-C, an end by launch or systemd, a closed terminal, and Ctrl-\\."""


class StopSignals:
    """`requested` becomes True at the first of `SIGNALS`.

    The handlers of rclpy must be off.
    """

    def __init__(self, deadline_s: float | None = None) -> None:
        """deadline_s: end the process at the latest that long after the signal; None for no limit."""
        self.requested = False
        self._deadline_s = deadline_s
        for number in SIGNALS:
            signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if not self.requested and self._deadline_s is not None:
            timer = threading.Timer(self._deadline_s, self._end)
            timer.daemon = True
            timer.start()
        self.requested = True

    def _end(self) -> None:
        print(
            f"the process did not end by itself within {self._deadline_s} s of the signal",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)


def end_process(code: int) -> NoReturn:
    """End the process at once. Call this when all is closed that others rely on.

    An ordinary exit takes down every library and its threads, which lasts seconds with torch, and waits
    for a network or a language model that is still at work.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# Tells the publishers of a topic apart. rclpy names the sender of a message from Kilted on, not in Jazzy.

MessageInfo = Mapping[str, Any]
"""What a callback with two arguments gets beside its message. Jazzy has no type for it."""


def publisher_of(info: MessageInfo) -> bytes | None:
    """Return the identity (GID) of the sender of a message, or None where rclpy does not tell it."""
    gid = info.get("publisher_gid")
    return bytes(gid["data"]) if gid else None


MOST_SENDERS = 1024
"""So many publishers are remembered, those that were heard last."""


class LossCounter:
    """Finds messages that never arrived, from the numbers that each publisher gives to its messages.

    Without the sender's identity, numbers are compared only while the topic has a single publisher: those of
    two look like gaps.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, bytes | None], int] = {}

    def lost(self, topic: str, info: MessageInfo, publishers: int) -> int:
        """Return how many of the sender's messages were lost before it. publishers: those of the topic."""
        key, number = (topic, publisher_of(info)), info["publication_sequence_number"]
        before = self._numbers.pop(key, None)
        if number is None or (key[1] is None and publishers != 1):
            return 0
        self._numbers[key] = number
        if len(self._numbers) > MOST_SENDERS:
            del self._numbers[next(iter(self._numbers))]
        return 0 if before is None else max(0, number - before - 1)


# The QoS profiles of all topics, with the reasons for them.

SENSOR = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Receives from reliable and from best-effort publishers, and keeps only the newest message."""

MERGED = QoSProfile(depth=20, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Receives messages of which each tells a part, such as the joints of an arm or of a base: on a busy
computer the part that comes last must not take the place of one that still waits."""

COMMAND = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
"""Not kept for late subscribers: a restarted base controller must not receive old velocities."""

NEWEST = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
"""Receives commands, of which a robot carries out the newest: none waits behind older ones."""

LATCHED = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
"""Late subscribers receive the last message. This serves instructions, and all topics in lockstep:
a message that is lost while two processes discover each other would never be sent again, and both
would wait."""

TRANSFORMS = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
"""What tf2 takes for `/tf`."""

_LISTENING = (
    QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE),
    LATCHED,
    QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT),
)

_REMEMBERED = 64
"""Messages of which late copies are recognised, and publishers whose messages are."""


class _Times:
    """When the last messages of each publisher were sent; of the publishers, the newest are remembered."""

    def __init__(self) -> None:
        self._sent_ns: dict[bytes | None, deque[int]] = {}

    def of(self, publisher: bytes | None) -> deque[int]:
        """Return the times of one publisher, to which the caller adds."""
        times = self._sent_ns.pop(publisher, None) or deque(maxlen=_REMEMBERED)
        self._sent_ns[publisher] = times
        if len(self._sent_ns) > _REMEMBERED:
            del self._sent_ns[next(iter(self._sent_ns))]
        return times


def listen(
    node: Node,
    kind: Any,
    topic: str,
    callback: Callable[[Any, MessageInfo], None],
    keeps: Callable[[Any], bool] = lambda _: False,
    *,
    apart: bool = False,
) -> list[Subscription[Any]]:
    """Subscribe to a topic of rare messages, whatever the QoS of its publishers.

    No single subscription will do. One gets what was published before it (transient local); one hears
    publishers that keep nothing, such as `ros2 topic pub --once`, whose only message a best-effort
    subscription loses if it has not discovered the publisher yet; and one hears best-effort publishers.
    `callback` gets most messages several times, each with its `MessageInfo`: it must change nothing when
    they are repeated. A copy of
    a message that comes after a newer one is dropped. So is a message that was lost on the subscription
    that was quicker, and comes on another one before the newer one has come there, unless `keeps` says that
    it counts even so. What comes after the newer one on the same subscription is never dropped: the clock of
    its publisher is behind. apart: whether only messages of one publisher are compared, each of which tells a
    state of its own.
    """
    heard = _Times()

    def receiver() -> Callable[[Any, Any], None]:
        own = _Times()

        def receive(message: Any, info: Any) -> None:
            publisher = publisher_of(info) if apart else None
            heard_ns, own_ns = heard.of(publisher), own.of(publisher)
            sent_ns = info["source_timestamp"]  # the same for all copies
            newest_ns = max(heard_ns, default=sent_ns)
            own_ns.append(sent_ns)
            overtaken = sent_ns < newest_ns and newest_ns not in own_ns
            if sent_ns < newest_ns and (sent_ns in heard_ns or (overtaken and not keeps(message))):
                return
            heard_ns.append(sent_ns)
            callback(message, info)

        return receive

    quiet = SubscriptionEventCallbacks(incompatible_qos=lambda _: None)  # for the other two
    return [
        node.create_subscription(kind, topic, receiver(), qos, event_callbacks=quiet)
        for qos in _LISTENING
    ]


# Tells a person that two nodes have one name, which ROS allows.

LOOK_AFTER_S = 2.0
"""By then a node knows those that were there before it; those that come later tell it themselves."""


def tell_namesakes(node: Node) -> None:
    """Warn once, soon after the start, if another node has the name of this one."""

    def look() -> None:
        timer.cancel()
        own = node.get_name(), node.get_namespace()
        if node.get_node_names_and_namespaces().count(own) > 1:
            node.get_logger().warning(
                f"another node of this ROS domain is called {node.get_fully_qualified_name()}, or one was "
                "killed within the last 20 s; services reach either of them: end one, or start it in a "
                "namespace (-r __ns:=/left)"
            )

    # On the steady clock, since simulated time may stand still.
    timer = node.create_timer(LOOK_AFTER_S, look, clock=Clock(clock_type=ClockType.STEADY_TIME))
