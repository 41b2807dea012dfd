"""The network that the options of a training ask for: a preset's, or a checkpoint's with other parts.

A trained policy can be given another core without learning to see again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from ttm.policy.checkpoint import build_empty, load_checkpoint
from ttm.policy.config import ActionHeadConfig
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.registry import TTM, core_name, sized_like, with_options
from ttm.policy.errors import UserError, require_above_0, require_valid_fields
from ttm.policy.policy import PRESETS, Policy, PolicyConfig
from ttm.policy.relative import RelativeActions
from ttm.policy.spec import SHIPPED, checkpoint_path, read_header
from ttm.training.help_texts import AUTO
from ttm.training.options import NO_WEIGHTS, TrainOptions

CORE, ACTION_HEAD, SIGHT = "core.", "action_head.", "sight."
VISION, LANGUAGE, TOKENS = "vision.", "language.", "camera_tokens."
"""Prefixes of the parameters' names."""
HEAD = "action head"
"""What error messages call the head."""


def chosen_network(options: TrainOptions) -> PolicyConfig:
    """Return the network of a new policy: the preset with what the options change.

    Weights for vision are those of a whole network with BatchNorm, so that a narrowed one becomes
    one. It is still cut at the same stride. Vision of a checkpoint (`policy_to_see_as`) is built as there.
    """
    preset = PRESETS[options.preset]
    if (seen := policy_to_see_as(options)) is not None:
        names = ("language_size", "language_model", "embedding_size")
        kept = {name: getattr(seen.config, name) for name in names}
        preset = replace(preset, vision=replace(seen.config.vision, weights="random"), **kept)
    vision = preset.vision
    whole: dict[str, Any] = {"width_coefficient": None, "depth_coefficient": None}
    if seen is None and options.vision_model is not None:
        vision = replace(vision, model=options.vision_model, **whole)
    if seen is None and options.vision_weights != NO_WEIGHTS:
        vision = replace(vision, weights=options.vision_weights, norm="batch", **whole)
    core = sized_like(TTM if options.core == AUTO else options.core, preset.core)
    return _changed(
        preset,
        core=with_options(core, options.core_options),
        head=with_head_options(preset.head, options.head_options),
        vision=vision,
        relative=options.relative,
        absolute=options.absolute,
        **_sizes(options),
    )


def policy_to_see_as(options: TrainOptions) -> Policy | None:
    """Return the policy that --vision-weights names; None if it names none, but a state dict or nothing.

    Raises `UserError` if that has no vision, or is to be another network.
    """
    given = options.vision_weights
    path = checkpoint_path(given) if given == SHIPPED else Path(given)
    try:
        read_header(path)
    except UserError:
        return None  # what is wrong with a file, `build_vision` says
    policy = load_checkpoint(path)[0]
    if policy.vision is None:
        raise UserError(f"--vision-weights is {given}, which has no vision; give another")
    if options.vision_model not in (None, policy.config.vision.model):
        raise UserError(
            f"--vision-model is {options.vision_model}, but vision is that of {given}; leave it out"
        )
    return policy


def see_as(policy: Policy, seen: Policy, name: str, *, tokens: bool = False) -> None:
    """Give a new policy the vision of `seen`, whose file has that name.

    It is all from the frame to the feature map: the network, FiLM and the code of the instruction. tokens:
    also what makes tokens of the maps of cameras that both have, if it is as large.
    """
    state, new = seen.state_dict(), policy.state_dict()
    kept = {key: x for key, x in state.items() if key.startswith((VISION, LANGUAGE))}
    cameras = {camera.name: i for i, camera in enumerate(seen.spec.cameras)}
    for i, camera in enumerate(policy.spec.cameras if tokens else ()):
        to, of = f"{TOKENS}{i}.", f"{TOKENS}{cameras.get(camera.name)}."
        found = {to + key.removeprefix(of): x for key, x in state.items() if key.startswith(of)}
        if all(new[key].shape == x.shape for key, x in found.items()):
            kept |= found
    missing = policy.load_state_dict(kept, strict=False).missing_keys
    assert not any(key.startswith((VISION, LANGUAGE)) for key in missing)
    if policy.vision is not None:
        policy.vision.weights_used = (
            f"that of {name} with its code of instructions, {len(kept)} tensors; the others are new"
        )


def with_chosen_parts(policy: Policy, options: TrainOptions) -> Policy:
    """Return `policy` if it has the parts that the options ask for, else a copy with new ones.

    A new core has the old one's sizes, changed by --core-options. All other weights are kept, except the
    action head's if the new core has another number of outputs. With other slots of the sight memory
    core and memory keep their weights, see `_of_other_inputs`. With another chunk the action head is new.
    A policy that is told of delays, or of longer ones than before, begins with the actions that it had.
    """
    core, old = policy.config.core, policy.config
    if not _is(core, options.core):
        core = sized_like(options.core, core)
    network = _changed(old, core=with_options(core, options.core_options), **_sizes(options))
    if network == old:
        return policy
    made = build_empty(policy.spec, network)
    fresh: tuple[str, ...] = ()
    if network.core != old.core:
        fresh += (CORE,)
    if made.core.num_outputs != policy.core.num_outputs or network.chunk != old.chunk:
        fresh += (ACTION_HEAD,)
    return _filled(made, policy, fresh)


