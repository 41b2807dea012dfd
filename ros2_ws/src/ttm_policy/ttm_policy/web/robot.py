"""The robot and its recorder as the web page sees them, over ROS."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import simplejpeg
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.client import Client
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.publisher import Publisher
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Bool, String
from std_srvs.srv import Trigger

from ttm.policy.errors import UserError, printable
from ttm_policy.contract import ImageSource
from ttm_policy.guards import E_STOP_TOPIC, REARM
from ttm_policy.inputs import read_json, read_json_texts
from ttm_policy.messages import MESSAGE_TYPES, image_to_frame
from ttm_policy.parameters import WebParameters
from ttm_policy.programs import steady_timer
from ttm_policy.qos import COMMAND, LATCHED, SENSOR
from ttm_policy.recording.episodes import message_image_size, unpacked
from ttm_policy.recording.session import State
from ttm_policy.teleop.controls import Controls
from ttm_policy.teleop.session import TeleopSession, recorder_clients
from ttm_policy.teleop.source import Source, Wish
from ttm_policy.web.access import DriverLock

QUALITY = 80
JPEG_START = b"\xff\xd8"
MOST_BYTES = 2**23
"""Of a JPEG that is passed on as it is, to every page that is open."""


class LiveFrame(NamedTuple):
    """The newest frame of a camera: a number of its own, and a JPEG."""

    number: int
    jpeg: bytes


class LiveCameras:
    """Keeps the newest message of each camera, and makes it a frame in the thread that asks for it."""

    def __init__(self, node: Node, sources: Sequence[ImageSource]) -> None:
        self._sources = {source.name: source for source in sources}
        self.names = list(self._sources)
        self._newest: dict[str, bytes] = {}
        self._made: dict[str, LiveFrame] = {}
        self._numbers, self._lock = count(1), threading.Lock()
        self.problems: dict[str, str] = {}
        """Camera -> why its newest frame cannot be shown."""
        for source in sources:
            kind, receive = MESSAGE_TYPES[source.type], partial(self._receive, source.name)
            node.create_subscription(kind, source.topic, receive, SENSOR, raw=True)

    def frame(self, camera: str) -> LiveFrame | None:
        """Return the newest frame, or None before the first good one."""
        with self._lock:
            if data := self._newest.pop(camera, None):
                try:
                    jpeg = _jpeg(data, self._sources[camera])
                    self._made[camera] = LiveFrame(next(self._numbers), jpeg)
                    self.problems.pop(camera, None)
                except UserError as error:
                    self.problems[camera] = str(error)
            return self._made.get(camera)

    def _receive(self, camera: str, data: bytes) -> None:
        self._newest[camera] = data


def _jpeg(data: bytes, source: ImageSource) -> bytes:
    """Return a message's image as a JPEG; one that is a JPEG is passed on. Raises `UserError`."""
    message = unpacked(source.topic, data, source.type)
    message_image_size(message)  # raises if it is damaged
    if isinstance(message, CompressedImage) and bytes(message.data[:2]) == JPEG_START:
        if len(message.data) > MOST_BYTES:
            size = f"'{source.topic}' has frames of {len(message.data)} bytes, above {MOST_BYTES}"
            raise UserError(f"{size}; lower the camera's size or its quality")
        return bytes(message.data)
    frame = image_to_frame(message, source, None)
    return bytes(simplejpeg.encode_jpeg(frame, QUALITY, "RGB"))


ANSWER_S = 5.0


async def ask(client: Client[Any, Any], **values: Any) -> str:
    """Return what a service says, from the server's thread. values: of its request.

    Raises `UserError` if it is not there, gives no answer, or refuses.
    """
    who = client.srv_name.split("/")[-2]  # the node that has it
    if not client.service_is_ready():
        raise UserError(f"{who} is not there; is it running?")
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Any] = loop.create_future()

    def tell(answer: Any) -> None:
        if not answered.done():
            answered.set_result(answer)

    future = client.call_async(client.srv_type.Request(**values))
    future.add_done_callback(lambda done: loop.call_soon_threadsafe(tell, done.result()))
    try:
        answer = await asyncio.wait_for(answered, ANSWER_S)
    except asyncio.TimeoutError as error:
        client.remove_pending_request(future)
        raise UserError(f"{who} gives no answer") from error
    if not answer.success:
        raise UserError(printable(answer.message))
    return printable(answer.message)


