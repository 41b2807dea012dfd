"""A robot whose sensors fail on demand, and policy nodes that start quickly."""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from std_msgs.msg import Float32MultiArray, String
from std_srvs.srv import Trigger

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract.command_codec import CommandCodec
from ttm_policy.contract.contract_file import default_contract, load_contract
from ttm_policy.contract.conversions import MESSAGE_TYPES, frame_to_image, ns_to_stamp, write_vector
from ttm_policy.contract.robot_contract import EXECUTED_ACTION, ImageSource, RobotContract
from ttm_policy.qos import COMMAND, LATCHED

WAIT_S = 180.0
SENSOR_HZ = 15.0
CLOCK_HZ = 50.0
MOTION_TOPICS = ("cmd_vel", "servo_node/delta_twist_cmds")
FOREIGN = "somebody_else"
"""The frame of commands that do not come from the policy."""


class FailingRobot(Node):
    """Publishes `/clock` and all sensors from a thread of its own, with the faults of the moment.

    `offset_s` shifts the stamps of inputs, `frozen` inputs keep their stamp, `silent` ones send nothing,
    `every` lets an input send only each n-th message, and `damage` changes messages.
    """

    def __init__(self, contract: RobotContract, observation: dict[str, np.ndarray]):
        super().__init__("failing_robot")
        self.contract = contract
        self.moved_at_s = -math.inf
        """When the newest command was sent that moves the robot, on the clock of the system."""
        self.still: dict[str, float] = {}
        """Topic -> when the newest command was sent, if that was zero."""
        self.actions: list[np.ndarray] = []
        self.ticks: list[int] = []
        self.frames = 0
        """Messages of the camera `head` that were sent."""
        self.level, self.message = b"", ""
        self._now_ns = 1_000_000_000_000
        self.clock_runs = True
        self.repair()
        did = np.zeros(SPEC.action_size, np.float32)
        self._messages = {s.name: self._message(s, {**observation, EXECUTED_ACTION: did}[s.name])
                          for s in contract.inputs}  # fmt: skip
        best_effort = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
        self._sensors = {
            s.name: self.create_publisher(MESSAGE_TYPES[s.type], s.topic, best_effort)
            for s in contract.inputs
        }
        self._time = self.create_publisher(Clock, "/clock", 10)
        self._instruction = self.create_publisher(String, "instruction", LATCHED)
        for topic, kind in CommandCodec(contract, SPEC).types().items():
            if topic in MOTION_TOPICS:
                self.create_subscription(kind, topic, self._recorder(topic), COMMAND)
        self.create_subscription(Float32MultiArray, "policy_node/action", self._on_action, 100)
        self.create_subscription(Float32MultiArray, "policy_node/memory", self._on_memory, LATCHED)
        self.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self._ended = threading.Event()
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self)
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._spin, self._publish)
        ]
        for thread in self._threads:
            thread.start()

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

    def _message(self, source: Any, values: np.ndarray) -> Any:
        if isinstance(source, ImageSource):
            message = frame_to_image(values, source, ns_to_stamp(0))
        else:
            message = MESSAGE_TYPES[source.type]()
            write_vector(message, source, values)
        message.header.frame_id = source.frame_id or "anything"
        return message

    def _spin(self) -> None:
        while not self._ended.is_set():
            self._executor.spin_once(timeout_sec=0.05)

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
        copy = type(message)(**{
            field: getattr(message, field) for field in message.get_fields_and_field_types()
        })  # fmt: skip
        copy.header = type(message.header)(
            stamp=message.header.stamp, frame_id=message.header.frame_id
        )
        self.damage[name](copy)
        return copy

    def _recorder(self, topic: str) -> Callable[[Any, Any], None]:
        def record(message: Any, info: Any) -> None:
            if message.header.frame_id == FOREIGN:
                return
            sent_s = info["source_timestamp"] * 1e-9
            twist = message.twist
            parts = [getattr(p, axis) for p in (twist.linear, twist.angular) for axis in "xyz"]
            if any(parts):
                self.moved_at_s = max(self.moved_at_s, sent_s)
                self.still.pop(topic, None)
            else:
                self.still[topic] = sent_s

        return record

    def _on_action(self, message: Float32MultiArray) -> None:
        self.actions.append(np.array(message.data, dtype=np.float32))

    def _on_memory(self, message: Float32MultiArray) -> None:
        self.ticks.append(int(message.data[0]))

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        self.level, self.message = message.status[0].level, message.status[0].message

    @property
    def stands(self) -> bool:
        """Whether the newest command of every motion topic is zero."""
        return set(self.still) == set(MOTION_TOPICS)

    def wait(self, done: Callable[[], Any], what: str) -> None:
        """Wait until `done()`."""
        deadline_s = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < deadline_s, f"waited in vain for {what}: {self.message}"
            time.sleep(0.01)

    def wait_for_motion(self) -> None:
        """Wait until the robot is commanded to move from now on, and the node says that all is well."""
        since_s, acted = time.time(), len(self.actions)
        self.wait(lambda: self.moved_at_s > since_s and len(self.actions) > acted, "motion")
        self.wait(lambda: self.message.startswith("running"), "good diagnostics")

    def instruct(self, text: str) -> None:
        """Publish an instruction."""
        self._instruction.publish(String(data=text))

    def call(self, service: str) -> Trigger.Response:
        """Call a service of the policy node without arguments."""
        return self._call(Trigger, service, Trigger.Request())

    def transition(self, transition_id: int) -> bool:
        """Run a transition of the life cycle, and return whether it succeeded."""
        request = ChangeState.Request()
        request.transition.id = transition_id
        return self._call(ChangeState, "change_state", request).success

    def _call(self, kind: Any, name: str, request: Any) -> Any:
        client = self.create_client(kind, f"policy_node/{name}")
        self.wait(client.service_is_ready, name)
        future = client.call_async(request)
        self.wait(future.done, f"an answer of {name}")
        self.destroy_client(client)
        return future.result()

    def close(self) -> None:
        """End the threads and the node."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self.destroy_node()


@pytest.fixture(scope="session")
def contract_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated robot's contract with everything declared that makes an input implausible."""
    data = yaml.safe_load(default_contract().read_text())
    data["max_skew_s"] = 0.3
    data["observations"]["wrist"]["min_contrast"] = 5.0
    data["observations"]["ee_pose"]["frame_id"] = "base_link"
    data["observations"]["base_velocity"]["fields"] = [
        {"field": path, "min": -10.0, "max": 10.0}
        for path in ("twist.twist.linear.x", "twist.twist.angular.z")
    ]
    path = tmp_path_factory.mktemp("contract") / "robot.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture(scope="module")
