"""`ttm demo`: from demonstrations to a closed loop over ROS 2, on the simulated robot.

The whole way once, a memory task with the memory live and erased, and the report about both.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from ttm.datasets.tools.check import check_dataset, print_report
from ttm.policy.checkpoint import load_checkpoint, save_checkpoint
from ttm.policy.errors import UserError, options, require_above_0, require_at_least, require_at_most
from ttm.sim.actors import resolve_checkpoint
from ttm.sim.collect import CollectCommand
from ttm.sim.compare import Comparison, Entry, Fact, print_comparison, write_report
from ttm.sim.condition import LIVE, Condition
from ttm.sim.evaluation import evaluate, evaluate_conditions
from ttm.sim.kitchen.rendering import require_rendering
from ttm.sim.pages import video_path
from ttm.sim.results import VIDEOS, Evaluation, Rate, TaskResult, load_evaluation
from ttm.sim.tasks.table import SKILL_NAMES, instructions_of
from ttm.sim.workers import usable_cores
from ttm.training.network import with_vision_kept
from ttm.training.options import (
    FrozenVisionConfig,
    InputDropoutConfig,
    OptimizationConfig,
    TrainOptions,
)
from ttm.training.train import train

FIRST_SEED = 5_000_000
"""First initial state of the demonstrations: neither the shipped policy's training nor any
evaluation has seen it. It is a multiple of ten."""
MEMORY_TASK = "side_shown"
"""Task on which the policy to start from is shown live and with its memory erased."""
PATIENCE = "{startup-timeout-s: 600, command-timeout-s: 600}"
"""How long the simulator waits for a policy, for `ttm robot --config`. The computer may be busy."""
DEMO_INTRODUCTION = (
    "A policy was trained on freshly recorded demonstrations, with the vision of {start}. It was "
    "evaluated before and after on the same initial states, which no training has seen, and then drove the "
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

    The policy sees as the one that ships with the project. Its core and its action head start from
    random weights and have to learn the tasks; it has no sight memory. Then the policy that ships
    does a memory task, live and with its memory erased. The demo takes less than 10 minutes on two
    free cores. OUT/report.html shows what it found, with videos.

    Example: ttm demo --out demo_out
    """

    out: Path = Path("demo_out")
    """Folder for everything that it makes."""
    checkpoint: str = "shipped"
    """The policy to start from: shipped, or a .safetensors file."""
    demonstrations: int = 40
    """Demonstrations of each task to record and to train on; every tenth is held out."""
    minutes: float = 4.0
    """Longest time of the training."""
    steps: int = 600
    """Largest number of training steps."""
    episodes: int = 25
    """Initial states of each task to evaluate on, before and after."""
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
        if self.checkpoint in ("expert", "none"):
            raise UserError(f"--checkpoint {self.checkpoint} has no vision; give a policy")
        require_at_least(2, options(self, "demonstrations"))  # the first is held out
        require_at_least(1, options(self, "ros_episodes", "workers", "max_ticks", "steps"))
        most = min(self.episodes, self.memory_episodes)
        require_at_most(most, options(self, "ros_episodes"))
        require_at_least(0, options(self, "gap"))
        require_above_0(options(self, "minutes"))

    def run(self) -> int:
        """Run all steps; return the exit code."""
        self.check()
        return Demo(self).run()


