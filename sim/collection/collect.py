"""Recording scripted demonstrations, one crash-safe HDF5 file per episode, by several workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

from ttm.datasets.progress import track
from ttm.policy.errors import UserError
from ttm.policy.files import partial_path
from ttm.policy.network.language import embed_instruction
from ttm.sim.collection.recorder import Recorder, RecordingJob
from ttm.sim.environment import (
    ALL_TASKS,
    FIRST_DEMONSTRATION_SEED,
    KITCHEN,
    CueName,
    inspect_env,
    require_memory_tasks,
)
from ttm.sim.evaluation.actors import load_policy
from ttm.sim.shipped import checkpoint_path
from ttm.sim.workers.pool import WorkerPool

MOST_FAILURES = 100
"""After so many failed episodes of a task in a row, no more are tried. An expert that solves one in
ten initial states gets there in one of 38,000 cases."""


def collect(
    out: Path,
    *,
    task: str = ALL_TASKS,
    env: str = KITCHEN,
    episodes: int,
    workers: int | None = 1,
    ray: str | None = None,
    first_seed: int = FIRST_DEMONSTRATION_SEED,
    disturbance: float = 1.0,
    policy: Path | None = None,
    gap: int | None = None,
    cue: CueName = "hidden",
) -> int:
    """Record demonstrations into the folder `out`, and print how many there are.

    Parameters
    ----------
    out : Path
        Folder of the episodes. Those that it holds already are kept and count.
    task : str
        The name of a task of the environment, or "all".
    env : str
        The environment's Gymnasium ID. It must have an expert.
    episodes : int
        Number of demonstrations of each task.
    workers : int, optional
        Number of processes that share the work, None for one for each core that may be used. It does
        not change the files.
    ray : str, optional
        Address of a Ray cluster that does the work, which does not change the files either.
    first_seed : int
        Initial state of the first episode of each task.
    disturbance : float
        How strongly the execution is disturbed. 0 for clean demonstrations.
    policy : Path, optional
        Checkpoint, or "shipped", that drives at first while the expert labels.
    gap : int, optional
        The ticks for which memory tasks hide their cue. None for those that each episode draws.
    cue : {"hidden", "left_on"}
        Whether memory tasks hide their cue at all.

    Returns
    -------
    int
        The exit code, 0.

    Raises
    ------
    UserError
        If the environment or what it lacks does not fit the options, or if the expert fails in
        `MOST_FAILURES` episodes of a task in a row.
    """
    facts = inspect_env(env)
    names = facts.choose(task)
    facts.require_expert()
    if gap is not None:
        require_memory_tasks(env, names, f"--gap {gap}")
    if cue != "hidden":
        require_memory_tasks(env, names, f"--cue {cue}")
    embeddings = {text: embed_instruction(text) for name in names for text in facts.tasks[name]}
    checkpoint = None
    if policy is not None:
        checkpoint = checkpoint_path(policy)
        load_policy(str(checkpoint), facts.spec)  # finds out here that it does not fit
    out.mkdir(parents=True, exist_ok=True)
    pool = WorkerPool(
        Recorder,
        (env, disturbance, checkpoint, embeddings, gap, cue),
        workers=workers,
        ray=ray,
        advice="; what was recorded is kept, and the same command goes on",
    )
    begun: list[Path] = []
    try:
        with pool:
            for name in names:
                first = RecordingJob(name, first_seed, out, driven=checkpoint is not None)
                kept = _record(first, episodes, pool, begun)
                count = sum(track(kept, name, total=episodes))
                print(f"{name}: {count} episodes in {out}")
    finally:
        for path in begun:  # a worker that was ended leaves a part
            partial_path(path).unlink(missing_ok=True)
    return 0


def _record(
    first: RecordingJob, episodes: int, pool: WorkerPool[RecordingJob, bool], begun: list[Path]
) -> Iterator[int]:
    """Yield 1 for each kept episode. Failed seeds are replaced by the next ones until all are kept.

    Episodes whose file exists are kept as they are. first: the one with the lowest seed.
    begun: receives the files that are being recorded.
    """
    missing, seed, failures = episodes, first.seed, 0
    while missing > 0:
        jobs = [replace(first, seed=seed + i) for i in range(missing)]
        seed += missing
        new = [job for job in jobs if not job.path.exists()]
        begun[:] = [job.path for job in new]
        there = repeat(True, len(jobs) - len(new))
        for kept in chain(there, (recorded for _, recorded in pool.run(new))):
            failures = 0 if kept else failures + 1
            _require_hope(first.task, failures, episodes, missing)
            missing -= kept
            if kept:
                yield 1


def _require_hope(task: str, failures: int, episodes: int, missing: int) -> None:
    """Raise `UserError` if the expert failed so often in a row that it may never succeed."""
    if failures >= MOST_FAILURES:
        raise UserError(
            f"the expert failed in {failures} episodes of task '{task}' in a row, and "
            f"{episodes - missing} of {episodes} are recorded; see whether it solves the task with "
            "ttm evaluate --checkpoint expert, or disturb it less with --disturbance"
        )
