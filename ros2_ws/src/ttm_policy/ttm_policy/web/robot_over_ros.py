"""The robot and its recorder as the web page sees them, over ROS."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger

from ttm.policy.errors import UserError, printable
from ttm_policy.contract.robot_contract import ImageSource
from ttm_policy.guards.e_stop import REARM
from ttm_policy.inputs.topic_text import read_json, read_json_texts
from ttm_policy.parameters import WebParameters
from ttm_policy.qos import COMMAND, LATCHED
from ttm_policy.teleop.cockpit import Cockpit
from ttm_policy.teleop.teleop_session import TeleopSession
from ttm_policy.web.calls import ask
from ttm_policy.web.live_cameras import LiveCameras
from ttm_policy.web.robot_side import LiveFrame
from ttm_policy.web.stop_button import StopButton

DIAGNOSTICS_S = 3.0
"""What a node has reported longer ago than this is not shown any more."""
MOST_REPORTS, LONGEST_NAME, LONGEST_REPORT = 12, 100, 300
"""Nodes whose complaints are shown, and the characters of their names and of what they say."""
READY = "ready"
RECORDER = {
    "state": str,
    "instruction": str,
    "ticks": int,
    "missing": list,
    "silent": list,
    "remaining_s": 0.0,
    "problem": "",
    "cadence": "",
}
"""What the page shows of a recorder's status; see `read_json`."""
SCENE = {"task": "", "instruction": "", "success": False, "seed": 0}


class RobotOverRos:
    """A `ttm_policy.web.robot_side.RobotSide`. Its calls come from the server's thread.

    layout: what `ttm_policy.web.layout.page_layout` returned.
    """

    def __init__(
        self,
        node: Node,
        parameters: WebParameters,
        cockpit: Cockpit,
        session: TeleopSession,
        layout: Mapping[str, Any],
    ) -> None:
        self._node, self._parameters, self._cockpit = node, parameters, cockpit
        self._session, self._layout = session, layout
        self._recorder: dict[str, Any] | None = None
        self._scene: dict[str, Any] | None = None
        self._known: list[str] = []
        self._reports: dict[str, tuple[float, str]] = {}
        self._own = node.get_fully_qualified_name()
        self._cameras = LiveCameras(node, [*self._views(), *cockpit.contract.images])
        self._instruction = node.create_publisher(String, "instruction", LATCHED)
        recorder, simulator = parameters.recorder, parameters.simulator
        self._stop = node.create_client(SetBool, f"{recorder}/stop")
        self._triggers = {
            name: node.create_client(Trigger, f"{recorder}/{name}") for name in ("start", "discard")
        }
        self._stop_button = StopButton(node)
        node.create_subscription(String, f"{recorder}/status", self._on_recorder, LATCHED)
        node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        if simulator:
            for name in ("next_scene", "same_scene"):
                self._triggers[name] = node.create_client(Trigger, f"{simulator}/{name}")
            self._wanted = node.create_publisher(String, f"{simulator}/scene", COMMAND)
            node.create_subscription(String, f"{simulator}/episode", self._on_scene, LATCHED)
            node.create_subscription(String, f"{simulator}/instructions", self._on_known, LATCHED)

    @property
    def cameras(self) -> Sequence[str]:
        """See `RobotSide`."""
        return self._cameras.names

    def facts(self) -> Mapping[str, Any]:
        """See `RobotSide`."""
        spec = self._cockpit.spec
        return {
            "robot": spec.robot,
            "rate_hz": spec.rate_hz,
            "instructions": self._known,
            "policy": self._parameters.policy,
            **self._layout,
        }

    def state(self) -> Mapping[str, Any]:
        """See `RobotSide`."""
        return {
            "recorder": self._recorder,
            "scene": self._scene,
            "reasons": self._reasons(),
            "stopped": self._stop_button.pressed,
            "rearm": self._stop_button.pressed or self._waits_for_rearm(),
        }

    def frame(self, camera: str) -> LiveFrame | None:
        """See `RobotSide`."""
        return self._cameras.frame(camera)

    async def start(self) -> str:
        """See `RobotSide`."""
        return await self._trigger("start", self._parameters.recorder)

    async def stop(self, success: bool) -> str:
        """See `RobotSide`."""
        return await ask(self._stop, SetBool.Request(data=success), self._parameters.recorder)

    async def discard(self) -> str:
        """See `RobotSide`."""
        return await self._trigger("discard", self._parameters.recorder)

    async def scene(self, same: bool) -> str:
        """See `RobotSide`."""
        if not self._parameters.simulator:
            raise UserError("only a simulated robot has other scenes")
        self._require_ready()
        name = "same_scene" if same else "next_scene"
        return await self._trigger(name, self._parameters.simulator)

    async def e_stop(self) -> str:
        """See `RobotSide`."""
        self._stop_button.press()
        return "the robot is told to stop"

    async def rearm(self) -> str:
        """See `RobotSide`."""
        return await self._stop_button.rearm()

    async def instruct(self, text: str) -> str:
        """See `RobotSide`."""
        self._require_ready()
        # A simulated robot that begins a scene for the text says it itself.
        topic = self._wanted if text in self._known else self._instruction
        topic.publish(String(data=text))
        return f"instruction: {text}"

    async def _trigger(self, name: str, who: str) -> str:
        return await ask(self._triggers[name], Trigger.Request(), who)

    def _require_ready(self) -> None:
        if self._recorder is not None and self._recorder["state"] != READY:
            raise UserError("an episode is being recorded; stop or discard it first")

    def _views(self) -> list[ImageSource]:
        """Return what people see of a simulated robot, and no policy."""
        if not self._parameters.simulator:
            return []
        return [
            ImageSource("overview", f"{self._parameters.simulator}/overview", "sensor_msgs/Image")
        ]

    def _reasons(self) -> list[str]:
        """Return why the robot does not move, and what else is wrong, in whole sentences."""
        found = [self._session.problem] if self._session.problem else []
        if self._stop_button.pressed:
            found.insert(0, "stop was pressed on the page: press Re-arm to go on")
        if not found and not self._session.driver:
            policy = self._parameters.policy
            found.append(
                f"{policy} drives, or waits: press Drive to take over"
                if policy
                else "nobody drives: press Drive"
            )
        recorder = self._recorder
        if recorder is None:
            found.append(f"{self._parameters.recorder} is not heard; is it running?")
        elif recorder["missing"]:
            found.append(f"nothing received yet from: {', '.join(recorder['missing'])}")
        elif recorder["silent"]:
            found.append(f"silent for a second: {', '.join(recorder['silent'])}")
        found.extend(self._cameras.problems.values())
        found.extend(f"{name}: {text}" for name, text in self._complaints())
        return [f"{text[0].upper()}{text[1:]}." for text in found]

    def _complaints(self) -> list[tuple[str, str]]:
        """Return what other nodes complain of now, the policy first."""
        now_s = time.monotonic()
        found = [
            (name, text)
            for name, (heard_s, text) in list(self._reports.items())
            if now_s - heard_s < DIAGNOSTICS_S
        ]
        return sorted(found, key=lambda report: not self._is_policy(report[0]))

    def _is_policy(self, node: str) -> bool:
        return bool(self._parameters.policy) and _last(node) == self._parameters.policy

    def _waits_for_rearm(self) -> bool:
        """Return whether this node, or another, waits for a person after a stop or a crash."""
        said = [self._session.problem, *(text for _, text in self._complaints())]
        return any(REARM in text for text in said)

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