def robot(contract_file: Path, observations: list[dict[str, np.ndarray]]) -> Iterator[FailingRobot]:
    """One robot for all tests of a module."""
    rclpy.init()
    node = FailingRobot(load_contract(contract_file), observations[0])
    yield node
    node.close()
    rclpy.shutdown()


class PolicyProcess:
    """One policy node in a process."""

    def __init__(self, pid: int, codes: dict[int, int], loading: Path):
        self.pid, self._codes, self.loading = pid, codes, loading
        """`loading` is there while the fault "slow" keeps the policy from being loaded."""

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self._codes.get(self.pid)

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        deadline_s = time.monotonic() + WAIT_S
        while self.exit_code is None:
            assert time.monotonic() < deadline_s, "the process does not end"
            time.sleep(0.01)
        return self.exit_code

    def end(self) -> int:
        """End the process if it is still there, and return its exit code."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                self.send(signal.SIGTERM)
        return self.wait()


StartPolicy = Callable[..., PolicyProcess]


@pytest.fixture(scope="session")
def start_policy(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, contract_file: Path
) -> Iterator[StartPolicy]:
    """Start policy nodes with parameters, as children of a process that has imported everything."""
    parent = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("policy_processes.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    started: queue.Queue[int] = queue.Queue()
    codes: dict[int, int] = {}
    processes: list[PolicyProcess] = []

    def read(lines: Any) -> None:
        for line in lines:
            pid, *code = map(int, line.split())
            if code:
                codes[pid] = code[0]
            else:
                started.put(pid)

    threading.Thread(target=read, args=(parent.stdout,), daemon=True).start()
    folder = tmp_path_factory.mktemp("parameters")

    def start(fault: str = "", **parameters: Any) -> PolicyProcess:
        path = folder / f"{len(processes)}.yaml"
        values = {"checkpoint": str(checkpoint), "contract": str(contract_file), "engine": "torch"}
        path.write_text(yaml.safe_dump({"/**": {"ros__parameters": values | parameters}}))
        order = {"fault": fault, "arguments": ["--ros-args", "--params-file", str(path)]}
        parent.stdin.write(json.dumps(order) + "\n")
        parent.stdin.flush()
        pid = started.get(timeout=WAIT_S)
        processes.append(PolicyProcess(pid, codes, path.with_suffix(".loading")))
        return processes[-1]

    yield start
    for process in processes:
        process.end()
    parent.terminate()  # an end in order takes seconds, in which nothing happens
    parent.wait(WAIT_S)
