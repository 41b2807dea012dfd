"""Assembles and runs a training from its options: policy, batches, trainer."""

from __future__ import annotations

import itertools
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
from lightning.fabric import Fabric
from rich.console import Console
from torch import nn

from ttm.datasets.dataset import dataset_statistics, embed_instructions, require_motion
from ttm.datasets.spec_inference import member_lines
from ttm.policy.checkpoint import build_empty, load_checkpoint
from ttm.policy.config import ActionHeadConfig, VisionConfig, VisionModel
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.registry import TTM, core_name, core_to_dict, sized_like, with_options
from ttm.policy.errors import UserError, require_above_0, require_choice
from ttm.policy.policy import Policy
from ttm.policy.presets import PRESETS, PolicyConfig
from ttm.policy.relative import RelativeActions
from ttm.sim.shipped import checkpoint_path
from ttm.sim.workers import usable_cores
from ttm.training.batches import BatchSource, batch_source, reading_notes, training_windows
from ttm.training.data import Data, open_data
from ttm.training.distributed import Processes, launched, share_batch_norm, together
from ttm.training.frozen_vision import FeatureCache, freeze_vision
from ttm.training.help_texts import AUTO
from ttm.training.losses import predicted_statistics
from ttm.training.options import NO_WEIGHTS, TrainOptions, write_config
from ttm.training.recall import RecallLoss
from ttm.training.resume import Difference, read_header, require_same_data, require_same_options
from ttm.training.run_log import CONFIG, LAST, Loggers, RunLog, prepare_folder, resume_path
from ttm.training.runtime import hide_hints, keep_freed_memory, wait_passively
from ttm.training.trainer import Trainer, trainer_config
from ttm.training.validation import EPISODES_AT_ONCE, EpisodeErrors

# The network that the options ask for: a preset's, or a checkpoint's with another core.
#
# A trained policy can be given another core without learning to see again. Its action head stays as
# it is.

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


# `ttm train --dry-run`: what a training would do, how long it would take, and how much memory.

STEPS = 6
"""Steps that are done; the first one, which allocates, is not timed."""


@dataclass(frozen=True)
class Estimate:
    """How long a training takes."""

    step_s: float
    """Median time of a step."""
    validation_s: float
    """Time of a validation."""
    steps: int
    """Steps that are left to do."""
    seconds: float
    """Time of all of them, validations included."""


def dry_run(trainer: Trainer, console: Console) -> int:
    """Measure some steps of a training that is ready to run; write no files. Returns the exit code.

    The weights of the trainer change, so that it cannot be used for the training itself.
    """
    for line in _network_lines(trainer):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    found = estimate(trainer)
    for line in _time_lines(trainer, found):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    console.print(_memory_line(trainer.device), highlight=False, soft_wrap=True)
    return 0


def estimate(trainer: Trainer) -> Estimate:
    """Return how long the training takes, from some steps and a part of a validation."""
    step_s, validation_s = statistics.median(_step_times(trainer)[1:]), _validation_time(trainer)
    budget, done = trainer.config.budget, trainer.progress
    validations_s = (trainer.config.validations - done.validations) * validation_s
    limits = []
    if budget.steps is not None:
        limits.append(budget.steps - done.step)
    if budget.minutes is not None:
        limits.append(int((60 * budget.minutes - done.elapsed_s - validations_s) / step_s))
    steps = max(0, min(limits))
    return Estimate(step_s, validation_s, steps, steps * step_s + validations_s)


def _step_times(trainer: Trainer) -> list[float]:
    """Return the time of each of `STEPS` steps, from one batch to the next."""
    times, begun = [], time.perf_counter()
    for batch in itertools.islice(trainer.source.batches(trainer.progress.step), STEPS):
        trainer.backpropagate(batch)
        trainer.update_weights().item()  # which waits for a GPU
        times.append(time.perf_counter() - begun)
        begun = time.perf_counter()
    return times


