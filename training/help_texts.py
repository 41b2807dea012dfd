"""Help texts of options, made from the docstrings of the fields, and the names of the temporal cores.

This module imports no torch.

tyro 1.0 breaks the help text of an option wherever the docstring of the field has a line break,
because it joins lines before it removes their indentation. It is therefore given joined lines.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import docstring_parser
from tyro.conf import arg

from ttm.policy.cores.registry import NAMES, core_descriptions

Command = TypeVar("Command", bound=type[Any])
DEFAULT = "Default:"
"""Begins the sentence of a help text that explains the default."""


@cache  # the docstrings are looked for in the source each time
def join_help_lines(command: Command) -> Command:
    """Annotate the fields of a dataclass of options with their docstrings, in one line each.

    Dataclasses among the types of the fields are treated alike. Fields that have a help text by
    `tyro.conf.arg` keep it. Returns the same class.
    """
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


AUTO = "auto"
"""Value of `ttm train --core` that asks for nothing. (None would look like the core "none" on a
command line.)"""

_CHOICES = (AUTO, *NAMES)

if TYPE_CHECKING:  # type checkers do not accept a Literal whose values are computed
    CoreName = str
    CoreChoice = str
else:
    CoreName = Literal[NAMES]
    CoreChoice = Literal[_CHOICES]

CORE_HELP = (
    f"What carries memory from tick to tick. {core_descriptions()}; auto: ttm, or with --init and "
    "--resume the checkpoint's. With --init, a core other than the checkpoint's starts from random "
    "weights and everything else from the checkpoint's."
)
"""Help text of `ttm train --core`."""
