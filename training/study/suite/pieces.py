"""The work of the study in pieces: a training, or the evaluation of one task under one condition."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ttm.policy.cores.configs import core_from_dict, core_to_dict
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.policy.errors import UserError
from ttm.policy.run.checkpoint import load_checkpoint, save_checkpoint
from ttm.sim.environment import inspect_env, require_memory_tasks
from ttm.sim.evaluation.condition import LIVE, NOISE, Condition, conditions_of
from ttm.sim.evaluation.evaluate import evaluate_conditions
from ttm.sim.evaluation.result import RESULT_FILE, load_evaluation
from ttm.sim.shipped import checkpoint_path
from ttm.training.cloning.assembly import train
from ttm.training.cloning.frozen_vision.feature_cache import FeatureCache
from ttm.training.common.progress import print_progress
from ttm.training.common.sight_option import SightSize
from ttm.training.study.suite.core_sizes import source_cores, suite_cores, variant_parameters
from ttm.training.study.suite.first_weights import first_policy
from ttm.training.study.suite.options import SuiteOptions
from ttm.training.study.suite.run_folder import RunFacts, RunFolder
from ttm.training.study.suite.variants import OURS, Variant, parse_variant


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
