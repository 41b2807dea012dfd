"""Reads a robot contract from its YAML file. `fetch_kitchen.yaml` is the commented example."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ttm.policy.errors import UserError
from ttm_policy.contract.action_rules import read_action
from ttm_policy.contract.consistency import require_consistent
from ttm_policy.contract.entry_rules import (
    entries,
    fields,
    number,
    require_keys,
    require_name,
    require_type,
)
from ttm_policy.contract.input_rules import (
    IMAGE_KEYS,
    INPUT_KEYS,
    image_rules,
    input_rules,
    max_skew_s,
)
from ttm_policy.contract.robot_contract import (
    EXECUTED_ACTION,
    IMAGE_TYPES,
    VECTOR_TYPES,
    ImageSource,
    RobotContract,
    VectorSource,
    Workspace,
)
from ttm_policy.contract.yaml_file import read_yaml

_NEEDED = frozenset({"robot", "base_frame", "observations", "actions"})
_OPTIONAL = frozenset({"executed_action", "max_skew_s", "rate_hz", "workspace"})


def default_contract() -> Path:
    """Return the path of the simulated Fetch's contract, which is installed with this package."""
    return Path(str(resources.files("ttm_policy") / "fetch_kitchen.yaml"))


def load_contract(path: str | Path | None = None) -> RobotContract:
    """Read a contract from a YAML file.

    None or an empty string stands for the simulated Fetch's contract. Raises `UserError` that names
    the faulty entry.
    """
    file = Path(path) if path else default_contract()
    data = read_yaml(file, "contract", "robot, base_frame, observations and actions")
    contract = _parse(data, file.name)
    require_consistent(contract)
    return contract


def _parse(data: Mapping[str, Any], file: str) -> RobotContract:
    require_keys(data, _NEEDED, _OPTIONAL, file)
    sources = [
        _source(name, entry, f"{file}: observation '{name}'")
        for name, entry in entries(data, "observations", file)
    ]
    sinks = tuple(
        read_action(name, entry, f"{file}: action '{name}'")
        for name, entry in entries(data, "actions", file)
    )
    return RobotContract(
        require_name(data, "robot", file, "my_robot"),
        require_name(data, "base_frame", file, "base_link"),
        tuple(source for source in sources if isinstance(source, ImageSource)),
        tuple(source for source in sources if isinstance(source, VectorSource)),
        sinks,
        file,
        _executed(data, file),
        max_skew_s(data, file),
        _workspace(data, file),
        _rate_hz(data, file),
    )


def _source(name: str, entry: Any, where: str) -> ImageSource | VectorSource:
    kind = require_type(entry, (*IMAGE_TYPES, *VECTOR_TYPES), where)
    if kind not in IMAGE_TYPES:
        return _vector(name, entry, where)
    require_keys(entry, {"topic", "type"}, IMAGE_KEYS, where)
    return ImageSource(name, entry["topic"], kind, **image_rules(entry, where))


def _vector(name: str, entry: Mapping[str, Any], where: str) -> VectorSource:
    require_keys(entry, {"topic", "type", "fields"}, INPUT_KEYS, where)
    rules = input_rules(entry, where)
    return VectorSource(name, entry["topic"], entry["type"], fields(entry, where), **rules)


def _executed(data: Mapping[str, Any], file: str) -> VectorSource | None:
    if "executed_action" not in data:
        return None
    entry, where = data["executed_action"], f"{file}: executed_action"
    if not isinstance(entry, dict):
        raise UserError(
            f"{where} must have topic, type and fields; leave it out if nothing reports it"
        )
    require_type(entry, VECTOR_TYPES, where)
    return _vector(EXECUTED_ACTION, entry, where)


def _rate_hz(data: Mapping[str, Any], file: str) -> float | None:
    if "rate_hz" not in data:
        return None
    rate_hz = number(data["rate_hz"], f"{file} has rate_hz")
    if not 0 < rate_hz < math.inf:
        raise UserError(
            f"{file} has rate_hz {rate_hz:g}; give ticks a second above 0, or leave it out"
        )
    return rate_hz


def _workspace(data: Mapping[str, Any], file: str) -> Workspace | None:
    if "workspace" not in data:
        return None
    entry, where = data["workspace"], f"{file}: workspace"
    require_keys(entry, {"action", "position", "min", "max"}, set(), where)
    low, high = (_point(entry, key, where) for key in ("min", "max"))
    if not all(a < b for a, b in zip(low, high, strict=True)):
        raise UserError(
            f"{where} has a min that is not below its max; give x, y and z of both corners"
        )
    return Workspace(str(entry["action"]), str(entry["position"]), low, high)


def _point(entry: Mapping[str, Any], key: str, where: str) -> tuple[float, float, float]:
    values = entry[key]
    if not isinstance(values, list) or len(values) != 3:
        raise UserError(f"{where} has {key} {values!r}; give a list of x, y and z in m")
    x, y, z = (number(value, f"{where} has in {key}") for value in values)
    return x, y, z
