"""`ttm evaluate`: success rates over numbered initial states, with intervals, videos and a page."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from tyro.conf import arg

from ttm.datasets.console import log_lines, progress_bar
from ttm.policy.actor import Actor, load_runner
from ttm.policy.config import ACTOR_HELP
from ttm.policy.engines import cpu_threads
from ttm.policy.errors import UserError, options, require_at_least
from ttm.policy.execution import EXECUTION_HELP, NEWEST, make_execution
from ttm.policy.files import write_atomically
from ttm.policy.language import embed_instruction, not_trained_on
from ttm.policy.memory_attention import has_token_memory
from ttm.policy.runner import PolicyRunner
from ttm.policy.spec import SHIPPED
from ttm.sim.actors import (
    EXPERT,
    UNTRAINED,
    PolicyActor,
    load_policy,
    make_actor,
    resolve_checkpoint,
)
from ttm.sim.compare import Entry, print_comparison, write_report
from ttm.sim.condition import (
    KITCHEN,
    LIVE,
    NOISE,
    PROBE_DESCRIPTIONS,
    SAME_STATE,
    Condition,
    CueName,
    DonorName,
    ProbeName,
    conditions_of,
)
from ttm.sim.environment import (
    ALL_TASKS,
    WORDS,
    EnvFacts,
    inspect_env,
    make_env,
    require_memory_tasks,
    require_same_environment,
    spec_of,
)
from ttm.sim.memory_picture import EpisodeMemory
from ttm.sim.pages import memory_path, video_path
from ttm.sim.probes import PROBES, RememberingActor, Trial
from ttm.sim.results import RESULT_FILE, VIDEOS, Evaluation, TaskResult, load_evaluation
from ttm.sim.rollout import OnTick, Outcome, delayed, run_episode
from ttm.sim.video import EpisodeVideo
from ttm.sim.workers import RAY, TASK, VARY, WorkerPool

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
ACTOR = arg(help=ACTOR_HELP)


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
    curves over the gap. So it does with --vary each=LEVEL, which evaluates first without variation, and
    then with each dimension alone.

    For example:
      ttm evaluate --task pick --episodes 100 --out runs/shipped
      ttm evaluate --checkpoint runs/mine/best.safetensors --out runs/mine/eval --against runs/shipped
      ttm evaluate --task memory --gap 5 15 45 --probe live erase swap --out runs/probes
      ttm evaluate --task pick --vary each=1 --out runs/robustness
      ttm evaluate --env my_package:MyEnv-v0 --checkpoint expert --out runs/expert
    """

    out: Path
    """Folder for result.json, report.html and videos/."""
    checkpoint: str = SHIPPED
    """A .safetensors file; or shipped (the policy that comes with the project, for the kitchen), none (an
    untrained network), expert (the scripted demonstrator, which sees the simulator's state)."""
    actor: Annotated[str | None, ACTOR] = None
    task: Annotated[tuple[str, ...], TASK] = (ALL_TASKS,)
    env: str = KITCHEN
    """Gymnasium ID of the environment, with the module that registers it if need be, such as
    my_package:MyEnv-v0. See ttm.sim.environment.PolicyEnv for what it must have."""
    episodes: int = 50
    """Initial states for each task; 0 lists instructions and paraphrases instead, in instructions.txt."""
    workers: int | None = None
    """Processes that share the episodes, by default one for each core that may be used; each needs about
    1 GB of memory."""
    ray: Annotated[str | None, RAY] = None
    first_seed: int = 0
    """Number of the first initial state. Stay below those of `ttm collect --first-seed`."""
    videos: int = 1
    """Record the first so many episodes of each task, and if all end alike, one that ends otherwise."""
    max_ticks: int | None = None
    """End episodes after so many ticks; never later than the task's own limit."""
    against: Path | None = None
    """Another evaluation's OUT: adds a paired test on the initial states that both started from."""
    gap: tuple[int, ...] = ()
    """Ticks for which memory tasks hide their cue, one number or several; without it each task draws one."""
    probe: Annotated[tuple[ProbeName, ...], PROBE] = (LIVE,)
    noise: float = NOISE
    """Of the probe noise: the share of each token's norm."""
    donor: Annotated[DonorName, DONOR] = SAME_STATE
    cue: CueName = "hidden"
    """Hide the cue of memory tasks, leave it on as a control, which a policy without memory solves, or hide
    one whose colour or shape no demonstration shows (held_out)."""
    execution: Annotated[tuple[str, ...], EXECUTION] = (NEWEST,)
    delay: float = 0.0
    """Seconds from an observation until its command is in force, as on a robot that goes on while its
    policy thinks. Policies of `ttm train --delay` are told it."""
    vary: Annotated[tuple[str, ...], VARY] = ()

    def run(self) -> int:
        """Evaluate, write result.json, report.html and the videos, and print the rates."""
        require_at_least(1, options(self, "workers", "max_ticks"))
        require_at_least(0, options(self, "episodes", "videos", "first_seed"))
        if not self.episodes:
            return self._list_instructions(inspect_env(self.env))
        varied = inspect_env(self.env).variants(self.vary) if self.vary else ("",)
        memory = self.gap, self.probe, self.cue, self.noise
        conditions = conditions_of(*memory, self.execution, self.delay, self.donor, varied)
        several = len(conditions) > 1
        entries = []
        if self.against:
            other = load_evaluation(self.against)
            require_same_environment(other.environment, self.env)
            entries = [Entry(str(self.against), other)]
        folders = {each: self.out / each.folder if several else self.out for each in conditions}
        for condition, folder in folders.items():
            _refuse_other(self, condition, folder)
        videos = {each: folder / VIDEOS for each, folder in folders.items()}
        for evaluation in _evaluate(self, self.task, videos):
            condition = evaluation.condition
            evaluation.save(folders[condition])
            name = condition.series if several else "this policy"
            entries.append(Entry(name, evaluation, videos[condition]))
        if len(entries) > 1:
            print_comparison(entries)
        else:
            print("\n".join(map(str, entries[0].evaluation.tasks.values())))
        page = write_report(self.out / "report.html", f"Evaluation in {self.env}", entries)
        print(f"report: {page}")
        return 0

    def _list_instructions(self, facts: EnvFacts) -> int:
        """Write the tasks' instructions, one a line with its paraphrases, and print how many there are."""
        texts = {name: facts.tasks[name] for name in facts.choose(self.task)}
        all_texts = list(dict.fromkeys(text for each in texts.values() for text in each))
        lines = ["\t".join([text, *facts.paraphrases.get(text, ())]) for text in all_texts]
        self.out.mkdir(parents=True, exist_ok=True)
        write_atomically(self.out / "instructions.txt", "\n".join(lines) + "\n")
        for name, each in texts.items():
            print(f"{name}: {len(each)} instructions, such as '{each[-1]}'")
        print(f"{len(all_texts)} in {self.out / 'instructions.txt'}")
        return 0


