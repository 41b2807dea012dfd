"""A tiny policy, nodes in processes on a ROS domain of this run, and a robot for tests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not here")
from ttm.training.robot.processes import claim_ros_domain

os.environ["ROS_DOMAIN_ID"] = str(claim_ros_domain())
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"

import rclpy
import torch
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.srv import ChangeState, GetState
from node_process import WAIT_S, NodeProcess
from rcl_interfaces.srv import SetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.task import Future
from rosgraph_msgs.msg import Clock
from std_msgs.msg import Bool, Float32MultiArray, String
from std_srvs.srv import Trigger

from ttm.policy import PRESETS, Policy, save_checkpoint
from ttm.sim import TASK_NAMES
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.tasks.table import instructions_of
from ttm_policy.contract import EXECUTED_ACTION, ImageSource, load_contract
from ttm_policy.messages import (
    MESSAGE_TYPES,
    CommandCodec,
    ResetReply,
    frame_to_image,
    ns_to_stamp,
    read_reset_reply,
    write_vector,
)
from ttm_policy.qos import COMMAND, LATCHED

TICK_NS = 200_000_000
STAND_IN = """
import pathlib, sys, time, types
import numpy
quiet = dict(is_progress_bar_enabled=bool, disable_progress_bar=bool, enable_progress_bar=bool)
sys.modules["transformers.utils.logging"] = types.SimpleNamespace(**quiet)
folder = pathlib.Path("FOLDER")
while (folder / "wait").exists():
    time.sleep(0.02)
if (folder / "fail").exists():
    sys.exit("the language model is broken")

class SentenceTransformer:
    def __init__(self, *args, **kwargs): pass

    def encode(self, text, **kwargs):
        with open(folder / "calls", "a") as file:
            file.write(text + "\\n")
        return numpy.full(384, 0.5, numpy.float32)
"""
"""The code of the fixture `language_model`."""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The untrained tiny preset with made-up embeddings, so that no test loads the language model."""
    torch.manual_seed(0)
    policy = Policy(SPEC, PRESETS["tiny"])
    rng = np.random.default_rng(0)
    texts = [text for name in TASK_NAMES for text in instructions_of(name)]
    policy.known_instructions = {
        text: rng.normal(0, 0.05, 384).astype(np.float32) for text in texts
    }
    path = tmp_path_factory.mktemp("policy") / "tiny.safetensors"
    save_checkpoint(path, policy, {})
    return path


@pytest.fixture(scope="session")
def observations() -> list[dict[str, np.ndarray]]:
    """A recorded stream of 12 different observations of noise."""
    rng = np.random.default_rng(1)
    cameras = {camera.name: (camera.height, camera.width, 3) for camera in SPEC.cameras}
    sizes = {vector.name: vector.size for vector in SPEC.proprioception}
    return [
        {name: rng.integers(0, 256, shape, dtype=np.uint8) for name, shape in cameras.items()}
        | {name: rng.normal(0, 1, size).astype(np.float32) for name, size in sizes.items()}
        for _ in range(12)
    ]


