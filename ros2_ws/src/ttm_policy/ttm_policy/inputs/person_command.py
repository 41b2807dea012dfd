"""What a person wants, as a message to the policy node, which may let him drive in its place.

It is a `sensor_msgs/JointState` with the values of the action under names such as `base.0`, in the units
of the spec. NaN leaves a value to what is in force. `header.frame_id` says who drives, so that two persons
are told apart.
"""

from __future__ import annotations

import numpy as np
from builtin_interfaces.msg import Time
from sensor_msgs.msg import JointState

from ttm.policy.errors import MalformedObservation, printable
from ttm.policy.spec import PolicySpec
from ttm_policy.inputs.stamped_observation import Vector

TOPIC = "person_command"
DRIVER_TOPIC = "driver"
"""Where the policy node says who drives, as text."""
POLICY, PERSON = "policy", "person"
PERIOD_S = 0.02
"""The time between two commands of a person, in wall time."""
TIMEOUT_S = 0.3
"""The longest silence of a person who drives, after which the robot stands still."""


def to_message(spec: PolicySpec, wish: Vector, stamp: Time, person: str) -> JointState:
    """Return the message of a wish (A,). person: who drives."""
    message = JointState(name=_names(spec), position=[float(value) for value in wish])
    message.header.stamp, message.header.frame_id = stamp, person
    return message


def from_message(spec: PolicySpec, message: JointState) -> Vector:
    """Return the wish (A,) of a message. Raises `MalformedObservation` if it is for another action."""
    names, values = _names(spec), np.array(message.position, np.float32)
    if list(message.name) != names or len(values) != len(names) or np.isinf(values).any():
        given = printable(", ".join(message.name), 200) or "no names"
        raise MalformedObservation(
            f"a person's command has {given}; the action has {', '.join(names)}: give teleop_node the "
            "contract and the spec of the policy"
        )
    return values


def _names(spec: PolicySpec) -> list[str]:
    return [f"{part.name}.{place}" for part in spec.actions for place in range(part.size)]