REPEAT_S = 0.1
"""The time between two messages of a pressed button; not everybody who listens hears the first one."""
FLUSH_S = 0.5
"""The longest wait for all listeners to acknowledge the release, and for the publisher to go."""
LOOK_S = 0.02


class StopButton:
    """Stops every node that hears the emergency stop, whoever drives, until `rearm` is called.

    It has a publisher only while it is pressed. Otherwise the robot's own button alone counts, and no
    message of a page hides that its driver has fallen silent. All calls but those of the timer come from
    the server's thread. The timer destroys publishers: an executor can end in an error when another thread
    does it.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._publisher: Publisher[Any] | None = None
        self._released: list[tuple[Publisher[Any], threading.Event]] = []
        self._rearms: dict[str, Client[Any, Any]] = {}
        steady_timer(node, REPEAT_S, self._repeat)

    @property
    def pressed(self) -> bool:
        """Whether a page has pressed it."""
        return self._publisher is not None

    def press(self) -> None:
        """Stop the robot."""
        with self._lock:
            if self._publisher is None:
                self._publisher = self._node.create_publisher(Bool, E_STOP_TOPIC, LATCHED)
            self._publisher.publish(Bool(data=True))

    async def rearm(self) -> str:
        """Release the button, and let all nodes of the namespace go on; return what they say.

        Raises `UserError` if one of them may not, such as under another button that is pressed.
        """
        await asyncio.to_thread(self._release)
        if self.pressed:
            raise UserError("stop was pressed again")
        answers = await asyncio.gather(*map(self._rearm, self._services()), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return "; ".join(dict.fromkeys(map(str, answers)))

    def _repeat(self) -> None:
        with self._lock:
            if self._publisher is not None:
                self._publisher.publish(Bool(data=True))
        while self._released:
            publisher, gone = self._released.pop()
            self._node.destroy_publisher(publisher)
            gone.set()

    def _release(self) -> None:
        with self._lock:
            publisher, self._publisher = self._publisher, None
            if publisher is None:
                return
            publisher.publish(Bool(data=False))
        publisher.wait_for_all_acked(Duration(seconds=FLUSH_S))
        gone = threading.Event()
        self._released.append((publisher, gone))
        gone.wait(FLUSH_S)  # so that nobody holds it for a button that is pressed

    def _services(self) -> list[str]:
        """Return the services that the emergency stop of this topic waits for: those beside it."""
        beside = self._node.resolve_topic_name(E_STOP_TOPIC).rpartition("/")[0]
        return [
            name
            for name, types in self._node.get_service_names_and_types()
            if re.fullmatch(rf"{re.escape(beside)}/[^/]+/rearm", name)
            and "std_srvs/srv/Trigger" in types
        ]

    async def _rearm(self, name: str) -> str:
        if name not in self._rearms:
            self._rearms[name] = self._node.create_client(Trigger, name)
        client = self._rearms[name]
        for _ in range(round(ANSWER_S / LOOK_S)):  # until it is discovered
            if client.service_is_ready():
                break
            await asyncio.sleep(LOOK_S)
        return await ask(client)


DIAGNOSTICS_S = 3.0
"""What a node has reported longer ago than this is not shown any more."""
MOST_REPORTS, LONGEST_NAME, LONGEST_REPORT = 12, 100, 300
"""Nodes whose complaints are shown, and the characters of their names and of what they say."""
RECORDER: dict[str, Any] = {"state": str, "instruction": str, "ticks": int}
RECORDER |= {"missing": list, "silent": list, "remaining_s": 0.0, "problem": "", "cadence": ""}
"""What the page shows of a recorder's status; see `read_json`."""
SCENE = {"task": "", "instruction": "", "success": False, "seed": 0}


