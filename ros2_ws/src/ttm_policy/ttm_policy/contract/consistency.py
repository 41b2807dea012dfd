"""Checks that the entries of a contract do not contradict each other."""

from __future__ import annotations

from ttm.policy.errors import UserError
from ttm_policy.contract.measured_goals import measured_places
from ttm_policy.contract.robot_contract import (
    JOINT_TYPES,
    MOTION_TYPES,
    ActionSink,
    RobotContract,
    Workspace,
)


def require_consistent(contract: RobotContract) -> None:
    """Raise `UserError` that names the first two entries that do not fit together."""
    _require_one_type(contract)
    _require_one_direction(contract)
    _require_one_value_per_field(contract)
    _require_measured_joints(contract)
    for sink in contract.actions:
        if sink.measured:
            _require_measured(contract, sink)
    if contract.workspace is not None:
        _require_workspace(contract, contract.workspace)


def _require_one_type(contract: RobotContract) -> None:
    types: dict[str, str] = {}
    for entry in (*contract.inputs, *contract.actions):
        if types.setdefault(entry.topic, entry.type) != entry.type:
            raise UserError(
                f"{contract.path}: topic {entry.topic} has two types, {types[entry.topic]} and "
                f"{entry.type}; keep one"
            )


def _require_one_direction(contract: RobotContract) -> None:
    commands = {sink.topic: sink.name for sink in contract.actions}
    for source in contract.inputs:
        if source.topic in commands:
            raise UserError(
                f"{contract.path}: topic {source.topic} feeds '{source.name}' and takes "
                f"'{commands[source.topic]}'; a policy must not see its own command as a "
                "measurement: name the robot's topic"
            )


def _require_one_value_per_field(contract: RobotContract) -> None:
    users: dict[tuple[str, str], str] = {}
    for sink in contract.actions:
        for field in sink.fields:
            other = users.setdefault((sink.topic, field.path), sink.name)
            if other != sink.name:
                raise UserError(
                    f"{contract.path}: actions '{other}' and '{sink.name}' both set '{field.path}' "
                    f"of {sink.topic}; give each a field of its own"
                )


def _require_measured_joints(contract: RobotContract) -> None:
    for sink in contract.actions:
        for field in sink.fields if sink.limits and sink.type in JOINT_TYPES else ():
            if contract.measurement_of(field.path) is None:
                raise UserError(
                    f"{contract.path}: action '{sink.name}' limits the speed of joint "
                    f"'{field.path}', which no observation measures; add the joint to one of type "
                    "sensor_msgs/JointState, or give it min: and max: in place of limit:"
                )


def _require_measured(contract: RobotContract, sink: ActionSink) -> None:
    """Raise `UserError` unless an observation tells what a part did that is computed from it."""
    where = f"{contract.path}: action '{sink.name}' has measured '{sink.measured}'"
    source = next((each for each in contract.vectors if each.name == sink.measured), None)
    if source is None:
        known = ", ".join(each.name for each in contract.vectors) or "none"
        raise UserError(f"{where}; name an observation of numbers: {known}")
    if sink.type not in (*MOTION_TYPES, *JOINT_TYPES):
        raise UserError(f"{where}, but {sink.type} is no motion; leave measured out")
    for field in sink.fields:
        measured = contract.measurement_of(field.path)
        told = (
            bool(measured_places(source, field.path))
            if sink.type in MOTION_TYPES
            else measured is not None and measured[0] == source
        )
        if not told:
            raise UserError(
                f"{where}, which does not tell '{field.path}'; a velocity needs itself or its position "
                "there, a turn all four values of the orientation, and a joint its position"
            )


def _require_workspace(contract: RobotContract, box: Workspace) -> None:
    where = f"{contract.path}: workspace"
    sink = next((sink for sink in contract.actions if sink.name == box.action), None)
    axes = [] if sink is None else sorted(f".{field.path}"[-9:] for field in sink.fields)
    if (
        sink is None
        or sink.type not in MOTION_TYPES
        or axes != [".linear.x", ".linear.y", ".linear.z"]
    ):
        raise UserError(
            f"{where} has action '{box.action}'; name an action part whose fields are linear.x, "
            "linear.y and linear.z of a twist"
        )
    source = next((vector for vector in contract.vectors if vector.name == box.position), None)
    paths = set() if source is None else {field.path for field in source.fields}
    if not {f"pose.position.{axis}" for axis in "xyz"} <= paths:
        raise UserError(
            f"{where} has position '{box.position}'; name an observation with the fields "
            "pose.position.x, pose.position.y and pose.position.z in the base frame"
        )