def evaluate(
    checkpoint: str = SHIPPED,
    tasks: str | Sequence[str] = ALL_TASKS,
    *,
    condition: Condition = Condition(),  # noqa: B008 (frozen)
    video_folder: Path | None = None,
    **settings: Any,
) -> Evaluation:
    """Run numbered initial states of each task, by default in this process.

    checkpoint: a file's path, "shipped", "none" (an untrained network) or "expert". tasks: the name of a
    task or group of the environment, several names, or "all". settings: `label`, the name of the progress
    bar, and `actor`, `episodes`, `env`, `workers`, `ray`, `first_seed`, `videos` and `max_ticks` as in
    `EvaluateCommand`. `actor` may also be a `ttm.policy.Actor` itself, of which each worker has a copy.

    Raises `UserError` if there is no such task, checkpoint or environment, or if the condition does not
    fit them.
    """
    return evaluate_conditions(checkpoint, tasks, {condition: video_folder}, **settings)[0]


def evaluate_conditions(
    checkpoint: str,
    tasks: str | Sequence[str],
    conditions: Mapping[Condition, Path | None],
    *,
    label: str = "evaluating",
    workers: int | None = 1,
    **settings: Any,
) -> list[Evaluation]:
    """Run the same numbered initial states under each condition, and return one evaluation for each.

    conditions: condition -> folder for its videos, or None. With several of them, the memory of the
    first filmed episode of each task is drawn, where no probe acts on it. For the others see `evaluate`.
    """
    command = EvaluateCommand(Path(), checkpoint, workers=workers, **settings)
    return _evaluate(command, tasks, conditions, label)


def _evaluate(
    command: EvaluateCommand,
    tasks: str | Sequence[str],
    conditions: Mapping[Condition, Path | None],
    label: str = "evaluating",
) -> list[Evaluation]:
    planned = {condition: _planned(command, condition) for condition in conditions}
    facts = inspect_env(command.env)
    names = facts.choose(tasks)
    needs = filter(None, (condition.needs_memory_task for condition in conditions))
    require_memory_tasks(command.env, names, next(needs, None))
    first = command.first_seed
    films = range(first, first + command.videos)
    jobs = [
        EpisodeJob(
            task,
            seed,
            command.max_ticks,
            condition,
            folder,
            video=seed in films,
            picture=condition.probe == LIVE and len(conditions) > 1 and seed in films[:1],
        )
        for condition, folder in conditions.items()
        for task in names
        for seed in range(first, first + command.episodes)
    ]
    for job in jobs:
        if job.folder:  # what an earlier evaluation left
            video_path(job.folder, job.task, job.seed).unlink(missing_ok=True)
            memory_path(job.folder, job.task, job.seed).unlink(missing_ok=True)
    ended = iter(_run_episodes(command, facts, jobs, label))
    evaluations = []
    for condition in conditions:
        each = {task: TaskResult(task, tuple(islice(ended, command.episodes))) for task in names}
        evaluations.append(replace(planned[condition], tasks=each))
    return evaluations


