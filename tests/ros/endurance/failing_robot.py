"""A robot whose sensors and clock fail on demand, and the faults under which a policy must not move it."""

from __future__ import annotations

import math
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import TwistStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from node_process import NodeProcess
from rclpy.exceptions import InvalidHandle
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image
from std_msgs.msg import Bool, Float32MultiArray, String
from std_srvs.srv import Trigger

from ttm.policy import Policy, PolicySpec, load_checkpoint
from ttm.policy.spec import SHIPPED, checkpoint_path
from ttm_policy.contract import (
    EXECUTED_ACTION,
    MOTION_TYPES,
    ImageSource,
    RobotContract,
    default_contract,
    load_contract,
)
from ttm_policy.messages import MESSAGE_TYPES, frame_to_image, ns_to_stamp, write_vector
from ttm_policy.qos import COMMAND, LATCHED

WAIT_S = 180.0
"""How long `Station.wait` waits, unless it is told."""
ASK_AGAIN_S = 20.0
SENSOR_HZ = 15.0
CLOCK_HZ = 50.0
VALUE = 0.1
"""Every value of proprioception in `made_up_observation`."""
FOREIGN = "somebody_else"
"""The frame of commands that do not come from the policy."""


class Spinning:
    """Spins nodes from now on until `end`.

    `Executor.shutdown` is no end of a thread in `Executor.spin`: it does not wait for it, and takes away the
    guard that would wake it, so that a thread which is just about to wait may wait for ever.
    """

    def __init__(self, *nodes: Node) -> None:
        self._executor, self._ended = SingleThreadedExecutor(), threading.Event()
        for node in nodes:
            self.add(node)
        self.thread = threading.Thread(target=self._spin, daemon=True)
        self.thread.start()

    def add(self, node: Node) -> None:
        """Spin one more node."""
        self._executor.add_node(node)

    def _spin(self) -> None:
        while not self._ended.is_set():
            with suppress(InvalidHandle):  # what another thread destroyed as this began to wait
                self._executor.spin_once(timeout_sec=0.05)

    def end(self) -> None:
        """Return when the thread has ended. The nodes are the caller's to destroy."""
        self._ended.set()
        self.thread.join()
        self._executor.shutdown()


