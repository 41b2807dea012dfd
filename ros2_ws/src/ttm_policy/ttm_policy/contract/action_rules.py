"""Reads the entry of one action part, and checks that what moves the robot is limited."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ttm.policy.errors import UserError
from ttm_policy.contract.entry_rules import boolean, fields, require_keys, require_type
from ttm_policy.contract.robot_contract import (
    COMMAND_TYPES,
    JOINT_TYPES,
    MOTION_TYPES,
    ActionSink,
    Field,
)
from ttm_policy.parameter_sets.limit_parameters import LIMIT_KINDS

_OPTIONAL = frozenset({"per_second", "limit", "smooth", "measured"})


def read_action(name: str, entry: Any, where: str) -> ActionSink:
    """Return where one part of the action is sent. Raises `UserError` for any mistake."""
    kind = require_type(entry, COMMAND_TYPES, where)
    require_keys(entry, {"topic", "type", "fields"}, _OPTIONAL, where)
    found = fields(entry, where)
    options = {key: boolean(entry, key, where) for key in ("per_second", "smooth")}
    for key, given in options.items():
        if given and kind not in MOTION_TYPES:
            raise UserError(
                f"{where} has {key}, but {kind} is no velocity; leave {key} out, or choose of: "
                f"{', '.join(MOTION_TYPES)}"
            )
    limits = _limits(entry, kind, len(found), where)
    _require_units(limits, kind, found, where)
    _require_fields(kind, found, limits, where)
    measured = entry.get("measured", "")
    if not isinstance(measured, str):
        raise UserError(f"{where} has measured {measured!r}; give the name of an observation")
    return ActionSink(
        name, entry["topic"], kind, found, limits=limits, measured=measured, **options
    )


def _limits(entry: Mapping[str, Any], kind: str, size: int, where: str) -> tuple[str, ...]:
    """Return the names of the limits: none, one for the whole part, or one for each of `size` fields."""
    given = entry.get("limit", [])
    limits = [given] if isinstance(given, str) else given
    usable = [name for name in LIMIT_KINDS if _fits(name, kind, None)]
    choice = ", ".join(usable) or "none, leave it out"
    if not isinstance(limits, list) or not all(isinstance(limit, str) for limit in limits):
        raise UserError(
            f"{where} has limit {given!r}; give names of parameters, choose of: {choice}"
        )
    if len(limits) not in (0, 1, size):
        raise UserError(
            f"{where} has {len(limits)} limits; give one for the whole part or {size}, "
            "one for each field"
        )
    for limit in limits:
        if limit not in usable:
            raise UserError(
                f"{where} has limit '{limit}', which {kind} cannot have; choose of: {choice}"
            )
    if kind in MOTION_TYPES and not limits:
        raise UserError(f"{where} moves the robot without a limit; add limit: with one of {choice}")
    return tuple(limits)


def _require_units(
    limits: tuple[str, ...], kind: str, found: tuple[Field, ...], where: str
) -> None:
    """Raise `UserError` unless each field has the unit of the limit that bounds it."""
    each = limits * len(found) if len(limits) == 1 else limits
    for field, limit in zip(found, each, strict=bool(limits)):
        if not _fits(limit, kind, field):
            raise UserError(
                f"{where} has limit '{limit}' for field '{field.path}', which is not "
                f"{LIMIT_KINDS[limit].moves}; take a limit of its own for each field"
            )


def _fits(limit: str, kind: str, field: Field | None) -> bool:
    """Return whether a limit is of the unit of a field, or for None of some field of the type."""
    moves = LIMIT_KINDS[limit].moves
    if kind in JOINT_TYPES:
        return moves == "joints"
    if kind not in MOTION_TYPES:
        return False
    return moves != "joints" and (field is None or f".{moves}." in f".{field.path}")


def _require_fields(
    kind: str, found: tuple[Field, ...], limits: tuple[str, ...], where: str
) -> None:
    """Raise `UserError` for a field that is not the command's own, or a joint without any bound."""
    for field in found:
        ranged = math.isfinite(field.minimum) and math.isfinite(field.maximum)
        what = f"{where}, field '{field.path}',"
        if kind not in JOINT_TYPES and (field.minimum > -math.inf or field.maximum < math.inf):
            raise UserError(
                f"{what} has min or max, which are for joints; leave them out, use limit:"
            )
        if kind in JOINT_TYPES and not ranged and not limits:
            raise UserError(
                f"{what} moves a joint without a limit; add min: and max: there, or limit: "
                "max_joint_rad_s"
            )
        if field.path.split(".")[0] == "header":
            raise UserError(
                f"{what} is set by the node itself; name a field that carries the command"
            )
    if kind == "std_msgs/Bool" and any(field.scale != 1.0 for field in found):
        raise UserError(f"{where} has a scale, but {kind} is true or false; leave scale out")
