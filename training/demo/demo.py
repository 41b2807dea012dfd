"""The work of `ttm demo`: a short training, a memory task, and the report about both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from ttm.datasets.check.check import check_dataset
from ttm.datasets.check.report import print_report
from ttm.policy.errors import UserError
from ttm.policy.run.checkpoint import load_checkpoint, save_checkpoint
from ttm.sim.collection.collect import collect
from ttm.sim.evaluation.actors import resolve_checkpoint
from ttm.sim.evaluation.evaluate import evaluate
from ttm.sim.evaluation.pages.comparison import Comparison
from ttm.sim.evaluation.pages.report import Fact, Section, write_report
from ttm.sim.evaluation.result import VIDEOS, Evaluation, TaskResult, compare, describe_test
from ttm.sim.kitchen.rendering import require_rendering
from ttm.sim.tasks.table import SKILL_NAMES
from ttm.training.cloning.assembly import train
from ttm.training.cloning.network_choice import with_vision_kept
from ttm.training.cloning.options import TrainOptions
from ttm.training.cloning.settings.groups import InputDropoutConfig, OptimizationConfig
from ttm.training.common.schedule import Budget
from ttm.training.demo.memory import STEPS as MEMORY_STEPS
from ttm.training.demo.memory import MemoryDemo
from ttm.training.demo.options import DemoOptions
from ttm.training.demo.ros import describe_same, drive_over_ros, require_success, same_outcomes
from ttm.training.demo.steps import Steps

FIRST_SEED = 5_000_000
"""First initial state of the demonstrations: neither the shipped policy's training nor any
evaluation has seen it. It is a multiple of ten."""
FINE_TUNING_RATE = 1e-4
"""Learning rate for a trained policy: low, so that it does not forget on a few demonstrations what it
learned from many."""
NEW_WEIGHTS_RATE = 1e-3
"""Learning rate for a policy whose core and action head have random weights."""
PREVIOUS_ACTION_DROPOUT = 0.7
"""As in the training of the shipped policy."""
STEPS = 6
"""Number of steps up to the memory task."""
INTRODUCTION = (
    "A policy was trained on freshly recorded demonstrations, starting from {start}. It was evaluated "
    "before and after on the same initial states, which no training has seen, and then drove the "
    "simulated robot over ROS 2."
)


class Demo:
    """One run of the demo. Each step leaves a line for the report."""

    def __init__(self, options: DemoOptions) -> None:
        require_rendering()
        self.options = options
        self.out = options.out
        self.tasks = list(SKILL_NAMES)
        self.checkpoint = resolve_checkpoint(options.checkpoint)
        self.demonstrations = self.out / "demonstrations"
        self.trained = self.out / "trained" / "best.safetensors"
        self.only_vision = options.only_vision and Path(self.checkpoint).is_file()
        self.memory = MemoryDemo(options, self.checkpoint)
        self.steps = Steps(STEPS + (0 if self.memory.problem else MEMORY_STEPS))

    def run(self) -> int:
        """Run all steps; return the exit code."""
        begun_s = time.monotonic()
        self._record()
        self._check()
        start = self._start()
        before = self._evaluate("before", start)
        self._train(start)
        after = self._evaluate("after", str(self.trained))
        ros = self._drive_over_ros()
        self._compare_over_ros(after, ros)
        chapter = self._remember()
        self._report([before, after, ros], chapter, time.monotonic() - begun_s)
        return 0

    def _record(self) -> None:
        count = self.options.demonstrations
        tasks = " and ".join(self.tasks)
        finding = f"{count} scripted demonstrations of each of {tasks}"
        with self.steps.step("record demonstrations", finding):
            exit_code = collect(
                self.demonstrations,
                episodes=count,
                workers=self.options.workers,
                first_seed=FIRST_SEED,
            )
            require_success(exit_code, "collect")

    def _check(self) -> None:
        with self.steps.step("check them"):
            report = check_dataset(self.demonstrations)
            print_report(report, Console())
            self.steps.found(
                f"{report.num_errors} faults in {report.num_episodes} episodes ({report.num_ticks} ticks)"
            )
        if report.num_errors:
            raise UserError(
                f"{self.demonstrations} has the faults above; delete the folder and run again"
            )

    def _start(self) -> str:
        """Return the checkpoint to start from, with the vision alone if the options say so."""
        if not self.only_vision:
            return self.checkpoint
        policy, info = load_checkpoint(self.checkpoint)
        torch.manual_seed(0)
        path = self.out / "start.safetensors"
        save_checkpoint(path, with_vision_kept(policy), info)
        return str(path)

    def _evaluate(self, when: str, checkpoint: str) -> Evaluation:
        with self.steps.step(f"evaluate {when} the training"):
            evaluation = evaluate(
                checkpoint,
                self.tasks,
                episodes=self.options.episodes,
                workers=self.options.workers,
                max_ticks=self.options.max_ticks,
                video_folder=self.out / when / VIDEOS,
                videos=1,
                label=when,
            )
            evaluation.save(self.out / when)
            for result in evaluation.tasks.values():
                print(f"  {result}")
            self.steps.found("; ".join(str(result) for result in evaluation.tasks.values()))
        return evaluation

    def _train(self, start: str) -> None:
        """Train on the demonstrations, from the checkpoint or, without one, from random weights."""
        limits = self.options
        from_file = Path(start).is_file()
        rate = NEW_WEIGHTS_RATE if self.only_vision else FINE_TUNING_RATE
        finding = (
            f"{limits.steps} steps or {limits.minutes:g} minutes, from {self._start_in_words()}"
        )
        with self.steps.step("train", finding):
            options = TrainOptions(
                data=(str(self.demonstrations),),
                out=self.trained.parent,
                init=Path(start) if from_file else None,
                budget=Budget(limits.steps, limits.minutes),
                optimization=OptimizationConfig(rate if from_file else None),
                input_dropout=InputDropoutConfig(PREVIOUS_ACTION_DROPOUT),
                augment=False,
                validations=4,
                overwrite=True,
            )
            require_success(train(options), "train")

    def _start_in_words(self) -> str:
        checkpoint = Path(self.checkpoint)
        if not checkpoint.is_file():
            return "random weights"
        return checkpoint.name + (", of which only the vision is kept" if self.only_vision else "")

    def _drive_over_ros(self) -> Evaluation:
        """Repeat the first initial states of each task over ROS 2."""
        results: dict[str, TaskResult] = {}
        with self.steps.step("drive the robot over ROS 2"):
            for task in self.tasks:
                results |= drive_over_ros(
                    str(self.trained),
                    task,
                    self.out / "ros" / task,
                    self.out / "ros" / VIDEOS,
                    episodes=self.options.ros_episodes,
                    max_ticks=self.options.max_ticks,
                ).tasks
            self.steps.found(
                "; ".join(f"{task}: {r.successes} of {r.episodes}" for task, r in results.items())
            )
        return Evaluation("over ROS 2", None, 0, None, results)

    def _compare_over_ros(self, after: Evaluation, ros: Evaluation) -> None:
        same = describe_same(*same_outcomes(after, ros))
        self.steps.note("compare ROS 2 with the same states in process", same)

    def _remember(self) -> Comparison | None:
        """Show the policy to start from on the memory task, if it knows that."""
        if not self.memory.problem:
            return self.memory.run(self.steps)
        self.steps.note(f"{self.options.memory_task} is left out", self.memory.problem)
        return None

    def _report(
        self, evaluations: Sequence[Evaluation], chapter: Comparison | None, seconds: float
    ) -> None:
        before, after, ros = evaluations
        for task, test in compare(before, after).items():
            print(f"{task}: {describe_test(test, 'before', 'after')}")
        sections = [
            Section("before", before, self.out / "before" / VIDEOS),
            Section("after", after, self.out / "after" / VIDEOS),
            Section("after, over ROS 2", ros, self.out / "ros" / VIDEOS),
        ]
        title = "From demonstrations to a closed loop"
        introduction = INTRODUCTION.format(start=self._start_in_words())
        facts = [*self.steps.facts, Fact("all together", "", seconds)]
        path = write_report(self.out / "report.html", title, sections, facts, introduction, chapter)
        print(f"\nDone in {seconds / 60:.1f} minutes. Open the report in a browser: {path}")
