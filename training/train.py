"""`ttm train`: the policy, the batches and the trainer that the options ask for, or a dry run of them."""

from __future__ import annotations

import datetime
import itertools
import resource
import shlex
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import tyro
from rich.console import Console

from ttm.datasets.console import track
from ttm.datasets.dataset import (
    EpisodeDataset,
    dataset_statistics,
    embed_instructions,
    require_motion,
)
from ttm.datasets.spec_inference import member_lines
from ttm.datasets.windows import stand_stills
from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.cores.registry import core_name, core_to_dict
from ttm.policy.errors import UserError
from ttm.policy.policy import Policy
from ttm.policy.sight import SightMemory
from ttm.policy.spec import checkpoint_path
from ttm.sim.workers import usable_cores
from ttm.training.batches import BatchSource, batch_source, reading_note
from ttm.training.config_file import config_path
from ttm.training.console import print_progress, say
from ttm.training.data import Data, FeatureCache, open_data, predicted_statistics
from ttm.training.distributed import Fabric, Processes, launched, share_batch_norm, together
from ttm.training.frozen_vision import freeze_vision
from ttm.training.losses import LESSONS, RecallLoss, learn_memory
from ttm.training.network import (
    chosen_network,
    policy_to_see_as,
    require_same_core,
    require_same_form,
    require_same_head,
    see_as,
    with_chosen_parts,
)
from ttm.training.options import NO_WEIGHTS, TrainOptions, with_file, write_config
from ttm.training.resume import (
    described,
    fingerprint,
    read_header,
    require_same_data,
    require_same_options,
)
from ttm.training.run_log import CONFIG, LAST, RunLog, open_logger, prepare_folder, resume_path
from ttm.training.runtime import keep_freed_memory
from ttm.training.trainer import Trainer
from ttm.training.validation import EpisodeErrors


@dataclass(frozen=True)
class TrainCommand(TrainOptions):
    """Train a policy on demonstrations, or fine-tune one with --init.

    OUT receives best.safetensors (lowest error on held-out episodes), last.safetensors, result.json
    (errors, and those of two baselines), run.yaml (all options, for --config), tensorboard/ and
    resume/ (for --resume). Ctrl-C saves all of that and leaves with exit code 130 (SIGTERM: 143);
    the same command with --resume continues exactly there.
    """

    @classmethod
    def defaults(cls, words: Sequence[str]) -> TrainCommand | None:
        """Return the values of the file of --config, if `words` of a command line have one."""
        path = config_path(words)
        return None if path is None else with_file(cls(data=tyro.MISSING, out=tyro.MISSING), path)

    def run(self) -> int:
        """Train; return the exit code."""
        self.check()
        return train(self)


