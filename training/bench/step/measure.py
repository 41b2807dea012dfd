"""Time the steps of several trainings in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from ttm.policy.run.threads import cpu_threads
from ttm.training.bench.step.contenders import Contender
from ttm.training.bench.step.parts import Part, PartTimes, Pass, Seconds, timed_step
from ttm.training.cloning.loop.trainer import Trainer

WARM_UP = 2
"""Steps of each training that are not counted."""


@dataclass(frozen=True)
class StepRow:
    """The steps of one core on so many threads. All figures are medians over the steps."""

    core: str
    parameters: int
    multiply_adds: int
    """Of the matrix products of the core in one tick, forward."""
    threads: int
    step: Seconds
    parts: Mapping[Part, Mapping[Pass, Seconds]]
    lstm: str
    """The LSTM of as many weights, which is the core itself in the rows of these LSTMs."""
    multiply_adds_ratio: float
    """To those of the LSTM: the ratio of the cores' times if only matrix products took time."""
    processor_ratio: float
    """Processor time of a step over that of the LSTM on the same batch."""
    wall_ratio: float


def measure_steps(
    trainers: Mapping[Contender, Trainer],
    lstm_of: Mapping[Contender, Contender],
    threads: int,
    rounds: int,
) -> list[StepRow]:
    """Time `rounds` steps of each training, which take turns and see the same batches."""
    taken: dict[Contender, list[PartTimes]] = {core: [] for core in trainers}
    with cpu_threads(threads):
        for step in range(WARM_UP + rounds):
            for core, trainer in trainers.items():
                source = trainer.source
                picks = source.memory.picks(source.windows, source.batch_size, source.seed, step)
                make = partial(source.make, next(picks), step, burn_in=0)
                taken[core].append(timed_step(trainer, make))
    counted = {core: times[WARM_UP:] for core, times in taken.items()}
    return [_row(core, lstm_of.get(core, core), counted, threads) for core in trainers]


def _row(
    core: Contender,
    lstm: Contender,
    taken: Mapping[Contender, Sequence[PartTimes]],
    threads: int,
) -> StepRow:
    steps, others = ([_total(times) for times in taken[who]] for who in (core, lstm))
    pairs = list(zip(steps, others, strict=True))
    parts: dict[Part, dict[Pass, Seconds]] = {}
    for part, direction in taken[core][0]:
        of_part = [times[part, direction] for times in taken[core]]
        parts.setdefault(part, {})[direction] = _medians(of_part)
    return StepRow(
        core=core.label,
        parameters=core.parameters,
        multiply_adds=core.multiply_adds,
        threads=threads,
        step=_medians(steps),
        parts=parts,
        lstm=lstm.label,
        multiply_adds_ratio=core.multiply_adds / lstm.multiply_adds,
        processor_ratio=median(mine.processor / its.processor for mine, its in pairs),
        wall_ratio=median(mine.wall / its.wall for mine, its in pairs),
    )


def _total(times: PartTimes) -> Seconds:
    return sum(times.values(), Seconds())


def _medians(times: Sequence[Seconds]) -> Seconds:
    return Seconds(median(t.processor for t in times), median(t.wall for t in times))
