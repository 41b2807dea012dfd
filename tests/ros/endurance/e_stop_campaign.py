"""The campaign of presses: how long a robot waits for zero after its emergency stop is pressed.

It is pressed while the policy drives, while the node is asked to set thousands of parameters again and again,
and while the language model prepares an instruction that nobody has given before.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count, pairwise
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import rclpy
import yaml
from failing_robot import Command, FailingRobot, driven_robot
from node_process import SERVER
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.node import Node
from std_msgs.msg import Bool

from ttm.policy import PolicySpec
from ttm.policy.errors import options, require_at_least
from ttm.training.bench.common import Line, Report, bar_table
from ttm_policy.contract import RobotContract, default_contract
from ttm_policy.control_loop import LoopState
from ttm_policy.qos import LATCHED

PAUSE_S = (0.02, 0.15)
"""The time before a press, at least and at most."""
START_S = 300.0
"""The longest wait for the first motion."""
LIMIT_S = 3600.0
"""What a busy computer does to the sensors is not measured: the node stands still no earlier."""
ASKED = 3000
"""Values in a call of `set_parameters`, far more than a node has."""
ANSWER_MS = 20.0
SILENCE_S = 1.5
"""Diagnostics come once a second."""

NOTES = """\
  driving    while the policy moves the robot; asked: while somebody calls set_parameters with 3,000 values,
             again and again; loading: while the language model prepares an instruction that nobody has
             given before, in a process of its own.
  prepared   how long such an instruction took while nothing was pressed, and the longest time without
             diagnostics meanwhile.
"""


def what_followed(
    commands: Iterable[Command], topics: Iterable[str], pressed_s: float, resumed_s: float = 0.0
) -> tuple[float | None, int]:
    """Return how long a press took until zero had arrived for good, and what moved the robot against it.

    The time is in seconds, from the press or, if that was later, from `resumed_s`; it is None as long as the
    last command of a topic is not zero. The number is that of commands which move the robot, though they came
    after a zero of the same topic that was sent after the press.
    """
    commands, arrived_s, moved = [c for c in list(commands) if c.sent_s >= pressed_s], [], 0
    for topic in topics:
        zero_s: float | None = None
        zeros = 0
        for command in (c for c in commands if c.topic == topic):
            if command.moves:
                moved, zero_s = moved + bool(zeros), None
            else:
                zero_s, zeros = command.received_s if zero_s is None else zero_s, zeros + 1
        arrived_s.append(zero_s)
    if any(at_s is None for at_s in arrived_s):
        return None, moved
    return max(at_s for at_s in arrived_s if at_s is not None) - max(pressed_s, resumed_s), moved


class PressedRobot(FailingRobot):
    """A robot with an emergency stop."""

    def __init__(self, contract: RobotContract, spec: PolicySpec):
        super().__init__(contract, spec)
        self._button = self.create_publisher(Bool, "e_stop", LATCHED)
        self._button.publish(Bool(data=False))

    @property
    def loads(self) -> bool:
        """Whether the node says that it prepares an instruction."""
        return self.message.startswith(LoopState.PREPARING.value)

    def begin_press(self) -> float:
        """Press the button, forget the commands before, and return the time."""
        self.commands.clear()
        pressed_s = time.time()
        self._button.publish(Bool(data=True))
        return pressed_s

    def press(self) -> float:
        """Press the button, and return how long it took until zero had arrived on all motion topics."""
        pressed_s = self.begin_press()

        def took_s() -> float | None:
            told = self.message.startswith(LoopState.E_STOP.value)
            return what_followed(self.commands, self.motion, pressed_s)[0] if told else None

        self.wait(lambda: took_s() is not None, "zero, and the stop to be told")
        return took_s() or 0.0

    def release(self) -> None:
        """Release the button, and let the robot move again."""
        self._button.publish(Bool(data=False))
        self.wait(lambda: self.call("rearm").success, "the emergency stop to be armed again")
        self.wait(
            lambda: not self.message.startswith(LoopState.E_STOP.value), "the end of the stop"
        )


@dataclass
class Measured:
    """What was measured, in seconds."""

    driving_s: list[float] = field(default_factory=list)
    """From each press until zero had arrived on all motion topics, while the policy drove."""
    asked_s: list[float] = field(default_factory=list)
    """The same while the node was called to set `ASKED` parameters, again and again."""
    loading_s: list[float] = field(default_factory=list)
    """The same while an instruction was prepared."""
    prepared_s: float = 0.0
    """How long the first instruction took, during which nothing was pressed."""
    silence_s: float = 0.0
    """The longest time without `/diagnostics` meanwhile."""


class Presses:
    """Measures on one robot."""

    def __init__(self, robot: PressedRobot, presses: int, seed: int):
        """presses: in each of the three states."""
        self._robot, self._presses = robot, presses
        self._rng = np.random.default_rng(seed)
        self._unknown = (f"carry {number} elephants to the sink" for number in count(2))

    def run(self) -> Measured:
        """Measure all. Raises `TimeoutError` if the policy does not move the robot, or answers no more."""
        robot, measured = self._robot, Measured()
        robot.wait_for_motion(START_S)
        measured.prepared_s, measured.silence_s = self._listen()
        self._drive()
        self._press_driving(measured.driving_s)
        with _asking():
            self._press_driving(measured.asked_s)
        while len(measured.loading_s) < self._presses:
            self._drive()
            self._load()
            while robot.loads and len(measured.loading_s) < self._presses:
                took_s = self._press()
                if robot.loads:  # and did so all the time
                    measured.loading_s.append(took_s)
        return measured

    def _press_driving(self, took_s: list[float]) -> None:
        for _ in range(self._presses):
            self._robot.wait_for_motion()
            took_s.append(self._press())

    def _listen(self) -> tuple[float, float]:
        """Let an instruction be prepared; return how long it took, and the longest silence meanwhile."""
        begun_s = time.monotonic()
        self._load()
        self._robot.wait(lambda: not self._robot.loads, "the instruction")
        ended_s = time.monotonic()
        heard_s = [at for at in self._robot.told_s if begun_s < at < ended_s]
        return ended_s - begun_s, max(b - a for a, b in pairwise([begun_s, *heard_s, ended_s]))

    def _drive(self) -> None:
        """Wait until the robot moves by an instruction that the policy knows."""
        self._robot.instruct(self._robot.instruction)
        self._robot.wait_for_motion()

    def _load(self) -> None:
        """Give an instruction that nobody has given before, and wait until it is being prepared."""
        self._robot.instruct(next(self._unknown))
        self._robot.wait(lambda: self._robot.loads, "an instruction that is prepared")

    def _press(self) -> float:
        """Press at some moment, and release."""
        time.sleep(self._rng.uniform(*PAUSE_S))
        took_s = self._robot.press()
        self._robot.release()
        return took_s


@contextmanager
def _asking() -> Iterator[None]:
    """Call the policy's node from a process of its own, from its first answer on until the end."""
    answered = SERVER.Event()
    process = SERVER.Process(target=_ask, args=(answered,), daemon=True)
    process.start()
    try:
        if not answered.wait(START_S):
            raise TimeoutError("waited in vain for the parameter services of policy_node")
        yield
    finally:
        process.kill()
        process.join()


