"""A configured recorder with its topics, services and status."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import Any, Protocol

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.node import Node
from rclpy.task import Future
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger

from ttm.datasets.hdf5 import remove_leftovers
from ttm.policy.errors import UserError, require_instruction
from ttm.sim.shipped import SHIPPED
from ttm_policy.contract import load_contract
from ttm_policy.guards import ClockSteps
from ttm_policy.inputs import read_instruction, read_json
from ttm_policy.messages import check_fields
from ttm_policy.parameters import RecorderParameters
from ttm_policy.programs import steady_timer
from ttm_policy.qos import LATCHED, listen
from ttm_policy.recording.session import IN_HAND, RecordingSession, State
from ttm_policy.recording.sink import EpisodeSink, Written
from ttm_policy.recording.topics import RecordedTopics
from ttm_policy.recording.values import TickValues, read_given_spec

UPDATE_S = 0.02
"""Wall time between two updates of the session and its status."""
WITHIN_S = 30.0
"""The longest wait for a scene to begin, in wall time."""
SCENE = "scene"
"""The number of the scene in the state of an episode, counted from the start of the simulator."""


class Recorder:
    """Translates between topics and services and a `RecordingSession`. It begins none until `active`.

    Raises `UserError` if contract, spec and parameters do not fit together.
    """

    def __init__(self, node: Node, parameters: RecorderParameters) -> None:
        self._node = node
        self.active = False
        contract = load_contract(parameters.contract)
        check_fields(contract)
        like = parameters.spec or ("" if parameters.contract else SHIPPED)
        given = read_given_spec(like, contract, parameters.rate_hz)
        self._parameters = replace(parameters, rate_hz=given.rate_hz)
        stamped = parameters.cmd_vel_stamped
        values = TickValues(contract, given.complete_without_images(), cmd_vel_stamped=stamped)
        folder = Path(parameters.folder).expanduser()
        for path in remove_leftovers(folder):
            node.get_logger().warning(f"deleted {path}: its recorder was killed while it recorded")
        quality = parameters.jpeg_quality or None
        self._sink = EpisodeSink(folder, given, jpeg_quality=quality, cmd_vel_stamped=stamped)
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
        self._listeners = listen(
            node, String, "instruction", lambda message, _: self._on_instruction(message)
        )
        calls = {"start": self.start, "discard": self.session.discard, "undo": self.session.undo}
        self._services = [node.create_service(SetBool, "~/stop", self._serve_stop)]
        for name, call in calls.items():
            self._services.append(node.create_service(Trigger, f"~/{name}", _answering(call)))
        self._timer = steady_timer(node, UPDATE_S, self.update)
        node.get_logger().info(f"{contract.robot} at {given.rate_hz:g} Hz")

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

    # What keys ask for: `EpisodeCalls`.

    def start_or_stop(self) -> str:
        """Begin an episode, or end it as a success."""
        if self.session.state is State.RECORDING:
            return attempt(lambda: self.stop(success=True))[1]
        return attempt(self.start)[1]

    def stop_as_failure(self) -> str:
        """End the episode as a failure."""
        return attempt(lambda: self.stop(success=False))[1]

    def discard(self) -> str:
        """Drop the episode in hand."""
        return attempt(self.session.discard)[1]

    def undo(self) -> str:
        """Delete the last episode."""
        return attempt(self.session.undo)[1]

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
            if isinstance(result, Written):
                self.session.written(result.path)
            else:
                self.session.failed(result.number, result.reason)
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

    def _serve_stop(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        response.success, response.message = attempt(lambda: self.stop(request.data))
        return response

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


def promise(scene: int, seed: int) -> str:
    """Return what the simulator answers who asks for a scene: which one begins, in words."""
    return f"scene {scene}, initial state {seed}"


class SceneStart:
    """Asks a simulated robot for the same scene again, and begins the session's episode with it.

    It is known by the number that the robot promises: another scene may have been about to begin.
    """

    def __init__(self, node: Node, simulator: str, session: RecordingSession) -> None:
        """simulator: the name of its node."""
        self._node, self._simulator, self._session = node, simulator, session
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

    def update(self, now_s: float) -> None:
        """Give up a scene that does not begin."""
        if self._until_s is not None and now_s >= self._until_s:
            self._until_s = None
            self._session.scene_missing(
                f"{self._simulator} has not begun the scene within {WITHIN_S:g} s"
            )

    def close(self) -> None:
        """Destroy topic and client."""
        self._node.destroy_subscription(self._subscription)
        self._node.destroy_client(self._client)

    def _on_answer(self, answer: Future) -> None:
        reply: Any = answer
        if answer is not self._asked:  # that of an episode that was discarded
            return
        found = re.match(r"scene (\d{1,18})\b", reply.result().message)
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


class EpisodeCalls(Protocol):
    """What keys ask of a recorder. Each returns what happens, in words."""

    def start_or_stop(self) -> str: ...
    def stop_as_failure(self) -> str: ...
    def discard(self) -> str: ...
    def undo(self) -> str: ...


_CALLS: Mapping[str, Callable[[EpisodeCalls], str]] = {
    " ": methodcaller("start_or_stop"),
    "f": methodcaller("stop_as_failure"),
    "d": methodcaller("discard"),
    "u": methodcaller("undo"),
}


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
