"""A person drives the robot by keys, gamepad, tracked hand or leader arm, within the limits of a policy.

The node has no life cycle of its own: it sends nothing before somebody touches the controls, and zero as
soon as nobody does. It takes the contract of `policy_node` and `recorder_node`.

    ros2 run ttm_policy teleop_node --ros-args -p contract:=my_robot.yaml -p rate_hz:=10.0
    python -m ttm_policy teleop_node --ros-args …            (the same without a ROS install)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import NoReturn

from rclpy.node import Node

from ttm_policy.node_parameters import read_parameters
from ttm_policy.parameters import TeleopParameters
from ttm_policy.programs import END_WITHIN_S, StopSignals, run_with_ros, spin
from ttm_policy.recording.recorder import HELP, Keys
from ttm_policy.teleop import controls, tracking
from ttm_policy.teleop.devices import Gamepad, JoyPublisher, Keyboard, raw_terminal, read_key
from ttm_policy.teleop.session import DrivingNode, RecorderCalls, TeleopSession, load_context
from ttm_policy.teleop.source import Source, TeleopContext


def make_source(
    node: Node,
    context: TeleopContext,
    parameters: TeleopParameters,
    on_other_key: Callable[[str], None],
) -> Source:
    """Return the device, and print its controls. Raises `UserError` if they do not fit the action.

    on_other_key: called with every key of the terminal that drives nothing.
    """
    device, path, spec = parameters.source, parameters.controls, context.spec
    if device == "pose" or device == "leader":
        default = tracking.default_pose if device == "pose" else tracking.default_leader
        given = tracking.read_tracking(path, device, default(context), spec)
        print(tracking.print_tracking(given, device), flush=True)
        kind = tracking.PoseTracker if device == "pose" else tracking.LeaderArm
        return kind(node, context, given)
    by_contract = controls.default_keyboard if device == "keyboard" else controls.default_gamepad
    chosen = controls.read_controls(path, device, spec) or by_contract(context)
    print(controls.print_controls(chosen, device), flush=True)
    made = controls.Controls(chosen, context)
    return Keyboard(made, read_key, on_other_key) if device == "keyboard" else Gamepad(made, node)


class TeleopNode(DrivingNode):
    """Drives by the one device that the parameter `source` names."""

    def __init__(self) -> None:
        """Connect everything. Raises `UserError` for parameters and files that do not fit."""
        super().__init__("teleop_node", TeleopParameters)
        self.parameters = parameters = read_parameters(self, TeleopParameters)
        self.keys = Keys()
        self._recorder = RecorderCalls(self, parameters.recorder) if parameters.recorder else None
        context = load_context(parameters)
        source = make_source(self, context, parameters, self._on_key)
        self.session = TeleopSession(self, context, parameters, source)
        if parameters.joystick and parameters.source != "keyboard":
            JoyPublisher(self, parameters.joystick)

    def _on_key(self, key: str) -> None:
        if key == "q" or self._recorder is not None:
            self.keys.handle(key, self._recorder)


def _run() -> int:
    signals = StopSignals(END_WITHIN_S)
    node = TeleopNode()
    try:
        with ExitStack() as stack:
            if node.parameters.source == "keyboard":
                stack.enter_context(raw_terminal())
                print(HELP if node.parameters.recorder else "q: quit", flush=True)
            spin(node, lambda: signals.requested or node.keys.quit)
    finally:
        node.close()
        node.destroy_node()
    return 0


def main() -> NoReturn:
    """Run the node until a signal or the key `q`, and stop the robot in every case."""
    run_with_ros("teleop_node", _run)
