"""A configured recorder: the topics that it records, its services and its status."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger

from ttm.datasets.hdf5 import remove_leftovers
from ttm.policy.errors import UserError, require_instruction
from ttm_policy.guards import ClockSteps
from ttm_policy.inputs import WARN_EVERY_S, read_instruction, read_json
from ttm_policy.messages import MESSAGE_TYPES
from ttm_policy.parameters import RecorderParameters
from ttm_policy.programs import steady_timer
from ttm_policy.qos import LATCHED, LossCounter, MessageInfo, listen
from ttm_policy.recording.episodes import (
    EpisodeSink,
    JointTopics,
    TickValues,
    given_by,
    unpacked,
)
from ttm_policy.recording.matching import Stamped, Stamper, header_ns
from ttm_policy.recording.session import IN_HAND, RecordingSession, State

UPDATE_S = 0.02
"""Wall time between two updates of the session and its status."""
WITHIN_S = 30.0
"""The longest wait for a scene to begin, in wall time."""
SCENE = "scene"
"""The number of the scene in the state of an episode, counted from the start of the simulator."""
DEPTH = 200
"""So many messages of a topic may wait while another one is handled."""
LOOK_S = 0.2
"""Wall time between two looks at the publishers."""
Qos = tuple[ReliabilityPolicy, DurabilityPolicy]
FIRST_QOS: Qos = (ReliabilityPolicy.RELIABLE, DurabilityPolicy.VOLATILE)
"""That of commands before there is a publisher."""


class RecordedTopics:
    """Receives the messages of all topics as they were serialised, so that taking one is quick.

    The QoS follows that of the publishers: reliable if all are, and with what was published before if all
    keep it, as a simulator in lockstep does. Commands are subscribed to before there is a publisher.
    """

    def __init__(
        self, node: Node, values: TickValues, session: RecordingSession, *, simulated: bool
    ) -> None:
        """simulated: whether stamps are in simulated time."""
        self._node, self._session = node, session
        self._types, self._observed = values.types, session.topics.observed
        self._joints, self._stamper = JointTopics(values.contract), Stamper(simulated=simulated)
        self._losses = LossCounter()
        self._qos: dict[str, Qos] = {}
        self._subscriptions: dict[str, Subscription[Any]] = {}
        for topic in self._types.keys() - self._observed:
            self._subscribe(topic, FIRST_QOS)
        self._updated_s = -math.inf
        self.update()

    def update(self) -> None:
        """Subscribe again where the publishers' QoS has changed. This may be called at any rate."""
        if time.monotonic() - self._updated_s < LOOK_S:
            return
        self._updated_s = time.monotonic()
        for topic in self._types:
            publishers = self._node.get_publishers_info_by_topic(topic)
            offered = [publisher.qos_profile for publisher in publishers]
            if offered and (qos := _qos_for(offered)) != self._qos.get(topic):
                self._subscribe(topic, qos)

    def flush(self) -> None:
        """Pass on the messages that wait for an observation after them."""
        self._pass_on(self._stamper.flush())

    def close(self) -> None:
        """Destroy all subscriptions."""
        for subscription in self._subscriptions.values():
            self._node.destroy_subscription(subscription)
        self._subscriptions.clear()

    def _subscribe(self, topic: str, qos: Qos) -> None:
        """Subscribe, and then destroy the subscription before, so that nothing is missed."""
        kind = MESSAGE_TYPES[self._types[topic]]

        def receive(data: bytes, info: MessageInfo) -> None:
            self._take(topic, data, header_ns(data) if hasattr(kind, "header") else 0, info)

        before, self._qos[topic] = self._subscriptions.get(topic), qos
        profile = QoSProfile(depth=DEPTH, reliability=qos[0], durability=qos[1])
        made = self._node.create_subscription(kind, topic, receive, profile, raw=True)
        self._subscriptions[topic] = made
        if before is not None:
            self._node.destroy_subscription(before)

    def _take(self, topic: str, data: bytes, stamp_ns: int, info: MessageInfo) -> None:
        published_ns = info["source_timestamp"] or self._node.get_clock().now().nanoseconds
        if lost := self._losses.lost(topic, info, self._node.count_publishers(topic)):
            self._session.lose(topic, lost)
        message: Any = data
        if topic in self._joints.topics:
            try:
                message = unpacked(topic, data, self._types[topic])
            except UserError as error:
                self._node.get_logger().error(str(error), throttle_duration_sec=WARN_EVERY_S)
                return
            message = self._joints.completed(topic, message)
        if topic in self._observed and stamp_ns:
            self._pass_on(self._stamper.note(stamp_ns, published_ns))
        self._pass_on(self._stamper.take(topic, stamp_ns, published_ns, message))

    def _pass_on(self, messages: Sequence[Stamped]) -> None:
        for message in messages:
            self._session.message(*message)


def _qos_for(offered: Sequence[QoSProfile]) -> Qos:
    """Return the strongest QoS that all publishers offer."""
    reliable = all(qos.reliability == ReliabilityPolicy.RELIABLE for qos in offered)
    kept = reliable and all(qos.durability == DurabilityPolicy.TRANSIENT_LOCAL for qos in offered)
    return (
        ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        DurabilityPolicy.TRANSIENT_LOCAL if kept else DurabilityPolicy.VOLATILE,
    )


