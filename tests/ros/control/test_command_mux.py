"""Who commands the robot, and what the policy is told of it, between two ticks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rclpy
from builtin_interfaces.msg import Time
from rclpy.time import Time as Stamp
from std_msgs.msg import String

from ttm.policy.errors import MissingObservation
from ttm.sim.kitchen.spec import SPEC
from ttm_policy import commands
from ttm_policy.commands import CommandMux
from ttm_policy.contract import Workspace, load_contract
from ttm_policy.inputs import PERIOD_S, TIMEOUT_S, StampedObservation, to_message
from ttm_policy.limits import SafetyLimits
from ttm_policy.messages import CommandCodec
from ttm_policy.parameters import PolicyParameters

BASE, GRIPPER = SPEC.action_slices["base"].start, SPEC.action_slices["gripper"].start
SEEN = {"joint_positions": np.zeros(9, np.float32)}
OWN = np.full(SPEC.action_size, 0.01, np.float32)
OWN[SPEC.binary_mask] = 1.0
UNTOLD = StampedObservation(SEEN, 0, 0)


class Commands:
    """Notes what is sent to the robot."""

    expired, is_open = 0, True

    def __init__(self) -> None:
        self.sent: list[float] = []
        self.forces: list[np.ndarray] = []
        self.lifespans_s: list[float | None] = []
        self.unheard: set[str] = set()

    def acknowledge_expiry(self) -> None: ...

    def send(self, command: np.ndarray, stamp: Time, lifespan_s: float | None = None) -> None:
        self.sent.append(float(command[BASE]))
        self.forces.append(command)
        self.lifespans_s.append(lifespan_s)

    def stop(self) -> None:
        self.sent.append(0.0)


class Robot:
    """A multiplexer with a watchdog that sees the robot, or not, as the test says."""

    def __init__(self, **given: Any) -> None:
        self.commands, self.seen, self.now_s = Commands(), True, 100.0
        self.measured, self.measured_s = dict(SEEN), 0.0
        self.node = rclpy.create_node("policy_node")
        box = given.pop("workspace", None)
        codec = CommandCodec(replace(load_contract(), workspace=box), SPEC)
        parameters = PolicyParameters(**given)
        self.limits = SafetyLimits(codec.contract, SPEC, parameters.limits)
        loaded: Any = SimpleNamespace(
            codec=codec, runner=SimpleNamespace(spec=SPEC), limits=self.limits
        )
        watchdog: Any = SimpleNamespace(observe_for_person=self._observe)
        self.mux = CommandMux(self.node, loaded, parameters, self.commands, watchdog)  # type: ignore[arg-type]

    def _observe(self) -> tuple[dict[str, np.ndarray], float]:
        if not self.seen:
            raise MissingObservation("nothing is seen")
        return self.measured, self.measured_s

    def tick(self) -> np.ndarray:
        return self.mux.publish(OWN, Time(), SEEN)

    def hear(self, speed: float, person: str = "anna") -> None:
        wish = np.zeros(SPEC.action_size, np.float32)
        wish[BASE], wish[GRIPPER] = speed, np.nan
        self.now_s += PERIOD_S
        self.receive(wish, person)

    def receive(self, wish: np.ndarray, person: str) -> None:
        message = to_message(SPEC, wish, Time(), person)
        if self.mux.accepts(message):
            self.mux.drive(message)


@pytest.fixture
def robot(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Robot]:
    """With the parameters that a test names."""
    rclpy.init()
    made = Robot(**getattr(request, "param", {}))
    monkeypatch.setattr(commands, "time", SimpleNamespace(monotonic=lambda: made.now_s))
    yield made
    made.node.destroy_node()
    rclpy.shutdown()


def test_the_policy_is_told_what_the_person_did_since_its_last_tick(robot: Robot) -> None:
    assert robot.tick()[BASE] == OWN[BASE]
    assert robot.mux.with_executed(UNTOLD) is UNTOLD, "the policy knows its own command"
    robot.hear(0.3)
    robot.hear(0.4)
    told = robot.mux.with_executed(UNTOLD).executed
    assert told is not None
    assert (told[BASE], told[GRIPPER]) == (np.float32(0.4), 1.0), "the gripper is kept as it was"
    assert np.array_equal(robot.tick(), told)
    assert robot.commands.sent == pytest.approx([0.01, 0.3, 0.4]), "the policy's tick sends nothing"
    robot.mux.release()
    told = robot.mux.with_executed(UNTOLD).executed
    assert told is not None
    assert (told[BASE], told[GRIPPER]) == (0.0, 1.0)
    assert robot.tick()[BASE] == OWN[BASE]
    assert robot.mux.with_executed(UNTOLD) is UNTOLD


def test_what_the_robot_reports_stays(robot: Robot) -> None:
    robot.hear(0.3)
    reported = StampedObservation(SEEN, 0, 0, executed=OWN)
    assert robot.mux.with_executed(reported) is reported


def test_a_stop_of_the_policy_leaves_a_person_who_may_drive(robot: Robot) -> None:
    robot.hear(0.3)
    robot.mux.stop()
    assert robot.commands.sent[-1] == pytest.approx(0.3)
    robot.seen = False
    robot.mux.stop()
    assert robot.commands.sent[-1] == 0.0
    robot.hear(0.3)
    assert (robot.commands.sent[-1], robot.mux.problem) == (0.0, "nothing is seen")


def test_a_command_of_a_person_lives_until_he_counts_as_silent(robot: Robot) -> None:
    """Whatever the rate of the policy, whose own commands live for its ticks."""
    robot.tick()
    robot.hear(0.3)
    assert robot.commands.lifespans_s == [None, TIMEOUT_S]


@pytest.mark.parametrize("robot", [{"max_forward_accel_m_s2": 1.0}], indirect=True)
def test_a_person_who_was_silent_begins_at_rest(robot: Robot) -> None:
    for _ in range(5):
        robot.hear(0.3)
    robot.now_s += 2 * TIMEOUT_S
    robot.hear(0.3)
    assert robot.commands.sent == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1, 0.02])


@pytest.mark.parametrize(
    "robot",
    [{"workspace": Workspace("arm_translation", "ee_pose", (0.0, -1.0, 0.0), (1.0, 1.0, 2.0))}],
    indirect=True,
)
def test_an_old_pose_counts_with_what_the_person_did_since(
    robot: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clock() -> Any:
        return SimpleNamespace(now=lambda: Stamp(nanoseconds=round(robot.now_s * 1e9)))

    monkeypatch.setattr(robot.node, "get_clock", clock)
    wish = np.zeros(SPEC.action_size, np.float32)
    wish[GRIPPER], wish[0] = np.nan, 0.05
    path_m = [0.9]
    while len(path_m) < 100:
        at = max(0, len(path_m) - 1 - 15)  # the pose of 15 commands ago
        robot.measured_s = robot.now_s + PERIOD_S - (len(path_m) - 1 - at) * PERIOD_S
        robot.measured["ee_pose"] = np.array([path_m[at], 0, 1, 0, 0, 0, 1], np.float32)
        robot.now_s += PERIOD_S
        robot.receive(wish, "anna")
        speed_m_s = robot.commands.forces[-1][0] / SPEC.control_dt_s
        path_m.append(path_m[-1] + speed_m_s * PERIOD_S)
    assert 0.99 < path_m[-1] <= max(path_m) <= 1.0 + 1e-6


@pytest.mark.parametrize(
    "robot", [{"max_forward_accel_m_s2": 1.0, "lockstep": True}], indirect=True
)
def test_in_lockstep_time_passes_from_tick_to_tick_alone(robot: Robot) -> None:
    for _ in range(2):
        robot.hear(0.3)
        robot.tick()
        robot.now_s += 2 * TIMEOUT_S  # the simulator takes its time
    assert robot.commands.sent == pytest.approx([0.2, 0.3])


def test_policy_and_person_keep_the_ranges_of_the_robots_description(robot: Robot) -> None:
    sink = next(sink for sink in load_contract().actions if sink.name == "gripper")
    joints = "".join(
        f'<joint name="{field.path}" type="prismatic">'
        f'<limit lower="0" upper="{0.5 * field.scale}" velocity="1"/></joint>'
        for field in sink.fields
    )
    robot.mux._description._on_description(String(data=f"<robot>{joints}</robot>"))
    assert robot.limits.apply(OWN)[GRIPPER] == 0.5
    robot.tick()
    robot.hear(0.3)  # leaves the gripper to what is in force, which is 1
    told = robot.mux.with_executed(UNTOLD).executed
    assert told is not None
    assert told[GRIPPER] == 0.5


def test_another_person_is_refused_until_the_first_falls_silent(robot: Robot) -> None:
    robot.hear(0.3)
    robot.hear(-0.3, "ben")
    assert robot.mux.person == "anna"
    robot.now_s += 2 * TIMEOUT_S
    robot.mux.watch()
    assert "anna has been silent" in robot.mux.problem
    robot.hear(-0.3, "ben")
    assert (robot.mux.person, robot.commands.sent[-1]) == ("ben", pytest.approx(-0.3))


def test_a_command_that_was_under_way_while_the_person_gave_back_takes_nothing_over(
    robot: Robot,
) -> None:
    robot.hear(0.3)
    robot.mux.release()
    robot.hear(0.0)
    assert (robot.mux.person, robot.tick()[BASE]) == ("", OWN[BASE])
    robot.hear(-0.3, "ben")
    assert robot.mux.person == "ben"
    robot.mux.release()
    robot.now_s += TIMEOUT_S
    robot.hear(-0.3, "ben")
    assert robot.mux.person == "ben"
