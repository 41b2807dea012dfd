"""Reads a robot contract from its YAML file. `fetch_kitchen.yaml` is the commented example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ttm.policy.errors import UserError
from ttm_policy.contract.input_rules import (
    FIELD_KEYS,
    IMAGE_KEYS,
    INPUT_KEYS,
    field_bounds,
    image_rules,
    input_rules,
    max_skew_s,
)
from ttm_policy.contract.robot_contract import (
    COMMAND_TYPES,
    EXECUTED_ACTION,
    IMAGE_TYPES,
    MOTION_TYPES,
    VECTOR_TYPES,
    ActionSink,
    Field,
    ImageSource,
    RobotContract,
    VectorSource,
)
from ttm_policy.parameters import LIMITS


def default_contract() -> Path:
    """Return the path of the simulated Fetch's contract, which is installed with this package."""
    return Path(str(resources.files("ttm_policy") / "fetch_kitchen.yaml"))


def load_contract(path: str | Path | None = None) -> RobotContract:
    """Read a contract from a YAML file.

    None or an empty string stands for the simulated Fetch's contract. Raises `UserError` that names
    the faulty entry.
    """
    file = Path(path) if path else default_contract()
    try:
        data = yaml.safe_load(file.read_text())
    except OSError as error:
        raise UserError(
            f"no contract at {file} ({error.strerror}); give the path of a YAML file"
        ) from error
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise UserError(
            f"{file} holds no contract; it needs robot, base_frame, observations and actions"
        )
    return _parse(data, file.name)


def _parse(data: Mapping[str, Any], file: str) -> RobotContract:
    needed = {"robot", "base_frame", "observations", "actions"}
    _require_keys(data, needed, {"executed_action", "max_skew_s"}, file)
    images, vectors = [], []
    for name, entry in _entries(data, "observations", file):
        where = f"{file}: observation '{name}'"
        if _require_type(entry, (*IMAGE_TYPES, *VECTOR_TYPES), where) in IMAGE_TYPES:
            _require_keys(entry, {"topic", "type"}, IMAGE_KEYS, where)
            images.append(
                ImageSource(name, entry["topic"], entry["type"], **image_rules(entry, where))
            )
        else:
            vectors.append(_vector(name, entry, where))
    sinks = tuple(
        _sink(name, entry, f"{file}: action '{name}'")
        for name, entry in _entries(data, "actions", file)
    )
    _refuse_two_types(sinks, file)
    return RobotContract(
        data["robot"],
        data["base_frame"],
        tuple(images),
        tuple(vectors),
        sinks,
        file,
        _executed(data, file),
        max_skew_s(data, file),
    )


def _executed(data: Mapping[str, Any], file: str) -> VectorSource | None:
    if "executed_action" not in data:
        return None
    entry, where = data["executed_action"], f"{file}: executed_action"
    if not isinstance(entry, dict):
        raise UserError(
            f"{where} must have topic, type and fields; leave it out if nothing reports it"
        )
    _require_type(entry, VECTOR_TYPES, where)
    return _vector(EXECUTED_ACTION, entry, where)


def _vector(name: str, entry: Mapping[str, Any], where: str) -> VectorSource:
    _require_keys(entry, {"topic", "type", "fields"}, INPUT_KEYS, where)
    fields = tuple(
        replace(field, minimum=low, maximum=high)
        for field, (low, high) in zip(_fields(entry, where), _bounds(entry, where), strict=True)
    )
    return VectorSource(name, entry["topic"], entry["type"], fields, **input_rules(entry, where))


def _bounds(entry: Mapping[str, Any], where: str) -> list[tuple[float, float]]:
    items = [{"field": item} if isinstance(item, str) else item for item in entry["fields"]]
    for item in items:
        _require_keys(item, {"field"}, FIELD_KEYS, f"{where}, field {item}")
    return [field_bounds(item, where) for item in items]


def _entries(data: Mapping[str, Any], section: str, file: str) -> list[tuple[str, dict[str, Any]]]:
    entries = data[section]
    if not isinstance(entries, dict) or not all(
        isinstance(entry, dict) for entry in entries.values()
    ):
        raise UserError(f"{file}: '{section}' must map names to entries with topic, type, …")
    return list(entries.items())


def _sink(name: str, entry: Mapping[str, Any], where: str) -> ActionSink:
    kind = _require_type(entry, COMMAND_TYPES, where)
    _require_keys(entry, {"topic", "type", "fields"}, {"per_second", "limit", "smooth"}, where)
    limits = entry.get("limit", ())
    limits = (limits,) if isinstance(limits, str) else tuple(limits)
    for limit in limits:
        if limit not in LIMITS:
            raise UserError(f"{where} has limit '{limit}'; choose of: {', '.join(LIMITS)}")
    if kind in MOTION_TYPES and not limits:
        raise UserError(
            f"{where} moves the robot without a limit; add limit: with one of {', '.join(LIMITS)}"
        )
    return ActionSink(
        name,
        entry["topic"],
        kind,
        _fields(entry, where),
        bool(entry.get("per_second", False)),
        limits,
        _smooth(entry, kind, where),
    )


def _smooth(entry: Mapping[str, Any], kind: str, where: str) -> bool:
    smooth = entry.get("smooth", False)
    if not isinstance(smooth, bool):
        raise UserError(f"{where} has smooth {smooth!r}; write true or false")
    if smooth and kind not in MOTION_TYPES:
        raise UserError(
            f"{where} is smooth, but {kind} is no velocity; "
            f"leave smooth out, or choose of: {', '.join(MOTION_TYPES)}"
        )
    return smooth


def _fields(entry: Mapping[str, Any], where: str) -> tuple[Field, ...]:
    fields = []
    for item in entry["fields"]:
        data = {"field": item} if isinstance(item, str) else item
        if (
            not isinstance(data, dict)
            or not isinstance(data.get("field"), str)
            or not data.get("scale", 1.0)
        ):
            raise UserError(
                f"{where} has field {item!r}; write a name, or {{field: name, scale: number not 0}}"
            )
        fields.append(Field(data["field"], float(data.get("scale", 1.0))))
    if not fields:
        raise UserError(f"{where} has no fields; name one for each value")
    return tuple(fields)


def _require_type(entry: Mapping[str, Any], known: Sequence[str], where: str) -> str:
    if entry.get("type") not in known:
        raise UserError(f"{where} has type {entry.get('type')!r}; choose of: {', '.join(known)}")
    return str(entry["type"])


def _require_keys(
    entry: Mapping[str, Any], needed: Set[str], optional: Set[str], where: str
) -> None:
    missing, unknown = needed - set(entry), set(entry) - needed - optional
    if missing:
        raise UserError(f"{where} lacks {', '.join(sorted(missing))}")
    if unknown:
        raise UserError(
            f"{where} has unknown {', '.join(sorted(unknown))}; "
            f"it takes {', '.join(sorted(needed | optional))}"
        )
    topic = entry.get("topic", "ok")
    if not isinstance(topic, str) or not topic or " " in topic:
        raise UserError(
            f"{where} has topic {topic!r}; a topic is a name such as cmd_vel, without spaces"
        )


def _refuse_two_types(sinks: Sequence[ActionSink], file: str) -> None:
    types: dict[str, str] = {}
    for sink in sinks:
        if types.setdefault(sink.topic, sink.type) != sink.type:
            raise UserError(
                f"{file}: topic {sink.topic} has two types, {types[sink.topic]} and {sink.type}; "
                "keep one"
            )
