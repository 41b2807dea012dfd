"""Help texts of commands and options, made from docstrings, and the names of the temporal cores.

This module imports no torch.

tyro 1.0 breaks a help text wherever a line of the docstring begins with something else than a letter, such as
an indented line or an option. It is therefore given joined lines.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from functools import cache, partial
from inspect import cleandoc
from shutil import get_terminal_size
from textwrap import fill
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import docstring_parser
from tyro.conf import arg

from ttm.policy.cores.registry import NAMES, core_descriptions

Command = TypeVar("Command", bound=type[Any])
DEFAULT = "Default:"
"""Begins the sentence of a help text that explains the default."""


@cache  # the docstrings are looked for in the source each time
def join_help_lines(command: Command) -> Command:
    """Give a dataclass of options, and its fields, docstrings of one line a paragraph.

    Dataclasses among the types of the fields are treated alike. Fields that have a help text by
    `tyro.conf.arg` keep it. Returns the same class.
    """
    command.__doc__ = re.sub(r"(?<=\S)\n(?=\S)", " ", cleandoc(command.__doc__ or ""))
    for owner in command.__mro__:
        own = vars(owner).get("__annotations__", {})
        if not is_dataclass(owner) or not own:
            continue
        docstrings = {
            each.arg_name: each.description
            for each in docstring_parser.parse_from_object(owner).params
            if each.description and ("\n" in each.description or DEFAULT in each.description)
        }
        hints = get_type_hints(owner, include_extras=True)
        for name in own.keys() & docstrings.keys() & {field.name for field in fields(owner)}:
            if any(getattr(mark, "help", None) for mark in get_args(hints[name])):
                continue
            text = " ".join(docstrings[name].split())
            hint = "" if DEFAULT in text else None  # each default is said once
            own[name] = Annotated[hints[name], arg(help=text, help_behavior_hint=hint)]
        for name in own:
            for part in (hints[name], *get_args(hints[name])):
                if isinstance(part, type) and is_dataclass(part):
                    join_help_lines(part)
    return command


class HelpOutput:
    """Standard output that breaks paragraphs between words: tyro prints them in one line each."""

    def __init__(self, output: Any) -> None:
        self._output = output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)

    def write(self, text: str) -> int:
        """Write help."""
        fit = partial(fill, width=get_terminal_size().columns, break_on_hyphens=False)
        lines = (fit(line) if line[:1].isalpha() else line for line in text.split("\n"))
        return int(self._output.write("\n".join(lines)))


AUTO = "auto"
"""Value of `ttm train --core` that asks for nothing. (None would look like the core "none" on a
command line.)"""

_CHOICES = (AUTO, *NAMES)
# Type checkers do not accept a Literal whose values are computed.
CoreName = Literal[NAMES]  # type: ignore[valid-type]
CoreChoice = Literal[_CHOICES]  # type: ignore[valid-type]

CORE_HELP = (
    f"What carries memory from tick to tick. {core_descriptions()}; auto: ttm, or with --init and "
    "--resume the checkpoint's. With --init, a core other than the checkpoint's starts from random "
    "weights and everything else from the checkpoint's."
)
"""Help text of `ttm train --core`."""