def _ask(answered: Event) -> None:
    rclpy.init()
    node = Node("asker")
    value = ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=0.5)
    request = SetParameters.Request(parameters=[Parameter(name="max_age_s", value=value)] * ASKED)
    setter = node.create_client(SetParameters, "policy_node/set_parameters")
    setter.wait_for_service()
    while True:
        rclpy.spin_until_future_complete(node, setter.call_async(request))
        answered.set()


def lines(measured: Measured) -> list[Line]:
    """Return all figures with their bars."""
    silence_s = measured.silence_s
    return [
        *_answers("driving", measured.driving_s, None),
        *_answers("asked", measured.asked_s, ANSWER_MS),
        *_answers("loading", measured.loading_s, ANSWER_MS),
        Line("prepared in, s", measured.prepared_s, 1, "", None),
        Line("longest silence, s", silence_s, 2, f"<= {SILENCE_S:g}", silence_s <= SILENCE_S),
    ]


def _answers(state: str, took_s: Sequence[float], bar_ms: float | None) -> list[Line]:
    p50, p95, worst = np.percentile(took_s, [50, 95, 100]) * 1e3
    bar, holds = ("", None) if bar_ms is None else (f"<= {bar_ms:g}", bool(worst <= bar_ms))
    return [
        Line(f"{state}: presses", len(took_s), 0, "", None),
        Line("median, ms", p50, 1, "", None),
        Line("p95, ms", p95, 1, "", None),
        Line("worst, ms", worst, 1, bar, holds),
    ]


@dataclass(frozen=True)
class EStopCampaign:
    """Press the emergency stop again and again, and time how long the robot waits for zero.

    The policy's node runs in real time beside a made-up robot. The button is pressed while the policy
    drives, while the node is asked to set thousands of parameters, and while an instruction that nobody has
    given before is prepared by the language model. The exit code is 1 if an answer in the last two states, or
    the diagnostics meanwhile, came late.
    """

    presses: int = 50
    """How often it is pressed in each state."""
    seed: int = 0
    """Seed of the pauses between presses."""
    checkpoint: Path | None = None
    """A .safetensors file for the simulated robot; by default the policy that ships with the project."""
    json: Path | None = None
    """Also write what each press took to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_at_least(1, options(self, "presses"))
        require_at_least(0, options(self, "seed"))

    def run(self) -> int:
        """Measure, print a table, and write the figures; return the exit code."""
        contract = yaml.safe_load(default_contract().read_text())
        with driven_robot(PressedRobot, self.checkpoint, contract, stop_after_s=LIMIT_S) as (
            robot,
            _,
        ):
            measured = Presses(robot, self.presses, self.seed).run()
        rows = lines(measured)
        report = Report(self.json, presses=self.presses, seed=self.seed)
        title = "From the press until zero has arrived on all motion topics"
        report.table(bar_table(title, rows), NOTES)
        report.figures |= asdict(measured)
        report.write()
        return int(any(row.holds is False for row in rows))
