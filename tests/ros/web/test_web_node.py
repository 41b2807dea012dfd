"""The page's node beside a robot and a recorder that the test plays, over DDS."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from failing_robot import Spinning
from geometry_msgs.msg import TwistStamped
from rcl_interfaces.msg import Log
from rclpy.node import Node
from rclpy.publisher import Publisher
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool, Trigger

from ttm_policy.contract import load_contract
from ttm_policy.guards import REARM
from ttm_policy.qos import COMMAND, LATCHED
from ttm_policy.web.robot import StopButton
from ttm_policy.web.web_node import WebNode

WAIT_S = 120.0
TOKEN = "a-token-for-tests-only"


class RobotAndRecorder(Node):
    """Publishes joints and a camera, answers as a recorder, and keeps the commands of the base."""

    def __init__(self) -> None:
        super().__init__("recorder_node")
        self.forward: list[float] = []
        self.times_s: list[float] = []
        self.called: list[str] = []
        self.heard: list[bool] = []
        self.instructions: list[str] = []
        self._joints = self.create_publisher(JointState, "joint_states", 10)
        self._head = self.create_publisher(Image, "head/image_raw", 10)
        self.status = self.create_publisher(String, "~/status", LATCHED)
        self.e_stop = self.create_publisher(Bool, "e_stop", LATCHED)
        self.e_stop.publish(Bool(data=False))  # before a first state, the robot stands still
        (source,) = (s for s in load_contract().vectors if s.name == "joint_positions")
        self._names = [field.path for field in source.fields]
        self.create_timer(0.05, self._publish)
        self.create_service(Trigger, "~/start", self._serve_start)
        self.create_service(SetBool, "~/stop", self._serve_stop)
        self.create_service(Trigger, "policy_node/rearm", self._serve_rearm)
        self.create_service(Trigger, "elsewhere/policy_node/rearm", self._serve_rearm)
        self.create_subscription(Bool, "e_stop", lambda m: self.heard.append(m.data), 10)
        self.create_subscription(TwistStamped, "cmd_vel", self._on_base, COMMAND)
        self.create_subscription(
            String, "instruction", lambda m: self.instructions.append(m.data), LATCHED
        )
        self.warnings: list[str] = []
        self.create_subscription(Log, "/rosout", lambda m: self.warnings.append(m.msg), 100)
        self.tell("ready")

    def buttons(self) -> int:
        """Return how many there are of the emergency stop."""
        return int(self.count_publishers("e_stop"))

    def tell(self, state: str) -> None:
        """Publish a status."""
        status = {"state": state, "instruction": "wave", "ticks": 0, "missing": [], "silent": []}
        self.status.publish(String(data=json.dumps(status)))

    def _publish(self) -> None:
        joints = JointState(name=self._names, position=[0.0] * len(self._names))
        joints.header.stamp = self.get_clock().now().to_msg()
        self._joints.publish(joints)
        grey = Image(height=8, width=8, encoding="mono8", step=8, data=bytes(range(64)))
        self._head.publish(grey)

    def _on_base(self, message: TwistStamped) -> None:
        self.times_s.append(time.time())
        self.forward.append(message.twist.linear.x)

    def _serve_start(self, _: Trigger.Request, answer: Trigger.Response) -> Trigger.Response:
        self.called.append("start")
        answer.success, answer.message = False, "nothing received yet"
        return answer

    def _serve_rearm(self, _: Trigger.Request, answer: Trigger.Response) -> Trigger.Response:
        self.called.append("rearm")
        answer.success, answer.message = True, "armed"
        return answer

    def _serve_stop(self, request: SetBool.Request, answer: SetBool.Response) -> SetBool.Response:
        self.called.append(f"stop {request.data}")
        answer.success = True
        return answer


class Both:
    """The node of the page and its robot, spinning in a thread."""

    def __init__(self, folder: Path) -> None:
        parameters = {"folder": folder, "token": TOKEN, "port": 0, "page_timeout_s": 30.0}
        given = [part for name, value in parameters.items() for part in ("-p", f"{name}:={value}")]
        # A namespace keeps nodes apart that tests before have left in this process.
        rclpy.init(args=["--ros-args", "-r", "__ns:=/page", *given])
        self.robot, self.node = RobotAndRecorder(), WebNode()
        self.spinning = Spinning(self.robot, self.node)
        self.node.serve()
        self.address = self.node.address

    def run(self, talk: Callable[[aiohttp.ClientWebSocketResponse], Awaitable[None]]) -> None:
        """Run a coroutine with the socket of a page."""

        async def talking() -> None:
            origin = self.address.removesuffix(f"/{TOKEN}/")
            async with (
                aiohttp.ClientSession(headers={"Origin": origin}) as session,
                session.ws_connect(f"{self.address}socket") as page,
            ):
                await asyncio.wait_for(talk(page), WAIT_S)

        asyncio.run(talking())

    def close(self) -> None:
        self.spinning.end()
        self.node.close()
        self.node.destroy_node()
        self.robot.destroy_node()
        rclpy.shutdown()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    started = Both(tmp_path_factory.mktemp("episodes"))
    yield started
    started.close()


async def until(
    page: aiohttp.ClientWebSocketResponse, wanted: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Return the next message that is wanted."""
    async for message in page:
        if message.type is aiohttp.WSMsgType.TEXT:
            data: dict[str, Any] = message.json()
            if wanted(data):
                return data
    raise AssertionError("the server has closed the socket")


