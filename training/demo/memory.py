"""A policy on a memory task, live and with its memory erased, in process and over ROS 2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ttm.policy.run.checkpoint import load_checkpoint
from ttm.sim.evaluation.condition import LIVE, Condition
from ttm.sim.evaluation.evaluate import evaluate_conditions
from ttm.sim.evaluation.pages.comparison import Comparison, Entry, print_comparison
from ttm.sim.evaluation.result import VIDEOS, Evaluation, Rate
from ttm.sim.tasks.table import instructions_of
from ttm.training.demo.options import DemoOptions
from ttm.training.demo.ros import describe_same, drive_over_ros, same_outcomes
from ttm.training.demo.steps import Steps

STEPS = 2
"""Number of steps that are printed and reported."""
TITLE = "With its memory and without"
INTRODUCTION = (
    "{policy}, as it is without the training above, sees a cue, which is then hidden for {gap} ticks "
    "before the robot may act (task {task}). Live, its memory is left alone. Erased, it is emptied "
    "once, when the robot may act: from then on both see the same and are told the same, and only one "
    "of them can know what the cue was. {points}"
)


class MemoryDemo:
    """Runs the same initial states live and erased. Nothing is trained."""

    def __init__(self, options: DemoOptions, checkpoint: str) -> None:
        """checkpoint: the path of a file, or `none`."""
        self._options, self._checkpoint = options, checkpoint
        self._task, self._folder = options.memory_task, options.out / "memory"
        self._conditions = [Condition(options.gap, LIVE), Condition(options.gap, "erase")]
        self.problem = _unknown(checkpoint, self._task)
        """Why the policy cannot do the task; empty if it can."""

    def run(self, steps: Steps) -> Comparison:
        """Run both steps; return what the report shows of them."""
        live, erased = self._evaluate(steps)
        over_ros = self._drive_over_ros(steps, (live, erased))
        evaluations = [live, erased, *over_ros]
        folders = [self._folder / condition.folder for condition in self._conditions]
        folders += [self._ros_folder(condition) for condition in self._conditions]
        names = ["live", "erased", "live, over ROS 2", "erased, over ROS 2"]
        entries = [
            Entry(name, evaluation, folder / VIDEOS)
            for name, evaluation, folder in zip(names, evaluations, folders, strict=True)
        ]
        print_comparison(entries)
        introduction = INTRODUCTION.format(
            policy=Path(self._checkpoint).name,
            gap=self._options.gap,
            task=self._task,
            points=self._points(live, erased),
        )
        return Comparison(TITLE, introduction, entries)

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
        options = self._options
        with steps.step(f"{self._task} over ROS 2, live and erased"):
            evaluations = [
                drive_over_ros(
                    self._checkpoint,
                    self._task,
                    self._ros_folder(condition),
                    self._ros_folder(condition) / VIDEOS,
                    episodes=options.ros_episodes,
                    max_ticks=options.max_ticks,
                    condition=condition,
                )
                for condition in self._conditions
            ]
            counts = map(same_outcomes, in_process, evaluations)
            same = describe_same(*map(sum, zip(*counts, strict=True)))
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