def _validation_time(trainer: Trainer) -> float:
    """Return the time of a validation, in which that of its first episodes stands for all."""
    begun = time.perf_counter()
    trainer.calibrate()
    calibration_s = time.perf_counter() - begun
    errors = trainer.errors.get("validation")
    if errors is None:
        return calibration_s
    lengths = errors.windows.episode_lengths
    some = replace(errors, most_episodes=EPISODES_AT_ONCE)
    begun = time.perf_counter()
    some.policy(trainer.average.model)
    portion = sum(lengths[:EPISODES_AT_ONCE]) / sum(lengths)
    # The policy is validated twice, with its previous action and without.
    return calibration_s + 2 * (time.perf_counter() - begun) / portion


def _network_lines(trainer: Trainer) -> Iterator[str]:
    """Yield the parts of the network with their parameters, and the sizes of the core."""
    for name, part in trainer.policy.named_children():
        number, trained = _parameters(part)
        if number:
            frozen = "" if trained == number else f", {number - trained:,} of them frozen"
            yield f"{name.replace('_', ' ')}: {number:,} parameters{frozen}"
    sizes = core_to_dict(trainer.policy.config.core)
    kind = sizes.pop("kind")
    yield f"sizes of the core, {kind}: " + " ".join(f"{k}={v}" for k, v in sizes.items())


def _parameters(module: nn.Module) -> tuple[int, int]:
    """Return the number of parameters, and of those that are trained."""
    sizes = [(each.numel(), each.requires_grad) for each in module.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, trained in sizes if trained)


def _time_lines(trainer: Trainer, found: Estimate) -> Iterator[str]:
    config, source = trainer.config, trainer.source
    yield (
        f"a step: {found.step_s:.3g} s (median of {STEPS - 1}), {source.batch_size} windows of "
        f"{source.windows.window} ticks at most, {source.workers} worker processes"
    )
    left = config.validations - trainer.progress.validations
    yield f"a validation: about {found.validation_s:.3g} s; {left} of them"
    limit = "about" if config.keeping.early_stopping is None else "at most"
    yield f"the whole training: {limit} {found.steps:,} steps in {_in_words(found.seconds)}"


