"""Parameter files for the nodes, in an order of precedence that holds for every file of a user.

ROS applies the sections of parameter files in the order in which their names first appear, so that
`/**` in one file may overrule the node's own section of a later file. The sections written here
have names of their own, which makes the later file win.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ttm.policy.errors import UserError
from ttm_policy.parameter_sets.known_names import require_known

_PARAMETERS = "ros__parameters"


def write_defaults(path: Path, values: Mapping[str, Any]) -> Path:
    """Write values that every later parameter file overrules."""
    return _write(path, "/**/*", values)


def write_given(path: Path, node: str, values: Mapping[str, Any]) -> Path:
    """Write values that overrule all parameter files before this one. node: the name of the node."""
    return _write(path, f"/**/{node}", values)


def _write(path: Path, section: str, values: Mapping[str, Any]) -> Path:
    text = yaml.safe_dump({section: {_PARAMETERS: dict(values)}}, allow_unicode=True, width=10_000)
    path.write_text(text, encoding="utf-8")
    return path


def require_sections(path: str, nodes: Sequence[str]) -> None:
    """Raise `UserError` unless the parameter file says something about one of the nodes of a launch.

    nodes: their full names, such as /left/policy_node. ROS ignores sections that have the name of another
    node, and the limits in them. Those of strangers may stand beside ours, those with a typing error not.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"params_file {path} cannot be read ({reason}); give a YAML file"
        ) from error
    names = list(_sections(content, ""))
    own = [node.rpartition("/")[2] for node in nodes]
    if not any(_matches(name, node) for name in names for node in nodes):
        found = ", ".join(names) or "no section with ros__parameters"
        remedy = " or ".join(f"/**/{name}" for name in own)
        raise UserError(
            f"params_file {path} has nothing for {' or '.join(nodes)}, but {found}; name the section {remedy}"
        )
    meant = [name.rpartition("/")[2] for name in names]
    require_known(
        "node, named in params_file,", meant, own, cutoff=0.88
    )  # joy_teleop_node is another


def _sections(content: Any, prefix: str) -> Iterator[str]:
    """Yield the absolute names of all sections. Namespaces may be written as nested sections."""
    if not isinstance(content, dict):
        return
    for name, inner in content.items():
        full = f"{prefix}/{str(name).lstrip('/')}"
        if name == _PARAMETERS:
            yield prefix or "/"
        else:
            yield from _sections(inner, full)


def _matches(section: str, node: str) -> bool:
    """Return whether a section's name, in which * and ** stand for parts of names, means the node."""
    pattern = re.escape(section).replace(r"/\*\*", "(/[^/]+)*").replace(r"\*", "[^/]+")
    return re.fullmatch(pattern, node) is not None
