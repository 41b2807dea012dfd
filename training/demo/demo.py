"""The steps of `ttm demo`, and the report about them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
from ttm.sim.evaluation.pages.report import Fact, Section, write_report
from ttm.sim.evaluation.result import (
    Evaluation,
    TaskResult,
    compare,
    describe_test,
    load_evaluation,
)
from ttm.sim.kitchen.rendering import require_rendering
from ttm.sim.tasks.table import SKILL_NAMES
from ttm.training.cloning.assembly import train
from ttm.training.cloning.network_choice import with_vision_kept
from ttm.training.cloning.options import InputDropoutConfig, OptimizationConfig, TrainOptions
from ttm.training.common.schedule import Budget
from ttm.training.demo.options import DemoOptions

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
"""Number of steps that are printed and reported."""
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
        self.facts: list[Fact] = []

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
        self._report(before, after, ros, time.monotonic() - begun_s)
        return 0

    def _record(self) -> None:
        count = self.options.demonstrations
        tasks = " and ".join(self.tasks)
        finding = f"{count} scripted demonstrations of each of {tasks}"
        with self._step("record demonstrations", finding):
            exit_code = collect(
                self.demonstrations,
                episodes=count,
                workers=self.options.workers,
                first_seed=FIRST_SEED,
            )
            _require_success(exit_code, "collect")

    def _check(self) -> None:
        with self._step("check them"):
            report = check_dataset(self.demonstrations)
            print_report(report, Console())
            self._found(
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
        with self._step(f"evaluate {when} the training"):
            evaluation = evaluate(
                checkpoint,
                self.tasks,
                episodes=self.options.episodes,
                workers=self.options.workers,
                max_ticks=self.options.max_ticks,
                video_folder=self.out / when / "videos",
                videos=1,
                label=when,
            )
            evaluation.save(self.out / when)
            for result in evaluation.tasks.values():
                print(f"  {result}")
            self._found("; ".join(str(result) for result in evaluation.tasks.values()))
        return evaluation

    def _train(self, start: str) -> None:
        """Train on the demonstrations, from the checkpoint or, without one, from random weights."""
        limits = self.options
        from_file = Path(start).is_file()
        rate = NEW_WEIGHTS_RATE if self.only_vision else FINE_TUNING_RATE
        finding = (
            f"{limits.steps} steps or {limits.minutes:g} minutes, from {self._start_in_words()}"
        )
        with self._step("train", finding):
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
            _require_success(train(options), "train")

    def _start_in_words(self) -> str:
        checkpoint = Path(self.checkpoint)
        if not checkpoint.is_file():
            return "random weights"
        return checkpoint.name + (", of which only the vision is kept" if self.only_vision else "")

    def _drive_over_ros(self) -> Evaluation:
        """Run policy and simulator as processes that share nothing but ROS topics."""
        results: dict[str, TaskResult] = {}
        with self._step("drive the robot over ROS 2"):
            for task in self.tasks:
                self._run_robot(task)
                results |= load_evaluation(self.out / "ros" / task).tasks
            self._found(
                "; ".join(f"{task}: {r.successes} of {r.episodes}" for task, r in results.items())
            )
        return Evaluation("over ROS 2", None, 0, None, results)

    def _run_robot(self, task: str) -> None:
        folder = self.out / "ros" / task
        arguments = ["--sim", "--checkpoint", str(self.trained), "--task", task]
        arguments += ["--episodes", str(self.options.ros_episodes), "--out", str(folder)]
        arguments += ["--video", str(self.out / "ros" / "videos" / f"{task}_0000.mp4")]
        arguments += ["--max-ticks", str(self.options.max_ticks or 0)]
        command = [sys.executable, "-m", "ttm.training.cli", "robot", *arguments]
        print("  ttm robot " + " ".join(arguments), flush=True)
        _require_success(subprocess.run(command, check=False).returncode, "robot")

    def _report(
        self, before: Evaluation, after: Evaluation, ros: Evaluation, seconds: float
    ) -> None:
        for task, test in compare(before, after).items():
            print(f"{task}: {describe_test(test, 'before', 'after')}")
        same = _same_successes(after, ros)
        print(f"over ROS 2: {same}")
        self.facts.append(Fact("compare ROS 2 with the same states in process", same))
        self.facts.append(Fact("all together", "", seconds))
        sections = [
            Section("before", before, self.out / "before" / "videos"),
            Section("after", after, self.out / "after" / "videos"),
            Section("after, over ROS 2", ros, self.out / "ros" / "videos"),
        ]
        title = "From demonstrations to a closed loop"
        introduction = INTRODUCTION.format(start=self._start_in_words())
        path = write_report(self.out / "report.html", title, sections, self.facts, introduction)
        print(f"\nDone in {seconds / 60:.1f} minutes. Open the report in a browser: {path}")

    @contextmanager
    def _step(self, name: str, finding: str = "") -> Iterator[None]:
        """Print a heading and the time of a step, and add it to the report.

        finding: what the step does or found; `_found` replaces it.
        """
        self._finding = finding
        heading = f"\n[{len(self.facts) + 1}/{STEPS}] {name}" + (f": {finding}" if finding else "")
        print(heading, flush=True)
        begun_s = time.monotonic()
        yield
        seconds = time.monotonic() - begun_s
        self.facts.append(Fact(name, self._finding, seconds))
        print(f"  {seconds:.0f} s", flush=True)

    def _found(self, finding: str) -> None:
        """Set what the report says about the current step."""
        self._finding = finding


def _same_successes(in_process: Evaluation, ros: Evaluation) -> str:
    """Tell how many initial states that were run both ways ended the same way."""
    pairs = []
    for name, result in ros.tasks.items():
        known = {outcome.seed: outcome for outcome in in_process.tasks[name].outcomes}
        pairs += [(known[outcome.seed], outcome) for outcome in result.outcomes]
    same = sum(ours.success == theirs.success for ours, theirs in pairs)
    ticks = sum(ours == theirs for ours, theirs in pairs)
    return (
        f"{same} of {len(pairs)} initial states ended as they did in process; "
        f"{ticks} of them at the very same tick"
    )


def _require_success(exit_code: int, command: str) -> None:
    """Raise `KeyboardInterrupt` if the step was interrupted, and `UserError` if it failed."""
    if exit_code in (130, 143):
        raise KeyboardInterrupt
    if exit_code != 0:
        raise UserError(
            f"ttm {command} ended with exit code {exit_code}; what it says above tells why"
        )
