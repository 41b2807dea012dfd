"""The simulated robot in real time behind its topics, its clock, and what it does to a policy's memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock
from xml.etree import ElementTree

import numpy as np
import pytest
import rclpy
from geometry_msgs.msg import TwistStamped
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import CameraInfo, Image
from std_msgs.msg import String
from std_srvs.srv import Trigger

from ttm.policy import ActionPart, PolicySpec, ProprioceptionSpec
from ttm.sim.rollout import DelayedActor
from ttm_policy.messages import ResetReply, stamp_to_ns
from ttm_policy.qos import COMMAND, LATCHED
from ttm_policy.simulator import episodes
from ttm_policy.simulator.episodes import ANSWER_TIMEOUT_S, Episodes, Pace, RosActor

WAIT_S = 180.0
PERIOD_S = 0.2


class OneCommand(Node):
    """Confirms each reset as a policy does, and keeps what the simulated robot publishes."""

    def __init__(self) -> None:
        super().__init__("policy_node")
        self.instruction = ""
        self.odometry: list[Odometry] = []
        self.newest: dict[str, Any] = {}
        self.commands = self.create_publisher(TwistStamped, "cmd_vel", COMMAND)
        self.create_service(Trigger, "~/reset_memory", self._reset)
        self.create_subscription(String, "instruction", self._instruct, LATCHED)
        self.create_subscription(Odometry, "odom", self.odometry.append, LATCHED)
        for kind, topic in (
            (Image, "head/image_raw"),
            (CameraInfo, "head/camera_info"),
            (String, "robot_description"),
        ):
            self.create_subscription(kind, topic, self._keep(topic), LATCHED)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self)

    def _keep(self, topic: str) -> Callable[[Any], None]:
        return lambda message: self.newest.__setitem__(topic, message)

    def _instruct(self, message: String) -> None:
        self.instruction = message.data

    def _reset(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success, response.message = True, ResetReply(self.instruction, 0).to_json()
        return response

    def wait(self, done: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < deadline_s, f"waited in vain for {what}"
            self._executor.spin_once(timeout_sec=0.02)


@pytest.fixture
def policy() -> Iterator[OneCommand]:
    rclpy.init()
    node = OneCommand()
    yield node
    node.destroy_node()
    rclpy.shutdown()


def _stamp_s(odometry: Odometry) -> float:
    return stamp_to_ns(odometry.header.stamp) * 1e-9


def test_the_robot_lives_in_real_time_shows_itself_and_stops_without_commands(
    policy: OneCommand, start_node: Any
) -> None:
    start_node("sim_node", max_ticks=100_000)
    policy.wait(lambda: len(policy.odometry) > 2, "odometry")
    assert abs(_stamp_s(policy.odometry[-1]) - time.time()) < 30, "stamps are the system's time"
    policy.wait(lambda: len(policy.newest) == 3, "images, their parameters and the description")
    image, info = policy.newest["head/image_raw"], policy.newest["head/camera_info"]
    assert image.header.frame_id == info.header.frame_id == "head_optical_frame"
    assert ElementTree.fromstring(policy.newest["robot_description"].data).tag == "robot"

    x_m = policy.odometry[-1].pose.pose.position.x
    command = TwistStamped()
    command.twist.linear.x = 0.4
    policy.wait(lambda: policy.commands.get_subscription_count() == 1, "the base")
    deadline_s = time.monotonic() + WAIT_S
    while (stopped_s := _stops_after(policy, command)) > 0.5 + 0.02:
        # A busy machine delays some commands, but not all for minutes.
        assert time.monotonic() < deadline_s, stopped_s
    assert policy.odometry[-1].pose.pose.position.x != x_m


def _stops_after(policy: OneCommand, command: TwistStamped) -> float:
    """Send a command once. Return when the base stood after it, in seconds without ticks that were late.

    It is infinite if the command ended before the base moved.
    """
    policy.odometry.clear()
    sent_s = time.time()
    policy.commands.publish(command)
    policy.wait(
        lambda: any(_speed(o) > 0.1 for o in policy.odometry) or time.time() - sent_s > 2.0,
        "motion",
    )
    if not any(_speed(o) > 0.1 for o in policy.odometry):
        return math.inf
    policy.wait(lambda: abs(_speed(policy.odometry[-1])) < 0.05, "the stop")
    stamps_s = [sent_s, *(s for s in map(_stamp_s, policy.odometry) if s > sent_s)]
    late_s = sum(max(0.0, b - a - PERIOD_S) for a, b in pairwise(stamps_s))
    return stamps_s[-1] - sent_s - late_s


def _speed(odometry: Odometry) -> float:
    return float(odometry.twist.twist.linear.x)


def _run(pace: Pace, work_s: list[float]) -> float:
    """Wait for the end of each period, and then simulate for so long. Return the wall time."""
    now_s = 100.0
    for seconds in work_s:
        now_s = max(now_s, pace.next_end(now_s)) + seconds
    return now_s - 100.0


def test_simulating_and_rendering_come_off_the_waiting_time() -> None:
    pace = Pace(0.2)
    assert _run(pace, [0.03, 0.14, 0.0, 0.05] * 25) == pytest.approx(100 * 0.2 + 0.05)


def test_a_simulation_that_is_too_slow_does_not_catch_up() -> None:
    pace = Pace(0.2)
    assert _run(pace, [0.35] * 50) == pytest.approx(0.15 + 50 * 0.4)
    assert pace.next_end(500.0) == pytest.approx(500.05), "commands still have time to arrive"
    assert pace.next_end(500.06) == pytest.approx(500.25)


def test_waiting_for_the_policy_is_no_delay() -> None:
    pace = Pace(0.2)
    _run(pace, [0.01] * 3)
    pace.restart()
    assert pace.next_end(1000.0) == pytest.approx(1000.2)


SPEC = PolicySpec(
    "point", (), (ProprioceptionSpec("x", ("x (m)",)),), (ActionPart("step", 1, "m"),), rate_hz=5.0
)


def test_commands_of_the_old_memory_are_not_carried_out_after_it_was_erased() -> None:
    actor = MagicMock()
    actor.act.return_value = np.array([0.1], np.float32)
    has = {"policy_spec": SPEC}
    env: Any = SimpleNamespace(has_wrapper_attr=has.__contains__, get_wrapper_attr=has.__getitem__)
    late = DelayedActor(actor, env, 2 * SPEC.control_dt_s)
    episodes = object.__new__(Episodes)
    values = {"_node": MagicMock(), "_env": env, "actor": actor, "_late": late, "_to_erase": True}
    vars(episodes).update(values, _show=lambda *_: None)
    done = []
    for tick in range(6):
        episodes._on_tick({}, {"tick": tick, "go": tick >= 3}, None)
        assert actor.erase_memory.call_count == (tick >= 3)
        done.append(late.act({})[0])
    assert done == pytest.approx([0, 0, 0.1, 0, 0, 0.1])


REPLY = ResetReply("pick up the red can")


class SlowPolicy:
    """Answers each call after `slow_s`, of which every look at the answer takes a second."""

    def __init__(self, slow_s: float) -> None:
        self.now_s, self.slow_s, self.calls = 100.0, slow_s, 0

    def call_async(self, request: Any) -> Any:
        self.calls, due_s = self.calls + 1, self.now_s + self.slow_s
        answer = Trigger.Response(success=True, message=REPLY.to_json())
        return SimpleNamespace(done=lambda: self.now_s >= due_s, result=lambda: answer)

    def remove_pending_request(self, future: Any) -> None: ...

    def spin(self, timeout_s: float) -> None:
        self.now_s += 1.0


def test_a_policy_that_is_slow_to_answer_is_given_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = SlowPolicy(3 * ANSWER_TIMEOUT_S)
    monkeypatch.setattr(episodes, "time", SimpleNamespace(monotonic=lambda: policy.now_s))
    actor: Any = object.__new__(RosActor)
    actor._answer_timeout_s, actor.spin = ANSWER_TIMEOUT_S, policy.spin
    answers = [actor._call(policy) for _ in range(4)]
    assert answers == [None, None, REPLY, None], "after an answer the first time-out holds again"
