"""Episodes as jobs for worker processes: numbered initial state in, outcome out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from ttm.datasets.progress import progress_bar
from ttm.policy.network.language import embed_instruction
from ttm.policy.run.threads import cpu_threads
from ttm.sim.environment import Env, EnvFacts, make_env, spec_of
from ttm.sim.evaluation.actors import EXPERT, load_policy, make_actor
from ttm.sim.evaluation.rollout import Outcome, run_episode
from ttm.sim.evaluation.video import EpisodeVideo
from ttm.sim.processes import WorkerPool


@dataclass(frozen=True)
class EpisodeJob:
    """One episode to run. `video` is the file to film it to, or None."""

    task: str
    seed: int
    max_ticks: int | None
    video: Path | None


class EpisodeWorker:
    """One environment and one actor, which run episode after episode."""

    def __init__(self, environment: str, source: str, embeddings: Mapping[str, np.ndarray]):
        self._env = make_env(environment)
        self._actor = make_actor(source, self._env, embeddings)

    def run(self, job: EpisodeJob) -> Outcome:
        """Run one episode and return how it ended."""
        env, spec = self._env, spec_of(self._env)
        with ExitStack() as stack:
            on_tick = None
            if job.video and _renders(env):
                video = stack.enter_context(EpisodeVideo(job.video, spec.rate_hz))
                names = [camera.name for camera in spec.cameras]

                def on_tick(observation: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
                    frames = {name: observation[name] for name in names}
                    video.add(np.asarray(env.render()), frames, info)

            return run_episode(
                env,
                self._actor,
                spec=spec,
                task=job.task,
                seed=job.seed,
                max_ticks=job.max_ticks,
                on_tick=on_tick,
            )

    def close(self) -> None:
        """Free the environment."""
        self._env.close()


def _renders(env: Env) -> bool:
    return "rgb_array" in env.metadata.get("render_modes", ())


def run_episodes(
    facts: EnvFacts, source: str, jobs: Sequence[EpisodeJob], workers: int, label: str
) -> list[Outcome]:
    """Run all jobs under a progress bar and return their outcomes, in the order of `jobs`.

    source: see `ttm.sim.evaluation.actors.make_actor`.
    """
    outcomes: dict[int, Outcome] = {}
    arguments = (facts.name, source, _embed_instructions(facts, source, {job.task for job in jobs}))
    pool = WorkerPool(EpisodeWorker, arguments, workers=max(1, min(workers, len(jobs))))
    with _SuccessBar(label, len(jobs)) as bar, pool:
        for index, outcome in pool.run(jobs):
            outcomes[index] = outcome
            bar.count(outcome)
    return [outcomes[index] for index in range(len(jobs))]


def _embed_instructions(facts: EnvFacts, source: str, tasks: set[str]) -> dict[str, np.ndarray]:
    """Return embeddings of the instructions that the policy does not carry in its checkpoint.

    They are computed here, once for all processes. That the checkpoint does not fit, or that there
    is no expert, is found out here as well, before any process starts.
    """
    if source == EXPERT:
        facts.require_expert()
        return {}
    with cpu_threads(1):
        policy = load_policy(source, facts.spec)
        return {
            text: embed_instruction(text, policy.config.language_model)
            for task in sorted(tasks)
            for text in facts.tasks[task]
            if text not in policy.known_instructions
        }


class _SuccessBar:
    """A progress bar that shows how many episodes of each task succeeded so far."""

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

    def count(self, outcome: Outcome) -> None:
        """Advance by one episode."""
        self._successes.setdefault(outcome.task, []).append(outcome.success)
        counts = [f"{task} {sum(each)}/{len(each)}" for task, each in self._successes.items()]
        self._progress.update(self._bar, advance=1, description="  ".join(counts))