def train(options: TrainOptions, features: FeatureCache | None = None) -> int:
    """Run a training; return the exit code. `options` have passed `TrainOptions.check`.

    features: made by an earlier training from the same frozen vision, so that features of frames
    that it knows are not computed again; None to compute them all.
    """
    keep_freed_memory()
    fabric = launched(options)
    processes = Processes.of(fabric)
    console = Console(stderr=True, quiet=not processes.first)
    torch.set_num_threads(options.threads or max(1, usable_cores() // processes.on_machine))
    with together(processes):
        return _train(options, console, features, fabric)


def _train(
    options: TrainOptions, console: Console, features: FeatureCache | None, fabric: Fabric
) -> int:
    """Train among the processes of `fabric`; the trainer is gone when this returns."""
    processes = Processes.of(fabric)
    if options.dry_run:
        say(console, *measured(assembled(options, console, features, fabric)))
        return 0
    with processes.agreeing():
        if processes.first:
            prepare_folder(options.out, resume=options.resume, overwrite=options.overwrite)
    trainer = assembled(options, console, features, fabric)
    if processes.first:
        write_config(options.out / CONFIG, options)
    names = options.keeping.logger if processes.first else ()
    step = trainer.progress.step
    loggers = [open_logger(name, options.out, step) for name in dict.fromkeys(names)]
    with RunLog(loggers, console, trainer.used, processes) as log:
        return trainer.run(log)


def assembled(
    options: TrainOptions,
    console: Console,
    features: FeatureCache | None = None,
    fabric: Fabric | None = None,
) -> Trainer:
    """Return the trainer of `options`, as `train` runs it, and print what is trained; write no files.

    fabric: with the processes that train; None for this one alone.
    """
    fabric = launched(options) if fabric is None else fabric
    processes = Processes.of(fabric)
    with processes.agreeing():
        checkpoint, notes = _checkpoint(options)
        data = open_data(options, checkpoint)
        notes += [f"note: {note}" for note in data.notes]
        say(console, *notes, *member_lines(data.training.members))
        say(console, *(() if data.sets is None else data.sets.lines()))
        policy = _policy(options, checkpoint, data)
        share_batch_norm(policy, processes, fabric.device)
        cache = None
        if options.vision.freeze_vision:
            freeze_vision(fabric.to_device(policy))
            if features is None:
                features = FeatureCache(policy, data.spec.cameras, copies=processes.on_machine)
            cache = features.for_sight(policy.sight is not None)
    trainer = _trainer(options, policy, data, cache, fabric)
    if options.resume:
        with processes.agreeing():
            path = resume_path(options.out)
            found = require_same_data(options, read_header(path), trainer.facts["data"])
            say(console, *(f"note: resumed in spite of {each}" for each in found))
            trainer.resume(path)
    say(console, _summary(options, policy, data, trainer))
    if note := reading_note(trainer.source):
        say(console, f"note: {note}")
    if cache is not None:
        say(console, f"vision is frozen: {cache.summary()}")
    return trainer


def _checkpoint(options: TrainOptions) -> tuple[Policy | None, list[str]]:
    """Return the policy to resume or to fine-tune, None for a new one, and what to say about it."""
    if options.resume:
        found = require_same_options(options, read_header(resume_path(options.out)))
        last = options.out / LAST
        policy = load_checkpoint(last)[0]
        require_same_core(policy.config, options, str(last))
        require_same_head(policy.config, options, str(last))
        return policy, [f"note: resumed in spite of {each}" for each in found]
    if options.init is None:
        return None, []
    loaded = load_checkpoint(checkpoint_path(options.init))[0]
    require_same_head(loaded.config, options, str(options.init))
    require_same_form(loaded, options, str(options.init))
    torch.manual_seed(options.seed)  # for the random weights of a new core
    policy = with_chosen_parts(loaded, options)
    if policy is loaded:
        return policy, []
    return policy, [
        "note: what the options change in the network is new, with random weights; all else begins as "
        f"{options.init} has it"
    ]


def _policy(options: TrainOptions, checkpoint: Policy | None, data: Data) -> Policy:
    """Return a new policy, or the checkpoint's, which keeps its normalisation unless asked otherwise."""
    torch.manual_seed(options.seed)
    policy = checkpoint
    if policy is None:
        policy = Policy(data.spec, chosen_network(options))
        pretrained = options.vision_weights != NO_WEIGHTS
        if policy.vision is None and (options.vision_model is not None or pretrained):
            raise UserError("the data have no camera; omit --vision-model and --vision-weights")
        if (seen := policy_to_see_as(options)) is not None:
            see_as(policy, seen, options.vision_weights, tokens=True)
    if checkpoint is None or (options.new_statistics and not options.resume):
        policy.normalizer.set_statistics(
            dataset_statistics(data.training), predicted_statistics(policy, data.training)
        )
    for part in (data.training, data.validation):
        if len(part):
            texts, codes = [each.instruction for each in part], embed_instructions(list(part))
            policy.known_instructions |= dict(zip(texts, codes, strict=True))
    return policy


def _trainer(
    options: TrainOptions, policy: Policy, data: Data, cache: FeatureCache | None, fabric: Fabric
) -> Trainer:
    """Return the trainer with its data in memory, at the first step."""
    processes, features, recall, memory_s = Processes.of(fabric), None, None, 0.0
    with processes.agreeing():
        windows = data.windows(options, processes.on_machine, frozen=cache is not None)
    with processes.agreeing():
        if cache is not None:
            features = cache.features(data.training)
        source = batch_source(options, data.training, windows, features, policy, fabric)
        errors = _errors(options, data, cache, processes)
        if source.recall is not None:
            torch.manual_seed(options.seed)
            weight = options.loss.recall_weight
            recall = RecallLoss(policy.config.width, source.recall.size, weight)
        if policy.sight is not None:
            if policy.sight.is_new and not options.resume:
                lessons = max(LESSONS // 20, 20) if options.dry_run else LESSONS
                memory_s = _learn_memory(policy.sight, source, data.training, lessons)
            if features is not None:
                source.features = features.written_by(policy.sight)
        vectors = {**windows.vectors, "weights": source.loss_weights}
        shares = None if data.sets is None else data.sets.shares
        found = fingerprint("training", data.training, vectors)
        found["training shares"] = None if shares is None else list(shares.shares)
        if "validation" in errors:
            held_out = errors["validation"].windows.vectors
            found |= fingerprint("held-out", data.validation, held_out)
    facts = {**described(options), "data": found, "shuffle": source.memory.apart or "all"}
    info = {
        "command": shlex.join(["ttm", *sys.argv[1:]]),
        "data": data.training.source,
        "training_episodes": len(data.training),
        "training_ticks": data.training.num_ticks,
        "validation_episodes": len(data.validation),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    trainer = Trainer(options, policy, source, errors, fabric, recall, info=info, facts=facts)
    trainer.memory_s = memory_s
    return trainer


def _learn_memory(
    memory: SightMemory, source: BatchSource, episodes: EpisodeDataset, lessons: int
) -> float:
    """Train what the memory keeps, before the policy; return the seconds of the CPU for all `LESSONS`."""
    begun = time.process_time()
    if source.features is None:
        raise UserError(
            "a sight memory learns what to keep from frozen vision; give --freeze-vision, or --init with a "
            "policy that has such a memory"
        )
    of_episodes = stand_stills(episodes).split(source.windows.episode_lengths)
    stands = [each.unique_consecutive(return_counts=True)[1].tolist() for each in of_episodes]
    steps = learn_memory(memory, source.features.by_sight, stands, steps=lessons, seed=source.seed)
    told = [next(steps)]
    prepared = time.process_time()
    told += track(steps, "the memory learns what to keep", total=lessons - 1)
    spent = time.process_time() - prepared
    shown, others = np.array(told[-50:]).T
    if lessons == LESSONS:
        print_progress(
            "nothing is seen and then gone while the robot stands: the memory stays closed"
            if np.isnan(shown).all()
            else f"the memory opens at {np.nanmean(shown):.0%} of the frames that show what will be gone, "
            f"at {np.nanmean(others):.1%} of others"
        )
    return prepared - begun + spent * LESSONS / lessons


def _errors(
    options: TrainOptions, data: Data, cache: FeatureCache | None, processes: Processes
) -> dict[str, EpisodeErrors]:
    """Return what evaluates a policy on the held-out episodes, and on those to train on."""
    statistics = dataset_statistics(data.training).actions
    require_motion(statistics, data.training.source)
    errors = {
        name: EpisodeErrors(
            part,
            statistics,
            data.resize_to,
            features_of=None if cache is None else cache.features,
            processes=processes,
        )
        for name, part in (("validation", data.validation), ("training", data.training))
        if len(part)
    }
    if options.keeping.early_stopping is not None and "validation" not in errors:
        raise UserError(
            "--early-stopping needs held-out episodes; name some by mask/valid, or leave it out"
        )
    return errors


def _summary(options: TrainOptions, policy: Policy, data: Data, trainer: Trainer) -> str:
    """Return one line that says what is trained, on what, and where."""
    millions = sum(parameter.numel() for parameter in policy.parameters()) / 1e6
    cameras = ", ".join(f"{each.name} {each.width}x{each.height}" for each in data.spec.cameras)
    vision = policy.vision.weights_used if policy.vision is not None else "none"
    others = trainer.processes.count - 1
    more = f" and {others} more" if others else ""
    start = f", from {options.init}" if options.init else ""
    start = f", from step {trainer.progress.step}" if options.resume else start
    return (
        f"{len(data.training)} episodes ({data.training.num_ticks} ticks) to train on, "
        f"{len(data.validation)} held out; cameras {cameras or 'none'}; {millions:.2f} million weights "
        f"(core: {core_name(policy.config.core)}, vision: {vision}) on {trainer.device}{more}{start}"
    )


STEPS = 6
"""Steps that --dry-run does; the first one, which allocates, is not timed."""


def estimate(trainer: Trainer) -> tuple[float, float, int, float]:
    """Return the seconds of a step and of a validation, the steps left, and the seconds of all."""
    step_s, validation_s = statistics.median(_step_times(trainer)[1:]), _validation_time(trainer)
    done = trainer.progress
    validations_s = (trainer.options.validations - done.validations) * validation_s
    steps = trainer.budget.left(done.step, done.elapsed_s + validations_s, step_s)
    return step_s, validation_s, steps, steps * step_s + validations_s


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
    begun = time.perf_counter()
    trainer.calibrate()
    if "validation" in trainer.errors:
        trainer.evaluate("validation")
    return time.perf_counter() - begun


def measured(trainer: Trainer) -> Iterator[str]:
    """Yield network, times and memory in words, after some steps; the trainer is of no other use then."""
    for name, part in trainer.policy.named_children():
        sizes = [(each.numel(), each.requires_grad) for each in part.parameters()]
        number, left = sum(size for size, _ in sizes), sum(s for s, trained in sizes if not trained)
        if number:
            frozen = f", {left:,} of them frozen" if left else ""
            yield f"{name.replace('_', ' ')}: {number:,} parameters{frozen}"
    sizes_of_core = core_to_dict(trainer.policy.config.core)
    kind = sizes_of_core.pop("kind")
    yield f"sizes of the core, {kind}: " + " ".join(f"{k}={v}" for k, v in sizes_of_core.items())
    options, source = trainer.options, trainer.source
    step_s, validation_s, steps, seconds = estimate(trainer)
    yield (
        f"a step: {step_s:.3g} s (median of {STEPS - 1}), {source.batch_size} windows of "
        f"{source.windows.window} ticks at most, {source.workers} worker processes"
    )
    remaining = options.validations - trainer.progress.validations
    yield f"a validation: about {validation_s:.3g} s; {remaining} of them"
    if trainer.memory_s:
        yield f"what the memory keeps is learned before: about {trainer.memory_s:.3g} s of the CPU"
    limit = "about" if options.keeping.early_stopping is None else "at most"
    duration = datetime.timedelta(seconds=round(seconds))
    yield f"the whole training: {limit} {steps:,} steps in {duration}"
    if short := options.too_short(steps + trainer.progress.step, step_s, trainer.sees):
        yield f"note: {short}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    gpu = ""
    if trainer.device.type == "cuda":
        most = torch.cuda.max_memory_allocated(trainer.device)
        gpu = f", and {most / 2**30:.2f} GiB on the GPU"
    yield f"peak memory: {peak / 2**30:.2f} GiB{gpu}. Nothing was written."