@pytest.fixture
def language_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in of `sentence_transformers` for processes that the test starts, in a folder of its own.

    Its embeddings are 0.5 throughout, and `calls` lists the texts. While the folder has a file `wait`,
    it takes as long as a language model may; with a file `fail` it is broken.
    """
    folder = tmp_path / "language"
    package = folder / "sentence_transformers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN.replace("FOLDER", str(folder)))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
    return folder


StartNode = Callable[..., NodeProcess]


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """Start a node with parameters in a process that is ended after the test.

    Of a test that fails, the report shows what the nodes have written.
    """
    started: list[NodeProcess] = []

    def start(name: str, **parameters: Any) -> NodeProcess:
        started.append(NodeProcess(name, tmp_path / f"{name}_{len(started)}", parameters))
        return started[-1]

    yield start
    for process in started:
        process.send(signal.SIGINT)
    for number, process in enumerate(started):
        print(f"node {number} ended with {process.wait()}:\n{process.output}")


class TestRobot(Node):
    """Publishes what a test says and keeps everything that the policy publishes."""

    __test__ = False

    def __init__(self, *, lockstep: bool):
        super().__init__("test_robot")
        self.contract = load_contract()
        self.codec = CommandCodec(self.contract, SPEC)
        self.time_ns = 10_000_000_000
        self.commands: dict[str, list[Any]] = {topic: [] for topic in self.codec.sinks}
        self.actions: list[np.ndarray] = []
        self.memories: list[np.ndarray] = []
        self.diagnosis = ""
        self.executed: np.ndarray | None = None
        # Before the sensors, and with a first state: until the policy has heard one, the robot stands still.
        self._e_stop = self.create_publisher(Bool, "e_stop", LATCHED)
        self.press_e_stop(False)
        self._sources = self.contract.inputs
        self._sensors = {
            s.name: self.create_publisher(MESSAGE_TYPES[s.type], s.topic, LATCHED)
            for s in self._sources
        }
        self._clock = self.create_publisher(Clock, "/clock", 10)
        self._instruction = self.create_publisher(String, "instruction", LATCHED)
        self._sent_ns: dict[str, int] = {}
        for topic, kind in self.codec.types().items():
            qos = LATCHED if lockstep else COMMAND
            self.create_subscription(kind, topic, self._noted(topic, self.commands[topic]), qos)
        for topic, got, qos in (("action", self.actions, 10), ("memory", self.memories, LATCHED)):
            noted = self._noted(topic, got, lambda m: np.array(m.data, dtype=np.float32))
            self.create_subscription(Float32MultiArray, f"policy_node/{topic}", noted, qos)
        self.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self)

    def _noted(
        self, topic: str, got: list[Any], read: Callable[[Any], Any] = lambda m: m
    ) -> Callable[[Any, Any], None]:
        """Return a callback that keeps messages, and when the newest was sent on the system's clock."""

        def note(message: Any, info: Any) -> None:
            got.append(read(message))
            self._sent_ns[topic] = info["source_timestamp"]

        return note

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        self.diagnosis = message.status[0].message

    def wait(self, done: Callable[[], bool], what: str | Callable[[], str]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not done():
            if time.monotonic() > deadline_s:
                awaited = what if isinstance(what, str) else what()
                pytest.fail(f"waited in vain for {awaited}; the policy says: {self.diagnosis}")
            self._executor.spin_once(timeout_sec=0.02)

    def settle(self) -> None:
        """Handle all messages that were caused before this call."""
        self._call(GetState, "get_state", GetState.Request())
        self.drain()
        for _ in range(20):
            self._executor.spin_once(timeout_sec=0.01)

    def drain(self, most: int = 100) -> None:
        """Handle the messages that have come already, at most so many."""
        for _ in range(most):
            self._executor.spin_once(timeout_sec=0.0)

    def call(self, service: str) -> Trigger.Response:
        """Call one of the services of the memory."""
        return self._call(Trigger, service, Trigger.Request())

    def transition(self, transition_id: int) -> bool:
        """Run a transition of the life cycle, and return whether it succeeded."""
        self._call(
            GetState, "get_state", GetState.Request(), 0.5
        )  # so that a living node is known to listen
        request = ChangeState.Request()
        request.transition.id = transition_id
        return self._call(ChangeState, "change_state", request, WAIT_S).success

    def set_parameters(self, **values: Any) -> list[tuple[bool, str]]:
        """Set parameters of the policy's node; return for each whether it was taken, and why not."""
        messages = [Parameter(name, value=v).to_parameter_msg() for name, v in values.items()]
        request = SetParameters.Request(parameters=messages)
        results = self._call(SetParameters, "set_parameters", request).results
        return [(result.successful, result.reason) for result in results]

    def _call(self, kind: Any, name: str, request: Any, patience_s: float = 2.0) -> Any:
        """Call a service again after a while: a killed server remains visible for some seconds.

        On a busy machine a living one may get several calls, and answers them in order. The first answer
        is the one that counts, and with the last one nothing is under way any more.
        """
        client = self.create_client(kind, f"policy_node/{name}")
        calls: list[Future] = []

        def asked_for_a_while() -> bool:
            calls.append(client.call_async(request))
            until_s = time.monotonic() + patience_s * 2 ** min(len(calls) - 1, 5)
            while not calls[-1].done() and time.monotonic() < until_s:
                self._executor.spin_once(timeout_sec=0.02)
            return calls[-1].done()

        self.wait(client.service_is_ready, name)
        self.wait(asked_for_a_while, name)
        self.destroy_client(client)
        return next(call.result() for call in calls if call.done())

    def instruct(self, text: str) -> None:
        self._instruction.publish(String(data=text))

    def begin_episode(self, text: str) -> None:
        """Begin an episode as `sim_node` does: the memory is empty when this returns."""
        self.instruct(text)
        wanted = ResetReply(text, tick=0)
        self.wait(lambda: read_reset_reply(self.call("reset_memory")) == wanted, "the instruction")

    def press_e_stop(self, pressed: bool) -> None:
        self._e_stop.publish(Bool(data=pressed))

    def observe(self, observation: dict[str, np.ndarray], *, age_ns: int = 0) -> int:
        """Publish all inputs with one stamp `age_ns` before now, and return the stamp.

        The robot did what it was commanded, unless `executed` says something else.
        """
        stamp_ns = self.time_ns - age_ns
        did = self.commanded() if self.executed is None else self.executed
        observation = {**observation, EXECUTED_ACTION: did}
        for source in self._sources:
            if isinstance(source, ImageSource):
                message = frame_to_image(observation[source.name], source, ns_to_stamp(stamp_ns))
            else:
                message = MESSAGE_TYPES[source.type]()
                message.header.stamp = ns_to_stamp(stamp_ns)
                write_vector(message, source, observation[source.name])
            self._sensors[source.name].publish(message)
        return stamp_ns

    def run_freely(self, observation: dict[str, np.ndarray], *, age_ns: int = 0) -> None:
        """Let a control period pass, at whose end the newest observation is `age_ns` old.

        It takes as long as the period or, if the policy acts, until it does.
        """
        self.time_ns += TICK_NS
        acted, until_s = len(self.actions), time.monotonic() + TICK_NS * 1e-9
        self.observe(observation, age_ns=age_ns)
        self._clock.publish(Clock(clock=ns_to_stamp(self.time_ns)))
        while len(self.actions) == acted and time.monotonic() < until_s:
            self._executor.spin_once(timeout_sec=0.01)

    def step(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        """Publish an observation in lockstep, and return the policy's own action (A,).

        What the policy sent before, such as the memory after a reset, is no answer, however late it comes.
        """
        self.time_ns += TICK_NS
        begun_ns = time.time_ns()
        self.observe(observation)
        waits_for = {*self.commands, "action", "memory"}

        def answered() -> bool:
            waits_for.difference_update(
                [topic for topic in waits_for if self._sent_ns.get(topic, 0) >= begun_ns]
            )
            return not waits_for

        self.wait(answered, lambda: f"{sorted(waits_for)} in answer to {self.time_ns} ns")
        self.drain(10)  # the memory is sent before the action, and may be handled after it
        return self.actions[-1]

    def commanded(self) -> np.ndarray:
        """Return the newest command of every topic as one action (A,)."""
        return self.codec.decode({topic: got[-1] for topic, got in self.commands.items() if got})


@contextmanager
def _robot(*, lockstep: bool) -> Iterator[TestRobot]:
    rclpy.init()
    node = TestRobot(lockstep=lockstep)
    yield node
    node.destroy_node()
    rclpy.shutdown()


@pytest.fixture
def robot() -> Iterator[TestRobot]:
    """A robot for a policy in lockstep."""
    with _robot(lockstep=True) as node:
        yield node


@pytest.fixture
def free_robot() -> Iterator[TestRobot]:
    """A robot for a policy that ticks at its own rate on the clock of the test."""
    with _robot(lockstep=False) as node:
        yield node