def _planned(command: EvaluateCommand, condition: Condition) -> Evaluation:
    """Return the evaluation without outcomes. Raises `UserError` if there is no such checkpoint, or two."""
    name, digest, actor = command.checkpoint, None, command.actor
    if actor is None:
        path = Path(resolve_checkpoint(name))
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    elif name != SHIPPED:
        raise UserError(f"--checkpoint {name} and --actor are two policies; leave one out")
    else:
        name = actor if isinstance(actor, str) else type(actor).__qualname__
    first, most = command.first_seed, command.max_ticks
    return Evaluation(name, digest, first, most, {}, command.env, condition)


def _refuse_other(command: EvaluateCommand, condition: Condition, folder: Path) -> None:
    """Raise `UserError` if `folder` holds a result that would not be made again."""
    if not (folder / RESULT_FILE).exists():
        return
    try:
        found = load_evaluation(folder)
    except UserError:
        raise UserError(f"{folder} is of something else; give another --out") from None
    planned, names = _planned(command, condition), inspect_env(command.env).choose(command.task)
    held = {name: result.episodes for name, result in found.tasks.items()}
    if not (
        replace(found, tasks={}, checkpoint=planned.checkpoint) == planned
        and (planned.sha256 is not None or found.checkpoint == planned.checkpoint)
        and held.keys() <= set(names)
        and max(held.values(), default=0) <= command.episodes
    ):
        other = f"another evaluation, of {found.checkpoint} on {', '.join(held)}"
        raise UserError(f"{folder} holds {other}; give another --out, or delete it")


@dataclass(frozen=True)
class EpisodeJob:
    """One episode to run."""

    task: str
    seed: int
    max_ticks: int | None
    condition: Condition
    folder: Path | None
    """Where its video and its picture go."""
    video: bool
    """Whether to film it, if the environment renders."""
    picture: bool
    """Whether to draw what the memory did, if it is a token memory."""


