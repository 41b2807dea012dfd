"""`ttm demo`: from demonstrations to a closed loop over ROS 2, on the simulated robot.

The whole way once, a memory task with the memory live and erased, and the report about both.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from rich.console import Console
from tyro.conf import arg

from ttm.datasets.tools.check import check_dataset, print_report
from ttm.policy.checkpoint import load_checkpoint, save_checkpoint
from ttm.policy.errors import UserError, options, require_above_0, require_at_least, require_choice
from ttm.sim.actors import resolve_checkpoint
from ttm.sim.collect import CollectCommand
from ttm.sim.compare import Comparison, Entry, Fact, print_comparison, write_report
from ttm.sim.condition import LIVE, Condition
from ttm.sim.evaluation import evaluate, evaluate_conditions
from ttm.sim.kitchen.rendering import require_rendering
from ttm.sim.pages import video_path
from ttm.sim.results import VIDEOS, Evaluation, Rate, TaskResult, load_evaluation
from ttm.sim.tasks.table import MEMORY_NAMES, SKILL_NAMES, instructions_of
from ttm.sim.workers import usable_cores
from ttm.training.network import with_vision_kept
from ttm.training.options import InputDropoutConfig, OptimizationConfig, TrainOptions
from ttm.training.train import train

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
DEMO_STEPS, MEMORY_STEPS = 6, 2
"""Numbers of steps up to the memory task, and of it."""
PATIENCE = "{startup-timeout-s: 600, command-timeout-s: 600}"
"""How long the simulator waits for a policy, for `ttm robot --config`. The computer may be busy."""
DEMO_INTRODUCTION = (
    "A policy was trained on freshly recorded demonstrations, starting from {start}. It was evaluated "
    "before and after on the same initial states, which no training has seen, and then drove the "
    "simulated robot over ROS 2."
)
MEMORY_TITLE = "With its memory and without"
MEMORY_INTRODUCTION = (
    "{policy}, as it is without the training above, sees a cue, which is then hidden for {gap} ticks "
    "before the robot may act (task {task}). Live, its memory is left alone. Erased, it is emptied "
    "once, when the robot may act: from then on both see the same and get the same instruction, and only "
    "one of them can know what the cue was. {points}"
)


@dataclass(frozen=True)
class DemoCommand:
    """Record demonstrations, train on them, evaluate before and after, drive over ROS 2.

    The policy starts with the vision of the one that ships with the project. Its memory and its
    action head start from random weights and have to learn the tasks. Then the policy that ships
    does a memory task, live and with its memory erased. The demo takes less than 10 minutes on two
    free cores. OUT/report.html shows what it found, with videos.

    Example: ttm demo --out demo_out
    """

    out: Path = Path("demo_out")
    """Folder for everything that it makes."""
    checkpoint: str = "shipped"
    """The policy to start from: shipped, a .safetensors file, or none (an untrained network)."""
    only_vision: bool = True
    """Keep only the vision of the policy at first: core and action head start from random weights."""
    demonstrations: int = 40
    """Demonstrations of each task to record and to train on; every tenth is held out."""
    minutes: float = 4.0
    """Longest time of the training."""
    steps: int = 600
    """Largest number of training steps."""
    episodes: int = 25
    """Initial states of each task to evaluate on, before and after."""
    memory_task: Annotated[str, arg(metavar="{" + ",".join(MEMORY_NAMES) + "}")] = "side_shown"
    """Memory task on which the policy to start from is shown live and with its memory erased."""
    gap: int = 15
    """Ticks for which the memory task hides its cue."""
    memory_episodes: int = 40
    """Initial states of the memory task."""
    ros_episodes: int = 5
    """Number of the initial states to repeat over ROS 2, for each task."""
    workers: int = usable_cores()
    """Processes for the simulation."""
    max_ticks: int | None = None
    """End evaluated episodes after this many ticks; by default at the limit of the task."""

    def check(self) -> None:
        """Raise `UserError` if a value is out of its range."""
        if self.checkpoint == "expert":
            raise UserError("--checkpoint is expert, which cannot be trained; give a policy")
        if self.demonstrations < 2:
            raise UserError(
                f"--demonstrations is {self.demonstrations}; give 2 or more: the first is held out"
            )
        most = min(self.episodes, self.memory_episodes)
        if not 1 <= self.ros_episodes <= most:
            raise UserError(
                f"--ros-episodes is {self.ros_episodes}; give 1 to {most}, which is the smaller one of "
                "--episodes and --memory-episodes"
            )
        require_choice("--memory-task", self.memory_task, MEMORY_NAMES)
        require_at_least(0, options(self, "gap"))
        require_at_least(1, options(self, "workers", "max_ticks", "steps"))
        require_above_0(options(self, "minutes"))

    def run(self) -> int:
        """Run all steps; return the exit code."""
        self.check()
        return Demo(self).run()


class Demo:
    """One run of the demo. Each step leaves a line for the report."""

    def __init__(self, options: DemoCommand) -> None:
        require_rendering()
        self.options = options
        self.out = options.out
        self.tasks = list(SKILL_NAMES)
        self.checkpoint = resolve_checkpoint(options.checkpoint)
        self.demonstrations = self.out / "demonstrations"
        self.trained = self.out / "trained" / "best.safetensors"
        self.from_file = Path(self.checkpoint).is_file()
        self.only_vision = options.only_vision and self.from_file
        self.memory = MemoryDemo(options, self.checkpoint)
        self.steps = Steps(DEMO_STEPS + (0 if self.memory.problem else MEMORY_STEPS))
        kept = ", of which only the vision is kept" if self.only_vision else ""
        self.start_in_words = "random weights"
        if self.from_file:
            self.start_in_words = Path(self.checkpoint).name + kept

    def run(self) -> int:
        """Run all steps; return the exit code."""
        begun_s = time.monotonic()
        self._record()
        start = self._start()
        before = self._evaluate("before", start)
        self._train(start)
        after = self._evaluate("after", str(self.trained))
        ros = self._drive_over_ros()
        same = same_outcomes([(after, ros)])
        self.steps.note("compare ROS 2 with the same states in process", same)
        chapter = None
        if self.memory.problem:
            self.steps.note(f"{self.options.memory_task} is left out", self.memory.problem)
        else:
            chapter = self.memory.run(self.steps)
        entries = [
            Entry("before", before, self.out / "before" / VIDEOS),
            Entry("after", after, self.out / "after" / VIDEOS),
            Entry("after, over ROS 2", ros, self.out / "ros" / VIDEOS),
        ]
        print_comparison(entries)
        seconds = time.monotonic() - begun_s
        title = "From demonstrations to a closed loop"
        introduction = DEMO_INTRODUCTION.format(start=self.start_in_words)
        facts = [*self.steps.facts, Fact("all together", "", seconds)]
        path = write_report(self.out / "report.html", title, entries, facts, introduction, chapter)
        print(f"\nDone in {seconds / 60:.1f} minutes. Open the report in a browser: {path}")
        return 0

    def _record(self) -> None:
        """Record demonstrations and check them."""
        count = self.options.demonstrations
        finding = f"{count} scripted demonstrations of each of {' and '.join(self.tasks)}"
        with self.steps.step("record demonstrations", finding):
            CollectCommand(
                self.demonstrations,
                episodes=count,
                workers=self.options.workers,
                first_seed=FIRST_SEED,
            ).run()
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
        steps, minutes = self.options.steps, self.options.minutes
        rate = NEW_WEIGHTS_RATE if self.only_vision else FINE_TUNING_RATE
        finding = f"{steps} steps or {minutes:g} minutes, from {self.start_in_words}"
        with self.steps.step("train", finding):
            options = TrainOptions(
                data=(str(self.demonstrations),),
                out=self.trained.parent,
                init=Path(start) if self.from_file else None,
                steps=steps,
                minutes=minutes,
                optimization=OptimizationConfig(rate if self.from_file else None),
                input_dropout=InputDropoutConfig(PREVIOUS_ACTION_DROPOUT),
                augment=False,
                validations=4,
                overwrite=True,
            )
            require_success(train(options), "train")

    def _drive_over_ros(self) -> Evaluation:
        """Repeat the first initial states of each task over ROS 2."""
        results: dict[str, TaskResult] = {}
        with self.steps.step("drive the robot over ROS 2"):
            for task in self.tasks:
                folder, videos = self.out / "ros" / task, self.out / "ros" / VIDEOS
                checkpoint = str(self.trained)
                results |= drive_over_ros(self.options, checkpoint, task, folder, videos).tasks
            self.steps.found(
                "; ".join(f"{task}: {r.successes} of {r.episodes}" for task, r in results.items())
            )
        return Evaluation("over ROS 2", None, 0, None, results)


def drive_over_ros(
    options: DemoCommand,
    checkpoint: str,
    task: str,
    folder: Path,
    videos: Path,
    condition: Condition = Condition(),  # noqa: B008 (frozen)
) -> Evaluation:
    """Run the first initial states of a task by `ttm robot --sim`, which writes into `folder`."""
    arguments = ["--sim", "--checkpoint", checkpoint, "--task", task]
    if condition.gap is not None:
        arguments += ["--gap", str(condition.gap), "--probe", condition.probe]
    arguments += ["--episodes", str(options.ros_episodes), "--out", str(folder)]
    arguments += ["--video", str(video_path(videos, task, 0))]
    arguments += ["--max-ticks", str(options.max_ticks or 0)]
    print("  ttm robot " + " ".join(arguments), flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        config.write(PATIENCE)
        config.flush()
        command = [sys.executable, "-m", "ttm.training.cli", "robot", "--config", config.name]
        require_success(subprocess.run([*command, *arguments], check=False).returncode, "robot")
    return load_evaluation(folder)


def same_outcomes(runs: Iterable[tuple[Evaluation, Evaluation]]) -> str:
    """Return in words how many initial states ended alike in process and over ROS 2."""
    pairs = []
    for in_process, ros in runs:
        for name, result in ros.tasks.items():
            known = {outcome.seed: outcome for outcome in in_process.tasks[name].outcomes}
            pairs += [(known[outcome.seed], outcome) for outcome in result.outcomes]
    same = sum(ours.success == theirs.success for ours, theirs in pairs)
    # Those that are equal also ended at the same tick, after the same choice.
    return (
        f"{same} of {len(pairs)} initial states ended as they did in process; "
        f"{sum(ours == theirs for ours, theirs in pairs)} of them at the very same tick"
    )


def require_success(exit_code: int, command: str) -> None:
    """Raise `KeyboardInterrupt` if a step was interrupted, and `UserError` if it failed."""
    if exit_code in (130, 143):
        raise KeyboardInterrupt
    if exit_code != 0:
        raise UserError(
            f"ttm {command} ended with exit code {exit_code}; what it says above tells why"
        )


class Steps:
    """Numbers the steps, and times them. `facts` are their rows in the report."""

    def __init__(self, count: int) -> None:
        """count: the number of steps that will be taken."""
        self.facts: list[Fact] = []
        self._count = count
        self._taken = 0
        self._finding = ""

    @contextmanager
    def step(self, name: str, finding: str = "") -> Iterator[None]:
        """Print a heading and the time of a step, and add it to the report."""
        self._finding = finding
        self._taken += 1
        heading = f"\n[{self._taken}/{self._count}] {name}" + (f": {finding}" if finding else "")
        print(heading, flush=True)
        begun_s = time.monotonic()
        yield
        seconds = time.monotonic() - begun_s
        self.facts.append(Fact(name, self._finding, seconds))
        print(f"  {seconds:.0f} s", flush=True)

    def found(self, finding: str) -> None:
        """Set what the report says about the current step."""
        self._finding = finding

    def note(self, name: str, finding: str) -> None:
        """Print a line that belongs to no step, and add it to the report."""
        print(f"\n{name}: {finding}", flush=True)
        self.facts.append(Fact(name, finding, None))


class MemoryDemo:
    """A policy on a memory task: the same initial states live and erased, in process and over ROS 2."""

    def __init__(self, options: DemoCommand, checkpoint: str) -> None:
        """checkpoint: the path of a file, or `none`."""
        self._options, self._checkpoint = options, checkpoint
        self._task, self._folder = options.memory_task, options.out / "memory"
        self._conditions = [Condition(options.gap, LIVE), Condition(options.gap, "erase")]
        self.problem = _unknown(checkpoint, self._task)
        """Why the policy cannot do the task; empty if it can."""

    def run(self, steps: Steps) -> Comparison:
        """Run both steps; return what the report shows of them."""
        live, erased = self._evaluate(steps)
        evaluations = [live, erased, *self._drive_over_ros(steps, (live, erased))]
        folders = [self._folder / condition.folder for condition in self._conditions]
        folders += [self._ros_folder(condition) for condition in self._conditions]
        names = ["live", "erased", "live, over ROS 2", "erased, over ROS 2"]
        entries = [
            Entry(name, evaluation, folder / VIDEOS)
            for name, evaluation, folder in zip(names, evaluations, folders, strict=True)
        ]
        print_comparison(entries)
        introduction = MEMORY_INTRODUCTION.format(
            policy=Path(self._checkpoint).name,
            gap=self._options.gap,
            task=self._task,
            points=self._points(live, erased),
        )
        return Comparison(MEMORY_TITLE, introduction, entries)

    def _evaluate(self, steps: Steps) -> list[Evaluation]:
        options = self._options
        with steps.step(f"{self._task} at a gap of {options.gap} ticks, live and erased"):
            folders = {c: self._folder / c.folder for c in self._conditions}
            evaluations = evaluate_conditions(
                self._checkpoint,
                self._task,
                {condition: folder / VIDEOS for condition, folder in folders.items()},
                episodes=options.memory_episodes,
                workers=options.workers,
                max_ticks=options.max_ticks,
                videos=1,
                label="live and erased",
            )
            for evaluation in evaluations:
                evaluation.save(folders[evaluation.condition])
            points = self._points(*evaluations)
            print(f"  {points}")
            steps.found(points)
        return evaluations

    def _drive_over_ros(self, steps: Steps, in_process: Sequence[Evaluation]) -> list[Evaluation]:
        evaluations = []
        with steps.step(f"{self._task} over ROS 2, live and erased"):
            for condition in self._conditions:
                folder = self._ros_folder(condition)
                given = self._options, self._checkpoint, self._task, folder, folder / VIDEOS
                evaluations.append(drive_over_ros(*given, condition))
            same = same_outcomes(zip(in_process, evaluations, strict=True))
            print(f"  {same}")
            steps.found(f"{self._points(*evaluations)} {same}")
        return evaluations

    def _ros_folder(self, condition: Condition) -> Path:
        return self._folder / "over_ros" / condition.folder

    def _points(self, live: Evaluation, erased: Evaluation) -> str:
        """Return the rates of right choices in words, and how far they are apart."""
        ours, theirs = (evaluation.tasks[self._task].choices for evaluation in (live, erased))
        ours, theirs = ours or Rate(0, 0), theirs or Rate(0, 0)
        points = 100 * (ours.rate - theirs.rate)
        return f"Right choice live {ours}, erased {theirs}: {points:.0f} points between them."


def _unknown(checkpoint: str, task: str) -> str:
    """Return why the policy does not know the task, or an empty text if it does."""
    if not Path(checkpoint).is_file():
        return "an untrained network knows no memory task"
    policy, _ = load_checkpoint(checkpoint)
    for text in instructions_of(task):
        if text not in policy.known_instructions:
            return f"{Path(checkpoint).name} was not trained to “{text}”, so there is no memory to erase"
    return ""