class Recorder:
    """Translates between topics and services and a `RecordingSession`; begins none until `active`."""

    def __init__(self, node: Node, parameters: RecorderParameters) -> None:
        self._node = node
        self.active = False
        given = given_by(parameters)
        self._parameters = replace(parameters, rate_hz=given.rate_hz)
        values = given.values(given.complete_without_images())
        folder = Path(parameters.folder).expanduser()
        for path in remove_leftovers(folder):
            node.get_logger().warning(f"deleted {path}: its recorder was killed while it recorded")
        self._sink = EpisodeSink(folder, given, parameters.jpeg_quality or None)
        self.session = RecordingSession(values.topics, self._parameters, self._sink)
        simulated = bool(node.get_parameter("use_sim_time").value)
        # Simulated time begins again with its simulator, which the session notices by the stamps.
        self._clock_steps = None if simulated else ClockSteps()
        self._topics = RecordedTopics(node, values, self.session, simulated=simulated)
        simulator = parameters.simulator
        self._scene = SceneStart(node, simulator, self.session) if simulator else None
        self._instruction = require_instruction(parameters.instruction, "instruction")
        self._status = node.create_publisher(String, "~/status", LATCHED)
        self._shown = ""
        self._logged: tuple[Any, ...] = ()
        listen(node, String, "instruction", lambda message, _: self._on_instruction(message))
        self._calls: dict[str, Callable[..., str]] = {"start": self.start, "stop": self.stop}
        self._calls |= {"discard": self.session.discard, "undo": self.session.undo}
        for name in self._calls:
            kind = SetBool if name == "stop" else Trigger
            node.create_service(kind, f"~/{name}", partial(self._serve, name))
        self._timer = steady_timer(node, UPDATE_S, self.update)
        node.get_logger().info(f"{given.contract.robot} at {given.rate_hz:g} Hz")

    def start(self) -> str:
        """Begin an episode, with a `simulator` its scene; return what happens. Raises `UserError`."""
        if not self.active:
            raise UserError("the recorder is not active; activate it first")
        now_s = time.monotonic()
        said = self.session.start(self._instruction, now_s, waits=self._scene is not None)
        if self._scene is not None:
            try:
                self._scene.ask(now_s)
            except UserError as error:
                self.session.scene_missing(str(error))
                raise
        return said

    def stop(self, success: bool | None) -> str:
        """End the episode and keep it; return what happens, in words."""
        return self.session.stop(success, time.monotonic())

    @property
    def is_recording(self) -> bool:
        """Whether an episode is taken."""
        return self.session.state is State.RECORDING

    def ask(self, service: str, *data: bool) -> str:
        """Do what a service of the recorder does; return what happens, or why it does not."""
        return self._attempt(service, *data)[1]

    def _attempt(self, service: str, *data: bool) -> tuple[bool, str]:
        try:
            return True, self._calls[service](*data)
        except UserError as error:
            return False, " ".join(str(error).split())

    def _serve(self, service: str, request: Any, response: Any) -> Any:
        data = (request.data,) if service == "stop" else ()
        response.success, response.message = self._attempt(service, *data)
        return response

    def update(self) -> None:
        """Let time pass, and publish what has changed."""
        if self._clock_steps is not None:
            before_s, now = time.monotonic(), self._node.get_clock().now()
            if step_s := self._clock_steps.step_s(now.nanoseconds, before_s, time.monotonic()):
                self.session.clock_changed(step_s)
        self._topics.update()
        if self._scene is not None:
            self._scene.update(time.monotonic())
        while not self._sink.results.empty():
            result = self._sink.results.get()
            if result.path is None:
                self.session.failed(result.number, result.problem)
            else:
                self.session.written(result.path)
        if self.session.ends(time.monotonic()):
            self._topics.flush()
        self.session.update(time.monotonic())
        self._publish()

    def interrupt(self) -> None:
        """Discard the episode in hand. One that was stopped is still saved."""
        self.active = False
        if self.session.state in IN_HAND:
            self.session.discard()
            self._node.get_logger().warning("the episode in hand is discarded")

    def close(self) -> None:
        """Finish what was stopped, and take no more messages."""
        self.interrupt()
        deadline_s = time.monotonic() + self._parameters.max_delay_s + UPDATE_S
        while self.session.state is State.SAVING and time.monotonic() < deadline_s:
            self.update()
            time.sleep(UPDATE_S)
        self._sink.close()
        self.update()
        self._node.destroy_timer(self._timer)
        self._topics.close()

    def diagnosis(self, name: str) -> DiagnosticStatus:
        """Return the state for `/diagnostics`."""
        session, level, text = self.session, DiagnosticStatus.OK, self.session.state.value
        if session.problem:
            level, text = DiagnosticStatus.ERROR, session.problem
        elif missing := session.missing():
            level, text = DiagnosticStatus.WARN, f"nothing received from: {', '.join(missing)}"
        elif silent := session.silent():
            level, text = DiagnosticStatus.WARN, f"silent for a second: {', '.join(silent)}"
        status = DiagnosticStatus(name=name, level=level, message=text)
        status.values = [KeyValue(key=k, value=str(v)) for k, v in self.status().items()]
        return status

    def status(self) -> dict[str, Any]:
        """Return what `~/status` publishes."""
        session = self.session
        whole = not session.missing()
        return {
            "state": session.state.value,
            "instruction": self._instruction,
            "ticks": session.num_ticks,
            "remaining_s": round(session.remaining_s(time.monotonic()), 1),
            "to_write": self._sink.waiting,
            "episodes": len(session.saved),
            "last": str(session.saved[-1]) if session.saved else "",
            "problem": session.problem,
            "cadence": session.report,
            "lost": session.lost,
            "missing": session.missing(),
            "silent": session.silent(),
            "newest_ns": min(session.newest_ns.values(), default=0) if whole else 0,
        }

    def _on_instruction(self, message: String) -> None:
        if text := read_instruction(self._node, message):
            self._instruction = text

    def _publish(self) -> None:
        """Publish the status if it has changed, and log what a person should know."""
        text = json.dumps(self.status(), ensure_ascii=False)
        if text != self._shown:
            self._shown = text
            self._status.publish(String(data=text))
        session, logger = self.session, self._node.get_logger()
        if session.clock_change:
            logger.warning(session.clock_change)
            session.clock_change = ""
        news = session.state, session.problem, tuple(session.saved)
        if news == self._logged:
            return
        self._logged = news
        if session.problem:
            logger.error(session.problem)
        elif session.state is State.READY and session.report and session.saved:
            logger.info(f"saved {session.saved[-1]}: {session.report}")
        logger.info(session.state.value)


