"""Makes the source that the parameter `source` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rclpy.node import Node

from ttm_policy.parameters import TeleopParameters
from ttm_policy.teleop.cockpit import Cockpit
from ttm_policy.teleop.controls import ControlMap
from ttm_policy.teleop.controls_file import print_controls, read_controls
from ttm_policy.teleop.default_controls import default_gamepad, default_keyboard
from ttm_policy.teleop.gamepad import Gamepad
from ttm_policy.teleop.hands.hand_map import Hand, HandMap, print_hand, read_hand
from ttm_policy.teleop.hands.hand_source import JOY
from ttm_policy.teleop.hands.leader_arm import LeaderArm, default_leader
from ttm_policy.teleop.hands.pose_hand import PoseHand, default_pose
from ttm_policy.teleop.keyboard import Keyboard
from ttm_policy.teleop.source import Source
from ttm_policy.terminal import read_key

OnKey = Callable[[str], None]


def make_source(
    node: Node, cockpit: Cockpit, parameters: TeleopParameters, on_other_key: OnKey
) -> Source:
    """Return the device, and print its controls.

    on_other_key: called with every key of the terminal that drives nothing. Raises `UserError` for
    controls that do not fit the action.
    """
    return _MAKERS[parameters.source](node, cockpit, parameters.controls, on_other_key)


def _keyboard(node: Node, cockpit: Cockpit, controls: str, on_other_key: OnKey) -> Source:
    chosen = _controls(cockpit, controls, "keyboard", default_keyboard)
    return Keyboard(cockpit.controls(chosen), read_key, on_other_key)


def _gamepad(node: Node, cockpit: Cockpit, controls: str, on_other_key: OnKey) -> Source:
    chosen = _controls(cockpit, controls, "gamepad", default_gamepad)
    return Gamepad(cockpit.controls(chosen), node, JOY)


def _pose(node: Node, cockpit: Cockpit, controls: str, on_other_key: OnKey) -> Source:
    return PoseHand(node, cockpit, _hand(cockpit, controls, "pose", default_pose))


def _leader(node: Node, cockpit: Cockpit, controls: str, on_other_key: OnKey) -> Source:
    return LeaderArm(node, cockpit, _hand(cockpit, controls, "leader", default_leader))


_MAKERS: Mapping[str, Callable[[Node, Cockpit, str, OnKey], Source]] = {
    "keyboard": _keyboard,
    "gamepad": _gamepad,
    "pose": _pose,
    "leader": _leader,
}


def _hand(
    cockpit: Cockpit, path: str, device: Hand, default: Callable[[Cockpit], HandMap]
) -> HandMap:
    """Return what the file says of the hand, completed by what follows from the contract."""
    known = default(cockpit)
    chosen = read_hand(path, device, known, cockpit.spec) if path else known
    print(print_hand(chosen, device, cockpit.spec), flush=True)
    return chosen


def _controls(
    cockpit: Cockpit,
    path: str,
    device: str,
    default: Callable[..., ControlMap],
) -> ControlMap:
    """Return the controls that the file names, or else the default ones."""
    found = read_controls(path, device, cockpit.spec) if path else None
    chosen = found or default(cockpit.contract, cockpit.spec, cockpit.limits)
    print(print_controls(chosen, device, cockpit.spec), flush=True)
    return chosen
