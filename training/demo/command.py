"""`ttm demo`: the whole way on the simulated robot, from demonstrations to a closed loop over ROS 2, and a report."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ttm.policy.errors import UserError

if TYPE_CHECKING:
    from ttm.sim.evaluation.report import Fact
    from ttm.sim.evaluation.result import Evaluation, TaskResult

FIRST_SEED = 5_000_000
"""Initial states that neither the shipped policy's training nor any evaluation has seen; a multiple of ten."""
LEARNING_RATE = 1e-4
"""Gentle: a few demonstrations must not make the policy forget what it learned from many."""
STEPS = 6


@dataclass(frozen=True)
class DemoCommand:
    """Run the main job once: demonstrations, fine-tuning, evaluation before and after, the loop over ROS 2.

    With its defaults it takes 3.6 minutes on two free cores. OUT/report.html shows what it found, with videos.

    Example: ttm demo --out demo_out
    """

    out: Path = Path("demo_out")
    """Folder for everything that it makes."""
    checkpoint: str = "shipped"
    """The policy to begin with: shipped, or a .safetensors file."""
    demonstrations: int = 30
    """Demonstrations of each task to record and to fine-tune on; every tenth is held out."""
    minutes: float = 2.0
    """How long to fine-tune."""
    episodes: int = 25
    """Initial states of each task to evaluate on, before and after."""
    ros_episodes: int = 5
    """How many of these to repeat over ROS 2, for each task."""
    workers: int = os.cpu_count() or 1
    """Processes for simulation."""
    max_ticks: int | None = None
    """End evaluated episodes after so many ticks; by default the task's own limit."""

    def run(self) -> int:
        from ttm.sim.rendering import require_rendering

        self._validate()
        require_rendering()
        return Demo(self).run()

    def _validate(self) -> None:
        if self.demonstrations < 2:
            raise UserError(
                f"--demonstrations is {self.demonstrations}; give 2 or more: the first is held out"
            )
        if not 1 <= self.ros_episodes <= self.episodes:
            raise UserError(
                f"--ros-episodes is {self.ros_episodes}; give 1 to {self.episodes} (--episodes)"
            )
        if (
            self.workers < 1
            or not self.minutes > 0
            or (self.max_ticks is not None and self.max_ticks < 1)
        ):
            raise UserError("--workers and --max-ticks must be 1 or more, and --minutes above 0")


