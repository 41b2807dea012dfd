"""A person drives: asks the device, and sends what they want to a policy node or to the robot itself."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.client import Client
from rclpy.duration import Duration
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger

from ttm.policy.errors import ObservationError, printable
from ttm_policy.contract import MOTION_TYPES, measured_goals
from ttm_policy.guards import CommandEcho, EStop, EStopTopic, StopThread
from ttm_policy.inputs import (
    DRIVER_TOPIC,
    PERIOD_S,
    PERSON_TOPIC,
    POLICY,
    Inputs,
    read_json,
    to_message,
)
from ttm_policy.lifecycle import DIAGNOSTICS_PERIOD_S
from ttm_policy.limits import RobotDescription, SafetyLimits
from ttm_policy.messages import CommandCodec
from ttm_policy.node_parameters import declare_parameters, read_parameters
from ttm_policy.parameters import DrivingParameters
from ttm_policy.programs import steady_timer, warn_of_duplicates
from ttm_policy.qos import COMMAND, LATCHED
from ttm_policy.recording.episodes import given_by
from ttm_policy.recording.session import State
from ttm_policy.teleop.source import Source, TeleopContext, Vector

FLUSH_S = 0.5
"""The longest wait for all subscribers to acknowledge the last commands."""
UNHEARD_AFTER_S = 3.0
"""What was never heard is reported so long after the start; a publisher may start with the session."""


def load_context(parameters: DrivingParameters) -> TeleopContext:
    """Read contract and spec. Raises `UserError` if they do not fit together."""
    given = given_by(parameters)
    return TeleopContext(given.contract, given.complete_without_images(), parameters.limits)


class Output(ABC):
    """Where the person's wishes go. It listens to what measures the joints and the gripper."""

    def __init__(self, node: Node, context: TeleopContext) -> None:
        self._node, self._context = node, context
        self.moves = False
        """Whether a wish is in force."""
        self._is_blind = not context.measured.vectors
        spec = replace(context.spec, cameras=())
        self._inputs = Inputs(node, context.measured, spec, lockstep=False)

    @property
    @abstractmethod
    def problem(self) -> str:
        """Why the robot must not move now, or an empty text."""

    @abstractmethod
    def send(self, wish: Vector) -> None:
        """Send a wish (A,). Raises `ObservationError` if that cannot be."""

    @abstractmethod
    def rest(self) -> None:
        """Stop the robot if it moves. This is called again and again while nobody wants anything."""

    def give_back(self) -> None:
        """Let the policy drive again, if there is one."""
        return

    def take_limits(self, limits: Mapping[str, float]) -> None:
        """Take other limits from the next command on, unless the policy node has the limits."""
        return

    def close(self) -> None:
        """Wait until the last commands have arrived."""
        return


class PolicyOutput(Output):
    """The topic on which a policy node listens to a person.

    The policy node has the limits, the guards and the emergency stop. A person who has taken over keeps
    telling it to stand still while they touch nothing, so that it knows that they are there.
    """

    def __init__(self, node: Node, context: TeleopContext, policy: str) -> None:
        """policy: the name of the policy node."""
        super().__init__(node, context)
        self._policy, self._person = policy, f"{node.get_name()}-{os.getpid()}"
        self._has_taken_over = False
        self._publisher = node.create_publisher(JointState, PERSON_TOPIC, COMMAND)
        self._client = node.create_client(Trigger, f"{policy}/give_back")
        node.create_subscription(String, DRIVER_TOPIC, self._on_driver, LATCHED)
        self._still = context.still

    @property
    def problem(self) -> str:
        """Why no policy node listens, or an empty text."""
        if self._publisher.get_subscription_count():
            return ""
        topic = self._node.resolve_topic_name(PERSON_TOPIC)
        remedy = "wait until it has loaded its policy, start it, or name it by policy"
        return f"{self._policy} does not listen to {topic}; {remedy}"

    def send(self, wish: Vector) -> None:
        """Take over, or drive on, with a wish (A,)."""
        given = np.isfinite(wish) & self._context.is_goal
        self._context.goals = np.where(given, wish, self._context.goals).astype(np.float32)
        self.moves = self._has_taken_over = True
        self._publish(wish)

    def rest(self) -> None:
        """Stand still if this person has taken over."""
        self.moves = False
        self._measure()
        if self._has_taken_over:
            self._publish(self._still)

    def give_back(self) -> None:
        self.moves = self._has_taken_over = False
        self._client.call_async(Trigger.Request())

    def _publish(self, wish: Vector) -> None:
        stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(to_message(self._context.spec, wish, stamp, self._person))

    def _on_driver(self, message: String) -> None:
        """Somebody else may have given back."""
        self._has_taken_over &= message.data != POLICY

    def _measure(self) -> None:
        """Note where joints and gripper are, from which controls move them on."""
        context = self._context
        try:
            seen = {} if self._is_blind else self._inputs.observation().values
        except ObservationError:
            return
        found = measured_goals(context.contract, context.spec, seen)
        context.goals = np.where(context.is_goal, found, np.nan).astype(np.float32)


