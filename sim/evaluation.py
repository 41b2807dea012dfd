"""Success rates of a policy over numbered initial states, with intervals, videos and a page."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from tyro.conf import arg

from ttm.datasets.console import progress_bar
from ttm.policy.engines import cpu_threads
from ttm.policy.errors import UserError, options, require_at_least
from ttm.policy.execution import EXECUTION_HELP, NEWEST, make_execution
from ttm.policy.language import embed_instruction, not_trained_on
from ttm.policy.memory_attention import has_token_memory
from ttm.sim.actors import (
    EXPERT,
    UNTRAINED,
    PolicyActor,
    load_policy,
    make_actor,
    resolve_checkpoint,
)
from ttm.sim.compare import Entry, print_comparison, write_comparison
from ttm.sim.condition import (
    LIVE,
    NOISE,
    PROBE_DESCRIPTIONS,
    SAME_STATE,
    Condition,
    DonorName,
    ProbeName,
    conditions_of,
)
from ttm.sim.environment import (
    ALL_TASKS,
    Env,
    EnvFacts,
    inspect_env,
    make_env,
    require_memory_tasks,
    require_same_environment,
    same_environment,
    spec_of,
)
from ttm.sim.pages import memory_path, remove_media, video_path
from ttm.sim.probes import PROBES, Probe, RememberingActor, Trial
from ttm.sim.report import EpisodeMemory, Section, write_report
from ttm.sim.results import (
    RESULT_FILE,
    VIDEOS,
    Evaluation,
    TaskResult,
    compare,
    describe_test,
    load_evaluation,
)
from ttm.sim.rollout import Actor, OnTick, Outcome, delayed, run_episode
from ttm.sim.shipped import KITCHEN, CueName
from ttm.sim.tasks.table import GROUP_DESCRIPTIONS, TASK_DESCRIPTIONS, TASK_METAVAR
from ttm.sim.video import EpisodeVideo
from ttm.sim.workers import RAY, WorkerPool

# Episodes as jobs for worker processes: numbered initial state in, outcome out.


@dataclass(frozen=True)
class EpisodeJob:
    """One episode to run."""

    task: str
    seed: int
    max_ticks: int | None
    folder: Path | None
    """Where its video and its picture go, or None if it has neither."""
    video: bool = False
    """Whether to film it, if the environment renders."""
    picture: bool = False
    """Whether to draw what the memory did, if it is a token memory."""
    condition: Condition = Condition()  # noqa: RUF009 (frozen)

    @property
    def group(self) -> str:
        """What the job's success is counted with, for the progress bar."""
        return (
            self.task if self.condition == Condition() else f"{self.task} {self.condition.folder}"
        )


