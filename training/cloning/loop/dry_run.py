"""`ttm train --dry-run`: what a training would do, how long it would take, and how much memory."""

from __future__ import annotations

import itertools
import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from torch import nn

from ttm.policy.cores.configs import core_to_dict
from ttm.training.cloning.loop.trainer import Trainer
from ttm.training.cloning.loop.validation import EPISODES_AT_ONCE

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