class RobotOutput(Output):
    """The command topics of a contract, within the limits and the guards that a policy has as well.

    Velocities are sent with every call; goals of joints, and other messages that move nothing by
    themselves, when they change and once in each tick of the spec.
    """

    def __init__(
        self,
        node: Node,
        context: TeleopContext,
        parameters: DrivingParameters,
        on_e_stop: Callable[[], None],
    ) -> None:
        """on_e_stop: called when the state of the emergency stop changes."""
        super().__init__(node, context)
        self._max_age_s = parameters.max_age_s
        contract, spec = context.contract, context.spec
        self._limits = SafetyLimits(contract, spec, context.limits, period_s=PERIOD_S)
        self._codec = CommandCodec(contract, spec, cmd_vel_stamped=parameters.cmd_vel_stamped)
        types = self._codec.types()
        self._echo = CommandEcho(node, types)
        stop = EStop(rearm=parameters.e_stop_rearm, timeout_s=parameters.e_stop_timeout_s)
        self._stop_thread = StopThread(node)
        self._e_stop = EStopTopic(self._stop_thread, stop, on_e_stop)
        self._stop_thread.on_stop = self._stop_at_once
        self._publishers = {t: node.create_publisher(k, t, COMMAND) for t, k in types.items()}
        self._description = RobotDescription(node, self._limits)
        self._places = {
            topic: np.r_[tuple(spec.action_slices[sink.name] for sink in sinks)]
            for topic, sinks in self._codec.sinks.items()
        }
        self._last: dict[str, tuple[Vector, float]] = {}

    @property
    def problem(self) -> str:
        """Why the robot must not move now, or an empty text."""
        if problem := self._e_stop.problem:
            return f"emergency stop: {problem}"
        if problem := self._description.problem:
            return problem
        wall_s = time.monotonic()
        now_ns = self._node.get_clock().now().nanoseconds
        try:
            self._echo.require_alone(wall_s)
            self._inputs.require_trusted(now_ns, wall_s, self._max_age_s)
        except ObservationError as error:
            return str(error)
        return ""

    def take_limits(self, limits: Mapping[str, float]) -> None:
        self._limits.set_limits(limits)

    def send(self, wish: Vector) -> None:
        """Send a wish (A,) within the limits. Its NaN keeps what is in force, or as measured.

        Raises `ObservationError` if a measurement cannot be used.
        """
        context = self._context
        now_s = float(self._node.get_clock().now().nanoseconds) * 1e-9
        seen: Mapping[str, npt.NDArray[Any]] = {}
        late_s = 0.0
        if not self._is_blind:
            observation = self._inputs.observation()
            seen, late_s = observation.values, max(0.0, now_s - observation.oldest_ns * 1e-9)
        start = measured_goals(context.contract, context.spec, seen)
        start = np.where(np.isnan(context.goals), start, context.goals)
        wanted = np.where(np.isnan(wish), start, wish)
        known = np.isfinite(wanted)
        wanted = np.where(known, wanted, 0).astype(np.float32)
        command = self._limits.apply(wanted, seen, late_s=late_s, now_s=now_s)
        context.goals = np.where(known & context.is_goal, command, np.nan).astype(np.float32)
        with self._stop_thread.lock:
            if not self._stop_thread.stopped:
                self._publish(command, known)
                self.moves = True

    def rest(self) -> None:
        """Send zero once to all topics that move the robot. Joints and gripper keep their goals."""
        with self._stop_thread.lock:
            self._stop_at_once()
            if self.moves:
                self._limits.halt()
            self.moves = False

    def _stop_at_once(self) -> None:
        """Send zero if this moves the robot. This is called with the lock of the `StopThread`."""
        if not self.moves:
            return
        stamp = self._node.get_clock().now().to_msg()
        for topic, message in self._codec.stop(stamp).items():
            self._send(topic, message)

    def _publish(self, command: Vector, known: npt.NDArray[np.bool_]) -> None:
        messages = self._codec.encode(command, self._node.get_clock().now().to_msg())
        unheard = self._echo.unheard(self._publishers)
        for topic, message in messages.items():
            places = self._places[topic]
            if known[places].all() and self._is_due(topic, command[places]):
                self._send(topic, message)
        self._limits.halt(unheard)

    def _is_due(self, topic: str, values: Vector) -> bool:
        """Return whether a message is to be sent now: velocities always, all else as the class says."""
        if self._codec.sinks[topic][0].type in MOTION_TYPES:
            return True
        now_s = time.monotonic()
        before, sent_s = self._last.get(topic, (None, 0.0))
        unchanged = before is not None and np.array_equal(before, values)
        if unchanged and now_s - sent_s < self._context.spec.control_dt_s:
            return False
        self._last[topic] = values.copy(), now_s
        return True

    def _send(self, topic: str, message: Any) -> None:
        self._echo.sent(topic, message)
        self._publishers[topic].publish(message)

    def close(self) -> None:
        """Wait until the last commands have arrived, since an exit drops those not sent yet."""
        until_s = time.monotonic() + FLUSH_S
        for publisher in self._publishers.values():
            publisher.wait_for_all_acked(Duration(seconds=max(0.0, until_s - time.monotonic())))
        self._stop_thread.close()


