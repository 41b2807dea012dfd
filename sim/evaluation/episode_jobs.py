"""Episodes as jobs for worker processes: numbered initial state in, outcome out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from ttm.datasets.progress import progress_bar
from ttm.policy.errors import UserError
from ttm.policy.network.language import embed_instruction, not_trained_on
from ttm.policy.run.attention_recorder import has_token_memory
from ttm.policy.run.execution.choice import NEWEST, make_execution
from ttm.policy.run.threads import cpu_threads
from ttm.sim.environment import Env, EnvFacts, make_env, spec_of
from ttm.sim.evaluation.actors import EXPERT, UNTRAINED, PolicyActor, load_policy, make_actor
from ttm.sim.evaluation.condition import LIVE, Condition
from ttm.sim.evaluation.delay import delayed
from ttm.sim.evaluation.memory_picture import EpisodeMemory
from ttm.sim.evaluation.pages.media import memory_path, video_path
from ttm.sim.evaluation.probes.probe import PROBES, Probe
from ttm.sim.evaluation.probes.trial import RememberingActor, Trial
from ttm.sim.evaluation.rollout import Actor, OnTick, Outcome, run_episode
from ttm.sim.evaluation.video import EpisodeVideo
from ttm.sim.workers.pool import WorkerPool


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

    source: see `ttm.sim.evaluation.actors.make_actor`; workers, ray: see `WorkerPool`.
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
