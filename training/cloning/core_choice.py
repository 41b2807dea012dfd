"""`ttm train --core` and `--core-options`: which core a new policy gets, and what becomes of a checkpoint's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ttm.policy.cores.registry import TTM, core_name, sized_like, with_options
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.policy.errors import UserError
from ttm.policy.network.policy import PRESETS, Policy, PolicyConfig
from ttm.policy.run.checkpoint import build_empty

AUTO = "auto"
"""Not None, which one would mistake on a command line for the core "none"."""


def chosen_network(preset: str, core: str, options: Sequence[str]) -> PolicyConfig:
    """The preset with the core called `core` (auto: the Token Turing Machine) in the preset's sizes, then `options`."""
    config = PRESETS[preset]
    return replace(
        config, core=with_options(sized_like(TTM if core == AUTO else core, config.core), options)
    )


def with_chosen_core(policy: Policy, core: str, options: Sequence[str]) -> Policy:
    """`policy` itself if it has that core; else one with a new core of random weights, and all its other weights.

    So a trained policy can be given another memory without learning to see again. The action head stays unless the
    new core has another number of outputs. The core is in the old one's sizes, then `options`.
    """
    config = (
        policy.config.core
        if _is(policy.config.core, core)
        else sized_like(core, policy.config.core)
    )
    config = with_options(config, options)
    return policy if config == policy.config.core else _with_new_core(policy, config)


def require_same_core(config: PolicyConfig, core: str, options: Sequence[str], source: str) -> None:
    """`UserError` if the core asked for is not that of `source`, a training to resume; auto and () ask for nothing."""
    if not _is(config.core, core):
        raise UserError(
            f"--core is {core}, but {source} has {core_name(config.core)}; leave --core out to resume, "
            f"or give another --out and --init {source} to begin with a new core"
        )
    for option in options:
        if with_options(config.core, [option]) != config.core:
            name = option.partition("=")[0]
            raise UserError(
                f"--core-options has {option}, but the core of {source} has {name}={getattr(config.core, name)}; "
                f"leave it out to resume, or give another --out and --init {source} to begin with a new core"
            )


def _is(config: CoreConfig, core: str) -> bool:
    return core in (AUTO, core_name(config))


def _with_new_core(policy: Policy, config: CoreConfig) -> Policy:
    made = build_empty(policy.spec, replace(policy.config, core=config))
    fresh = (
        ("core.",)
        if made.core.num_outputs == policy.core.num_outputs
        else ("core.", "action_head.")
    )
    kept = {
        name: value for name, value in policy.state_dict().items() if not name.startswith(fresh)
    }
    made.load_state_dict(kept, strict=False)
    made.known_instructions = dict(policy.known_instructions)
    return made