class Demo:
    """The steps of one run, in their order; each leaves a line for the report."""

    def __init__(self, command: DemoCommand):
        from ttm.sim.evaluation.evaluate import resolve_checkpoint
        from ttm.sim.tasks import TASKS

        self.command = command
        self.out = command.out
        self.tasks = list(TASKS)
        self.start = Path(resolve_checkpoint(command.checkpoint))
        self.fine_tuned = self.out / "fine_tuned" / "best.safetensors"
        self.facts: list[Fact] = []

    def run(self) -> int:
        begun_s = time.monotonic()
        self._record()
        self._check()
        before = self._evaluate("before", self.start)
        self._fine_tune()
        after = self._evaluate("after", self.fine_tuned)
        ros = self._drive_over_ros()
        self._report(before, after, ros, time.monotonic() - begun_s)
        return 0

    def _record(self) -> None:
        from ttm.sim.collection.collect import CollectCommand

        count = self.command.demonstrations
        with self._step(
            "record demonstrations",
            f"{count} scripted demonstrations of each of {self._task_list()}",
        ):
            _require_success(
                CollectCommand(
                    out=self.out / "demonstrations",
                    task="all",
                    episodes=count,
                    workers=self.command.workers,
                    first_seed=FIRST_SEED,
                ).run(),
                "collect",
            )

    def _check(self) -> None:
        from rich.console import Console

        from ttm.datasets.check.check import check_dataset
        from ttm.datasets.check.report import print_report

        with self._step("check them"):
            report = check_dataset(self.out / "demonstrations")
            print_report(report, Console())
            self._found(
                f"{report.num_errors} faults in {report.num_episodes} episodes ({report.num_ticks} ticks)"
            )
        if report.num_errors:
            raise UserError(
                f"{self.out / 'demonstrations'} has the faults above; delete the folder and run again"
            )

    def _evaluate(self, when: str, checkpoint: Path) -> Evaluation:
        from ttm.sim.evaluation.evaluate import evaluate

        with self._step(f"evaluate {when} fine-tuning"):
            evaluation = evaluate(
                str(checkpoint),
                self.tasks,
                episodes=self.command.episodes,
                workers=self.command.workers,
                max_ticks=self.command.max_ticks,
                video_folder=self.out / when / "videos",
                videos=1,
                label=when,
            )
            evaluation.save(self.out / when)
            for result in evaluation.tasks.values():
                print(f"  {result}")
            self._found("; ".join(str(result) for result in evaluation.tasks.values()))
        return evaluation

    def _fine_tune(self) -> None:
        from ttm.training.cloning.command import TrainCommand

        with self._step(
            "fine-tune", f"{self.command.minutes:g} minutes, starting from {self.start.name}"
        ):
            _require_success(
                TrainCommand(
                    data=(str(self.out / "demonstrations"),),
                    out=self.out / "fine_tuned",
                    init=self.start,
                    minutes=self.command.minutes,
                    learning_rate=LEARNING_RATE,
                    validations=4,
                    overwrite=True,
                ).run(),
                "train",
            )

    def _drive_over_ros(self) -> Evaluation:
        """Policy and simulator as processes of their own, with nothing between them but ROS topics."""
        from ttm.sim.evaluation.result import Evaluation, load_evaluation

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
        arguments = ["--sim", "--checkpoint", str(self.fine_tuned), "--task", task]
        arguments += ["--episodes", str(self.command.ros_episodes), "--out", str(folder)]
        arguments += ["--video", str(self.out / "ros" / "videos" / f"{task}_0000.mp4")]
        arguments += ["--max-ticks", str(self.command.max_ticks or 0)]
        command = [sys.executable, "-m", "ttm.training.cli", "robot", *arguments]
        print("  ttm robot " + " ".join(arguments), flush=True)
        _require_success(subprocess.run(command, check=False).returncode, "robot")

    def _report(
        self, before: Evaluation, after: Evaluation, ros: Evaluation, seconds: float
    ) -> None:
        from ttm.sim.evaluation.report import Fact, Section, write_report
        from ttm.sim.evaluation.result import compare, describe_test

        for task, test in compare(before, after).items():
            print(f"{task}: {describe_test(test, 'before', 'after')}")
        same = _same_successes(after, ros)
        print(f"over ROS 2: {same}")
        self.facts.append(Fact("compare ROS 2 with the same states in process", same))
        sections = [
            Section("before", before, self.out / "before" / "videos"),
            Section("after", after, self.out / "after" / "videos"),
            Section("after, over ROS 2", ros, self.out / "ros" / "videos"),
        ]
        intro = (
            "The policy was fine-tuned on freshly recorded demonstrations and evaluated before and after on the same "
            "initial states, which no training has seen; then it drove the simulated robot over ROS 2."
        )
        self.facts.append(Fact("all together", "", seconds))
        path = write_report(
            self.out / "report.html",
            "From demonstrations to a closed loop",
            sections,
            self.facts,
            intro,
        )
        print(f"\nDone in {seconds / 60:.1f} minutes. Open the report in a browser: {path}")

    @contextmanager
    def _step(self, name: str, finding: str = "") -> Iterator[None]:
        from ttm.sim.evaluation.report import Fact

        self._finding = finding
        print(
            f"\n[{len(self.facts) + 1}/{STEPS}] {name}" + (f": {finding}" if finding else ""),
            flush=True,
        )
        begun_s = time.monotonic()
        yield
        seconds = time.monotonic() - begun_s
        self.facts.append(Fact(name, self._finding, seconds))
        print(f"  {seconds:.0f} s", flush=True)

    def _found(self, finding: str) -> None:
        self._finding = finding

    def _task_list(self) -> str:
        return " and ".join(self.tasks)


def _same_successes(in_process: Evaluation, ros: Evaluation) -> str:
    """How many of the initial states that were run both ways ended the same way."""
    pairs = []
    for name, result in ros.tasks.items():
        known = {outcome.seed: outcome for outcome in in_process.tasks[name].outcomes}
        pairs += [(known[outcome.seed], outcome) for outcome in result.outcomes]
    same = sum(ours.success == theirs.success for ours, theirs in pairs)
    ticks = sum(ours == theirs for ours, theirs in pairs)
    return f"{same} of {len(pairs)} initial states ended as they did in process; {ticks} of them at the very same tick"


def _require_success(exit_code: int, command: str) -> None:
    if exit_code in (130, 143):
        raise KeyboardInterrupt
    if exit_code != 0:
        raise UserError(
            f"ttm {command} ended with exit code {exit_code}; what it says above tells why"
        )