def _in_words(seconds: float) -> str:
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _memory_line(device: torch.device) -> str:
    """Return the most memory that was in use so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    line = f"peak memory: {peak / 2**30:.2f} GiB"
    if device.type == "cuda":
        line += f", and {torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB on the GPU"
    return f"{line}. Nothing was written."


NEW_PARTS = "what the options change in the network is new, with random weights; all else begins as {} has it"


def train(options: TrainOptions, features: FeatureCache | None = None) -> int:
    """Run a training; return the exit code. `options` have passed `TrainOptions.check`.

    features: made by an earlier training from the same frozen vision, so that features of frames
    that it knows are not computed again; None to compute them all.
    """
    keep_freed_memory()
    fabric = launched(options)
    processes = Processes.of(fabric)
    console = Console(stderr=True, quiet=not processes.first)
    cores = max(1, usable_cores() // processes.on_machine)
    torch.set_num_threads(options.threads or cores)
    with together(processes):
        if options.dry_run:
            return dry_run(assembled(options, console, features, fabric), console)
        with processes.agreeing():
            if processes.first:
                prepare_folder(options.out, resume=options.resume, overwrite=options.overwrite)
        return _run(options, assembled(options, console, features, fabric), console)


def _run(options: TrainOptions, trainer: Trainer, console: Console) -> int:
    """Run the trainer; the first process alone logs."""
    first = trainer.processes.first
    if first:
        write_config(options.out / CONFIG, options.plain())
    names = options.keeping.logger if first else ()
    loggers = Loggers(names, options.out, trainer.progress.step)
    with RunLog(loggers, console, trainer.used, trainer.processes) as log:
        return trainer.run(log)


def assembled(
    options: TrainOptions,
    console: Console,
    features: FeatureCache | None = None,
    fabric: Fabric | None = None,
) -> Trainer:
    """Return the trainer of `options`, as `train` runs it; write no files.

    What is trained, and on what, is printed on `console`. fabric: with the processes that train;
    None for this one alone.
    """
    fabric = launched(options) if fabric is None else fabric
    processes = Processes.of(fabric)
    with processes.agreeing():
        data, policy = _opened(options, console)
        share_batch_norm(policy, processes, fabric.device)
        cache = _feature_cache(options, fabric.to_device(policy), data, features, processes)
    trainer = _trainer(options, policy, data, cache, fabric)
    if options.resume:
        with processes.agreeing():
            _resume(options, trainer, console)
    console.print(_summary(options, policy, data, trainer), highlight=False, soft_wrap=True)
    for note in reading_notes(trainer.source):
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    if cache is not None:
        console.print(f"vision is frozen: {cache.summary()}", highlight=False, soft_wrap=True)
    return trainer


def _opened(options: TrainOptions, console: Console) -> tuple[Data, Policy]:
    """Return the data, and the policy to train on them."""
    checkpoint = _checkpoint(options, console)
    data = open_data(options, checkpoint)
    for note in data.notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True, markup=False)
    about_sets = () if data.sets is None else data.sets.lines()
    for line in (*member_lines(data.training.members), *about_sets):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    return data, _policy(options, checkpoint, data)


def _checkpoint(options: TrainOptions, console: Console) -> Policy | None:
    """Return the policy to resume or to fine-tune, or None for a new one."""
    if options.resume:
        header = read_header(resume_path(options.out))
        _tell_differences(console, require_same_options(options, header))
        last = options.out / LAST
        policy = load_checkpoint(last)[0]
        require_same_core(policy.config, options.core, options.core_options, str(last))
        require_same_head(policy.config, options.head_options, str(last))
        return policy
    if options.init is None:
        return None
    loaded = load_checkpoint(checkpoint_path(options.init))[0]
    require_same_head(loaded.config, options.head_options, str(options.init))
    require_same_form(loaded, options.relative, options.absolute, str(options.init))
    torch.manual_seed(options.seed)  # for the random weights of a new core
    policy = with_chosen_parts(
        loaded,
        options.core,
        options.core_options,
        options.sight_tokens,
        options.sight_cells,
        options.chunk,
        options.delay,
    )
    if policy is not loaded:
        console.print(f"note: {NEW_PARTS.format(options.init)}", highlight=False, soft_wrap=True)
    return policy


def _policy(options: TrainOptions, checkpoint: Policy | None, data: Data) -> Policy:
    """Return a new policy or the checkpoint's.

    The latter keeps its own normalisation unless --new-statistics.
    """
    torch.manual_seed(options.seed)
    policy = checkpoint
    if policy is None:
        network = chosen_network(
            options.preset,
            options.core,
            options.core_options,
            options.head_options,
            options.sight_tokens,
            options.sight_cells,
            options.chunk,
            options.vision_weights,
            options.vision_model,
            options.relative,
            options.absolute,
            options.delay,
        )
        policy = Policy(data.spec, network)
        if policy.vision is None:
            _require_no_vision(options)
    if checkpoint is None or (options.new_statistics and not options.resume):
        policy.normalizer.set_statistics(
            dataset_statistics(data.training), predicted_statistics(policy, data.training)
        )
    for part in (data.training, data.validation):
        if len(part):
            texts = [episode.instruction for episode in part]
            policy.known_instructions |= dict(
                zip(texts, embed_instructions(list(part)), strict=True)
            )
    return policy


def _require_no_vision(options: TrainOptions) -> None:
    """Raise `UserError` if the options are about a vision that the policy does not have."""
    given = {
        "--vision-model": options.vision_model,
        "--vision-weights": None
        if options.vision_weights == NO_WEIGHTS
        else options.vision_weights,
    }
    for name, value in given.items():
        if value is not None:
            raise UserError(f"{name} is {value}, but the data have no camera; leave it out")


def _feature_cache(
    options: TrainOptions,
    policy: Policy,
    data: Data,
    known: FeatureCache | None,
    processes: Processes,
) -> FeatureCache | None:
    """Freeze vision and return the cache for its features, if the options ask for it."""
    if not options.vision.freeze_vision:
        return None
    freeze_vision(policy)
    if known is None:
        known = FeatureCache(policy, data.spec.cameras, copies=processes.on_machine)
    return known.for_sight(policy.sight)


def _trainer(
    options: TrainOptions, policy: Policy, data: Data, cache: FeatureCache | None, fabric: Fabric
) -> Trainer:
    """Return the trainer with its data in memory, at the first step."""
    processes = Processes.of(fabric)
    with processes.agreeing():
        windows = training_windows(options, data, processes, frozen=cache is not None)
    with processes.agreeing():
        network, form = policy.config, policy.relative
        source = batch_source(
            options, data, windows, cache, network, form, processes, fabric.device
        )
        errors = _errors(options, data, cache, processes)
        config = trainer_config(options, data, source, errors)
        recall = _recall_loss(options, policy, source)
    return Trainer(policy, source, errors, config, options.out, fabric, recall)


def _errors(
    options: TrainOptions, data: Data, cache: FeatureCache | None, processes: Processes
) -> dict[str, EpisodeErrors]:
    """Return what evaluates a policy on the held-out episodes, and on those to train on."""
    statistics = dataset_statistics(data.training).actions
    require_motion(statistics, data.training.source)
    parts = {"validation": data.validation, "training": data.training}
    data_sets = {} if data.sets is None else {"validation": data.sets.validation_names}
    errors = {
        name: EpisodeErrors.of(
            part,
            statistics,
            data.resize_to,
            cache=cache,
            data_sets=data_sets.get(name, ()),
            processes=processes,
        )
        for name, part in parts.items()
        if len(part)
    }
    if options.keeping.early_stopping is not None and "validation" not in errors:
        raise UserError(
            "--early-stopping compares errors on held-out episodes, and there are none; hold some out with "
            "--validation-filter, or leave it out"
        )
    return errors


def _resume(options: TrainOptions, trainer: Trainer, console: Console) -> None:
    """Bring the trainer to the step where the training stopped, if its data are still the same."""
    path = resume_path(options.out)
    found = require_same_data(options, read_header(path), trainer.config.facts["data"])
    _tell_differences(console, found)
    trainer.resume(path)


def _tell_differences(console: Console, found: Sequence[Difference]) -> None:
    for each in found:
        console.print(f"note: resumed in spite of {each}", highlight=False, soft_wrap=True)


def _recall_loss(options: TrainOptions, policy: Policy, source: BatchSource) -> RecallLoss | None:
    if source.recall is None:
        return None
    torch.manual_seed(options.seed)
    return RecallLoss(policy.config.width, source.recall.size, options.loss.recall_weight)


def _summary(options: TrainOptions, policy: Policy, data: Data, trainer: Trainer) -> str:
    """Return one line that tells what is trained, on what, and where."""
    millions = sum(parameter.numel() for parameter in policy.parameters()) / 1e6
    cameras = ", ".join(
        f"{camera.name} {camera.width}x{camera.height}" for camera in data.spec.cameras
    )
    vision = policy.vision.weights_used if policy.vision is not None else "none"
    others = trainer.processes.count - 1
    more = f" and {others} more" if others else ""
    start = f", from {options.init}" if options.init else ""
    start = f", from step {trainer.progress.step}" if options.resume else start
    return (
        f"{len(data.training)} episodes ({data.training.num_ticks} ticks) to train on, "
        f"{len(data.validation)} held out; cameras {cameras or 'none'}; {millions:.2f} million weights "
        f"(core: {core_name(policy.config.core)}, vision: {vision}) on "
        f"{trainer.device}{more}{start}"
    )


# `ttm train`: behaviour cloning of a policy from episodes in HDF5.


@dataclass(frozen=True)
class TrainCommand(TrainOptions):
    """Train a policy on demonstrations, or fine-tune one with --init.

    OUT receives best.safetensors (lowest error on held-out episodes), last.safetensors, result.json
    (errors, and those of two baselines), run.yaml (all options, for --config), tensorboard/ and
    resume/ (for --resume). Ctrl-C saves all of that and leaves with exit code 130 (SIGTERM: 143);
    the same command with --resume continues exactly there.
    """

    config: Path | None = None
    """A YAML file of options, such as the run.yaml of another training, or with lines such as
    `batch-size: 32`. Options of the command line count more."""

    def run(self) -> int:
        """Train; return the exit code."""
        self.check()
        wait_passively()
        hide_hints()

        return train(self)
