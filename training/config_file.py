"""The file of `--config`: options in YAML, under the names that they have on the command line.

Options that are seldom changed stand there alone, so that `--help` shows those that matter. What the
file says becomes the default of the command line, whose words count more.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import tyro
import yaml

from ttm.policy.errors import UserError


def config_path(words: Sequence[str]) -> Path | None:
    """Return the file of --config that the words of a command line name, if any."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", type=Path)
    try:
        path: Path | None = parser.parse_known_args(words)[0].config
    except argparse.ArgumentError:  # --config without a file, for which tyro has a message
        return None
    return path


def read_config(path: Path, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a file gives, as the command line would read them.

    kinds: name of each option, such as `batch-size` -> its type. Raises `UserError` if the file cannot
    be read, or has something else.
    """
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"--config {path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no options; give lines such as 'seed: 1'")
    values = {}
    for name, value in _flat(found, kinds):
        if name not in kinds:
            close = difflib.get_close_matches(name, kinds, n=1)
            hint = f"did you mean {close[0]}?" if close else "see the command's --help"
            raise UserError(f"{path}: there is no option '{name}'; {hint}")
        if value is not None:  # None is the default of every option that takes it
            values[name] = _read(value, kinds[name], f"{path}: {name}")
    return values


def _flat(
    found: Mapping[str, Any], kinds: Mapping[str, Any], group: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the names of the options with their values; those of a group may stand below its name."""
    for key, value in found.items():
        name = f"{group}{key}".replace("_", "-")
        if isinstance(value, dict) and not group and name not in kinds:
            yield from _flat(value, kinds, f"{name}.")
        else:
            yield name, value


def _read(value: Any, kind: Any, name: str) -> Any:
    if isinstance(value, bool) and kind is bool:
        return value
    words = value if isinstance(value, list) else [value]
    problem = f"{name} has no value that the option takes: {value}"
    if any(isinstance(each, dict | list) for each in words):
        raise UserError(problem)
    try:
        with redirect_stderr(StringIO()):  # what tyro says there names no file
            return tyro.cli(kind, args=[str(each) for each in words], console_outputs=False)
    except SystemExit as error:
        raise UserError(problem) from error