class RobotOverRos:
    """The robot, its recorder and its simulator. Calls come from the server's thread.

    Those that begin something return what happens, in words, and raise `UserError` if it cannot be.
    """

    def __init__(
        self,
        node: Node,
        session: TeleopSession,
        parameters: WebParameters,
        layout: Mapping[str, Any],
    ) -> None:
        """layout: what `ttm_policy.web.views.page_layout` returned."""
        self._node, self._session, self._parameters = node, session, parameters
        spec = session.context.spec
        self._facts = {"robot": spec.robot, "rate_hz": spec.rate_hz, "policy": parameters.policy}
        self._facts |= layout
        self._recorder: dict[str, Any] | None = None
        self._scene: dict[str, Any] | None = None
        self._known: list[str] = []
        self._reports: dict[str, tuple[float, str]] = {}
        self._own = node.get_fully_qualified_name()
        recorder, simulator = parameters.recorder, parameters.simulator
        # What people see of a simulated robot, and no policy.
        overview = ImageSource("overview", f"{simulator}/overview", "sensor_msgs/Image")
        views = [overview] if simulator else []
        self.cameras = LiveCameras(node, [*views, *session.context.contract.images])
        """The cameras, that for people first."""
        self._instruction = node.create_publisher(String, "instruction", LATCHED)
        self._clients = recorder_clients(node, recorder)
        self._stop_button = StopButton(node)
        node.create_subscription(String, f"{recorder}/status", self._on_recorder, LATCHED)
        node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        if simulator:
            for name in ("next_scene", "same_scene"):
                self._clients[name] = node.create_client(Trigger, f"{simulator}/{name}")
            self._wanted = node.create_publisher(String, f"{simulator}/scene", COMMAND)
            node.create_subscription(String, f"{simulator}/episode", self._on_scene, LATCHED)
            node.create_subscription(String, f"{simulator}/instructions", self._on_known, LATCHED)

    def facts(self) -> Mapping[str, Any]:
        """Return what hardly changes: name of the robot, controls, and known instructions."""
        return {**self._facts, "instructions": self._known}

    def state(self) -> Mapping[str, Any]:
        """Return what changes: the recorder, why the robot does not move, and what nodes report."""
        # This node, or another, may wait for a person after a stop or a crash.
        said = [self._session.problem, *(text for _, text in self._complaints())]
        pressed = self._stop_button.pressed
        rearm = pressed or any(REARM in text for text in said)
        found = {"recorder": self._recorder, "scene": self._scene, "reasons": self._reasons()}
        return {**found, "stopped": pressed, "rearm": rearm}

    async def start(self) -> str:
        """Begin an episode."""
        return await ask(self._clients["start"])

    async def stop(self, success: bool) -> str:
        """End the episode and keep it."""
        return await ask(self._clients["stop"], data=success)

    async def discard(self) -> str:
        """End the episode and drop it."""
        return await ask(self._clients["discard"])

    async def scene(self, same: bool) -> str:
        """Begin another scene of the simulation, or the same one again."""
        if not self._parameters.simulator:
            raise UserError("only a simulated robot has other scenes")
        self._require_ready()
        return await ask(self._clients["same_scene" if same else "next_scene"])

    async def e_stop(self) -> str:
        """Stop the robot, whoever drives, until `rearm`. It waits for nothing."""
        self._stop_button.press()
        return "the robot is told to stop"

    async def rearm(self) -> str:
        """Let the robot move again after an emergency stop."""
        return await self._stop_button.rearm()

    async def instruct(self, text: str) -> str:
        """Tell the robot what to do."""
        self._require_ready()
        # A simulated robot that begins a scene for the text says it itself.
        topic = self._wanted if text in self._known else self._instruction
        topic.publish(String(data=text))
        return f"instruction: {text}"

    def _require_ready(self) -> None:
        if self._recorder is not None and self._recorder["state"] != State.READY.value:
            raise UserError("an episode is being recorded; stop or discard it first")

    def _reasons(self) -> list[str]:
        """Return why the robot does not move, and what else is wrong, in whole sentences."""
        found = [self._session.problem] if self._session.problem else []
        if self._stop_button.pressed:
            found.insert(0, "stop was pressed on the page: press Re-arm to go on")
        if not found and not self._session.driver:
            policy = self._parameters.policy
            waits = f"{policy} drives, or waits: press Drive to take over"
            found.append(waits if policy else "nobody drives: press Drive")
        recorder = self._recorder
        if recorder is None:
            found.append(f"{self._parameters.recorder} is not heard; is it running?")
        elif recorder["missing"]:
            found.append(f"nothing received yet from: {', '.join(recorder['missing'])}")
        elif recorder["silent"]:
            found.append(f"silent for a second: {', '.join(recorder['silent'])}")
        found.extend(self.cameras.problems.values())
        found.extend(f"{name}: {text}" for name, text in self._complaints())
        return [f"{text[0].upper()}{text[1:]}." for text in found]

    def _complaints(self) -> list[tuple[str, str]]:
        """Return what other nodes complain of now, the policy first."""
        since_s, reports = time.monotonic() - DIAGNOSTICS_S, list(self._reports.items())
        found = [(name, text) for name, (heard_s, text) in reports if heard_s > since_s]
        return sorted(found, key=lambda report: not self._is_policy(report[0]))

    def _is_policy(self, node: str) -> bool:
        return bool(self._parameters.policy) and _last(node) == self._parameters.policy

    def _on_recorder(self, message: String) -> None:
        topic = f"{self._parameters.recorder}/status"
        self._recorder = read_json(self._node, topic, message, RECORDER) or self._recorder

    def _on_scene(self, message: String) -> None:
        topic = f"{self._parameters.simulator}/episode"
        self._scene = read_json(self._node, topic, message, SCENE) or self._scene

    def _on_known(self, message: String) -> None:
        topic = f"{self._parameters.simulator}/instructions"
        self._known = read_json_texts(self._node, topic, message) or self._known

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        """Keep what other nodes complain of. The recorder says the same in its own status.

        Of more than `MOST_REPORTS` nodes, those that were heard last are kept, and the policy.
        """
        for status in message.status:
            node = printable(status.name[: 2 * LONGEST_NAME].partition(":")[0], LONGEST_NAME)
            own = node == self._own or _last(node) == self._parameters.recorder
            self._reports.pop(node, None)
            if status.level != DiagnosticStatus.OK and not own:
                self._reports[node] = time.monotonic(), printable(status.message, LONGEST_REPORT)
            if len(self._reports) > MOST_REPORTS:
                oldest = next(iter(self._reports))
                others = (name for name in self._reports if not self._is_policy(name))
                del self._reports[next(others, oldest)]


def _last(node: str) -> str:
    """Return the name of a node without its namespace."""
    return node.rpartition("/")[2]


class WebSource(Source):
    """Follows the page that has the controls. With all of them at rest, the robot stands still."""

    name = "web page"

    def __init__(self, lock: DriverLock, controls: Controls) -> None:
        self._lock, self._controls = lock, controls
        self.timeout_s = lock.timeout_s

    def wish(self, now_s: float) -> Wish | None:
        """Return what the page asks for."""
        held = self._lock.held(now_s)
        if held is None:
            return None
        axes, heard_s = held
        values = self._controls.wish(lambda name: axes.get(name, 0.0), now_s)
        return Wish(self._controls.still.copy() if values is None else values, heard_s)

    def gives_back(self) -> bool:
        """Return whether a page has asked for it. One that falls silent or goes away does not."""
        return self._lock.gives_back()
