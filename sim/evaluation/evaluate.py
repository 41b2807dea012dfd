"""Success rates of a policy over numbered initial states, with intervals, videos and a page."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ttm.sim.environment import (
    ALL_TASKS,
    KITCHEN,
    inspect_env,
    require_same_environment,
    same_environment,
)
from ttm.sim.evaluation.actors import resolve_checkpoint
from ttm.sim.evaluation.episode_jobs import EpisodeJob, run_episodes
from ttm.sim.evaluation.report import Section, video_path, write_report
from ttm.sim.evaluation.result import (
    Evaluation,
    TaskResult,
    compare,
    describe_test,
    load_evaluation,
)


def evaluate(
    checkpoint: str,
    tasks: str | Sequence[str] = ALL_TASKS,
    *,
    episodes: int,
    env: str = KITCHEN,
    workers: int = 1,
    first_seed: int = 0,
    max_ticks: int | None = None,
    video_folder: Path | None = None,
    videos: int = 0,
    label: str = "evaluating",
) -> Evaluation:
    """Run `episodes` numbered initial states of each task.

    Parameters
    ----------
    checkpoint : str
        A file's path, "shipped", "none" (an untrained network) or "expert".
    tasks : str or sequence of str
        The name of a task of the environment, several names, or "all".
    episodes : int
        Number of initial states of each task.
    env : str
        The environment's Gymnasium ID.
    workers : int
        Number of processes that share the episodes. It does not change the result.
    first_seed : int
        Number of the first initial state.
    max_ticks : int, optional
        End episodes after this many ticks, or at the environment's own limit if that is earlier.
    video_folder : Path, optional
        Folder for videos of the first `videos` episodes of each task.
    videos : int
        Number of episodes of each task to film.
    label : str
        What the progress bar is called.
    """
    source = resolve_checkpoint(checkpoint)
    facts = inspect_env(env)
    names = facts.choose(tasks)
    jobs = [
        EpisodeJob(
            task,
            seed,
            max_ticks,
            video_path(video_folder, task, seed) if seed < first_seed + videos else None,
        )
        for task in names
        for seed in range(first_seed, first_seed + episodes)
    ]
    outcomes = run_episodes(facts, source, jobs, workers, label)
    results = {
        task: TaskResult(task, tuple(o for o in outcomes if o.task == task)) for task in names
    }
    return Evaluation(checkpoint, _sha256(source), first_seed, max_ticks, results, env)


def evaluate_and_report(
    out: Path,
    *,
    checkpoint: str,
    task: str = ALL_TASKS,
    env: str = KITCHEN,
    episodes: int,
    workers: int = 1,
    first_seed: int = 0,
    videos: int = 0,
    max_ticks: int | None = None,
    against: Path | None = None,
) -> int:
    """Evaluate, write result.json, report.html and the videos into `out`, and print the rates.

    `against` is the folder of another evaluation of the same environment to compare with; see
    `evaluate` for the other arguments. Returns the exit code.
    """
    other = load_evaluation(against) if against else None
    if other:
        require_same_environment(other.environment, env)
    evaluation = evaluate(
        checkpoint,
        task,
        episodes=episodes,
        env=env,
        workers=workers,
        first_seed=first_seed,
        max_ticks=max_ticks,
        video_folder=out / "videos",
        videos=videos,
    )
    evaluation.save(out)
    sections = [Section("this policy", evaluation, out / "videos")]
    if other:
        sections.insert(0, Section(str(against), other))
    place = "the simulated kitchen" if same_environment(env, KITCHEN) else env
    page = write_report(out / "report.html", f"Evaluation in {place}", sections)
    for result in evaluation.tasks.values():
        print(result)
    for name, test in (compare(other, evaluation) if other else {}).items():
        print(f"{name}: {describe_test(test, str(against), 'this policy')}")
    print(f"report: {page}")
    return 0


def _sha256(source: str) -> str | None:
    path = Path(source)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
