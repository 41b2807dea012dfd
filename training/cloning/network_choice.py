"""The network that the options ask for: a preset's, or a checkpoint's with another core.

A trained policy can be given another core without learning to see again. Its action head stays as
it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

from ttm.policy.checks import require_above_0, require_choice
from ttm.policy.cores.configs import core_name, sized_like, with_options
from ttm.policy.cores.registry import TTM
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.policy.errors import UserError
from ttm.policy.network.config import ActionHeadConfig, VisionConfig, VisionModel
from ttm.policy.network.policy import Policy
from ttm.policy.network.presets import PRESETS, PolicyConfig
from ttm.policy.network.relative.relative_actions import RelativeActions
from ttm.policy.run.checkpoint import build_empty
from ttm.training.cloning.settings.groups import NO_WEIGHTS
from ttm.training.common.core_names import AUTO

CORE, ACTION_HEAD, SIGHT = "core.", "action_head.", "sight."
"""Prefixes of the parameters' names."""
HEAD = "action head"
"""What error messages call the head."""


def chosen_network(
    preset: str,
    core: str,
    core_options: Sequence[str],
    head_options: Sequence[str] = (),
    sight_tokens: int | None = None,
    sight_cells: int | None = None,
    chunk: int | None = None,
    vision_weights: str = NO_WEIGHTS,
    vision_model: VisionModel | None = None,
    relative: Sequence[str] = (),
    absolute: Sequence[str] = (),
    delay_s: float | None = None,
) -> PolicyConfig:
    """Return the preset with the core called `core` (auto: `ttm`) and with the options."""
    config = PRESETS[preset]
    sized = sized_like(TTM if core == AUTO else core, config.core)
    network = replace(
        config,
        core=with_options(sized, core_options),
        head=with_head_options(config.head, head_options),
        sight_tokens=config.sight_tokens if sight_tokens is None else sight_tokens,
        sight_cells=config.sight_cells if sight_cells is None else sight_cells,
        chunk=config.chunk if chunk is None else chunk,
        relative=tuple(relative),
        absolute=tuple(absolute),
        longest_delay_s=config.longest_delay_s if delay_s is None else delay_s,
        vision=with_vision_weights(with_vision_model(config.vision, vision_model), vision_weights),
    )
    _require_sight(network, sight_cells)
    return network


def with_vision_model(config: VisionConfig, model: VisionModel | None) -> VisionConfig:
    """Return `config` with a whole network of another model, cut at the same stride; None for its own."""
    if model is None:
        return config
    return replace(config, model=model, width_coefficient=None, depth_coefficient=None)


def with_vision_weights(config: VisionConfig, weights: str) -> VisionConfig:
    """Return `config` with initial weights: `none` for random ones, `imagenet`, or a file.

    Such weights are those of a whole network with BatchNorm, so that a narrowed one becomes one.
    It is still cut at the same stride.
    """
    if weights == NO_WEIGHTS:
        return config
    return replace(
        config, weights=weights, norm="batch", width_coefficient=None, depth_coefficient=None
    )


def with_head_options(config: ActionHeadConfig, options: Sequence[str]) -> ActionHeadConfig:
    """Return `config` with `options`, each FIELD=VALUE; raise `UserError` if one is wrong."""
    changed = with_options(config, options, HEAD)
    hints = get_type_hints(ActionHeadConfig)
    for field in fields(changed):
        value, name = getattr(changed, field.name), f"{HEAD} option {field.name}"
        if choices := get_args(hints[field.name]):
            require_choice(name, value, choices)
        else:
            require_above_0({name: value})
    return changed


def with_chosen_parts(
    policy: Policy,
    core: str,
    options: Sequence[str],
    sight_tokens: int | None = None,
    sight_cells: int | None = None,
    chunk: int | None = None,
    delay_s: float | None = None,
) -> Policy:
    """Return `policy` if it has the parts asked for, else a copy with new ones of random weights.

    A new core has the old one's sizes, changed by `options`. All other weights are kept, except
    the action head's if the new core has another number of outputs. With another number of
    `sight_tokens` the core is new, too, and so is the sight memory; with another number of
    `sight_cells` nothing is new. With another `chunk` the action head is new. A policy that is told
    of delays, or of longer ones than before, begins with the actions that it had. None keeps what
    there is.
    """
    config = (
        policy.config.core
        if _is(policy.config.core, core)
        else sized_like(core, policy.config.core)
    )
    config = with_options(config, options)
    network = _network(policy.config, config, sight_tokens, sight_cells, chunk, delay_s)
    return policy if network == policy.config else _with_new_parts(policy, network)