class EpisodeWorker:
    """One environment and one actor, which run episode after episode."""

    def __init__(self, environment: str, source: str | Path, embeddings: Mapping[str, np.ndarray]):
        self._env = make_env(environment)
        self._actor = make_actor(str(source), self._env, embeddings)

    def run(self, job: EpisodeJob) -> Outcome:
        """Run one episode and return how it ended."""
        if isinstance(self._actor, PolicyActor):
            self._actor.execute_by(job.condition.execution)
            self._actor.delay_s = job.condition.delay_s
        spec, actor = spec_of(self._env), delayed(self._actor, self._env, job.condition.delay_s)
        probe = self._prepare(job, actor)
        with ExitStack() as stack:
            watchers = [] if probe is None else [_before_ticks(probe)]
            film = video_path(job.folder if job.video else None, job.task, job.seed)
            if film and _renders(self._env):
                video = stack.enter_context(EpisodeVideo(film, spec.rate_hz))
                watchers.append(self._filming(video))
            picture = memory_path(job.folder if job.picture else None, job.task, job.seed)
            memory = self._watched_memory() if picture else None
            watchers += [] if memory is None else [memory.on_tick]
            outcome = run_episode(
                self._env,
                actor,
                spec=spec,
                task=job.task,
                seed=job.seed,
                max_ticks=job.max_ticks,
                on_tick=_all_of(watchers),
                gap=job.condition.gap,
                cue=job.condition.cue,
            )
        if memory is not None and picture:
            memory.draw(picture, outcome, job.condition.cue)
        return outcome if probe is None else _with_donor(outcome, probe)

    def _watched_memory(self) -> EpisodeMemory | None:
        """Return what watches the next episode, or None if the actor has no token memory."""
        actor = self._actor
        if isinstance(actor, PolicyActor) and has_token_memory(actor.policy):
            return EpisodeMemory(actor)
        return None

    def _prepare(self, job: EpisodeJob, late: Actor) -> Probe | None:
        if job.condition.probe == LIVE:
            return None
        actor = cast(RememberingActor, self._actor)  # `run_episodes` refuses to probe experts
        return PROBES[job.condition.probe](
            Trial(self._env, actor, job.task, job.seed, job.condition, job.max_ticks, late)
        )

    def _filming(self, video: EpisodeVideo) -> OnTick:
        names = [camera.name for camera in spec_of(self._env).cameras]

        def film(observation: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
            frames = {name: observation[name] for name in names}
            video.add(np.asarray(self._env.render()), frames, info)

        return film

    def close(self) -> None:
        """Free the environment."""
        self._env.close()


def _before_ticks(probe: Probe) -> OnTick:
    """Return a function that tells the probe of every tick, counted from 0."""
    ticks = count()
    return lambda _, info: probe.before_tick(next(ticks), bool(info.get("go")))


def _all_of(watchers: Sequence[OnTick]) -> OnTick | None:
    def on_tick(observation: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        for watcher in watchers:
            watcher(observation, info)

    return on_tick if watchers else None


def _with_donor(outcome: Outcome, probe: Probe) -> Outcome:
    if outcome.choice is None or probe.donor is None:
        return outcome
    donor = probe.donor
    choice = replace(outcome.choice, donor_choice=donor.choice, donor_seed=donor.seed)
    return replace(outcome, choice=choice)


def _renders(env: Env) -> bool:
    return "rgb_array" in env.metadata.get("render_modes", ())


def run_episodes(
    facts: EnvFacts,
    source: str,
    jobs: Sequence[EpisodeJob],
    workers: int | None,
    label: str,
    ray: str | None = None,
) -> list[Outcome]:
    """Run all jobs under a progress bar and return their outcomes, in the order of `jobs`.

    source: see `ttm.sim.actors.make_actor`; workers, ray: see `WorkerPool`.
    """
    _require_memory(source, jobs)
    outcomes: dict[int, Outcome] = {}
    checkpoint = source if source in (EXPERT, UNTRAINED) else Path(source)
    arguments = (facts.name, checkpoint, _embed_instructions(facts, source, jobs))
    pool = WorkerPool(EpisodeWorker, arguments, workers=workers, ray=ray, most=len(jobs))
    with _SuccessBar(label, len(jobs)) as bar, pool:
        for index, outcome in pool.run(jobs):
            outcomes[index] = outcome
            bar.count(jobs[index].group, outcome)
    return [outcomes[index] for index in range(len(jobs))]


def _require_memory(source: str, jobs: Sequence[EpisodeJob]) -> None:
    probed = [job.condition.probe for job in jobs if job.condition.probe != LIVE]
    if source == EXPERT and probed:
        raise UserError(
            f"--probe {probed[0]} acts on a policy's memory, and the expert has none; name a checkpoint"
        )
    chunked = [job.condition.execution for job in jobs if job.condition.execution != NEWEST]
    if source == EXPERT and chunked:
        raise UserError(
            f"--execution {chunked[0]} is for a policy that predicts chunks of actions, and the expert "
            "does not; name a checkpoint"
        )


def _embed_instructions(
    facts: EnvFacts, source: str, jobs: Sequence[EpisodeJob]
) -> dict[str, np.ndarray]:
    """Return embeddings of the instructions that the policy does not carry in its checkpoint.

    They are computed here, once for all processes. That the checkpoint or the executions do not fit,
    or that there is no expert, is found out here as well, before any process starts.
    """
    if source == EXPERT:
        facts.require_expert()
        return {}
    with cpu_threads(1):
        policy = load_policy(source, facts.spec)
        for execution in {job.condition.execution for job in jobs}:
            make_execution(execution, policy.config.chunk, policy.spec.action_size)
        tasks = sorted({job.task for job in jobs})
        unknown = dict.fromkeys(
            text
            for task in tasks
            for text in facts.tasks[task]
            if text not in policy.known_instructions
        )
        if unknown and policy.known_instructions:
            warning = not_trained_on(next(iter(unknown)), policy.known_instructions)
            print(
                f"note: {warning}; instructions of these tasks that it does not know: {len(unknown)}"
            )
        return {text: embed_instruction(text, policy.config.language_model) for text in unknown}


class _SuccessBar:
    """A progress bar that shows how many episodes of each task succeeded so far.

    Of more groups of jobs than fit into a line it shows the last one only.
    """

    MOST_GROUPS = 3

    def __init__(self, label: str, total: int):
        self._progress = progress_bar(
            TextColumn(label),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
        )
        self._bar = self._progress.add_task("", total=total)
        self._successes: dict[str, list[bool]] = {}

    def __enter__(self) -> _SuccessBar:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def count(self, group: str, outcome: Outcome) -> None:
        """Advance by one episode."""
        self._successes.setdefault(group, []).append(outcome.success)
        shown = self._successes if len(self._successes) <= self.MOST_GROUPS else [group]
        counts = [
            f"{name} {sum(each)}/{len(each)}" for name in shown for each in [self._successes[name]]
        ]
        self._progress.update(self._bar, advance=1, description="  ".join(counts))


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


# The options of `ttm evaluate`.

TASK = arg(
    metavar=TASK_METAVAR,
    help=f"What is asked for: {TASK_DESCRIPTIONS}; {GROUP_DESCRIPTIONS}. "
    "Another --env has tasks of its own.",
)
PROBE = arg(
    help="What is done to the memory, one or several: "
    + "; ".join(f"{name}: {text}" for name, text in PROBE_DESCRIPTIONS.items())
    + "."
)

DONOR = arg(
    help="Of the probe swap: whose memory is given, that of the same initial state under another cue, or "
    "that of the next initial state which asks for something else."
)

EXECUTION = arg(help=f"{EXECUTION_HELP} One or several.")


@dataclass(frozen=True)
class EvaluateCommand:
    """Measure how often a policy succeeds in the simulated kitchen, or in another environment.

    Every initial state has a number, and the same numbers give the same result on the same machine, with
    any number of workers. OUT receives result.json, report.html (open it in a browser) and the videos.
    Success is judged by the simulator's state, never by the policy's own word.

    Memory tasks show a cue, hide it for a gap, and then let the robot choose. Probes change the memory
    from outside: a policy that uses its memory loses its choice when the memory is erased, and chooses
    as another episode's cue asked for when the memory is exchanged. With several gaps, probes or
    executions each combination has a folder of its own in OUT, and report.html shows them all, with
    curves over the gap.

    For example:
      ttm evaluate --task pick --episodes 100 --out runs/shipped
      ttm evaluate --checkpoint runs/mine/best.safetensors --out runs/mine/eval --against runs/shipped
      ttm evaluate --task memory --gap 5 15 45 --probe live erase swap --out runs/probes
      ttm evaluate --checkpoint expert --out runs/expert
    """

    out: Path
    """Folder for result.json, report.html and videos/."""
    checkpoint: str = "shipped"
    """A .safetensors file; or shipped (the policy that comes with the project), none (an untrained
    network), expert (the scripted demonstrator, which sees the simulator's state)."""
    task: Annotated[str, TASK] = ALL_TASKS
    env: str = KITCHEN
    """Gymnasium ID of the environment, with the module that registers it if need be, such as
    my_package:MyEnv-v0. See ttm.sim.environment.PolicyEnv for what it must have."""
    episodes: int = 50
    """Initial states for each task."""
    workers: int | None = None
    """Processes that share the episodes, by default one for each core that may be used; each needs about
    1 GB of memory."""
    ray: Annotated[str | None, RAY] = None
    first_seed: int = 0
    """Number of the first initial state. Stay below those of `ttm collect --first-seed`."""
    videos: int = 1
    """Record the first so many episodes of each task."""
    max_ticks: int | None = None
    """End episodes after so many ticks (5 a second); never later than the task's own limit."""
    against: Path | None = None
    """Another evaluation's OUT: adds a paired test on the initial states that both started from."""
    gap: tuple[int, ...] = ()
    """Ticks for which memory tasks hide their cue, one number or several; without it each task draws one."""
    probe: Annotated[tuple[ProbeName, ...], PROBE] = (LIVE,)
    noise: float = NOISE
    """Of the probe noise: the share of each token's norm."""
    donor: Annotated[DonorName, DONOR] = SAME_STATE
    cue: CueName = "hidden"
    """Hide the cue of memory tasks, or leave it on as a control, which a policy without memory solves."""
    execution: Annotated[tuple[str, ...], EXECUTION] = (NEWEST,)
    delay: float = 0.0
    """Seconds from an observation until its command is in force, as on a robot that goes on while its
    policy thinks. Policies of `ttm train --delay` are told it."""

    def run(self) -> int:
        require_at_least(1, options(self, "episodes", "workers", "max_ticks"))
        require_at_least(0, options(self, "videos", "first_seed"))

        return evaluate_and_report(
            self.out,
            checkpoint=self.checkpoint,
            task=self.task,
            env=self.env,
            episodes=self.episodes,
            workers=self.workers,
            ray=self.ray,
            first_seed=self.first_seed,
            videos=self.videos,
            max_ticks=self.max_ticks,
            against=self.against,
            gaps=self.gap,
            probes=self.probe,
            cue=self.cue,
            noise=self.noise,
            donor=self.donor,
            executions=self.execution,
            delay_s=self.delay,
        )
