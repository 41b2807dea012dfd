"""Reads a YAML file that a person wrote, and says in one line what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ttm.policy.errors import UserError


def read_yaml(file: Path, what: str, holds: str) -> dict[Any, Any]:
    """Return the mapping that a YAML file holds. Raises `UserError` if there is none.

    what: what the file is. holds: the keys that it must have. Both are for the message.
    """
    try:
        data = yaml.load(file.read_text(encoding="utf-8"), Loader=_NoRepeats)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(f"no {what} at {file} ({reason}); give the path of a YAML file") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise UserError(f"{file} holds no {what}; it needs {holds}")
    return data


class _NoRepeats(yaml.SafeLoader):
    """Refuses a key that comes twice in a mapping; YAML itself keeps the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key.value}' comes twice; remove one", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)
