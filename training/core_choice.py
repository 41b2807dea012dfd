"""`ttm train --core` and `--core-options`: which core a new policy gets, and that a checkpoint keeps its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ttm.policy.cores import TTM, core_name, sized_like, with_options
from ttm.policy.errors import UserError
from ttm.policy.ttm_policy import PRESETS, TTMPolicyConfig

AUTO = "auto"
"""Not None, which one would mistake on a command line for the core "none"."""


def chosen_network(preset: str, core: str, options: Sequence[str]) -> TTMPolicyConfig:
    """The preset with the core called `core` (auto: the Token Turing Machine) in the preset's sizes, then `options`."""
    config = PRESETS[preset]
    return replace(config, core=with_options(sized_like(TTM if core == AUTO else core, config.core), options))


def require_same_core(config: TTMPolicyConfig, core: str, options: Sequence[str], source: str) -> None:
    """`UserError` if the core asked for is not the one of the checkpoint `source`; auto and () ask for nothing."""
    has = core_name(config.core)
    if core not in (AUTO, has):
        raise UserError(
            f"--core is {core}, but {source} has {has}; "
            f"leave --core out, or train from scratch without --init and --resume"
        )
    for option in options:
        if with_options(config.core, [option]) != config.core:
            name = option.partition("=")[0]
            raise UserError(
                f"--core-options has {option}, but the core of {source} has {name}={getattr(config.core, name)}; "
                f"leave it out, or train from scratch without --init and --resume"
            )
