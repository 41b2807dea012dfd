"""Checks of single entries of a contract's YAML file.

Each check raises `UserError` with one line: the entry, the rule, and what to write instead.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

from rclpy.exceptions import InvalidTopicNameException
from rclpy.validate_topic_name import validate_topic_name

from ttm.policy.errors import UserError
from ttm_policy.contract.robot_contract import Field

FIELD_KEYS = frozenset({"field", "scale", "min", "max"})
"""All keys of a field."""


def require_keys(entry: Any, needed: Set[str], optional: Set[str], where: str) -> None:
    """Check that `entry` is a mapping with all needed keys and no unknown ones, and its topic."""
    known = ", ".join(sorted(needed | optional))
    if not isinstance(entry, dict):
        raise UserError(f"{where} is {entry!r}; give a mapping with {known}")
    missing, unknown = needed - set(entry), set(entry) - needed - optional
    if missing:
        raise UserError(f"{where} lacks {', '.join(sorted(missing))}; add it")
    if unknown:
        raise UserError(
            f"{where} has unknown {', '.join(sorted(str(key) for key in unknown))}; "
            f"it takes {known}"
        )
    if "topic" in entry:
        _require_topic(entry["topic"], where)


def topic_problem(name: Any) -> str:
    """Return why a value is no name of a topic, or an empty text."""
    try:
        validate_topic_name(name if isinstance(name, str) else "")
    except InvalidTopicNameException as error:
        return str(error).splitlines()[0].removesuffix(":")
    return ""


def _require_topic(topic: Any, where: str) -> None:
    if reason := topic_problem(topic):
        raise UserError(f"{where} has topic {topic!r} ({reason}); give a ROS name such as cmd_vel")


def require_type(entry: Any, known: Sequence[str], where: str) -> str:
    """Return the message type of an entry if it is among the known ones."""
    kind = entry.get("type") if isinstance(entry, dict) else None
    if kind not in known:
        hint = " (without /msg)" if isinstance(kind, str) and "/msg/" in kind else ""
        raise UserError(f"{where} has type {kind!r}; choose of{hint}: {', '.join(known)}")
    return str(kind)


def require_name(data: Mapping[str, Any], key: str, file: str, example: str) -> str:
    """Return the name under a key of the whole file."""
    name = data[key]
    if not isinstance(name, str) or not name or name != "".join(name.split()):
        raise UserError(f"{file} has {key} {name!r}; give a name without spaces, such as {example}")
    return name


def boolean(entry: Mapping[str, Any], key: str, where: str) -> bool:
    """Return a key that is true or false, and false if it is left out."""
    value = entry.get(key, False)
    if not isinstance(value, bool):
        raise UserError(f"{where} has {key} {value!r}; give true or false, without quotes")
    return value


def number(value: Any, what: str) -> float:
    """Return a number that is not NaN. what: the beginning of the error's sentence."""
    try:
        found = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:  # a whole number of more than 308 digits
        found = math.nan
    if math.isnan(found):
        raise UserError(f"{what} {value!r}; give a number")
    return found


def entries(data: Mapping[str, Any], section: str, file: str) -> list[tuple[str, Any]]:
    """Return the names and entries of a section, which must have one at least."""
    found = data[section]
    if not isinstance(found, dict) or not found:
        raise UserError(
            f"{file}: {section} must map at least one name to an entry with topic, type, …; "
            f"it is {found!r}"
        )
    for name in found:
        if not isinstance(name, str):
            raise UserError(
                f"{file}: {section} has the name {name!r}; give text, in quotes if need be"
            )
    return list(found.items())


def fields(entry: Mapping[str, Any], where: str) -> tuple[Field, ...]:
    """Return the fields of an entry, of which no two may be the same."""
    items = entry["fields"]
    if not isinstance(items, list) or not items:
        raise UserError(f"{where} has fields {items!r}; give a list with one field for each value")
    found = tuple(_field(item, where) for item in items)
    if twice := _first_twice([field.path for field in found]):
        raise UserError(f"{where} names field '{twice}' twice; give each value a field of its own")
    return found


def _field(item: Any, where: str) -> Field:
    data = {"field": item} if isinstance(item, str) else item
    require_keys(data, {"field"}, FIELD_KEYS, f"{where}, field {item!r},")
    name = data["field"]
    if not isinstance(name, str) or not name or name != "".join(name.split()):
        raise UserError(f"{where} has field {name!r}; give the field's name, without spaces")
    what = f"{where}, field '{name}', has"
    scale = number(data.get("scale", 1.0), f"{what} scale")
    if not scale or not math.isfinite(scale):
        raise UserError(f"{what} scale {scale:g}; give a finite number that is not 0")
    low = number(data.get("min", -math.inf), f"{what} min")
    high = number(data.get("max", math.inf), f"{what} max")
    if not low < high:
        raise UserError(f"{what} min {low:g} and max {high:g}; give a min below the max")
    return Field(name, scale, low, high)


def _first_twice(names: Collection[str]) -> str:
    """Return the first name that comes a second time, or an empty string."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""
