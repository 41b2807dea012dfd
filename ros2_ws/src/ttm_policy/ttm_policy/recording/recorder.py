"""A configured recorder with its topics, services and status."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node
from rclpy.task import Future
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger

from ttm.datasets.hdf5 import remove_leftovers
from ttm.policy.errors import UserError, require_instruction
from ttm.sim.shipped import SHIPPED
from ttm_policy.contract import load_contract
from ttm_policy.guards import ClockSteps
from ttm_policy.inputs import DRIVER_TOPIC, read_instruction, read_json
from ttm_policy.messages import check_fields
from ttm_policy.parameters import RecorderParameters
from ttm_policy.qos import LATCHED, listen
from ttm_policy.recording.matching import JointTopics, Stamper, TickValues, message_image_size
from ttm_policy.recording.session import IN_HAND, RecordingSession, State, Timing, Topics
from ttm_policy.recording.sink import EpisodeSink, Failed, Written
from ttm_policy.recording.topics import RecordedTopics, read_given_spec

# Keys of the terminal that start and stop episodes.

HELP = "space: start, or stop as a success; f: stop as a failure; d: discard; u: undo the last; q: quit"


class EpisodeCalls(Protocol):
    """What keys ask of a recorder. Each returns what happens, in words."""

    def start_or_stop(self) -> str: ...
    def stop_as_failure(self) -> str: ...
    def discard(self) -> str: ...
    def undo(self) -> str: ...


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
        elif key in _CALLS:
            print(_CALLS[key](calls), flush=True)
        else:
            print(HELP, flush=True)


_CALLS: Mapping[str, Callable[[EpisodeCalls], str]] = {
    " ": lambda calls: calls.start_or_stop(),
    "f": lambda calls: calls.stop_as_failure(),
    "d": lambda calls: calls.discard(),
    "u": lambda calls: calls.undo(),
}


# Lets a simulated robot begin its scene anew, so that an episode is recorded from the start of one.

WITHIN_S = 30.0
"""The longest wait for a scene to begin, in wall time."""
SCENE = "scene"
"""The number of the scene in the state of an episode, counted from the start of the simulator."""


def promise(scene: int, seed: int) -> str:
    """Return what the simulator answers who asks for a scene: which one begins, in words."""
    return f"scene {scene}, initial state {seed}"


class SceneStart:
    """Asks a simulated robot for the same scene again, and says when it has begun.

    It is told by the number that the robot promises: another scene may have been about to begin.
    """

    def __init__(self, node: Node, simulator: str, on_begun: Callable[[], None]) -> None:
        """simulator: the name of its node. on_begun: called once for each `ask`."""
        self._node, self._simulator, self._on_begun = node, simulator, on_begun
        self._client = node.create_client(Trigger, f"{simulator}/same_scene")
        self._subscription = node.create_subscription(
            String, f"{simulator}/episode", self._on_episode, LATCHED
        )
        self._until_s: float | None = None
        self._asked: Future | None = None
        self._awaited: int | None = None
        self._newest = -1

    def ask(self, now_s: float) -> None:
        """Ask for the scene. Raises `UserError` if there is no simulated robot."""
        if not self._client.service_is_ready():
            raise UserError(
                f"{self._simulator} is not there; start it, or set simulator to its name"
            )
        self._until_s, self._awaited = now_s + WITHIN_S, None
        self._asked = self._client.call_async(Trigger.Request())
        self._asked.add_done_callback(self._on_answer)

    def forget(self) -> None:
        """Let the episode go whose scene is awaited."""
        self._until_s = None

    def problem(self, now_s: float) -> str:
        """Return why the scene that is awaited will not begin any more, or an empty text."""
        if self._until_s is None or now_s < self._until_s:
            return ""
        return f"{self._simulator} has not begun the scene within {WITHIN_S:g} s"

    def close(self) -> None:
        """Destroy topic and client."""
        self._node.destroy_subscription(self._subscription)
        self._node.destroy_client(self._client)

    def _on_answer(self, answer: Future) -> None:
        if (
            self._asked is None or answer is not self._asked
        ):  # that of an episode that was discarded
            return
        reply: Any = answer.result()
        found = re.match(r"scene (\d{1,18})\b", reply.message)
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
        self._on_begun()


UPDATE_S = 0.02
"""Wall time between two updates of the session and its status."""


class Recorder:
    """Translates between topics and services and a `RecordingSession`. It begins none until `active`.

    Raises `UserError` if contract, spec and parameters do not fit together.
    """

    def __init__(self, node: Node, parameters: RecorderParameters) -> None:
        self._node, self._parameters = node, parameters
        self.active = False
        self._contract = load_contract(parameters.contract)
        check_fields(self._contract)
        like = parameters.spec or ("" if parameters.contract else SHIPPED)
        self._given = read_given_spec(like, self._contract, parameters.rate_hz)
        unknown = {source.name: (1, 1) for source in self._contract.images}
        values = self._values(unknown)
        observed = frozenset(source.topic for source in self._contract.inputs)
        topics = Topics(
            observed,
            frozenset((DRIVER_TOPIC, *(sink.topic for sink in self._contract.actions))),
            frozenset(values.moving),
            values.measured.is_needed,
        )
        self._results: SimpleQueue[Written | Failed] = SimpleQueue()
        folder = Path(parameters.folder).expanduser()
        for path in remove_leftovers(folder):
            node.get_logger().warning(f"deleted {path}: its recorder was killed while it recorded")
        self._sink = EpisodeSink(
            folder,
            jpeg_quality=parameters.jpeg_quality or None,
            on_result=self._results.put,
        )
        self.session = RecordingSession(topics, self._timing(), self._sink, self._begin)
        simulated = bool(node.get_parameter("use_sim_time").value)
        # Simulated time begins again with its simulator, which the session notices by the stamps.
        self._clock_steps = None if simulated else ClockSteps()
        self._stamper = Stamper(self.session.message, simulated=simulated)
        joints = JointTopics(self._contract)
        self._topics = RecordedTopics(
            node, values.live_types, observed, joints, self._stamper, self.session.lose
        )
        self._scene = (
            SceneStart(node, parameters.simulator, self._on_scene) if parameters.simulator else None
        )
        self._instruction = require_instruction(parameters.instruction, "instruction")
        self._status = node.create_publisher(String, "~/status", LATCHED)
        self._shown = ""
        self._told: tuple[Any, ...] = ()
        self._listeners = listen(
            node, String, "instruction", lambda message, _: self._on_instruction(message)
        )
        self._services = self._create_services()
        self._timer = node.create_timer(
            UPDATE_S, self.update, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )
        node.get_logger().info(f"{self._contract.robot} at {self._given.rate_hz:g} Hz")

    def start(self) -> str:
        """Begin an episode; return what happens, in words. Raises `UserError` if it cannot be.

        With a `simulator` it begins with its scene, which begins anew.
        """
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

    def update(self) -> None:
        """Let time pass, and tell what has changed."""
        self._watch_clock()
        self._topics.update()
        if self._scene is not None and (problem := self._scene.problem(time.monotonic())):
            self._scene.forget()
            self.session.scene_missing(problem)
        while not self._results.empty():
            result = self._results.get()
            if isinstance(result, Written):
                self.session.written(result.path)
            else:
                self.session.failed(result.number, result.reason)
        if self.session.ends(time.monotonic()):
            self._stamper.flush()
        self.session.update(time.monotonic())
        self._publish()

    def _watch_clock(self) -> None:
        if self._clock_steps is None:
            return
        before_s, now = time.monotonic(), self._node.get_clock().now()
        if step_s := self._clock_steps.step_s(now.nanoseconds, before_s, time.monotonic()):
            self.session.clock_changed(step_s)

    def interrupt(self) -> None:
        """Discard the episode in hand. One that was stopped is still saved."""
        self.active = False
        if self.session.state in IN_HAND:
            self.session.discard()
            self._node.get_logger().warning("the episode in hand is discarded")

    def close(self) -> None:
        """Finish what was stopped, and destroy all topics and services."""
        self.interrupt()
        deadline_s = time.monotonic() + self._parameters.max_delay_s + UPDATE_S
        while self.session.state is State.SAVING and time.monotonic() < deadline_s:
            self.update()
            time.sleep(UPDATE_S)
        self._sink.close()
        self.update()
        self._node.destroy_timer(self._timer)
        self._topics.close()
        if self._scene is not None:
            self._scene.close()
        for listener in self._listeners:
            self._node.destroy_subscription(listener)
        for service in self._services:
            self._node.destroy_service(service)
        self._node.destroy_publisher(self._status)

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
        """Return what `~/status` tells."""
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

    def _timing(self) -> Timing:
        given = self._parameters
        return Timing(
            self._given.rate_hz,
            given.countdown_s,
            given.preroll_s,
            given.max_delay_s,
            given.min_fresh,
        )

    def _values(self, sizes: dict[str, tuple[int, int]]) -> TickValues:
        spec = self._given.complete(self._contract, sizes)
        stamped = self._parameters.cmd_vel_stamped
        return TickValues(self._contract, spec, cmd_vel_stamped=stamped)

    def _begin(self) -> int:
        """Make the sink ready, with cameras of the size of their newest images, and return its number."""
        sizes = {
            source.name: message_image_size(self._topics.newest(source.topic))
            for source in self._contract.images
        }
        return self._sink.begin(self._values(sizes))

    def _on_scene(self) -> None:
        """Begin an episode that waits for its scene, unless it was discarded meanwhile."""
        self.session.scene_begun(time.monotonic())

    def _on_instruction(self, message: String) -> None:
        if text := read_instruction(self._node, message):
            self._instruction = text

    def _create_services(self) -> list[Any]:
        node, session = self._node, self.session
        calls: dict[str, Callable[[], str]] = {
            "start": self.start,
            "discard": session.discard,
            "undo": session.undo,
        }

        def serve_stop(request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
            response.success, response.message = attempt(lambda: self.stop(request.data))
            return response

        services = [node.create_service(SetBool, "~/stop", serve_stop)]
        for name, call in calls.items():
            services.append(node.create_service(Trigger, f"~/{name}", _answering(call)))
        return services

    def _publish(self) -> None:
        """Publish the status if it has changed, and log what a person should know."""
        text = json.dumps(self.status(), ensure_ascii=False)
        if text != self._shown:
            self._shown = text
            self._status.publish(String(data=text))
        session = self.session
        logger = self._node.get_logger()
        if session.clock_change:
            logger.warning(session.clock_change)
            session.clock_change = ""
        told = session.state, session.problem, tuple(session.saved)
        if told == self._told:
            return
        self._told = told
        if session.problem:
            logger.error(session.problem)
        elif session.state is State.READY and session.report and session.saved:
            logger.info(f"saved {session.saved[-1]}: {session.report}")
        logger.info(session.state.value)


def attempt(call: Callable[[], str]) -> tuple[bool, str]:
    """Return whether a call succeeded, and what it says."""
    try:
        return True, call()
    except UserError as error:
        return False, " ".join(str(error).split())


def _answering(
    call: Callable[[], str],
) -> Callable[[Trigger.Request, Trigger.Response], Trigger.Response]:
    def serve(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success, response.message = attempt(call)
        return response

    return serve


# What the keys of the terminal ask of a recorder in this process.


class KeyCalls:
    """The `ttm_policy.recording.recorder.EpisodeCalls` of a `Recorder`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def start_or_stop(self) -> str:
        """Begin an episode, or end it as a success."""
        recorder = self._recorder
        if recorder.session.state is State.RECORDING:
            return attempt(lambda: recorder.stop(success=True))[1]
        return attempt(recorder.start)[1]

    def stop_as_failure(self) -> str:
        """End the episode as a failure."""
        return attempt(lambda: self._recorder.stop(success=False))[1]

    def discard(self) -> str:
        """Drop the episode in hand."""
        return attempt(self._recorder.session.discard)[1]

    def undo(self) -> str:
        """Delete the last episode."""
        return attempt(self._recorder.session.undo)[1]
