"""Converts actions to the command messages of a contract and back, and makes stop commands.

Parts of the action that share a topic share one message: arm translation and rotation are one twist
for MoveIt Servo.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Duration, Time
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from ttm.policy.errors import UserError, printable
from ttm.policy.spec import PolicySpec
from ttm_policy.contract.conversions import MESSAGE_TYPES, write_field
from ttm_policy.contract.robot_contract import MOTION_TYPES, ActionSink, RobotContract

Vector = npt.NDArray[np.float32]


class CommandCodec:
    """Converts actions (A,) float32 to one message for each topic, and back."""

    def __init__(self, contract: RobotContract, spec: PolicySpec, *, cmd_vel_stamped: bool = True):
        self.contract, self.spec = contract, spec
        self.sinks: dict[str, list[ActionSink]] = {}
        for sink in contract.actions:
            self.sinks.setdefault(sink.topic, []).append(
                sink if cmd_vel_stamped else _unstamped(sink)
            )

    def types(self) -> dict[str, Any]:
        """Return the message class of each topic."""
        return {topic: MESSAGE_TYPES[sinks[0].type] for topic, sinks in self.sinks.items()}

    def encode(self, values: Vector, stamp: Time) -> dict[str, Any]:
        """Return the message of each topic. values: (A,) in the spec's units."""
        return {topic: self._message(sinks, values, stamp) for topic, sinks in self.sinks.items()}

    def stop(self, stamp: Time) -> dict[str, Any]:
        """Return zero commands for all topics that move the robot.

        The gripper keeps what it holds.
        """
        zero = np.zeros(self.spec.action_size, dtype=np.float32)
        return {
            topic: self._message(sinks, zero, stamp)
            for topic, sinks in self.sinks.items()
            if sinks[0].type in MOTION_TYPES
        }

    def decode(self, messages: Mapping[str, Any], otherwise: Vector | None = None) -> Vector:
        """Return the action (A,) that `encode` was given, bit for bit.

        otherwise: (A,), the values of topics without a message; zeros by default. Raises `UserError` for a
        message that lacks a joint, or holds a value that is not finite.
        """
        values = (
            np.zeros(self.spec.action_size, np.float32) if otherwise is None else otherwise.copy()
        )
        for topic, message in messages.items():
            for sink in self.sinks[topic]:
                values[self.spec.action_slices[sink.name]] = self._read(message, sink, topic)
        return values

    def _message(self, sinks: list[ActionSink], values: Vector, stamp: Time) -> Any:
        message = MESSAGE_TYPES[sinks[0].type]()
        if hasattr(message, "header"):
            message.header.stamp, message.header.frame_id = stamp, self.contract.base_frame
        for sink in sinks:
            numbers = self._scaled(sink, values[self.spec.action_slices[sink.name]])
            if isinstance(message, JointTrajectory):
                self._add_joints(message, sink, numbers)
                continue
            for field, number in zip(sink.fields, numbers, strict=True):
                write_field(message, field.path, number)
        return message

    def _scaled(self, sink: ActionSink, part: Vector) -> list[float]:
        """Return one float64 for each field. A single value is sent to all fields.

        Raises `ArithmeticError` for NaN and infinity, which are never sent.
        """
        period_s = self.spec.control_dt_s if sink.per_second else 1.0
        spread = np.broadcast_to(part, (len(sink.fields),))
        numbers = [
            float(value) * field.scale / period_s
            for value, field in zip(spread, sink.fields, strict=True)
        ]
        if not all(map(math.isfinite, numbers)):
            raise ArithmeticError(f"'{sink.name}' would be sent as {numbers}; nothing is sent")
        return numbers

    def _add_joints(
        self, message: JointTrajectory, sink: ActionSink, positions: list[float]
    ) -> None:
        if not message.points:
            nanoseconds = round(self.spec.control_dt_s * 1e9)
            reach = Duration(sec=nanoseconds // 1_000_000_000, nanosec=nanoseconds % 1_000_000_000)
            message.points.append(JointTrajectoryPoint(time_from_start=reach))
        message.joint_names.extend(field.path for field in sink.fields)
        message.points[0].positions.extend(positions)

    def _read(self, message: Any, sink: ActionSink, topic: str) -> Vector:
        period_s = self.spec.control_dt_s if sink.per_second else 1.0
        size = self.spec.action_slices[sink.name].stop - self.spec.action_slices[sink.name].start
        numbers = [
            _number(message, field.path, topic) / field.scale * period_s
            for field in sink.fields[:size]
        ]
        with np.errstate(over="ignore"):  # it is infinite then
            part = np.array(numbers, dtype=np.float32)
        if not np.isfinite(part).all():
            raise UserError(
                f"a command of '{topic}' has {numbers} for '{sink.name}', which are not all finite; end the "
                "node that sends it"
            )
        return part


def _unstamped(sink: ActionSink) -> ActionSink:
    """Return the sink for base controllers that take a plain Twist.

    MoveIt Servo always takes stamped ones.
    """
    if sink.per_second or sink.type != "geometry_msgs/TwistStamped":
        return sink
    fields = tuple(replace(field, path=field.path.removeprefix("twist.")) for field in sink.fields)
    return replace(sink, type="geometry_msgs/Twist", fields=fields)


def _number(message: Any, path: str, topic: str) -> float:
    if isinstance(message, JointTrajectory):
        names = list(message.joint_names)
        try:
            place = names.index(path)
            return float(message.points[0].positions[place])
        except (ValueError, IndexError):
            raise UserError(
                f"a command of '{topic}' has no position of joint '{path}', but its joints are "
                f"{printable(', '.join(names), 200) or 'none'}; end the node that sends it"
            ) from None
    return float(reduce(getattr, path.split("."), message))
