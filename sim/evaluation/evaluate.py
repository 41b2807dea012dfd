"""Success rates of a policy over numbered initial states, with intervals, videos and a page."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ttm.policy.errors import UserError
from ttm.policy.run.execution.choice import NEWEST
from ttm.sim.environment import (
    ALL_TASKS,
    KITCHEN,
    CueName,
    inspect_env,
    require_memory_tasks,
    require_same_environment,
    same_environment,
)
from ttm.sim.evaluation.actors import resolve_checkpoint
from ttm.sim.evaluation.condition import (
    LIVE,
    NOISE,
    SAME_STATE,
    Condition,
    DonorName,
    ProbeName,
    conditions_of,
)
from ttm.sim.evaluation.episode_jobs import EpisodeJob, run_episodes
from ttm.sim.evaluation.pages.comparison import Entry, print_comparison, write_comparison
from ttm.sim.evaluation.pages.media import remove_media
from ttm.sim.evaluation.pages.report import Section, write_report
from ttm.sim.evaluation.result import (
    RESULT_FILE,
    VIDEOS,
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
    workers: int | None = 1,
    ray: str | None = None,
    first_seed: int = 0,
    max_ticks: int | None = None,
    video_folder: Path | None = None,
    videos: int = 0,
    label: str = "evaluating",
    condition: Condition = Condition(),  # noqa: B008 (frozen)
) -> Evaluation:
    """Run `episodes` numbered initial states of each task.

    Parameters
    ----------
    checkpoint : str
        A file's path, "shipped", "none" (an untrained network) or "expert".
    tasks : str or sequence of str
        The name of a task of the environment or of a group of its tasks, several names, or "all".
    episodes : int
        Number of initial states of each task.
    env : str
        The environment's Gymnasium ID.
    workers : int, optional
        Number of processes that share the episodes, None for one for each core that may be used. It does not
        change the result.
    ray : str, optional
        Address of a Ray cluster that runs the episodes, which does not change the result either.
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
    condition : Condition
        The gap of memory tasks, what is done to the memory, and which actions are carried out and when.

    Raises
    ------
    UserError
        If there is no such task, checkpoint or environment, or if the condition is not one for
        these tasks or this checkpoint.
    """
    (evaluation,) = evaluate_conditions(
        checkpoint,
        tasks,
        {condition: video_folder},
        episodes=episodes,
        env=env,
        workers=workers,
        ray=ray,
        first_seed=first_seed,
        max_ticks=max_ticks,
        videos=videos,
        label=label,
    )
    return evaluation


def evaluate_conditions(
    checkpoint: str,
    tasks: str | Sequence[str],
    conditions: Mapping[Condition, Path | None],
    *,
    episodes: int,
    env: str = KITCHEN,
    workers: int | None = 1,
    ray: str | None = None,
    first_seed: int = 0,
    max_ticks: int | None = None,
    videos: int = 0,
    label: str = "evaluating",
) -> list[Evaluation]:
    """Run the same numbered initial states under each condition, and return one evaluation for each.

    conditions: condition -> folder for its videos, or None. With several of them, the memory of the
    first filmed episode of each task is drawn, where no probe acts on it. For the others see `evaluate`.
    """
    source = resolve_checkpoint(checkpoint)
    facts = inspect_env(env)
    names = facts.choose(tasks)
    for option in dict.fromkeys(condition.needs_memory_task for condition in conditions):
        if option is not None:
            require_memory_tasks(env, names, option)
    jobs = [
        EpisodeJob(
            task,
            seed,
            max_ticks,
            folder,
            video=seed < first_seed + videos,
            picture=condition.probe == LIVE
            and len(conditions) > 1
            and videos > 0
            and seed == first_seed,
            condition=condition,
        )
        for condition, folder in conditions.items()
        for task in names
        for seed in range(first_seed, first_seed + episodes)
    ]
    for job in jobs:
        remove_media(job.folder, job.task, job.seed)
    outcomes = run_episodes(facts, source, jobs, workers, label, ray)
    evaluations = []
    for condition in conditions:
        ours = [o for job, o in zip(jobs, outcomes, strict=True) if job.condition == condition]
        results = {
            task: TaskResult(task, tuple(o for o in ours if o.task == task)) for task in names
        }
        evaluations.append(
            Evaluation(checkpoint, _sha256(source), first_seed, max_ticks, results, env, condition)
        )
    return evaluations


def evaluate_and_report(
    out: Path,
    *,
    checkpoint: str,
    task: str = ALL_TASKS,
    env: str = KITCHEN,
    episodes: int,
    workers: int | None = 1,
    ray: str | None = None,
    first_seed: int = 0,
    videos: int = 0,
    max_ticks: int | None = None,
    against: Path | None = None,
    gaps: Sequence[int] = (),
    probes: Sequence[ProbeName] = (LIVE,),
    cue: CueName = "hidden",
    noise: float = NOISE,
    executions: Sequence[str] = (NEWEST,),
    delay_s: float = 0.0,
    donor: DonorName = SAME_STATE,
) -> int:
    """Evaluate, write result.json, report.html and the videos into `out`, and print the rates.

    `against` is the folder of another evaluation of the same environment to compare with; see
    `evaluate` for the other arguments. With several gaps, probes or executions, each of their
    combinations has a folder of its own in `out`, and the page shows them all. Returns the exit code.
    """
    conditions = conditions_of(gaps, probes, cue, noise, executions, delay_s, donor)
    other = load_evaluation(against) if against else None
    if other:
        require_same_environment(other.environment, env)
    if other and len(conditions) > 1:
        raise UserError(
            "--against takes an evaluation with one gap, probe and execution, not several; "
            f"compare them afterwards: ttm compare {against} {out}"
        )
    folders = [out / condition.folder for condition in conditions] if len(conditions) > 1 else [out]
    names, digest = inspect_env(env).choose(task), _sha256(resolve_checkpoint(checkpoint))
    for condition, folder in zip(conditions, folders, strict=True):
        planned = Evaluation(checkpoint, digest, first_seed, max_ticks, {}, env, condition)
        _refuse_other(folder, planned, names, episodes)
    evaluations = evaluate_conditions(
        checkpoint,
        task,
        {c: folder / VIDEOS for c, folder in zip(conditions, folders, strict=True)},
        episodes=episodes,
        env=env,
        workers=workers,
        ray=ray,
        first_seed=first_seed,
        max_ticks=max_ticks,
        videos=videos,
    )
    for evaluation, folder in zip(evaluations, folders, strict=True):
        evaluation.save(folder)
    place = "the simulated kitchen" if same_environment(env, KITCHEN) else env
    title = f"Evaluation in {place}"
    if len(evaluations) > 1:
        page = _report_several(out, title, evaluations, folders)
    else:
        page = _report_one(out, title, evaluations[0], str(against), other)
    print(f"report: {page}")
    return 0


def _refuse_other(folder: Path, planned: Evaluation, names: Sequence[str], episodes: int) -> None:
    """Raise `UserError` if `folder` holds a result that would not be made again.

    planned: what is to be evaluated, without outcomes; names: its tasks.
    """
    if not (folder / RESULT_FILE).exists():
        return
    try:
        found = load_evaluation(folder)
    except UserError:
        raise UserError(
            f"{folder} holds the result of something else; give another --out"
        ) from None
    settings = replace(found, tasks={}, checkpoint=planned.checkpoint)
    same_policy = planned.sha256 is not None or found.checkpoint == planned.checkpoint
    held = {name: len(result.outcomes) for name, result in found.tasks.items()}
    if not (
        settings == planned
        and same_policy
        and held.keys() <= set(names)
        and max(held.values(), default=0) <= episodes
    ):
        raise UserError(
            f"{folder} holds another evaluation, of {found.checkpoint} on {', '.join(held)}; give another "
            "--out, or delete it"
        )


def _report_one(
    out: Path, title: str, evaluation: Evaluation, label: str, other: Evaluation | None
) -> Path:
    """Print the rates of one evaluation and, if there is another, the paired tests. Write the page."""
    sections = [Section("this policy", evaluation, out / VIDEOS)]
    if other:
        sections.insert(0, Section(label, other))
    page = write_report(out / "report.html", title, sections)
    for result in evaluation.tasks.values():
        print(result)
    for name, test in (compare(other, evaluation) if other else {}).items():
        print(f"{name}: {describe_test(test, label, 'this policy')}")
    return page


def _report_several(
    out: Path, title: str, evaluations: Sequence[Evaluation], folders: Sequence[Path]
) -> Path:
    """Print the rates under all conditions and the paired tests, and write the page."""
    entries = [
        Entry(evaluation.condition.series, evaluation, folder / VIDEOS)
        for evaluation, folder in zip(evaluations, folders, strict=True)
    ]
    print_comparison(entries)
    return write_comparison(out / "report.html", title, entries)


def _sha256(source: str) -> str | None:
    path = Path(source)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