def promise(scene: int, seed: int) -> str:
    """Return what the simulator answers who asks for a scene: which one begins, in words."""
    return f"scene {scene}, initial state {seed}"


class SceneStart:
    """Asks a simulated robot for the same scene again, and awaits the number that it promises."""

    def __init__(self, node: Node, simulator: str, session: RecordingSession) -> None:
        """simulator: the name of its node."""
        self._node, self._simulator, self._session = node, simulator, session
        self._client = node.create_client(Trigger, f"{simulator}/same_scene")
        node.create_subscription(String, f"{simulator}/episode", self._on_episode, LATCHED)
        self._until_s: float | None = None
        self._asked: Any = None
        self._awaited: int | None = None
        self._newest = -1

    def ask(self, now_s: float) -> None:
        """Ask for the scene. Raises `UserError` if there is no simulated robot."""
        if not self._client.service_is_ready():
            raise UserError(f"{self._simulator} is not there; start it, or name it by simulator")
        self._until_s, self._awaited = now_s + WITHIN_S, None
        self._asked = self._client.call_async(Trigger.Request())
        self._asked.add_done_callback(self._on_answer)

    def update(self, now_s: float) -> None:
        """Give up a scene that does not begin."""
        if self._until_s is not None and now_s >= self._until_s:
            self._until_s = None
            problem = f"{self._simulator} has not begun the scene within {WITHIN_S:g} s"
            self._session.scene_missing(problem)

    def _on_answer(self, answer: Any) -> None:
        if self._asked is not answer:  # that of an episode that was discarded
            return
        found = re.match(r"scene (\d{1,18})\b", answer.result().message)
        self._awaited = int(found[1]) if found else None
        self._look()

    def _on_episode(self, message: String) -> None:
        if state := read_json(self._node, f"{self._simulator}/episode", message, {SCENE: -1}):
            self._newest = state[SCENE]
            self._look()

    def _look(self) -> None:
        if self._until_s is None or self._awaited is None or self._newest < self._awaited:
            return
        self._until_s = None
        self._session.scene_begun(time.monotonic())


# Keys of the terminal that start and stop episodes.

HELP = "space: start, or stop as a success; f: stop as a failure; d: discard; u: undo the last; q: quit"


_SERVICES: Mapping[str, tuple[Any, ...]] = {"f": ("stop", False), "d": ("discard",), "u": ("undo",)}
"""Key -> the service of a recorder, and the data of its request."""


class EpisodeCalls(Protocol):
    """What keys ask of a recorder. `ask` calls a service, and returns what happens, in words."""

    @property
    def is_recording(self) -> bool: ...
    def ask(self, service: str, *data: bool) -> str: ...


class Keys:
    """Does what keys say, and prints what happens. `quit` becomes True when `q` was pressed."""

    def __init__(self) -> None:
        self.quit = False

    def handle(self, key: str, calls: EpisodeCalls | None) -> None:
        """Take a key that was pressed. calls: the recorder, or None while there is none."""
        if key == "q":
            self.quit = True
        elif calls is None:
            print("the recorder is not configured", flush=True)
        elif key == " ":
            print(calls.ask("stop", True) if calls.is_recording else calls.ask("start"), flush=True)
        elif key in _SERVICES:
            print(calls.ask(*_SERVICES[key]), flush=True)
        else:
            print(HELP, flush=True)