class Demo:
    """One run of the demo. Each step leaves a line for the report."""

    def __init__(self, options: DemoCommand) -> None:
        require_rendering()
        self.options, self.out = options, options.out
        self.checkpoint = resolve_checkpoint(options.checkpoint)
        self.demonstrations = self.out / "demonstrations"
        self.trained = self.out / "trained" / "best.safetensors"
        self.conditions = [Condition(options.gap, LIVE), Condition(options.gap, "erase")]
        self.problem = self._unknown_instruction()
        """Why the policy cannot do the memory task; empty if it can."""
        self.steps = Steps(6 if self.problem else 8)

    def run(self) -> int:
        """Run all steps; return the exit code."""
        begun_s = time.monotonic()
        self._record()
        start = self.out / "start.safetensors"
        policy, info = load_checkpoint(self.checkpoint)
        torch.manual_seed(0)
        save_checkpoint(start, with_vision_kept(policy, sight_tokens=0, tokens=True), info)
        before = self._evaluate("before", start)
        self._train(start)
        after = self._evaluate("after", self.trained)
        ros = self._drive_trained()
        same = same_outcomes([(after, ros)])
        self.steps.note("compare ROS 2 with the same states in process", same)
        chapter = None
        if self.problem:
            self.steps.note(f"{MEMORY_TASK} is left out", self.problem)
        else:
            chapter = self._compare_memories()
        entries = [
            Entry("before", before, self.out / "before" / VIDEOS),
            Entry("after", after, self.out / "after" / VIDEOS),
            Entry("after, over ROS 2", ros, self.out / "ros" / VIDEOS),
        ]
        print_comparison(entries)
        seconds = time.monotonic() - begun_s
        title = "From demonstrations to a closed loop"
        introduction = DEMO_INTRODUCTION.format(start=Path(self.checkpoint).name)
        facts = [*self.steps.facts, Fact("all together", "", seconds)]
        path = write_report(self.out / "report.html", title, entries, facts, introduction, chapter)
        print(f"\nDone in {seconds / 60:.1f} minutes. Open the report in a browser: {path}")
        return 0

    def _record(self) -> None:
        options = self.options
        finding = f"{options.demonstrations} scripted demonstrations of each of {' and '.join(SKILL_NAMES)}"
        with self.steps.step("record demonstrations", finding):
            CollectCommand(
                self.demonstrations,
                episodes=options.demonstrations,
                workers=options.workers,
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

    def _evaluate(self, when: str, checkpoint: Path) -> Evaluation:
        with self.steps.step(f"evaluate {when} the training"):
            evaluation = evaluate(
                str(checkpoint),
                list(SKILL_NAMES),
                episodes=self.options.episodes,
                workers=self.options.workers,
                max_ticks=self.options.max_ticks,
                video_folder=self.out / when / VIDEOS,
                videos=1,
                label=when,
            )
            evaluation.save(self.out / when)
            self.steps.found("; ".join(str(result) for result in evaluation.tasks.values()))
        return evaluation

    def _train(self, start: Path) -> None:
        steps, minutes = self.options.steps, self.options.minutes
        name = Path(self.checkpoint).name
        finding = f"{steps} steps or {minutes:g} minutes, with the vision of {name}"
        with self.steps.step("train", finding):
            options = TrainOptions(
                data=(str(self.demonstrations),),
                out=self.trained.parent,
                init=start,
                steps=steps,
                minutes=minutes,
                optimization=OptimizationConfig(1e-3),  # core and action head have random weights
                input_dropout=InputDropoutConfig(0.7),  # as in the training of the shipped policy
                vision=FrozenVisionConfig(freeze_vision=True),
                validations=4,
                overwrite=True,
            )
            require_success(train(options), "train")

    def _drive_trained(self) -> Evaluation:
        """Repeat the first initial states of each task over ROS 2."""
        results: dict[str, TaskResult] = {}
        with self.steps.step("drive the robot over ROS 2"):
            for task in SKILL_NAMES:
                folder, videos = self.out / "ros" / task, self.out / "ros" / VIDEOS
                driven = drive_over_ros(self.options, str(self.trained), task, folder, videos)
                results |= driven.tasks
            told = (f"{task}: {r.successes} of {r.episodes}" for task, r in results.items())
            self.steps.found("; ".join(told))
        return Evaluation("over ROS 2", None, 0, None, results)

    def _compare_memories(self) -> Comparison:
        """Do the memory task live and erased, in process and over ROS 2, from the same initial states."""
        options, folder = self.options, self.out / "memory"
        folders = [folder / condition.folder for condition in self.conditions]
        ros_folders = [folder / "over_ros" / condition.folder for condition in self.conditions]
        with self.steps.step(f"{MEMORY_TASK} at a gap of {options.gap} ticks, live and erased"):
            evaluations = evaluate_conditions(
                self.checkpoint,
                MEMORY_TASK,
                {c: each / VIDEOS for c, each in zip(self.conditions, folders, strict=True)},
                episodes=options.memory_episodes,
                workers=options.workers,
                max_ticks=options.max_ticks,
                videos=1,
                label="live and erased",
            )
            for evaluation, each in zip(evaluations, folders, strict=True):
                evaluation.save(each)
            points = in_points(*evaluations)
            self.steps.found(points)
        with self.steps.step(f"{MEMORY_TASK} over ROS 2, live and erased"):
            given = options, self.checkpoint, MEMORY_TASK
            places = zip(ros_folders, self.conditions, strict=True)
            driven = [drive_over_ros(*given, to, to / VIDEOS, which) for to, which in places]
            same = same_outcomes(zip(evaluations, driven, strict=True))
            self.steps.found(f"{in_points(*driven)} {same}")
        names = ("live", "erased", "live, over ROS 2", "erased, over ROS 2")
        every = zip(names, [*evaluations, *driven], [*folders, *ros_folders], strict=True)
        entries = [Entry(name, evaluation, each / VIDEOS) for name, evaluation, each in every]
        print_comparison(entries)
        introduction = MEMORY_INTRODUCTION.format(
            policy=Path(self.checkpoint).name, gap=options.gap, task=MEMORY_TASK, points=points
        )
        return Comparison(MEMORY_TITLE, introduction, entries)

    def _unknown_instruction(self) -> str:
        """Return why the policy does not know the memory task, or an empty text if it does."""
        policy, _ = load_checkpoint(self.checkpoint)
        for text in instructions_of(MEMORY_TASK):
            if text not in policy.known_instructions:
                name = Path(self.checkpoint).name
                return f"{name} was not trained to “{text}”, so there is no memory to erase"
        return ""


def in_points(live: Evaluation, erased: Evaluation) -> str:
    """Return the rates of right choices in words, and how far they are apart."""
    ours, theirs = (each.tasks[MEMORY_TASK].choices or Rate(0, 0) for each in (live, erased))
    points = 100 * (ours.rate - theirs.rate)
    return f"Right choice live {ours}, erased {theirs}: {points:.0f} points between them."


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
        self.facts: list[Fact] = []
        self._count, self._taken, self._finding = count, 0, ""

    @contextmanager
    def step(self, name: str, finding: str = "") -> Iterator[None]:
        """Print a heading, what was found and the time of a step, and add it to the report."""
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
        """Print what the current step found, which the report then says about it."""
        self._finding = finding
        print(f"  {finding}", flush=True)

    def note(self, name: str, finding: str) -> None:
        """Print a line that belongs to no step, and add it to the report."""
        print(f"\n{name}: {finding}", flush=True)
        self.facts.append(Fact(name, finding, None))
