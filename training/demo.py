"""`ttm demo`: from demonstrations to a closed loop over ROS 2, on the simulated robot.

The whole way once, the groups of skills, a memory task with the memory live and erased, and the report.
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
from typing import Any

import torch
from rich.console import Console

from ttm.datasets.tools.check import check_dataset, print_report
from ttm.policy.checkpoint import load_checkpoint, save_checkpoint
from ttm.policy.errors import UserError, options, require_above_0, require_at_least, require_at_most
from ttm.sim.actors import resolve_checkpoint
from ttm.sim.collect import CollectCommand
from ttm.sim.compare import Comparison, Entry, Fact, print_comparison, write_report
from ttm.sim.condition import KITCHEN, LIVE, Condition
from ttm.sim.environment import inspect_env
from ttm.sim.evaluation import evaluate, evaluate_conditions
from ttm.sim.kitchen.rendering import require_rendering
from ttm.sim.pages import video_path
from ttm.sim.results import VIDEOS, Evaluation, Rate, TaskResult, load_evaluation
from ttm.sim.tasks.table import GROUP_NAMES, SKILL_NAMES, instructions_of
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
VARIATION = "1"
"""Level of all variations but words at which the policy to start from does skills of the groups."""
PATIENCE = "{startup-timeout-s: 600, command-timeout-s: 600}"
"""How long the simulator waits for a policy, for `ttm robot --config`. The computer may be busy."""
DEMO_INTRODUCTION = (
    "A policy was trained on freshly recorded demonstrations, with the vision of {start}. It was "
    "evaluated before and after on the same initial states, which no training has seen, and then drove the "
    "simulated robot over ROS 2."
)
GROUPS_TITLE = "Groups of skills"
GROUPS_INTRODUCTION = "{policy}, without the training above, in the varied kitchen (--vary 1)."
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
    does skills of each group that it has learned, and a memory task, live and with its memory erased.
    The demo takes less than 10 minutes on two free cores. OUT/report.html shows what it found.

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
    group_episodes: int = 4
    """Initial states of each group of skills that the policy to start from has learned."""
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
        require_at_least(
            1, options(self, "ros_episodes", "group_episodes", "workers", "max_ticks", "steps")
        )
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
        self.name = Path(self.checkpoint).name
        known = load_checkpoint(self.checkpoint)[0].known_instructions.keys()
        asked = {task: set(instructions_of(task)) for task in (*GROUP_NAMES, MEMORY_TASK)}
        self.unknown = [task for task, of in asked.items() if 2 * len(of & known) <= len(of)]
        """Tasks of which the policy to start from knows no more than half of the instructions."""
        self.groups = [task for task in GROUP_NAMES if task not in self.unknown]
        self.steps = Steps(6 + bool(self.groups) + 2 * (MEMORY_TASK not in self.unknown))

    def run(self) -> int:
        """Run all steps; return the exit code."""
        begun_s = time.monotonic()
        self._record()
        start = self.out / "start.safetensors"
        policy, info = load_checkpoint(self.checkpoint)
        torch.manual_seed(0)
        save_checkpoint(start, with_vision_kept(policy, sight_tokens=0, tokens=True), info)
        given = {"tasks": SKILL_NAMES, "episodes": self.options.episodes}
        before = self._evaluate("before", "evaluate before the training", start, **given)
        self._train(start)
        after = self._evaluate("after", "evaluate after the training", self.trained, **given)
        ros = self._drive_trained()
        same = same_outcomes([(after.evaluation, ros)])
        self.steps.note("compare ROS 2 with the same states in process", same)
        chapters = [self._do_groups()] if self.groups else []
        chapters += [] if MEMORY_TASK in self.unknown else [self._compare_memories()]
        if self.unknown:
            self.steps.note(f"left out: {', '.join(self.unknown)}", f"{self.name} did not learn it")
        entries = [before, after, Entry("after, over ROS 2", ros, self.out / "ros" / VIDEOS)]
        print_comparison(entries)
        seconds = time.monotonic() - begun_s
        title = "From demonstrations to a closed loop"
        introduction = DEMO_INTRODUCTION.format(start=self.name)
        facts = [*self.steps.facts, Fact("all together", "", seconds)]
        path = write_report(self.out / "report.html", title, entries, facts, introduction, chapters)
        print(f"\nDone in {seconds / 60:.1f} minutes. Open the report in a browser: {path}")
        return 0

    def _record(self) -> None:
        count, workers = self.options.demonstrations, self.options.workers
        finding = f"{count} scripted demonstrations of each of {' and '.join(SKILL_NAMES)}"
        with self.steps.step("record demonstrations", finding):
            CollectCommand(
                self.demonstrations, episodes=count, workers=workers, first_seed=FIRST_SEED
            ).run()
        with self.steps.step("check them"):
            report = check_dataset(self.demonstrations)
            print_report(report, Console())
            self.steps.found(
                f"{report.num_errors} faults in {report.num_episodes} episodes ({report.num_ticks} ticks)"
            )
        if report.num_errors:
            raise UserError(f"{self.demonstrations} has the faults above; delete it and run again")

    def _evaluate(self, name: str, what: str, checkpoint: Path | str, **settings: Any) -> Entry:
        """Evaluate in the folder `name`. what: the name of the step; settings: as of `evaluate`."""
        videos = self.out / name / VIDEOS
        settings |= {"workers": self.options.workers, "max_ticks": self.options.max_ticks}
        with self.steps.step(what):
            evaluation = evaluate(
                str(checkpoint), video_folder=videos, videos=1, label=name, **settings
            )
            evaluation.save(self.out / name)
            self.steps.found("; ".join(str(result) for result in evaluation.tasks.values()))
        return Entry(name, evaluation, videos)

    def _train(self, start: Path) -> None:
        most = f"{self.options.steps} steps or {self.options.minutes:g} minutes"
        with self.steps.step("train", f"{most}, with the vision of {self.name}"):
            options = TrainOptions(
                data=(str(self.demonstrations),),
                out=self.trained.parent,
                init=start,
                steps=self.options.steps,
                minutes=self.options.minutes,
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

    def _do_groups(self) -> Comparison:
        """Do skills of each group that the policy to start from knows."""
        condition = Condition(vary=inspect_env(KITCHEN).variant((VARIATION,)))
        given = {
            "tasks": self.groups,
            "condition": condition,
            "episodes": self.options.group_episodes,
        }
        entry = self._evaluate("groups", "skills of each group, varied", self.checkpoint, **given)
        return Comparison(GROUPS_TITLE, GROUPS_INTRODUCTION.format(policy=self.name), [entry])

    def _compare_memories(self) -> Comparison:
        """Do the memory task live and erased, in process and over ROS 2, from the same initial states."""
        options, folder = self.options, self.out / "memory"
        conditions = [Condition(options.gap, LIVE), Condition(options.gap, "erase")]
        folders = [folder / condition.folder for condition in conditions]
        ros_folders = [folder / "over_ros" / condition.folder for condition in conditions]
        with self.steps.step(f"{MEMORY_TASK} at a gap of {options.gap} ticks, live and erased"):
            evaluations = evaluate_conditions(
                self.checkpoint,
                MEMORY_TASK,
                {c: each / VIDEOS for c, each in zip(conditions, folders, strict=True)},
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
            places = zip(ros_folders, conditions, strict=True)
            driven = [drive_over_ros(*given, to, to / VIDEOS, which) for to, which in places]
            same = same_outcomes(zip(evaluations, driven, strict=True))
            self.steps.found(f"{in_points(*driven)} {same}")
        names = ("live", "erased", "live, over ROS 2", "erased, over ROS 2")
        every = zip(names, [*evaluations, *driven], [*folders, *ros_folders], strict=True)
        entries = [Entry(name, evaluation, each / VIDEOS) for name, evaluation, each in every]
        print_comparison(entries)
        told = {"policy": self.name, "gap": options.gap, "task": MEMORY_TASK, "points": points}
        return Comparison(MEMORY_TITLE, MEMORY_INTRODUCTION.format(**told), entries)


def in_points(live: Evaluation, erased: Evaluation) -> str:
    """Return the rates of right choices in words, and how far they are apart."""
    ours, theirs = (each.tasks[MEMORY_TASK].choices or Rate(0, 0) for each in (live, erased))
    points = f"{100 * (ours.rate - theirs.rate):.0f} points between them"
    return f"Right choice live {ours}, erased {theirs}: {points}."


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
    video, most = str(video_path(videos, task, 0)), str(options.max_ticks or 0)
    arguments += ["--video", video, "--max-ticks", most]
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
    equal = sum(ours == theirs for ours, theirs in pairs)  # after the same choice, too
    ended = f"{same} of {len(pairs)} initial states ended as they did in process"
    return f"{ended}; {equal} of them at the very same tick"


def require_success(exit_code: int, command: str) -> None:
    """Raise `KeyboardInterrupt` if a step was interrupted, and `UserError` if it failed."""
    if exit_code in (130, 143):
        raise KeyboardInterrupt
    if exit_code != 0:
        raise UserError(f"ttm {command} ended with exit code {exit_code}; it says above why")


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
