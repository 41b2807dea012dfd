"""The names of the temporal cores as a type for command lines, and a text that describes them.

This module imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ttm.policy.cores.registry import NAMES, core_descriptions

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