def wait(done: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


async def see_the_robot(page: aiohttp.ClientWebSocketResponse) -> None:
    """Wait until the robot was heard. A page is told its state when it connects, and at changes alone."""
    await until(
        page, lambda data: "reasons" in data and "Nothing received" not in str(data["reasons"])
    )


async def drive(both: Both, page: aiohttp.ClientWebSocketResponse) -> float:
    """Take the controls, push the base's stick, and return the speed that the robot gets."""
    await page.send_json({"do": "take"})
    count = len(both.robot.forward)
    await page.send_json({"do": "steer", "axes": {"base.0": 1.0}})
    while not any(both.robot.forward[count:]):
        await asyncio.sleep(0.01)
    return next(speed for speed in both.robot.forward[count:] if speed)


def test_a_page_drives_within_the_limits_and_zero_follows_when_it_goes_away(both: Both) -> None:
    most = both.node.get_parameter("max_forward_m_s").value

    async def talk(page: aiohttp.ClientWebSocketResponse) -> None:
        await see_the_robot(page)
        assert 0 < await drive(both, page) <= most

    both.run(talk)
    wait(lambda: both.robot.forward[-1] == 0.0)


def test_an_emergency_stop_stops_a_page_and_says_so(both: Both) -> None:
    async def talk(page: aiohttp.ClientWebSocketResponse) -> None:
        await see_the_robot(page)
        await drive(both, page)
        both.robot.e_stop.publish(Bool(data=True))
        state = await until(page, lambda data: "pressed" in str(data.get("reasons")))
        assert state["reasons"][0].startswith("Emergency stop")
        while both.robot.forward[-1] != 0.0:
            await asyncio.sleep(0.01)
        both.robot.e_stop.publish(Bool(data=False))
        await until(page, lambda data: bool(data.get("rearm")))
        assert both.robot.forward[-1] == 0.0
        await page.send_json({"do": "rearm", "id": 5})
        assert (await until(page, lambda data: data.get("id") == 5))["ok"]
        await drive(both, page)

    both.run(talk)


def test_a_page_tells_of_a_crash_and_rearms_a_policy_that_waits_for_it(both: Both) -> None:
    diagnostics = both.robot.create_publisher(DiagnosticArray, "/diagnostics", 10)
    waits = f"emergency stop: the policy crashed and was started again; {REARM}"
    runs = "running, but it crashed and went on by itself at tick 3"

    def say(level: bytes, text: str) -> None:
        status = DiagnosticStatus(name="/page/policy_node: policy", level=level, message=text)
        diagnostics.publish(DiagnosticArray(status=[status]))

    async def talk(page: aiohttp.ClientWebSocketResponse) -> None:
        await see_the_robot(page)
        while not diagnostics.get_subscription_count():
            await asyncio.sleep(0.01)
        say(DiagnosticStatus.ERROR, waits)
        state = await until(page, lambda data: waits in str(data.get("reasons")))
        assert state["rearm"]
        say(DiagnosticStatus.WARN, runs)
        state = await until(page, lambda data: runs in str(data.get("reasons")))
        assert not state["rearm"]

    both.run(talk)
    both.robot.destroy_publisher(diagnostics)


def test_the_stop_button_of_a_page_stops_the_robot_until_it_is_rearmed(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its publisher goes in the thread that spins: elsewhere that could end the executor in an error."""
    robot, destroy = both.robot, both.node.destroy_publisher
    threads = []

    def destroy_publisher(publisher: Publisher[Any]) -> bool:
        threads.append(threading.current_thread())
        return destroy(publisher)

    monkeypatch.setattr(both.node, "destroy_publisher", destroy_publisher)
    robot.heard.clear()
    robot.called.clear()

    async def talk(page: aiohttp.ClientWebSocketResponse) -> None:
        await see_the_robot(page)
        await drive(both, page)
        assert robot.buttons() == 1  # the robot's own
        await page.send_json({"do": "e_stop", "id": 1})
        state = await until(page, lambda data: "it is pressed" in str(data.get("reasons")))
        assert (state["stopped"], state["rearm"]) == (True, True)
        assert state["reasons"][0].startswith("Stop was pressed on the page")
        while robot.forward[-1] != 0.0 or True not in robot.heard:
            await asyncio.sleep(0.01)
        count = len(robot.forward)
        await page.send_json({"do": "take", "id": 2})  # nobody drives past it
        assert (await until(page, lambda data: data.get("id") == 2))["ok"]
        while robot.heard.count(True) < 5:  # it says so again and again
            await page.send_json({"do": "steer", "axes": {"base.0": 1.0}})
            await asyncio.sleep(0.05)
        assert not any(robot.forward[count:])
        await page.send_json({"do": "rearm", "id": 3})
        assert (await until(page, lambda data: data.get("id") == 3))["ok"]
        assert robot.called == ["rearm"]  # of the policy beside it, and of no other robot
        assert robot.heard[-1] is False
        while robot.buttons() > 1:
            await asyncio.sleep(0.01)
        await drive(both, page)

    both.run(talk)
    assert threads == [both.spinning.thread]
    robot.called.clear()


def test_a_press_goes_out_while_the_nodes_own_thread_is_held(both: Both) -> None:
    held = Node("held_node")  # nothing spins it
    button = StopButton(held)

    async def talk(page: aiohttp.ClientWebSocketResponse) -> None:
        await see_the_robot(page)
        button.press()
        await until(page, lambda data: "it is pressed" in str(data.get("reasons")))
        button._release()
        await until(page, lambda data: bool(data.get("rearm")) and not data["stopped"])
        await page.send_json({"do": "rearm", "id": 1})
        assert (await until(page, lambda data: data.get("id") == 1))["ok"]

    both.run(talk)
    held.destroy_node()
    both.robot.called.clear()


def test_rearming_by_a_page_leaves_the_robots_own_button_in_force(both: Both) -> None:
    async def talk(page: aiohttp.ClientWebSocketResponse) -> None:
        await see_the_robot(page)
        both.robot.e_stop.publish(Bool(data=True))
        await until(page, lambda data: "it is pressed" in str(data.get("reasons")))
        await page.send_json({"do": "rearm", "id": 1})
        answer = await until(page, lambda data: data.get("id") == 1)
        assert (answer["ok"], answer["text"]) == (False, "release the emergency stop first")
        both.robot.e_stop.publish(Bool(data=False))
        await until(page, lambda data: bool(data.get("rearm")))
        await page.send_json({"do": "rearm", "id": 2})
        assert (await until(page, lambda data: data.get("id") == 2))["ok"]

    both.run(talk)
    both.robot.called.clear()


def test_a_page_outlives_what_is_no_status(both: Both) -> None:
    """The topic keeps its last message, so that it would meet a page that starts anew, too."""
    both.robot.status.publish(String(data="no JSON"))
    wait(lambda: any("recorder_node/status" in text for text in both.robot.warnings))

    async def talk(page: aiohttp.ClientWebSocketResponse) -> None:
        both.robot.tell("saving")
        await until(page, lambda data: (data.get("recorder") or {}).get("state") == "saving")
        both.robot.tell("ready")
        await until(page, lambda data: (data.get("recorder") or {}).get("state") == "ready")

    both.run(talk)


def test_a_page_sees_the_camera_and_uses_the_recorder(both: Both) -> None:
    async def talk(page: aiohttp.ClientWebSocketResponse) -> None:
        facts = await until(page, lambda data: data["kind"] == "facts")
        assert (facts["robot"], facts["cameras"]) == ("fetch_kitchen", ["head", "wrist"])
        async for message in page:
            if message.type is aiohttp.WSMsgType.BINARY:
                assert message.data[:3] == b"\x00\xff\xd8"
                break
        await until(page, lambda data: bool(data.get("recorder")))
        for number, (request, said) in enumerate(
            (
                ({"do": "start"}, (False, "nothing received yet")),
                ({"do": "stop", "success": False}, (True, "")),
                ({"do": "discard"}, (False, "recorder_node is not there; is it running?")),
                ({"do": "instruct", "text": "nod"}, (True, "instruction: nod")),
                ({"do": "scene", "same": True}, (False, "only a simulated robot has other scenes")),
            ),
            start=10,
        ):
            await page.send_json({**request, "id": number})
            if said[1] or not said[0]:
                answer = await until(page, lambda data: data.get("id") == number)  # noqa: B023
                assert (answer["ok"], answer["text"]) == said
        both.robot.tell("recording")
        await until(page, lambda data: (data.get("recorder") or {}).get("state") == "recording")
        await page.send_json({"do": "instruct", "text": "nod", "id": 20})
        assert not (await until(page, lambda data: data.get("id") == 20))["ok"]

    both.run(talk)
    wait(lambda: both.robot.called == ["start", "stop False"])
    wait(lambda: "nod" in both.robot.instructions)
