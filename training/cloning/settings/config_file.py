"""The YAML file that holds the options of a training: `ttm train --config`, and run.yaml.

It has the names of the command line: `batch-size: 16`, and `augmentation:` with `shift: 0.06` below
it. What it says stands before the words of the command line, of which the last one counts, so that
tyro checks both alike.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ttm.policy.errors import UserError
from ttm.policy.files import write_atomically

ACTIONS = ("resume", "resume-anyway", "overwrite", "dry-run")
"""Options that say what to do with a training, and do not belong to it."""
HEADER = "# The options of a training. To train the same again: ttm train --config {} --out ANOTHER_FOLDER\n"


def write_config(path: Path, values: Mapping[str, Any]) -> None:
    """Write the options of a training.

    values: plain data by the names of the command line.
    """
    nested: dict[str, Any] = {}
    for name, value in values.items():
        group, _, part = name.rpartition(".")
        if name not in ACTIONS:
            (nested.setdefault(group, {}) if group else nested)[part] = value
    text = yaml.safe_dump(nested, sort_keys=False, allow_unicode=True, default_flow_style=None)
    write_atomically(path, HEADER.format(path) + text)


def with_config_file(words: Sequence[str], names: Collection[str]) -> list[str]:
    """Return the words of the command line, with those of the file of --config before them.

    names: the options that the command has. Raises `UserError` if the file cannot be read, or has
    something else.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", type=Path)
    try:
        path = parser.parse_known_args(words)[0].config
    except argparse.ArgumentError:  # --config without a file, which tyro tells
        path = None
    return list(words) if path is None else [*_words(path, names), *words]


def _words(path: Path, names: Collection[str]) -> Iterator[str]:
    """Yield the options of a file as words of the command line."""
    for name, value in _flat(_read(path), path):
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]}?" if close else "see ttm train --help"
            raise UserError(f"{path}: there is no option '{name}'; {hint}")
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
        elif value is not None:  # None is the default of every option that takes it
            yield f"--{name}"
            yield from map(str, value if isinstance(value, list) else [value])


def _read(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"--config {path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no options; give lines such as 'batch-size: 16'")
    return found


def _flat(found: Mapping[str, Any], path: Path, group: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names of the command line with their values."""
    for key, value in found.items():
        name = f"{group}{key}".replace("_", "-")
        if isinstance(value, dict) and not group:
            yield from _flat(value, path, f"{name}.")
        elif isinstance(value, dict) or any(
            isinstance(each, dict | list) for each in (value if isinstance(value, list) else ())
        ):
            raise UserError(f"{path}: {name} has no value that an option takes: {value}")
        else:
            yield name, value
