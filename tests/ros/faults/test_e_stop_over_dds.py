"""The emergency stop of a policy node in a process of its own: new processes, re-arming, heartbeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from policy_faults import HELD_S
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import Bool

from ttm_policy.qos import LATCHED

CAN, BOX = "pick up the red can", "pick up the blue box"
PATIENT = {"use_sim_time": True, "stop_after_s": 600.0}  # a busy machine is no fault here
AWHILE_S = 0.5
TIMEOUT_S, SLACK_S = 2.0, 1.0
BEST_EFFORT = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)

Robot = Any


class Button:
    """Publishes the state of an emergency stop: once, or at 10 Hz."""

    def __init__(self, robot: Robot, qos: QoSProfile, *, pressed: bool, repeated: bool = True):
        self._robot, self._pressed = robot, pressed
        self._publisher = robot.create_publisher(Bool, "e_stop", qos)
        self._timer = robot.create_timer(0.1, self._send) if repeated else None
        self._send()

    def _send(self) -> None:
        self._publisher.publish(Bool(data=self._pressed))

    def press(self, pressed: bool) -> None:
        """Press or release the button."""
        self._pressed = pressed
        self._send()

    def end(self) -> None:
        """Fall silent, as a button whose cable is cut."""
        if self._timer is not None:
            self._robot.destroy_timer(self._timer)
        self._robot.destroy_publisher(self._publisher)


@pytest.fixture
def button(robot: Robot) -> Iterator[Callable[..., Button]]:
    made: list[Button] = []

    def make(qos: QoSProfile, **how: bool) -> Button:
        made.append(Button(robot, qos, **how))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def start(robot: Robot, start_policy: Any) -> Iterator[Callable[..., Any]]:
    started: list[Any] = []
    robot.message = ""

    def begin(**parameters: Any) -> Any:
        started.append(start_policy(instruction=CAN, **PATIENT, **parameters))
        return started[-1]

    yield begin
    for process in started:
        assert process.end() == 0


def _rearm(robot: Robot) -> None:
    robot.wait(lambda: "call the service rearm" in robot.message, "the release")
    time.sleep(AWHILE_S)
    assert "call the service rearm" in robot.message
    assert robot.call("rearm").success
    robot.wait_for_motion()


@pytest.mark.parametrize(
    ("qos", "repeated", "other"), [(LATCHED, False, BOX), (BEST_EFFORT, True, CAN)]
)
def test_a_process_that_starts_under_a_pressed_button_moves_when_it_is_armed(
    qos: QoSProfile, repeated: bool, other: str, robot: Robot, start: Any, button: Any
) -> None:
    """Neither at its start nor later is a release, an instruction or a reset enough."""
    one, moved_at_s = button(qos, pressed=True, repeated=repeated), robot.moved_at_s
    start()
    robot.wait(lambda: "it is pressed" in robot.message, "the stop")
    time.sleep(AWHILE_S)
    assert not robot.call("rearm").success
    assert robot.moved_at_s == moved_at_s
    one.press(False)
    _rearm(robot)
    one.press(True)
    robot.wait(lambda: "it is pressed" in robot.message, "the next stop")
    robot.wait(lambda: robot.stands, "zero on all motion topics")
    one.press(False)
    robot.wait(lambda: "call the service rearm" in robot.message, "the release")
    robot.instruct(other)
    assert robot.call("reset_memory").success
    _rearm(robot)


def _age(seconds: float) -> Parameter:
    value = ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=seconds)
    return Parameter(name="max_age_s", value=value)


def test_the_robot_is_stopped_while_a_call_holds_the_node(
    robot: Robot, start: Any, button: Any
) -> None:
    """The press was heard only after the call, and until then the last command was sent again."""
    one = button(LATCHED, pressed=False, repeated=False)
    process = start(fault="held", e_stop_rearm=False)
    robot.wait_for_motion()
    setter = robot.create_client(SetParameters, "policy_node/set_parameters")
    robot.wait(setter.service_is_ready, "the parameters")
    process.loading.touch()
    setter.call_async(SetParameters.Request(parameters=[_age(0.4)]))
    robot.wait(process.loading.read_text, "the call")
    held_at_s = process.loading.stat().st_mtime
    one.press(True)
    robot.wait(lambda: robot.stands, "zero on all motion topics")
    stood_at_s = max(robot.still.values())
    assert stood_at_s < held_at_s + HELD_S
    process.loading.unlink()
    robot.wait(lambda: "it is pressed" in robot.message, "the stop")
    assert robot.moved_at_s < stood_at_s
    one.press(False)
    robot.wait_for_motion()


def test_calls_with_hundreds_of_parameters_are_refused_and_the_robot_goes_on(
    robot: Robot, start: Any
) -> None:
    """A call with 3,000 held the node for 20 s."""
    start()
    robot.wait_for_motion()
    many = [_age(0.4 + 1e-5 * i) for i in range(300)]
    (result,) = robot.call("set_parameters", SetParameters, parameters=many).results
    assert not result.successful
    assert "was called with 300 parameters; at most 200 are accepted" in result.reason
    robot.wait_for_motion()


def test_a_press_holds_whatever_another_publisher_says(
    robot: Robot, start: Any, button: Any
) -> None:
    """One that sent false at 100 Hz let the robot move under a pressed button."""
    other = button(QoSProfile(depth=10), pressed=False)
    one = button(LATCHED, pressed=False, repeated=False)
    start(e_stop_rearm=False)
    robot.wait_for_motion()
    one.press(True)
    robot.wait(lambda: robot.stands, "zero on all motion topics")
    moved_at_s = robot.moved_at_s
    for _ in range(100):
        other.press(False)
        time.sleep(0.01)
    assert robot.moved_at_s == moved_at_s
    assert "it is pressed" in robot.message
    one.press(False)
    robot.wait_for_motion()


def test_a_silent_heartbeat_stops_the_robot(
    robot: Robot, start: Any, button: Any, in_time: Any
) -> None:
    moved_at_s = robot.moved_at_s
    start(e_stop_timeout_s=TIMEOUT_S)
    robot.wait(lambda: "its topic is silent" in robot.message, "the missing heartbeat")
    time.sleep(AWHILE_S)
    assert robot.moved_at_s == moved_at_s
    one = button(BEST_EFFORT, pressed=False)
    robot.wait_for_motion()

    def moved_on() -> float:
        """Let the heartbeat end, and begin anew; return for how long the robot moved without it."""
        nonlocal one
        silent_s = time.time()
        one.end()
        robot.wait(lambda: "its topic is silent" in robot.message, "the lost heartbeat")
        robot.wait(lambda: robot.stands, "zero on all motion topics")
        last_s = robot.moved_at_s
        one = button(BEST_EFFORT, pressed=False)
        _rearm(robot)
        return last_s - silent_s

    in_time(TIMEOUT_S + SLACK_S, moved_on)