class EpisodeWorker:
    """One environment and one actor, which run episode after episode."""

    def __init__(
        self,
        environment: str,
        source: str | Path,
        embeddings: Mapping[str, np.ndarray],
        actor: str | Actor | None = None,
    ):
        """actor: what drives in place of `source`; see `load_runner`."""
        self._env = make_env(environment)
        if actor is None:
            self._actor = make_actor(str(source), self._env, embeddings)
        else:
            self._actor = PolicyActor(load_runner(actor, spec_of(self._env)), {})

    def run(self, job: EpisodeJob) -> Outcome:
        """Run one episode and return how it ended."""
        env, actor, condition, spec = self._env, self._actor, job.condition, spec_of(self._env)
        policy = None
        if isinstance(actor, PolicyActor):
            policy, actor.delay_s = actor.policy, condition.delay_s
            if isinstance(actor.runner, PolicyRunner):
                actor.runner.execute_by(condition.execution)
        late = delayed(actor, env, condition.delay_s)
        remembering = cast(RememberingActor, actor)  # the expert is not probed
        trial = Trial(env, remembering, job.task, job.seed, condition, job.max_ticks, late)
        probe, memory, ticks = PROBES[condition.probe](trial), None, count()
        place = (job.folder or Path(), job.task, job.seed)
        watchers: list[OnTick] = [
            lambda _, info: probe.before_tick(next(ticks), bool(info.get("go")))
        ]

        def show(observation: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
            for watch in watchers:
                watch(observation, info)

        with ExitStack() as stack:
            if job.folder and job.video and "rgb_array" in env.metadata.get("render_modes", ()):
                video = stack.enter_context(EpisodeVideo(video_path(*place), spec.rate_hz))
                names = [camera.name for camera in spec.cameras]

                def film(seen: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
                    video.add(np.asarray(env.render()), {name: seen[name] for name in names})

                watchers.append(film)
            if job.folder and job.picture and policy and has_token_memory(policy):
                memory = EpisodeMemory(cast(PolicyActor, actor))
                watchers.append(memory.on_tick)
            outcome = run_episode(
                env,
                late,
                spec=spec,
                task=job.task,
                seed=job.seed,
                max_ticks=job.max_ticks,
                on_tick=show,
                gap=condition.gap,
                cue=condition.cue,
                vary=condition.levels,
            )
        if memory:
            memory.draw(memory_path(*place), outcome, condition.cue)
        choice, donor = outcome.choice, probe.donor
        if choice and donor:
            choice = replace(choice, donor_choice=donor.choice, donor_seed=donor.seed)
        return replace(outcome, choice=choice)

    def close(self) -> None:
        self._env.close()


def _run_episodes(
    command: EvaluateCommand, facts: EnvFacts, jobs: Sequence[EpisodeJob], label: str
) -> list[Outcome]:
    """Run all jobs under a progress bar and return their outcomes, in the order of `jobs`."""
    checkpoint: str | Path = resolve_checkpoint(command.checkpoint)
    embeddings = {}
    if command.actor is None:
        embeddings = _embed_instructions(facts, str(checkpoint), jobs)
    else:
        _require_conditions(command.actor, facts, jobs)
    checkpoint = checkpoint if checkpoint in (EXPERT, UNTRAINED) else Path(checkpoint)
    arguments = (facts.name, checkpoint, embeddings, command.actor)
    pool = WorkerPool(
        EpisodeWorker, arguments, workers=command.workers, ray=command.ray, most=len(jobs)
    )
    progress = progress_bar(
        TextColumn(label), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    bar = progress.add_task("", total=len(jobs))
    outcomes: dict[int, Outcome] = {}
    successes: dict[str, list[bool]] = {}
    say = log_lines(len(jobs)) if progress.disable else None
    several = len({job.condition for job in jobs}) > 1
    with progress, pool:
        for index, outcome in pool.run(jobs):
            outcomes[index] = outcome
            job = jobs[index]
            group = f"{job.task}, {job.condition.folder}" if several else job.task
            each = successes.setdefault(group, [])
            each.append(outcome.success)
            rate = f"{group}: {sum(each)}/{len(each)}"
            progress.update(bar, advance=1, description=rate)
            if say:
                say(f"{label} {rate}")
        list(pool.run(_contrasts(jobs, outcomes)))
    return [outcomes[index] for index in range(len(jobs))]


def _contrasts(jobs: Sequence[EpisodeJob], outcomes: Mapping[int, Outcome]) -> list[EpisodeJob]:
    """Return what to film again, so that films show both outcomes, best of the same initial state."""
    found = list[EpisodeJob]()
    for task in dict.fromkeys(job.task for job in jobs if job.video and job.folder):
        ended = [(job, outcomes[n].success) for n, job in enumerate(jobs) if job.task == task]
        filmed = {success for job, success in ended if job.video}
        missing = [job for job, success in ended if success not in filmed]
        pairs = [
            (other, job)
            for job in missing
            for other, success in ended
            if other.seed == job.seed and other.condition.gap == job.condition.gap
            if success in filmed
        ]
        found += pairs[0] if pairs else missing[:1]
    return [replace(job, video=True, picture=False) for job in found if not job.video]


def _require_conditions(actor: str | Actor, facts: EnvFacts, jobs: Sequence[EpisodeJob]) -> None:
    """Raise `UserError` if there is no such actor, or if probes or executions need more than it offers."""
    remembers = load_runner(actor, facts.spec).remembers
    for condition in (job.condition for job in jobs):
        if condition.execution != NEWEST:
            raise UserError(
                f"--execution {condition.execution} is for a checkpoint, not for --actor"
            )
        if condition.probe != LIVE and not remembers:
            lacks = "the actor's memory cannot be read; give it snapshot() and restore()"
            raise UserError(f"--probe {condition.probe}: {lacks}")


def _embed_instructions(
    facts: EnvFacts, source: str, jobs: Sequence[EpisodeJob]
) -> dict[str, np.ndarray]:
    """Return embeddings of the instructions that the policy does not carry in its checkpoint.

    They are computed once for all processes. Raises `UserError` if the checkpoint, the probes or the
    executions do not fit, or if there is no expert, before any process starts.
    """
    if source == EXPERT:
        for condition in (job.condition for job in jobs):
            if condition.probe != LIVE or condition.execution != NEWEST:
                given = f"--probe {condition.probe} --execution {condition.execution}"
                raise UserError(f"{given} is for a policy, not for the expert; name a checkpoint")
        facts.require_expert()
        return {}
    with cpu_threads(1):
        policy = load_policy(source, facts.spec)
        for execution in {job.condition.execution for job in jobs}:
            make_execution(execution, policy.config.chunk, policy.spec.action_size)
        known = policy.known_instructions
        texts = [text for task in sorted({job.task for job in jobs}) for text in facts.tasks[task]]
        if any(WORDS in job.condition.levels for job in jobs):
            texts += [other for text in texts for other in facts.paraphrases.get(text, ())]
        unknown = dict.fromkeys(text for text in texts if text not in known)
        if unknown and known:
            warning = not_trained_on(next(iter(unknown)), known)
            print(f"note: {warning}; of these tasks it does not know {len(unknown)}")
        return {text: embed_instruction(text, policy.config.language_model) for text in unknown}
