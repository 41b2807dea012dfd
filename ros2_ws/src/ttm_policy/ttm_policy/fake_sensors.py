"""Made-up sensors for a policy: every input of a contract at a steady rate, all with fresh stamps.

It counts what the policy makes of them: when its actions arrive, and what it says on `/diagnostics`.
`ttm bench ros` starts it beside `policy_node`; nothing moves.

    python -m ttm_policy fake_sensors --ros-args -p spec:="$(cat spec.json)" -p seconds:=60.0
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from std_msgs.msg import Float32MultiArray

from ttm.policy.spec import PolicySpec
from ttm_policy.contract import EXECUTED_ACTION, RobotContract, load_contract
from ttm_policy.messages import check_fields, input_types, ns_to_stamp, observation_messages
from ttm_policy.node_parameters import declare_parameters, read_parameters
from ttm_policy.parameters import NodeParameters, file_path, param
from ttm_policy.programs import StopSignals, run_with_ros
from ttm_policy.qos import SENSOR

VALUE = 0.1
"""Every value of proprioception."""


@dataclass(frozen=True)
class FakeSensorsParameters(NodeParameters):
    """The parameters of `fake_sensors`."""

    spec: str = param("", "The policy's spec as JSON, which has the sizes.")
    contract: str = param("", "YAML file of the topics. By default that of the simulated robot.")
    rate_hz: float = param(30.0, "Messages of each input per second.", unit="Hz", positive=True)
    seconds: float = param(
        60.0, "How long to count, from the first action on.", unit="s", positive=True
    )
    out: str = file_path("", "File for the times of all actions, as JSON.")


class FakeSensors(Node):
    """Publishes noise and constants, and keeps the arrival times of the actions."""

    def __init__(self) -> None:
        """Raises `UserError` if spec and contract do not fit together."""
        super().__init__("fake_sensors")
        declare_parameters(self, FakeSensorsParameters)
        self.parameters = read_parameters(self, FakeSensorsParameters)
        spec = PolicySpec.from_json(self.parameters.spec)
        contract = load_contract(self.parameters.contract)
        check_fields(contract)
        contract.check(spec, whose="the spec")
        self.arrivals_s: list[float] = []
        self.diagnostics: dict[str, str] = {}
        messages = observation_messages(contract, _values(contract, spec), ns_to_stamp(0))
        self._messages = [
            (self.create_publisher(kind, topic, SENSOR), messages[topic])
            for topic, kind in input_types(contract).items()
        ]
        self.create_subscription(Float32MultiArray, "policy_node/action", self._on_action, 100)
        self.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self.create_timer(1.0 / self.parameters.rate_hz, self._publish)

    @property
    def done(self) -> bool:
        """Whether the time for counting is over."""
        first_s = self.arrivals_s[0] if self.arrivals_s else math.inf
        return time.monotonic() - first_s > self.parameters.seconds

    def _publish(self) -> None:
        stamp = ns_to_stamp(self.get_clock().now().nanoseconds)
        for publisher, message in self._messages:
            message.header.stamp = stamp
            publisher.publish(message)

    def _on_action(self, _: Float32MultiArray) -> None:
        self.arrivals_s.append(time.monotonic())

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if "policy_node: policy" in status.name:
                self.diagnostics = {item.key: item.value for item in status.values}
                self.diagnostics["message"] = status.message


def _values(contract: RobotContract, spec: PolicySpec) -> dict[str, npt.NDArray[Any]]:
    """Return noise for the cameras, constants for the vectors, and zeros for what was executed."""
    noise = np.random.default_rng(0)
    values: dict[str, npt.NDArray[Any]] = {
        source.name: np.full(len(source.fields), VALUE, np.float32) for source in contract.vectors
    }
    for camera in spec.cameras:
        shape = (camera.height, camera.width, 3)
        values[camera.name] = noise.integers(0, 256, shape, dtype=np.uint8)
    return {**values, EXECUTED_ACTION: np.zeros(spec.action_size, np.float32)}


def _run() -> int:
    node, signals, executor = FakeSensors(), StopSignals(), SingleThreadedExecutor()
    executor.add_node(node)
    while not node.done and not signals.requested:
        executor.spin_once(timeout_sec=0.1)
    if node.parameters.out:
        figures = {"arrivals_s": node.arrivals_s, "diagnostics": node.diagnostics}
        Path(node.parameters.out).write_text(json.dumps(figures))
    return 0


def main() -> NoReturn:
    """Publish until the time is over or a signal comes."""
    run_with_ros("fake_sensors", _run)
