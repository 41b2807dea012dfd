"""Shares episodes among processes. An episode's outcome depends on its own job and nothing else.

To that end every process runs torch on one thread (sums over several round differently), the language model runs
once, in the parent, and outcomes come back in the order of the jobs.
"""

from __future__ import annotations

import atexit
import multiprocessing
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ttm.policy.errors import UserError
from ttm.sim.evaluation.actors import EXPERT, load_policy, make_actor
from ttm.sim.evaluation.rollout import Outcome, run_episode
from ttm.sim.evaluation.video import EpisodeVideo
from ttm.sim.kitchen.env import KitchenEnv
from ttm.sim.tasks import TASKS


@dataclass(frozen=True)
class Job:
    """One episode to run; `video` is where to film it, or None."""

    task: str
    seed: int
    max_ticks: int | None
    video: Path | None


def run_jobs(source: str, jobs: Sequence[Job], workers: int, label: str) -> list[Outcome]:
    """The outcome of every job, in the order of `jobs`. source: see `ttm.sim.evaluation.actors.make_actor`."""
    with one_thread():
        embeddings = _embed_instructions(source, {job.task for job in jobs})
        if workers == 1 or len(jobs) == 1:
            return _run_here(source, jobs, embeddings, label)
    return _run_in_processes(source, jobs, min(workers, len(jobs)), embeddings, label)


def _run_here(
    source: str, jobs: Sequence[Job], embeddings: Mapping[str, np.ndarray], label: str
) -> list[Outcome]:
    crew = _Worker(source, embeddings)
    outcomes = []
    try:
        with _Bar(label, len(jobs)) as bar:
            for job in jobs:
                outcomes.append(crew.run(job))
                bar.count(outcomes[-1])
    finally:
        crew.close()
    return outcomes


def _run_in_processes(
    source: str, jobs: Sequence[Job], workers: int, embeddings: Mapping[str, np.ndarray], label: str
) -> list[Outcome]:
    context = multiprocessing.get_context("spawn")  # neither torch nor EGL survives a fork
    with _Bar(label, len(jobs)) as bar:
        pool = ProcessPoolExecutor(workers, context, _start_worker, (source, embeddings))
        try:
            futures = [pool.submit(_run_job, job) for job in jobs]
            for future in as_completed(futures):
                bar.count(future.result())
            return [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise UserError(
                f"a worker process died, perhaps for lack of memory (each of {workers} needs about 1 GB); "
                f"try fewer: --workers {max(1, workers // 2)}"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class _Worker:
    """One environment and one actor, used for episode after episode: building them takes longer than an episode."""

    def __init__(self, source: str, embeddings: Mapping[str, np.ndarray]):
        self._env = KitchenEnv()
        self._actor = make_actor(source, self._env, embeddings)

    def run(self, job: Job) -> Outcome:
        env, spec = self._env, self._env.policy_spec
        with ExitStack() as stack:
            on_tick = None
            if job.video:
                video = stack.enter_context(EpisodeVideo(job.video, spec.rate_hz))
                names = [camera.name for camera in spec.cameras]

                def on_tick(observation, info):
                    video.add(env.render(), {name: observation[name] for name in names}, info)

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
        self._env.close()


_worker: _Worker | None = None
"""Each worker process's own."""


def _start_worker(source: str, embeddings: Mapping[str, np.ndarray]) -> None:
    global _worker
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes: the parent alone answers it
    torch.set_num_threads(1)
    _worker = _Worker(source, embeddings)


def _run_job(job: Job) -> Outcome:
    assert _worker is not None
    try:
        return _worker.run(job)
    finally:
        # Last in, first out: the renderer must go before EGL itself, which registers when it first renders.
        atexit.unregister(_worker.close)
        atexit.register(_worker.close)


class _Bar:
    """A progress bar on stderr that shows each task's running success count; silent without a terminal."""

    def __init__(self, label: str, total: int):
        console = Console(stderr=True)
        columns = (
            TextColumn(label), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"),
            TimeRemainingColumn(),
        )  # fmt: skip
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._bar = self._progress.add_task("", total=total)
        self._done: dict[str, list[bool]] = {}

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def count(self, outcome: Outcome) -> None:
        self._done.setdefault(outcome.task, []).append(outcome.success)
        rates = [f"{task} {sum(done)}/{len(done)}" for task, done in self._done.items()]
        self._progress.update(self._bar, advance=1, description="  ".join(rates))


def _embed_instructions(source: str, tasks: set[str]) -> dict[str, np.ndarray]:
    """What the policy does not carry in its checkpoint. A bad checkpoint is found here, before any process starts."""
    if source == EXPERT:
        return {}
    from ttm.policy.network.language import embed_instruction

    policy = load_policy(source)
    known = policy.known_instructions
    texts = [
        text for task in sorted(tasks) for text in TASKS[task].instructions if text not in known
    ]
    return {text: embed_instruction(text, policy.config.language_model) for text in texts}


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread within, and as it was afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
