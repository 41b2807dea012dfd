"""Runs `ttm study suite`: makes what is missing, then prints and writes the report."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from rich.console import Console
from torch import Tensor

from ttm.policy.checkpoint import load_checkpoint, save_checkpoint
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.registry import core_from_dict, core_to_dict
from ttm.policy.errors import UserError
from ttm.policy.files import write_atomically
from ttm.policy.policy import Policy
from ttm.sim.condition import LIVE, NOISE, Condition, conditions_of
from ttm.sim.environment import inspect_env, require_memory_tasks
from ttm.sim.evaluation import evaluate_conditions
from ttm.sim.results import RESULT_FILE, load_evaluation
from ttm.sim.shipped import checkpoint_path
from ttm.training.console import make_folder, print_progress, write_figures
from ttm.training.frozen_vision import FeatureCache
from ttm.training.runtime import wait_passively
from ttm.training.sequence_model import NO_SIGHT, SightSize
from ttm.training.study.suite_report import (
    NOTES,
    Report,
    collect_figures,
    draw_choices,
    merged_figures,
    read_figures,
)
from ttm.training.study.suite_runs import (
    OURS,
    RunFacts,
    RunFolder,
    SuiteOptions,
    Variant,
    parse_variant,
    run_folders,
    source_cores,
    suite_cores,
    variant_parameters,
)
from ttm.training.train import train, with_vision_kept

# `ttm study suite`: which memory learns the memory suite of the simulated kitchen?


@dataclass(frozen=True)
class StudySuiteCommand(SuiteOptions):
    """Train policies that differ in their core alone on a robot's memory tasks, and compare their choices.

    Each core and seed is trained as `ttm train --init VISION --freeze-vision --window WINDOW` does,
    with the same demonstrations, steps and losses, and as many parameters within 2 %, and evaluated
    as `ttm evaluate --gap --probe` does. Each has a folder of its own in OUT. What is there is not
    made again, and Ctrl-C loses no training: the same command goes on exactly where it stopped.
    Several of these commands may share one OUT.

    OUT also receives report.md, figures.json and choices.svg, of all that is there.

    Example: ttm study suite --data demos/memory --init shipped --core ours lstm --steps 2000
    """

    def run(self) -> int:
        """Make what is missing, print and write the report, and return the exit code."""
        self.check()
        wait_passively()

        return run(self)


# The weights with which the policies of the study begin.
#
# Vision, tokens and normalisation are those of one checkpoint. Core, action head and sight memory are
# drawn at random by the seed, and two policies of one seed share all drawn tensors of equal name and
# shape.


def first_policy(
    seen: Policy,
    config: CoreConfig,
    sources: Sequence[CoreConfig],
    seed: int,
    sight: SightSize = NO_SIGHT,
) -> Policy:
    """Return the policy with the core of `config` with which the training of `seed` begins.

    A drawn tensor whose name and shape one of `sources` has, too, is the one drawn there, the
    first of them first. What initialisation sets without chance, such as biases, stays as it is.

    seen: gives all but core, action head and sight memory. sources: the same for all policies that
    are compared.
    """
    policy = _new(seen, config, seed, sight)
    mine = _drawn(seen, config, seed, sight)
    shared: dict[str, Tensor] = {}
    for source in reversed(sources):
        shared |= {
            name: value
            for name, value in _drawn(seen, source, seed).items()
            if name in mine and mine[name].shape == value.shape
        }
    policy.load_state_dict(shared, strict=False)
    return policy


def _new(seen: Policy, config: CoreConfig, seed: int, sight: SightSize) -> Policy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return with_vision_kept(seen, config, sight.tokens, sight.cells)


def _drawn(
    seen: Policy, config: CoreConfig, seed: int, sight: SightSize = NO_SIGHT
) -> dict[str, Tensor]:
    """Return the tensors that depend on the seed."""
    other = _new(seen, config, seed + 1, sight).state_dict()
    return {
        name: value
        for name, value in _new(seen, config, seed, sight).state_dict().items()
        if not torch.equal(value, other[name])
    }


# The work of the study in pieces: a training, or the evaluation of one task under one condition.


class Workshop:
    """Makes what is missing of the study, one core and seed after another.

    The features of frozen vision are computed once for all trainings of a process.
    """

    def __init__(self, options: SuiteOptions) -> None:
        """Raise `UserError` if cores, checkpoint or tasks are wrong, before anything is made."""
        self._options = options
        self._begun_s = time.monotonic()
        init = checkpoint_path(options.init)
        self._seen = load_checkpoint(init)[0]
        self._settings = _settings(options, hashlib.sha256(init.read_bytes()).hexdigest())
        ours = parse_variant(OURS, options.ours_options)
        sizes = self._sizes = self._seen.config.width, self._seen.num_encoded
        self._cores = suite_cores(ours, options.variants, *sizes)
        self._sources = source_cores(ours, *sizes)
        self._tasks = inspect_env(options.env).choose(options.task)
        require_memory_tasks(options.env, self._tasks, "ttm study suite")
        probes = (LIVE, *options.probe)
        self._conditions = conditions_of(options.gap, probes, options.cue, NOISE)
        self._features = FeatureCache(self._seen, self._seen.spec.cameras)

    def make_all(self) -> int:
        """Make what is missing; return the exit code, which is that of a signal if one came.

        A folder in which another process works is left out.
        """
        options = self._options
        for seed in options.seeds:
            for variant in options.variants:
                folder = RunFolder(options.out / variant.folder / f"seed_{seed}")
                with folder.claimed() as mine:
                    if not mine:
                        print_progress(f"{variant.label}, seed {seed}: another process works on it")
                        continue
                    code = self._make(folder, variant, seed)
                if self._is_late:
                    print_progress("the time of --minutes-in-all is over; the same command goes on")
                if code or self._is_late:
                    return code
        return 0

    @property
    def _is_late(self) -> bool:
        minutes = self._options.minutes_in_all
        return minutes is not None and time.monotonic() - self._begun_s >= 60 * minutes

    def _make(self, folder: RunFolder, variant: Variant, seed: int) -> int:
        """Train and evaluate one core with one seed, as far as that is not done."""
        self._prepare(folder, variant, seed)
        if folder.training_result is None:
            print_progress(f"{variant.label}, seed {seed}: training")
            code = self._train(folder, seed)
            if code:
                return code
        for task in self._tasks:
            for condition in self._conditions:
                if self._is_late:
                    return 0
                self._evaluate(folder, task, condition, f"{variant.label}, seed {seed}")
        return 0

    def _prepare(self, folder: RunFolder, variant: Variant, seed: int) -> None:
        """Write first weights and facts; check them if a training has begun from them."""
        config = self._cores[variant.label]
        if folder.can_resume and (facts := folder.facts) is not None:
            _require_same(folder, facts, config, variant.sight, self._settings)
            return
        policy = first_policy(self._seen, config, self._sources, seed, variant.sight)
        save_checkpoint(folder.start, policy, {"seed": seed, "core": variant.label})
        facts = RunFacts(
            variant.label,
            seed,
            core_to_dict(config),
            variant.sight.tokens,
            variant_parameters(variant, config, *self._sizes),
            sum(parameter.numel() for parameter in policy.parameters()),
            self._settings,
            variant.sight.cells,
        )
        folder.write_facts(facts)

    def _train(self, folder: RunFolder, seed: int) -> int:
        # The whole path, so that another spelling of --out can resume.
        options = self._options.train_options(
            folder.training, folder.start.resolve(), seed=seed, resume=folder.can_resume
        )
        return train(options, self._features)

    def _evaluate(self, folder: RunFolder, task: str, condition: Condition, label: str) -> None:
        """Evaluate one task under one condition, unless the same evaluation is there."""
        options, place = self._options, folder.evaluation(task, condition)
        if (place / RESULT_FILE).exists():
            known = load_evaluation(place)
            if (known.first_seed, known.tasks[task].episodes) == (
                options.first_seed,
                options.episodes,
            ):
                return
        (made,) = evaluate_conditions(
            str(folder.checkpoint),
            task,
            {condition: None},
            episodes=options.episodes,
            env=options.env,
            workers=options.workers,
            first_seed=options.first_seed,
            label=label,
        )
        made.save(place)
        print_progress(f"{label}: {made.tasks[task]} ({condition.folder})")


def _settings(options: SuiteOptions, init_sha256: str) -> dict[str, Any]:
    """Return what trainings must have in common to be compared, as plain data for JSON."""
    return {
        "data": list(options.data),
        "init": init_sha256,
        "steps": options.steps,
        "window": options.window,
        "batch_size": options.batch_size,
        "augmented_versions": options.augmented_versions,
        "new_statistics": options.new_statistics,
        **asdict(options.loss),
        **asdict(options.optimization),
        **asdict(options.input_dropout),
        "env": options.env,
        "cue": options.cue,
    }


def _require_same(
    folder: RunFolder,
    facts: RunFacts,
    config: CoreConfig,
    sight: SightSize,
    settings: Mapping[str, Any],
) -> None:
    """Raise `UserError` if the folder holds something else than what was asked for."""
    advice = "give the same options as before, another --out, or delete that folder"
    held = SightSize(facts.sight_tokens, facts.sight_cells)
    if (core_from_dict(facts.core), held) != (config, sight):
        raise UserError(f"{folder.path} holds a core of other sizes or options; {advice}")
    for name, value in settings.items():
        if facts.settings.get(name) != value:
            raise UserError(
                f"--{name.replace('_', '-')} is {value}, but {folder.path} was made with "
                f"{facts.settings.get(name)}; {advice}"
            )


def run(options: SuiteOptions) -> int:
    """Run the study and return the exit code."""
    if not options.only_reports:
        code = Workshop(options).make_all()
        if code:
            return code
        if not any(folder.training_result for folder in run_folders(options.out)):
            print_progress("no training is finished yet; the same command goes on")
            return 0
    if options.figures:
        report = Report(merged_figures([read_figures(path) for path in options.figures]))
    else:
        report = Report(collect_figures(options.out))
        with FileLock(make_folder(options.out) / ".report.lock"):
            _write(options.out, report)
    _print(report, options)
    return 0


def _write(out: Path, report: Report) -> None:
    """Write report.md, figures.json and choices.svg."""
    tables = [grid.to_markdown() for grid in report.grids()]
    write_atomically(out / "report.md", "\n\n".join([report.heading(), *tables, NOTES]) + "\n")
    write_atomically(out / "figures.json", report.figures.to_json())
    if report.gaps:
        write_atomically(out / "choices.svg", draw_choices(report))


def _print(report: Report, options: SuiteOptions) -> None:
    """Print the tables, and write the files that the user asked for."""
    console = Console(highlight=False)
    console.print(report.heading(), soft_wrap=True, markup=False)
    for grid in report.grids():
        console.print(grid.for_terminal())
    console.print(NOTES, soft_wrap=True, markup=False)
    write_figures(console, options.json, report.figures.to_json())
    if options.plot is not None:
        _plot(options.plot, report)


def _plot(path: Path, report: Report) -> None:
    if not report.gaps:
        raise UserError("there is no evaluation to plot yet; leave --plot out")
    try:
        write_atomically(path, draw_choices(report))
    except OSError as error:
        raise UserError(f"cannot write {path} ({error}); give another file with --plot") from error
