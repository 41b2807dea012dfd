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
from ttm.training.common.sight_option import NO_SIGHT, TOKENS, SightSize, split_sight

OURS = "ours"
"""The name of our Token Turing Machine. `TTM` is the published one."""
OURS_OPTIONS = (
    "write=ring",
    "read=attend",
    "process_memory=true",
    "write_outputs=false",
    "num_layers=1",
    "gate_max_ticks=1000",
    f"{TOKENS}=6",
)
"""What ours differs in from the published machine."""
VARIANTS = (OURS, TTM, "none", "lstm", "tlb", "hourglass", "transformer", "frame-stacking")
"""What is compared by default."""


@dataclass(frozen=True)
class Variant:
    """A core with options, and perhaps a sight memory, as it is named in the tables."""

    label: str
    core: str
    options: tuple[str, ...]
    sight: SightSize = NO_SIGHT

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return re.sub(r"[^A-Za-z0-9@=._-]+", "_", self.label)


def parse_variant(text: str, ours_options: Sequence[str]) -> Variant:
    """Return the variant of "CORE FIELD=VALUE ...", in which the core may be `OURS`.

    ours_options: what `OURS` stands for. Later options count. Raises `UserError` if there is no such
    core. The fields of the core are checked where it is built.
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
    wanted = (*ours_options, *options) if name == OURS else tuple(options)
    return Variant(label, TTM if name == OURS else name, *split_sight(wanted))
