"""The variants that the study compares: named cores, with options or without.

This module imports no torch, because the command line takes its defaults from here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ttm.policy.checks import require_choice
from ttm.policy.cores.registry import NAMES, TTM
from ttm.policy.errors import UserError

OURS = "ours"
"""The name of our Token Turing Machine. `TTM` is the published one."""
OURS_OPTIONS = ("write=gated", "read=attend", "process_memory=true")
"""What ours differs in from the published machine."""
VARIANTS = (OURS, TTM, "none", "lstm", "tlb", "hourglass", "transformer", "frame-stacking")
"""What is compared by default."""


@dataclass(frozen=True)
class Variant:
    """A core with options, as it is named in the tables."""

    label: str
    core: str
    options: tuple[str, ...]

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return re.sub(r"[^A-Za-z0-9@=._-]+", "_", self.label)


def parse_variant(text: str, ours_options: Sequence[str]) -> Variant:
    """Return the variant of "CORE FIELD=VALUE ...", in which the core may be `OURS`.

    ours_options: what `OURS` stands for. Raises `UserError` if there is no such core. The fields are
    checked where the core is built.
    """
    try:
        name, *options = shlex.split(text)
    except ValueError as error:
        raise UserError(
            f"--core '{text}' is no core; give a name, with FIELD=VALUE in the same quotes if need "
            "be, such as 'lstm num_layers=2'"
        ) from error
    require_choice("--core", name, (OURS, *NAMES))
    label = " ".join([name, *options])
    if name == OURS:
        return Variant(label, TTM, (*ours_options, *options))
    return Variant(label, name, tuple(options))