def with_vision_kept(
    policy: Policy,
    core: CoreConfig | None = None,
    sight_tokens: int | None = None,
    *,
    tokens: bool = False,
) -> Policy:
    """Return a new policy that sees, reads instructions and normalises as `policy` does.

    It has the vision of `see_as`, the normaliser and the known instructions; all else is random.

    core, sight_tokens: the core and the slots of the sight memory; None for those of `policy`. tokens:
    also keep what makes tokens of features, proprioception, actions and instructions.
    """
    made = build_empty(policy.spec, _changed(policy.config, core=core, sight_tokens=sight_tokens))
    if tokens:
        return _filled(made, policy, (CORE, ACTION_HEAD, SIGHT))
    see_as(made, policy, "the checkpoint")
    made.normalizer.load_state_dict(policy.normalizer.state_dict())
    made.known_instructions = dict(policy.known_instructions)
    return made


@lru_cache(maxsize=16)
def parameters_and_tokens(policy: Policy, slots: int) -> tuple[int, int]:
    """Return the parameters of a sight memory for what `policy` sees, and N, the inputs of a core."""
    made = with_vision_kept(policy, sight_tokens=slots)
    return sum(p.numel() for p in made.sight.parameters()) if made.sight else 0, made.num_tokens


def _filled(made: Policy, policy: Policy, fresh: tuple[str, ...]) -> Policy:
    """Return `made` with the weights of `policy`, but for those whose names start with `fresh`."""
    new, old = made.config, policy.config
    kept = {n: value for n, value in policy.state_dict().items() if not n.startswith(fresh)}
    made.load_state_dict(_of_other_inputs(kept, policy, made), strict=False)
    if made.delay_code is not None and policy.delay_code is not None:  # the code is of a share
        made.delay_code.rescale(new.longest_delay_s / old.longest_delay_s)
    made.known_instructions = dict(policy.known_instructions)
    return made


def _of_other_inputs(kept: dict[str, Tensor], policy: Policy, made: Policy) -> dict[str, Tensor]:
    """Return the weights `kept` of `policy` for `made`, whose core may read more or fewer tokens.

    Of positions, (1, other + N, D), the rows of tokens that both have are kept; what else has another
    shape is left out.
    """
    shared, found = policy.token_sources.keys() & made.token_sources.keys(), dict[str, Tensor]()
    for name, new in made.state_dict().items():
        old = kept.get(name)
        if old is not None and old.shape != new.shape and old.dim() == new.dim() == 3:
            other = old.shape[1] - policy.num_tokens
            if other >= 0 and other == new.shape[1] - made.num_tokens:
                rows = new.clone()
                rows[:, :other] = old[:, :other]
                for source in shared:
                    to, of = (each.token_sources[source] for each in (made, policy))
                    count = min(to.stop - to.start, of.stop - of.start)
                    rows[:, other:][:, to][:, :count] = old[:, other:][:, of][:, :count]
                old = rows
        if old is not None and old.shape == new.shape:
            found[name] = old
    return found


def with_head_options(config: ActionHeadConfig, options: Sequence[str]) -> ActionHeadConfig:
    """Return `config` with `options`, each FIELD=VALUE; raise `UserError` if one is wrong."""
    changed = with_options(config, options, HEAD)
    try:
        require_valid_fields(changed, {})
        require_above_0({"huber_delta": changed.huber_delta, "bin_range": changed.bin_range})
    except UserError as error:
        raise UserError(f"{HEAD} option {error}") from error
    return changed


def require_same_core(config: PolicyConfig, options: TrainOptions, source: str) -> None:
    """Raise `UserError` if the core asked for is not that of `source`, a training to resume."""
    advice = f"leave it out to resume, or give another --out and --init {source} for a new core"
    if not _is(config.core, options.core):
        raise UserError(
            f"--core is {options.core}, but {source} has {core_name(config.core)}; {advice}"
        )
    for each in options.core_options:
        if with_options(config.core, [each]) != config.core:
            raise UserError(f"--core-options has {each}, unlike the core of {source}; {advice}")


def require_same_head(config: PolicyConfig, options: TrainOptions, source: str) -> None:
    """Raise `UserError` if the options contradict the action head of the checkpoint `source`."""
    for each in options.head_options:
        if with_head_options(config.head, [each]) != config.head:
            raise UserError(f"head-options has {each}, unlike the {HEAD} of {source}; leave it out")


def require_same_form(policy: Policy, options: TrainOptions, source: str) -> None:
    """Raise `UserError` if parts are to be predicted in another form than by the checkpoint `source`."""
    given, config = [*options.relative, *options.absolute], policy.config
    if not given:
        return
    if RelativeActions(policy.spec, options.relative, options.absolute) != policy.relative:
        known = " ".join([*config.relative, *config.absolute]) or "none"
        raise UserError(
            f"--relative and absolute say {' '.join(given)}, but {source} has {known}; leave them out"
        )


def _is(config: CoreConfig, core: str) -> bool:
    return core in (AUTO, core_name(config))


def _sizes(options: TrainOptions) -> dict[str, Any]:
    """Return the fields of the network that options change in a preset and in a checkpoint alike."""
    return {
        "sight_tokens": options.sight_tokens,
        "chunk": options.chunk,
        "longest_delay_s": options.delay,
    }


def _changed(config: PolicyConfig, **changes: Any) -> PolicyConfig:
    return replace(config, **{k: value for k, value in changes.items() if value is not None})