class Station(Node):
    """A node that waits for others and calls their services, while a thread of its own spins it."""

    processes: Sequence[NodeProcess] = ()
    """Nodes that must live: nothing is awaited once one of them has ended."""
    message = ""
    """What the others have said last."""
    wait_s = WAIT_S

    def wait(self, done: Callable[[], Any], what: str, limit_s: float | None = None) -> None:
        """Wait until `done()`. Raises `TimeoutError` if that takes too long, or a process has ended."""
        deadline_s = time.monotonic() + (self.wait_s if limit_s is None else limit_s)
        while not done():
            if any(process.exit_code is not None for process in self.processes):
                raise TimeoutError(f"a node has ended while it was asked for {what}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"waited in vain for {what}: {self.message}")
            time.sleep(0.01)

    def ask(self, service: str, kind: Any = Trigger, **request: Any) -> Any:
        """Call a service of any node, and return the answer.

        A server drops its answer if it has not discovered the client within 100 ms, which happens on a busy
        machine. The call is then made again.
        """
        client = self.create_client(kind, service)
        self.wait(client.service_is_ready, service)
        calls: list[Any] = []
        called_s = -math.inf

        def answered() -> bool:
            nonlocal called_s
            if time.monotonic() - called_s > ASK_AGAIN_S:
                called_s = time.monotonic()
                calls.append(client.call_async(kind.Request(**request)))
            return any(call.done() for call in calls)

        self.wait(answered, f"an answer of {service}")
        self.destroy_client(client)
        return next(call.result() for call in calls if call.done())


@dataclass
class Command:
    """One command that the robot got. Times are on the clock of the system."""

    topic: str
    moves: bool
    sent_s: float
    received_s: float


class FailingRobot(Station):
    """Publishes `/clock` and all sensors from a thread of its own, with the faults of the moment.

    `offset_s` shifts the stamps of inputs, `frozen` inputs keep their stamp, `silent` ones send nothing,
    `every` lets an input send only each n-th message, and `damage` changes messages.
    """

    command_qos = COMMAND
    instruction = "pick up the red can"
    """What the policy drives it by."""

    def __init__(
        self,
        contract: RobotContract,
        spec: PolicySpec,
        observation: Mapping[str, npt.NDArray[Any]] | None = None,
        namespace: str = "",
    ):
        """observation: what the sensors see all the time; by default one that is made up.

        A robot in a namespace has a clock of its own there.
        """
        super().__init__("failing_robot", namespace=namespace)
        seen = made_up_observation(spec) if observation is None else observation
        self.moved_s: list[float] = []
        """When each command was sent that moves the robot, on the clock of the system."""
        self.still: dict[str, float] = {}
        """Topic -> when the newest command was sent, if that was zero."""
        self.commands: list[Command] = []
        self.actions: list[npt.NDArray[np.float32]] = []
        self.ticks: list[int] = []
        self.frames = 0
        """Messages of the camera `head` that were sent."""
        self.told_s: list[float] = []
        """When `/diagnostics` came, on a steady clock."""
        self.level = b""
        self._now_ns = 1_000_000_000_000
        self.repair()
        seen = {**seen, EXECUTED_ACTION: np.zeros(spec.action_size, np.float32)}
        self._messages = {s.name: _message(s, seen[s.name]) for s in contract.inputs}
        best_effort = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
        self._sensors = {
            s.name: self.create_publisher(MESSAGE_TYPES[s.type], s.topic, best_effort)
            for s in contract.inputs
        }
        self._time = self.create_publisher(Clock, "clock" if namespace else "/clock", 10)
        self._about = self.resolve_topic_name("policy_node") + ":"
        self._instruction = self.create_publisher(String, "instruction", LATCHED)
        self.motion = {sink.topic for sink in contract.actions if sink.type in MOTION_TYPES}
        """The topics that move the robot."""
        for sink in contract.actions:
            if sink.topic in self.motion:
                kind, hear = MESSAGE_TYPES[sink.type], self._listener(sink.topic)
                self.create_subscription(kind, sink.topic, hear, self.command_qos)
        self.create_subscription(Float32MultiArray, "policy_node/action", self._on_action, 100)
        self.create_subscription(Float32MultiArray, "policy_node/memory", self._on_memory, LATCHED)
        self.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self._ended = threading.Event()
        self._spinning = Spinning(self)
        self._publishing = threading.Thread(target=self._publish, daemon=True)
        self._publishing.start()

    def repair(self) -> None:
        """End all faults."""
        self.offset_s: dict[str, float] = {}
        self.frozen: set[str] = set()
        self.silent: set[str] = set()
        self.every: dict[str, int] = {}
        self.damage: dict[str, Callable[[Any], None]] = {}
        self.clock_runs = True

    def jump(self, seconds: float) -> None:
        """Let the clock, and with it the stamps of all sensors, jump."""
        self._now_ns += round(seconds * 1e9)

    @property
    def names(self) -> set[str]:
        """The names of all inputs."""
        return set(self._sensors)

    @property
    def runs(self) -> bool:
        """Whether the policy's node says that it runs."""
        return self.message.startswith("running")

    @property
    def moved_at_s(self) -> float:
        """When the newest command was sent that moves the robot."""
        return max(self.moved_s, default=-math.inf)

    def _publish(self) -> None:
        last_s, turn, clock_turns = time.monotonic(), 0, round(CLOCK_HZ / SENSOR_HZ)
        while not self._ended.wait(1 / CLOCK_HZ):
            now_s = time.monotonic()
            if self.clock_runs:
                self._now_ns += round((now_s - last_s) * 1e9)
            last_s, turn = now_s, turn + 1
            self._time.publish(Clock(clock=ns_to_stamp(self._now_ns)))
            if turn % clock_turns == 0:
                self._sense(turn // clock_turns)

    def _sense(self, turn: int) -> None:
        for name in sorted(self.names - self.silent):
            if turn % self.every.get(name, 1):
                continue
            message = self._messages[name]
            if name not in self.frozen:
                stamp_ns = self._now_ns + round(self.offset_s.get(name, 0.0) * 1e9)
                message.header.stamp = ns_to_stamp(stamp_ns)
            self.frames += name == "head"
            self._sensors[name].publish(self._damaged(name, message))

    def _damaged(self, name: str, message: Any) -> Any:
        if name not in self.damage:
            return message
        fields = message.get_fields_and_field_types()
        copy = type(message)(**{field: getattr(message, field) for field in fields})
        header = message.header
        copy.header = type(header)(stamp=header.stamp, frame_id=header.frame_id)
        self.damage[name](copy)
        return copy

    def _listener(self, topic: str) -> Callable[[Any, Any], None]:
        def hear(message: Any, info: Any) -> None:
            if message.header.frame_id == FOREIGN:
                return
            twist = message.twist
            moves = any(getattr(p, a) for p in (twist.linear, twist.angular) for a in "xyz")
            times_s = (info[key] * 1e-9 for key in ("source_timestamp", "received_timestamp"))
            command = Command(topic, moves, *times_s)
            self.commands.append(command)
            if moves:
                self.moved_s.append(command.sent_s)
                self.still.pop(topic, None)
            else:
                self.still[topic] = command.sent_s

        return hear

    def _on_action(self, message: Float32MultiArray) -> None:
        self.actions.append(np.array(message.data, dtype=np.float32))

    def _on_memory(self, message: Float32MultiArray) -> None:
        self.ticks.append(int(message.data[0]))

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        self.told_s.append(time.monotonic())
        if message.status and message.status[0].name.startswith(self._about):
            self.level, self.message = message.status[0].level, message.status[0].message

    def forget(self) -> None:
        """Drop what was recorded of the past, so that hours need no more memory than minutes."""
        self.moved_s = [self.moved_at_s]
        self.actions, self.ticks = self.actions[-1:], self.ticks[-1:]
        self.commands, self.told_s = [], []

    @property
    def stands(self) -> bool:
        """Whether the newest command of every motion topic is zero."""
        return set(self.still) == self.motion

    def wait_for_motion(self, limit_s: float | None = None) -> None:
        """Wait until the robot is commanded to move from now on, and the node says that all is well."""
        since_s, acted = time.time(), len(self.actions)
        self.wait(
            lambda: self.moved_at_s > since_s and len(self.actions) > acted, "motion", limit_s
        )
        self.wait(lambda: self.runs, "good diagnostics", limit_s)

    def instruct(self, text: str) -> None:
        """Publish an instruction."""
        self._instruction.publish(String(data=text))

    def call(self, service: str, kind: Any = Trigger, **request: Any) -> Any:
        """Call a service of the policy node, and return the answer."""
        return self.ask(f"policy_node/{service}", kind, **request)

    def transition(self, transition_id: int) -> bool:
        """Run a transition of the life cycle, and return whether it succeeded."""
        transition = Transition(id=transition_id)
        return bool(self.call("change_state", ChangeState, transition=transition).success)

    def close(self) -> None:
        """End the threads and the node."""
        self._ended.set()
        self._publishing.join()
        self._spinning.end()
        self.destroy_node()


def made_up_observation(spec: PolicySpec) -> dict[str, npt.NDArray[Any]]:
    """Return noise for the cameras, and constants for the rest."""
    rng = np.random.default_rng(0)
    frames: dict[str, npt.NDArray[Any]] = {
        camera.name: rng.integers(0, 256, (camera.height, camera.width, 3), dtype=np.uint8)
        for camera in spec.cameras
    }
    vectors = {v.name: np.full(v.size, VALUE, np.float32) for v in spec.proprioception}
    return frames | vectors


Robot = TypeVar("Robot", bound=FailingRobot)


@contextmanager
def driven_robot(
    kind: type[Robot], checkpoint: Path | None, contract: Mapping[str, Any], **parameters: Any
) -> Iterator[tuple[Robot, Policy]]:
    """Yield a robot, whose only process is a `policy_node` with these parameters, and its policy.

    checkpoint: None for the policy that ships with the project.
    """
    path = checkpoint_path(checkpoint or SHIPPED).resolve()
    policy, _ = load_checkpoint(path)
    with tempfile.TemporaryDirectory(prefix="ttm_endurance_") as folder:
        file = Path(folder) / "robot.yaml"
        file.write_text(yaml.safe_dump(dict(contract)))
        robot = kind(load_contract(file), policy.spec)
        robot.instruction = next(iter(policy.known_instructions), robot.instruction)
        values = {"checkpoint": str(path), "contract": str(file), "use_sim_time": True}
        values |= {"instruction": robot.instruction, **parameters}
        process = NodeProcess("policy_node", Path(folder) / "policy", values, constants={})
        robot.processes = [process]
        try:
            yield robot, policy
        except TimeoutError:
            print(process.output, file=sys.stderr)
            raise
        finally:
            process.end()
            robot.close()


def _message(source: Any, values: npt.NDArray[Any]) -> Any:
    if isinstance(source, ImageSource):
        message = frame_to_image(values, source, ns_to_stamp(0))
    else:
        message = MESSAGE_TYPES[source.type]()
        write_vector(message, source, values)
    message.header.frame_id = source.frame_id or "anything"
    return message


def strict_contract() -> dict[str, Any]:
    """Return the simulated robot's contract with all that makes an input implausible, as YAML has it."""
    data: dict[str, Any] = yaml.safe_load(default_contract().read_text())
    data["max_skew_s"] = 0.3
    data["observations"]["wrist"]["min_contrast"] = 5.0
    data["observations"]["ee_pose"]["frame_id"] = "base_link"
    data["observations"]["base_velocity"]["fields"] = [
        {"field": path, "min": -10.0, "max": 10.0}
        for path in ("twist.twist.linear.x", "twist.twist.angular.z")
    ]
    return data


Begin = Callable[[FailingRobot], Callable[[], object] | None]
"""Begins a fault, and returns what ends it beside `FailingRobot.repair`."""
REPEAT_S = 0.1


@dataclass(frozen=True)
class Fault:
    """One fault."""

    begin: Begin
    words: str
    """What the diagnostics say; alternatives are separated by `|`."""

    def told(self, message: str) -> bool:
        """Return whether a message of the diagnostics names this fault."""
        return any(words in message for words in self.words.split("|"))


def _shifted(seconds: float, *names: str) -> Begin:
    return lambda robot: robot.offset_s.update(dict.fromkeys(names or robot.names, seconds))


def _frozen(*names: str) -> Begin:
    return lambda robot: robot.frozen.update(names or robot.names)


def _silent(*names: str) -> Begin:
    return lambda robot: robot.silent.update(names or robot.names)


def _damaged(name: str, change: Callable[[Any], object]) -> Begin:
    return lambda robot: robot.damage.update({name: change})  # type: ignore[dict-item]


def _clock_stops(robot: FailingRobot) -> None:
    robot.clock_runs = False


def _clock_stops_and_all_is_silent(robot: FailingRobot) -> None:
    robot.clock_runs = False
    robot.silent.update(robot.names)


def _second_camera(robot: FailingRobot) -> Callable[[], object]:
    publisher = robot.create_publisher(Image, "head/image_raw", 5)
    return lambda: robot.destroy_publisher(publisher)


def command_of_another(period_s: float) -> Begin:
    """Another program drives the base."""

    def begin(robot: FailingRobot) -> Callable[[], object]:
        publisher = robot.create_publisher(TwistStamped, "cmd_vel", 10)
        message = TwistStamped()
        message.header.frame_id, message.twist.linear.x = FOREIGN, 0.3
        timer = robot.create_timer(period_s, lambda: publisher.publish(message))
        return lambda: (robot.destroy_timer(timer), robot.destroy_publisher(publisher))

    return begin


def _e_stop(qos: QoSProfile) -> Begin:
    def press(robot: FailingRobot) -> Callable[[], object]:
        publisher, pressed = robot.create_publisher(Bool, "e_stop", qos), [True]
        timer = robot.create_timer(REPEAT_S, lambda: publisher.publish(Bool(data=pressed[0])))

        def release() -> None:
            pressed[0] = False
            robot.wait(lambda: "it is pressed" not in robot.message, "the release")
            robot.destroy_timer(timer)
            robot.destroy_publisher(publisher)

        return release

    return press


def _set_pixels(value: int) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        message.data = array("B", bytes([value]) * len(message.data))

    return change


def _cut(message: Any) -> None:
    message.data = message.data[:100]


def _set_speed(value: float) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        message.twist = type(message.twist)()
        message.twist.twist.linear.x = value

    return change


def _set_frame(message: Any) -> None:
    message.header.frame_id = "world"


_BEST_EFFORT = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
_PRESSED = "emergency stop: it is pressed"

FAULTS: Mapping[str, Fault] = {
    "all stamps are ahead": Fault(_shifted(100.0), "ahead of the clock"),
    "one stamp is ahead": Fault(
        _shifted(100.0, "ee_pose"), "ee_pose (/ee_pose): the observation is"
    ),
    "all stamps are old": Fault(_shifted(-100.0), "s old"),
    "one stamp is old": Fault(_shifted(-5.0, "wrist"), "wrist (/wrist/image_raw)"),
    "all stamps are frozen": Fault(_frozen(), "s old|no new stamp"),
    "one stamp is frozen": Fault(_frozen("joint_positions"), "joint_positions (/joint_states)"),
    "all sensors are silent": Fault(_silent(), "s old|no new stamp"),
    "one sensor is silent": Fault(_silent("base_velocity"), "base_velocity (/odom)"),
    "the report of the robot is silent": Fault(_silent("executed action"), "executed action"),
    "the clock stops": Fault(_clock_stops, "the clock of ROS|no new stamp"),
    "the clock and the sensors stop": Fault(_clock_stops_and_all_is_silent, "no new stamp"),
    "inputs are too far apart": Fault(_shifted(-0.45, "head"), "max_skew_s of the contract is 0.3"),
    "a camera has two publishers": Fault(_second_camera, "head (/head/image_raw) has 2 publishers"),
    "somebody else commands": Fault(
        command_of_another(REPEAT_S), "/cmd_vel gets commands from another"
    ),
    "a value is NaN": Fault(_damaged("base_velocity", _set_speed(float("nan"))), "not finite"),
    "a value is implausible": Fault(
        _damaged("base_velocity", _set_speed(1e6)), "accepts -10 to 10"
    ),
    "a camera is black": Fault(_damaged("wrist", _set_pixels(0)), "contrast of 0.0"),
    "an image is cut off": Fault(_damaged("head", _cut), "check the camera driver"),
    "a pose is in another frame": Fault(_damaged("ee_pose", _set_frame), "is in frame 'world'"),
    "e-stop, best effort": Fault(_e_stop(_BEST_EFFORT), _PRESSED),
    "e-stop, reliable": Fault(_e_stop(QoSProfile(depth=10)), _PRESSED),
    "e-stop, latched": Fault(_e_stop(LATCHED), _PRESSED),
}
"""The faults of a robot under `strict_contract`, and what the node says about each."""