def recorder_clients(node: Node, recorder: str) -> dict[str, Client[Any, Any]]:
    """Return clients of the services of a `recorder_node`, by the names of these."""
    kinds = {"start": Trigger, "stop": SetBool, "discard": Trigger, "undo": Trigger}
    return {name: node.create_client(kind, f"{recorder}/{name}") for name, kind in kinds.items()}


class RecorderCalls:
    """The `EpisodeCalls` of a `recorder_node` in another process; answers are printed when they come."""

    def __init__(self, node: Node, recorder: str) -> None:
        """recorder: the name of the node."""
        self._node, self._name, self._state = node, recorder, ""
        node.create_subscription(String, f"{recorder}/status", self._on_status, LATCHED)
        self._clients = recorder_clients(node, recorder)

    @property
    def is_recording(self) -> bool:
        """Whether the recorder takes an episode."""
        return self._state == State.RECORDING.value

    def ask(self, service: str, *data: bool) -> str:
        """Call a service of the recorder, and return that it is asked."""
        client = self._clients[service]
        if not client.service_is_ready():
            return f"{self._name} is not there; start it, or set recorder to its name"
        request = client.srv_type.Request(data=data[0]) if data else client.srv_type.Request()
        client.call_async(request).add_done_callback(
            lambda future: print(printable(future.result().message), flush=True)
        )
        return f"asking {self._name}"

    def _on_status(self, message: String) -> None:
        if status := read_json(self._node, f"{self._name}/status", message, {"state": str}):
            self._state = status["state"]


