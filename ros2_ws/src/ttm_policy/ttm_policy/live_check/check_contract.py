"""Checks a contract on the live graph. `ttm contract check` runs this module as a program."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.signals import SignalHandlerOptions
from std_msgs.msg import String

from ttm.policy.checkpoint_header import read_checkpoint_spec
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.contract.conversions import check_fields
from ttm_policy.contract.joint_limits import read_joint_limits
from ttm_policy.contract.robot_contract import JOINT_TYPES, RobotContract
from ttm_policy.launching.values import check_name
from ttm_policy.live_check.finding import Finding, report
from ttm_policy.live_check.live_command import command_finding
from ttm_policy.live_check.live_e_stop import e_stop_finding
from ttm_policy.live_check.live_input import LiveInput
from ttm_policy.qos import LATCHED
from ttm_policy.ros_program import run_for_ttm

MOST_WAITING = 500
"""More messages than wait at the end of listening."""


@dataclass(frozen=True)
class CheckOptions:
    """What `ttm contract check` asks for."""

    contract: str
    checkpoint: str | None = None
    seconds: float = 5.0
    max_age_s: float = 0.5
    namespace: str = ""
    use_sim_time: bool = False


def check_contract(options: CheckOptions) -> list[Finding]:
    """Listen to the topics of a contract for a while, and return a finding for each.

    Raises `UserError` for a mistake in the file, or if the checkpoint is for another robot.
    """
    if options.namespace:
        check_name("--namespace", options.namespace)
    contract = load_contract(options.contract)
    check_fields(contract)
    spec = None
    if options.checkpoint is not None:
        spec = read_checkpoint_spec(options.checkpoint)
        contract.check(spec)
    with _node(options) as node:
        return _listen(node, contract, spec, options)


def _listen(
    node: Node, contract: RobotContract, spec: PolicySpec | None, options: CheckOptions
) -> list[Finding]:
    inputs = [LiveInput(node, source) for source in contract.inputs]
    descriptions: deque[String] = deque(maxlen=1)
    node.create_subscription(String, "robot_description", descriptions.append, LATCHED)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    end_s = _hear(executor, options.seconds)
    cameras = {} if spec is None else {camera.name: camera for camera in spec.cameras}
    findings = [
        live.finding(
            end_s,
            max_age_s=options.max_age_s,
            rate_hz=spec.rate_hz if spec else contract.rate_hz or 0.0,
            camera=cameras.get(live.source.name),
        )
        for live in inputs
    ]
    findings += _skew(inputs, contract)
    types = {sink.topic: sink.type for sink in contract.actions}
    findings += [command_finding(node, topic, kind) for topic, kind in types.items()]
    return [*findings, e_stop_finding(node), _description(descriptions, contract)]


def _hear(executor: SingleThreadedExecutor, seconds: float) -> float:
    """Handle messages for so long, and then those that wait; return the steady time of the end.

    On a busy computer, what waits would else look as if the robot had not sent it.
    """
    end_s = time.monotonic() + seconds
    while (rest_s := end_s - time.monotonic()) > 0:
        executor.spin_once(timeout_sec=rest_s)
    for _ in range(MOST_WAITING):
        executor.spin_once(timeout_sec=0.0)
    return end_s


def _skew(inputs: list[LiveInput], contract: RobotContract) -> list[Finding]:
    """Return whether the inputs were captured together, if the contract asks for it and all came."""
    stamps = [(live.stamp_ns, live.source.topic) for live in inputs if live.stamp_ns]
    if len(stamps) < len(inputs) or math.isinf(contract.max_skew_s):
        return []
    (oldest_ns, first), (newest_ns, last) = min(stamps), max(stamps)
    skew_s = (newest_ns - oldest_ns) * 1e-9
    problem = (
        f"{first} is {skew_s:.3f} s older than {last}, and the contract accepts "
        f"{contract.max_skew_s:g} s; make it quicker, or raise max_skew_s"
    )
    problems = (problem,) if skew_s > contract.max_skew_s else ()
    return [Finding("max_skew_s", f"{skew_s:.3f} s", problems)]


def _description(descriptions: Sequence[String], contract: RobotContract) -> Finding:
    """Return whether the robot's description has the joints that the contract moves."""
    joints = [f.path for sink in contract.actions if sink.type in JOINT_TYPES for f in sink.fields]
    if not descriptions:
        return Finding("robot_description", "not published; the contract's ranges of joints hold")
    try:
        known = read_joint_limits(descriptions[-1].data)
    except UserError as error:
        return Finding("robot_description", "", (str(error),))
    missing = [joint for joint in joints if joint not in known]
    problem = f"it has no joint {', '.join(missing)}; mend the names in the contract"
    return Finding("robot_description", f"{len(known)} joints", (problem,) if missing else ())


@contextmanager
def _node(options: CheckOptions) -> Iterator[Node]:
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)  # so that Ctrl-C interrupts
    try:
        node = Node(
            "contract_check",
            namespace=options.namespace,
            parameter_overrides=[Parameter("use_sim_time", value=options.use_sim_time)],
        )
        yield node
        node.destroy_node()
    finally:
        rclpy.try_shutdown()


def main(arguments: str) -> int:
    """Check what the JSON object of `CheckOptions` says; print the findings.

    Returns the exit code: 0 if all topics fit, 1 if not, 2 for a mistake in the file.
    """
    options = CheckOptions(**json.loads(arguments))

    def run() -> int:
        findings = check_contract(options)
        print(report(findings, options.contract))
        return int(any(finding.problems for finding in findings))

    return run_for_ttm(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