def with_vision_kept(
    policy: Policy,
    core: CoreConfig | None = None,
    sight_tokens: int | None = None,
    sight_cells: int | None = None,
) -> Policy:
    """Return a copy of `policy` with random weights in the core, the action head and the sight memory.

    The copy sees and reads instructions as `policy` does, and has yet to learn what to do.

    core: the configuration of its core; None for that of `policy`. sight_tokens, sight_cells:
    as in `with_chosen_parts`.
    """
    network = _network(policy.config, core or policy.config.core, sight_tokens, sight_cells)
    return _with_new_parts(policy, network, fresh=(CORE, ACTION_HEAD, SIGHT))


def require_same_core(config: PolicyConfig, core: str, options: Sequence[str], source: str) -> None:
    """Raise `UserError` if the core asked for is not that of `source`, a training to resume."""
    if not _is(config.core, core):
        raise UserError(
            f"--core is {core}, but {source} has {core_name(config.core)}; leave --core out to resume, "
            f"or give another --out and --init {source} to begin with a new core"
        )
    advice = f"leave it out to resume, or give another --out and --init {source} to begin with a new core"
    _require_same_fields(
        "--core-options", config.core, options, with_options, "core", source, advice
    )


def require_same_head(config: PolicyConfig, options: Sequence[str], source: str) -> None:
    """Raise `UserError` if `options` contradict the action head of the checkpoint `source`."""
    advice = "leave it out to keep the checkpoint's head, or train a new policy without --init and --resume"
    _require_same_fields(
        "--head-options", config.head, options, with_head_options, HEAD, source, advice
    )


def require_same_form(
    policy: Policy, relative: Sequence[str], absolute: Sequence[str], source: str
) -> None:
    """Raise `UserError` if parts are to be predicted in another form than by the checkpoint `source`."""
    if (relative or absolute) and RelativeActions(
        policy.spec, relative, absolute
    ) != policy.relative:
        given, config = [*relative, *absolute], policy.config
        known = [*config.relative, *config.absolute]
        raise UserError(
            f"--relative and --absolute say {' '.join(given)}, but {source} was trained with "
            f"{' '.join(known) or 'none'}; leave them out to keep that, or train a new policy "
            "without --init"
        )


def _require_same_fields(
    option: str,
    config: Any,
    wanted: Sequence[str],
    changed: Callable[[Any, Sequence[str]], Any],
    what: str,
    source: str,
    advice: str,
) -> None:
    """Raise `UserError` if one of `wanted`, each FIELD=VALUE, would change `config` of `source`."""
    for each in wanted:
        if changed(config, [each]) != config:
            name = each.partition("=")[0]
            raise UserError(
                f"{option} has {each}, but the {what} of {source} has "
                f"{name}={getattr(config, name)}; {advice}"
            )


def _is(config: CoreConfig, core: str) -> bool:
    return core in (AUTO, core_name(config))


def _network(
    config: PolicyConfig,
    core: CoreConfig,
    sight_tokens: int | None,
    sight_cells: int | None = None,
    chunk: int | None = None,
    delay_s: float | None = None,
) -> PolicyConfig:
    """Return `config` with another core, and with other values of what is not None."""
    given: dict[str, Any] = {
        "sight_tokens": sight_tokens,
        "sight_cells": sight_cells,
        "chunk": chunk,
        "longest_delay_s": delay_s,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    network = replace(config, core=core, **changes)
    _require_sight(network, sight_cells)
    return network


def _require_sight(network: PolicyConfig, sight_cells: int | None) -> None:
    """Raise `UserError` if cells were asked for, and nothing sees them."""
    if sight_cells is not None and not network.sight_tokens:
        raise UserError(
            f"--sight-cells is {sight_cells}, but the policy has no sight memory; give it one by "
            "--sight-tokens 6, or leave --sight-cells out"
        )


def _with_new_parts(
    policy: Policy, network: PolicyConfig, fresh: tuple[str, ...] | None = None
) -> Policy:
    """Return a copy that is built as `network`; parameters whose names start with `fresh` are new.

    None for the parts in which `network` differs.
    """
    made, old = build_empty(policy.spec, network), policy.config
    new_core = (network.core, network.sight_tokens) != (old.core, old.sight_tokens)
    new_head = made.core.num_outputs != policy.core.num_outputs or network.chunk != old.chunk
    if fresh is None:
        fresh = (CORE,) * new_core + (ACTION_HEAD,) * new_head
    if network.sight_tokens != old.sight_tokens:
        fresh = (*fresh, SIGHT)
    kept = {
        name: value for name, value in policy.state_dict().items() if not name.startswith(fresh)
    }
    made.load_state_dict(kept, strict=False)
    if made.delay_code is not None and policy.delay_code is not None:  # the code is of a share
        made.delay_code.rescale(network.longest_delay_s / old.longest_delay_s)
    made.known_instructions = dict(policy.known_instructions)
    return made
