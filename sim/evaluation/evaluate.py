"""`ttm evaluate`: success rates of a policy in the simulated kitchen, with intervals, videos and a page."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ttm.policy.errors import UserError

if TYPE_CHECKING:
    from ttm.sim.evaluation.result import Evaluation


@dataclass(frozen=True)
class EvaluateCommand:
    """Measure how often a policy succeeds in the simulated kitchen.

    Every initial state has a number, and the same numbers give the same result on the same machine, however many
    workers share them. OUT receives result.json, report.html (open it in a browser) and the videos. Success is
    judged by the simulator's state, never by the policy's own word.

    For example:
      ttm evaluate --task pick --episodes 100 --out runs/shipped
      ttm evaluate --checkpoint runs/mine/best.safetensors --out runs/mine/eval --against runs/shipped
      ttm evaluate --checkpoint expert --out runs/expert
    """

    out: Path
    """Folder for result.json, report.html and videos/."""
    checkpoint: str = "shipped"
    """A .safetensors file; or shipped (the policy that comes with the project), none (an untrained network),
    expert (the scripted demonstrator, which sees the simulator's state)."""
    task: Literal["pick", "open_drawer", "all"] = "all"
    """What is asked for."""
    episodes: int = 50
    """Initial states for each task."""
    workers: int = os.cpu_count() or 1
    """Processes that share the episodes; each needs about 1 GB of memory."""
    first_seed: int = 0
    """Number of the first initial state. Demonstrations start at 1,000,000; stay below."""
    videos: int = 1
    """Record the first so many episodes of each task."""
    max_ticks: int | None = None
    """End episodes after so many ticks (5 a second); never later than the task's own limit."""
    against: Path | None = None
    """Another evaluation's OUT: adds a paired test on the initial states that both started from."""

    def run(self) -> int:
        from ttm.sim.rendering import require_rendering

        self._validate()
        require_rendering()
        from ttm.sim.evaluation.report import Section, write_report
        from ttm.sim.evaluation.result import compare, describe_test, load_evaluation

        other = load_evaluation(self.against) if self.against else None
        evaluation = evaluate(
            self.checkpoint,
            task_names(self.task),
            episodes=self.episodes,
            workers=self.workers,
            first_seed=self.first_seed,
            max_ticks=self.max_ticks,
            video_folder=self.out / "videos",
            videos=self.videos,
        )
        evaluation.save(self.out)
        sections = [Section("this policy", evaluation, self.out / "videos")]
        if other:
            sections.insert(0, Section(str(self.against), other))
        page = write_report(
            self.out / "report.html", "Evaluation in the simulated kitchen", sections
        )
        for result in evaluation.tasks.values():
            print(result)
        for name, test in (compare(other, evaluation) if other else {}).items():
            print(f"{name}: {describe_test(test, str(self.against), 'this policy')}")
        print(f"report: {page}")
        return 0

    def _validate(self) -> None:
        for name, value in {
            "episodes": self.episodes,
            "workers": self.workers,
            "max-ticks": self.max_ticks,
        }.items():
            if value is not None and value < 1:
                raise UserError(f"--{name} is {value}; give at least 1")
        for name, value in {"videos": self.videos, "first-seed": self.first_seed}.items():
            if value < 0:
                raise UserError(f"--{name} is {value}; give 0 or more")


def task_names(task: str) -> list[str]:
    """The tasks that an option's value stands for."""
    from ttm.sim.tasks import TASKS

    return list(TASKS) if task == "all" else [task]


def evaluate(
    checkpoint: str,
    tasks: Sequence[str],
    *,
    episodes: int,
    workers: int = 1,
    first_seed: int = 0,
    max_ticks: int | None = None,
    video_folder: Path | None = None,
    videos: int = 0,
    label: str = "evaluating",
) -> Evaluation:
    """Run `episodes` numbered initial states of each task; see `EvaluateCommand` for the arguments."""
    from ttm.sim.evaluation.pool import Job, run_jobs
    from ttm.sim.evaluation.report import video_path
    from ttm.sim.evaluation.result import Evaluation, TaskResult

    source = resolve_checkpoint(checkpoint)
    seeds = range(first_seed, first_seed + episodes)
    jobs = [
        Job(
            task,
            seed,
            max_ticks,
            video_path(video_folder, task, seed) if seed < first_seed + videos else None,
        )
        for task in tasks
        for seed in seeds
    ]
    outcomes = run_jobs(source, jobs, workers, label)
    results = {
        task: TaskResult(task, tuple(o for o in outcomes if o.task == task)) for task in tasks
    }
    return Evaluation(checkpoint, _sha256(source), first_seed, max_ticks, results)


def resolve_checkpoint(checkpoint: str) -> str:
    """What `make_actor` takes: `none`, `expert`, or a path, which must be a file."""
    from ttm.sim.evaluation.actors import EXPERT, UNTRAINED
    from ttm.sim.shipped import checkpoint_path

    if checkpoint in (EXPERT, UNTRAINED):
        return checkpoint
    return str(checkpoint_path(checkpoint))


def _sha256(source: str) -> str | None:
    path = Path(source)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
