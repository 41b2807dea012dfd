"""Presses the emergency stop of a running policy, and notes how long the robot waits for zero.

It is pressed while the policy drives, while the node is asked to set thousands of parameters again and again,
and while the language model prepares an instruction that nobody has given before. `ttm bench e-stop` starts
this program beside `policy_node`.

    python -m ttm_policy.faults.presses --ros-args --params-file FILE
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count, pairwise
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import Parameter as Value
from rcl_interfaces.msg import ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.node import Node
from std_msgs.msg import Bool

from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.contract import RobotContract, load_contract
from ttm_policy.control_loop import LoopState
from ttm_policy.faults.robot import FailingRobot, made_up_observation
from ttm_policy.node_parameters import given_parameters
from ttm_policy.parameters import NodeParameters, Parameter
from ttm_policy.programs import run_with_ros
from ttm_policy.qos import LATCHED

PAUSE_S = (0.02, 0.15)
"""The time before a press, at least and at most."""
START_S = 300.0
"""The longest wait for the first motion."""
ASKED = 3000
"""Values in a call of `set_parameters`, far more than a node has."""


@dataclass(frozen=True)
class PressesParameters(NodeParameters):
    """The parameters of this program."""

    spec: Annotated[str, Parameter("The policy's spec as JSON, which has the sizes.")] = ""
    contract: Annotated[str, Parameter("YAML file of the robot's topics.")] = ""
    instruction: Annotated[str, Parameter("What the policy drives by.")] = ""
    presses: Annotated[int, Parameter("Presses in each of the three states.", minimum=1)] = 50
    seed: Annotated[int, Parameter("Seed of the pauses between presses.", minimum=0)] = 0
    out: Annotated[str, Parameter("File for what was measured, as JSON.", is_path=True)] = ""


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


class PressedRobot(FailingRobot):
    """A robot with an emergency stop, which notes when zero arrives."""

    def __init__(
        self,
        contract: RobotContract,
        spec: PolicySpec,
        observation: Mapping[str, npt.NDArray[Any]],
    ):
        self._zeros: list[tuple[str, float, float]] = []
        self.told_s: list[float] = []
        """When `/diagnostics` came, on a steady clock."""
        super().__init__(contract, spec, observation)
        self._button = self.create_publisher(Bool, "e_stop", LATCHED)
        self._button.publish(Bool(data=False))

    def _recorder(self, topic: str) -> Callable[[Any, Any], None]:
        record = super()._recorder(topic)

        def note(message: Any, info: Any) -> None:
            record(message, info)
            if topic in self.still:
                times_s = (info[key] * 1e-9 for key in ("source_timestamp", "received_timestamp"))
                self._zeros.append((topic, *times_s))

        return note

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        super()._on_diagnostics(message)
        self.told_s.append(time.monotonic())

    @property
    def loads(self) -> bool:
        """Whether the node says that it prepares an instruction."""
        return self.message.startswith(LoopState.PREPARING.value)

    def press(self) -> float:
        """Press the button, and return how long it took until zero had arrived on all motion topics."""
        self._zeros.clear()
        pressed_s = time.time()
        self._button.publish(Bool(data=True))
        self.wait(lambda: set(self._answers(pressed_s)) == set(self._motion), "zero")
        self.wait(lambda: self.message.startswith(LoopState.E_STOP.value), "the stop to be told")
        return max(self._answers(pressed_s).values()) - pressed_s

    def release(self) -> None:
        """Release the button, and let the robot move again."""
        self._button.publish(Bool(data=False))
        self.wait(lambda: self.call("rearm").success, "the emergency stop to be armed again")
        self.wait(
            lambda: not self.message.startswith(LoopState.E_STOP.value), "the end of the stop"
        )

    def _answers(self, pressed_s: float) -> dict[str, float]:
        """Return when the first zero arrived that was sent after the press, for each topic with one."""
        answers: dict[str, float] = {}
        for topic, sent_s, received_s in list(self._zeros):
            if sent_s >= pressed_s:
                answers.setdefault(topic, received_s)
        return answers


class Presses:
    """Measures on one robot."""

    def __init__(self, robot: PressedRobot, parameters: PressesParameters):
        self._robot, self._parameters = robot, parameters
        self._rng = np.random.default_rng(parameters.seed)
        self._unknown = (f"carry {number} elephants to the sink" for number in count(2))

    def run(self) -> Measured:
        """Measure all. Raises `TimeoutError` if the policy does not move the robot, or answers no more."""
        self._robot.wait_for_motion(START_S)
        measured = Measured()
        measured.prepared_s, measured.silence_s = self._listen()
        self._drive()
        while len(measured.driving_s) < self._parameters.presses:
            self._robot.wait_for_motion()
            measured.driving_s.append(self._press())
        with _asking():
            while len(measured.asked_s) < self._parameters.presses:
                self._robot.wait_for_motion()
                measured.asked_s.append(self._press())
        while len(measured.loading_s) < self._parameters.presses:
            self._drive()
            self._load()
            while self._robot.loads and len(measured.loading_s) < self._parameters.presses:
                took_s = self._press()
                if self._robot.loads:  # and did so all the time
                    measured.loading_s.append(took_s)
        return measured

    def _listen(self) -> tuple[float, float]:
        """Let an instruction be prepared; return how long it took, and the longest silence meanwhile."""
        begun_s = time.monotonic()
        self._load()
        self._robot.wait(lambda: not self._robot.loads, "the instruction")
        ended_s = time.monotonic()
        heard_s = [at for at in self._robot.told_s if begun_s < at < ended_s]
        silence_s = max(b - a for a, b in pairwise([begun_s, *heard_s, ended_s]))
        return ended_s - begun_s, silence_s

    def _drive(self) -> None:
        """Wait until the robot moves by an instruction that the policy knows."""
        self._robot.instruct(self._parameters.instruction)
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
    spawn = multiprocessing.get_context("spawn")
    answered = spawn.Event()
    process = spawn.Process(target=_ask, args=(answered,), daemon=True)
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
    request = SetParameters.Request(parameters=[Value(name="max_age_s", value=value)] * ASKED)
    setter = node.create_client(SetParameters, "policy_node/set_parameters")
    setter.wait_for_service()
    while True:
        rclpy.spin_until_future_complete(node, setter.call_async(request))
        answered.set()


def _run() -> int:
    parameters = given_parameters("presses", PressesParameters)
    spec = PolicySpec.from_json(parameters.spec)
    robot = PressedRobot(load_contract(parameters.contract), spec, made_up_observation(spec))
    try:
        measured = Presses(robot, parameters).run()
    except TimeoutError as error:
        raise UserError(str(error)) from error
    finally:
        robot.close()
    if parameters.out:
        Path(parameters.out).write_text(json.dumps(asdict(measured)))
    return 0


def main() -> int:
    """Measure, and return the exit code."""
    return run_with_ros("presses", _run)


if __name__ == "__main__":
    sys.exit(main())