class TeleopSession:
    """Connects a device to the robot. It sends nothing before somebody touches the controls."""

    def __init__(
        self, node: Node, context: TeleopContext, parameters: DrivingParameters, source: Source
    ) -> None:
        self._node, self._source, self.context = node, source, context
        self.output: Output
        if parameters.policy:
            self.output = PolicyOutput(node, context, parameters.policy)
        else:
            self.output = RobotOutput(node, context, parameters, self.step)
        self.problem = ""
        """Why the robot does not do what the person wants, or an empty text."""
        self.unheard = ""
        """What the controls name and was not heard since the start, or an empty text."""
        self._begun_s = time.monotonic()
        self._diagnostics = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        timers = {PERIOD_S: self.step, DIAGNOSTICS_PERIOD_S: self._publish_diagnosis}
        self._timers = [steady_timer(node, period_s, call) for period_s, call in timers.items()]

    @property
    def driver(self) -> str:
        """The name of the source that moves the robot now, or an empty text."""
        return self._source.name if self.output.moves else ""

    def step(self) -> None:
        """Send what the driver wants now. This is called at every `PERIOD_S`, and may be between."""
        before = self.driver, _without_numbers(self.problem), self.unheard
        now_s = time.monotonic()
        source, wish = self._source, self._source.wish(now_s)
        refusal = ""
        if wish is not None and now_s - wish.stamp_s > source.timeout_s:
            silence = f"{source.name} has been silent for more than {source.timeout_s:g} s"
            refusal = f"{silence}; check that it still sends"
        elif wish is not None:
            refusal = self._send(wish.values)
        if wish is None or refusal:
            self.output.rest()
        if source.gives_back():
            self.output.give_back()
        self.problem = refusal or source.problem or self.output.problem
        if now_s - self._begun_s >= UNHEARD_AFTER_S:
            self.unheard = source.unheard
        problem = _without_numbers(self.problem)
        if (self.driver, problem, self.unheard) != before:
            if problem not in ("", before[1]):
                self._node.get_logger().warning(self.problem)
            if self.unheard not in ("", before[2]):
                self._node.get_logger().warning(self.unheard)
            self._publish_diagnosis()

    def _send(self, wish: Vector) -> str:
        """Send what is wanted, and return an empty text, or why it cannot be."""
        if problem := self.output.problem:
            return problem
        try:
            self.output.send(wish)
        except ObservationError as error:
            return str(error)
        return ""

    def close(self) -> None:
        """Stop the robot, and wait until it has received that. The topics end with the node."""
        for timer in self._timers:
            self._node.destroy_timer(timer)
        self.output.rest()
        self.output.close()

    def diagnosis(self) -> DiagnosticStatus:
        """Return the state for `/diagnostics`."""
        is_well = not self.problem and not self.unheard
        level = DiagnosticStatus.OK if is_well else DiagnosticStatus.WARN
        text = self.problem or (f"{self.driver} drives" if self.driver else "nobody drives")
        text = f"{text}; {self.unheard}" if self.unheard else text
        name = f"{self._node.get_fully_qualified_name()}: teleop"
        return DiagnosticStatus(name=name, hardware_id="ttm_policy", level=level, message=text)

    def _publish_diagnosis(self) -> None:
        message = DiagnosticArray(status=[self.diagnosis()])
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._diagnostics.publish(message)


def _without_numbers(problem: str) -> str:
    """Return a problem without the ages in it, which change from step to step."""
    return re.sub(r"[\d.]+", "", problem)


class DrivingNode(Node):
    """A node by which a person drives. Those derived from it begin `session`, and `close` ends it."""

    session: TeleopSession | None = None

    def __init__(self, name: str, parameters: type[DrivingParameters]) -> None:
        """parameters: those that the node has. Raises `UserError` for values that do not fit."""
        super().__init__(name)
        self._kind = parameters  # not _parameters, which rclpy has itself
        declare_parameters(self, parameters, self._on_parameters)
        warn_of_duplicates(self)

    def close(self) -> None:
        """Stop the robot, and wait until it has received that."""
        if self.session is not None:
            self.session.close()
            self.session = None

    def _on_parameters(self) -> None:
        if self.session is not None:
            self.session.output.take_limits(read_parameters(self, self._kind).limits)
