"""`ttm collect`: scripted demonstrations, one crash-safe HDF5 file an episode, made by several processes.

With `--policy` the policy drives first and the expert takes over after a while; every tick is labelled with what
the expert would have done, so that the policy learns to mend its own mistakes (DAgger, Ross et al. 2011).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from ttm.datasets.episode_writer import EpisodeWriter

TAKEOVER_TICKS = (8, 45)
"""A driving policy is relieved by the expert after some number of ticks in this range."""
FINAL_TICKS = 3
"""Ticks recorded after success, with `terminate` commanded."""
VALID_EVERY = 10
"""Every tenth demonstration is held out for validation."""


@dataclass(frozen=True)
class CollectCommand:
    """Record scripted demonstrations in the simulated kitchen.

    Episodes in which the expert failed under disturbance are not kept; others are made in their place.

    Example: ttm collect --task pick --episodes 200 --out demos/pick
    """

    out: Path
    """Folder that gets one HDF5 file an episode; existing episodes there are kept, and not made again."""
    task: Literal["pick", "open_drawer", "all"] = "all"
    """What to demonstrate; `all` makes `--episodes` of each."""
    episodes: int = 100
    """Number of demonstrations of each task."""
    workers: int = os.cpu_count() or 1
    """Processes that share the work; the files are the same for any number."""
    first_seed: int = 1_000_000
    """Initial state of the first episode; evaluation uses 0, 1, 2, …, so stay above those."""
    disturbance: float = 1.0
    """How strongly the execution is disturbed, so that recovery is shown; 0 for clean demonstrations."""
    policy: Path | None = None
    """Checkpoint (or `shipped`) that drives at first while the expert labels (DAgger); keeps failures too."""

    def run(self) -> int:
        from rich.progress import track

        from ttm.policy.errors import UserError
        from ttm.sim.rendering import require_rendering

        if self.episodes < 1 or self.workers < 1:
            raise UserError("--episodes and --workers must be at least 1")
        require_rendering()
        from ttm.policy.network.language import embed_instruction
        from ttm.sim.tasks import TASKS

        names = list(TASKS) if self.task == "all" else [self.task]
        embeddings = {
            text: embed_instruction(text) for name in names for text in TASKS[name].instructions
        }
        self.out.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("spawn")  # neither torch nor EGL survives a fork
        pool = ProcessPoolExecutor(
            self.workers, context, _start_worker, (self._policy(), embeddings)
        )
        try:
            for name in names:
                results = self._record(name, pool)
                kept = sum(track(results, total=self.episodes, description=name))
                print(f"{name}: {kept} episodes in {self.out}")
        except BrokenProcessPool as error:
            raise UserError(
                f"a worker process died, perhaps for lack of memory; try fewer than --workers {self.workers}: "
                "what was recorded is kept, and the same command goes on"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return 0

    def _policy(self) -> Path | None:
        """The checkpoint's file. One that does not fit is found out here, before any process starts."""
        if self.policy is None:
            return None
        from ttm.sim.evaluation.actors import load_policy
        from ttm.sim.shipped import checkpoint_path

        path = checkpoint_path(self.policy)
        load_policy(str(path))
        return path

    def _record(self, task: str, pool: ProcessPoolExecutor) -> Iterator[int]:
        """Yields 1 for each kept episode; failed seeds are replaced by the next ones until there are enough."""
        missing, seed = self.episodes, self.first_seed
        while missing > 0:
            batch = [(task, seed + i, self.out, self.disturbance) for i in range(missing)]
            seed += missing
            for kept in pool.map(_record_episode, batch):
                missing -= kept
                if kept:
                    yield 1


_recorder: Recorder | None = None
"""Each worker process's own: building the environment takes longer than an episode."""


def _start_worker(policy: Path | None, embeddings: dict[str, np.ndarray]) -> None:
    global _recorder
    import torch

    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes: the parent alone answers it
    torch.set_num_threads(1)
    _recorder = Recorder(policy, embeddings)


def _record_episode(job: tuple[str, int, Path, float]) -> bool:
    assert _recorder is not None
    return _recorder.record(*job)


class Recorder:
    """Records single episodes with one environment and, if given, one driving policy."""

    def __init__(self, policy: Path | None, embeddings: dict[str, np.ndarray]):
        from ttm.sim.evaluation.actors import make_runner
        from ttm.sim.kitchen.env import KitchenEnv

        self._env = KitchenEnv()
        self._runner = make_runner(str(policy)) if policy else None
        self._embeddings = embeddings

    def record(self, task: str, seed: int, folder: Path, disturbance: float) -> bool:
        """Whether the episode with that seed is worth keeping, and kept."""
        from ttm.datasets.episode_writer import EpisodeWriter
        from ttm.policy.network.language import LANGUAGE_MODEL
        from ttm.sim.kitchen.env import SPEC

        kind = "rollout" if self._runner else "demo"
        path = folder / f"{task}_{kind}_{seed}.hdf5"
        if path.exists():
            return True
        observation, info = self._env.reset(seed=seed, options={"task": task})
        embedding = self._embeddings[info["instruction"]]
        with EpisodeWriter(path, SPEC) as writer:
            success = self._drive(
                writer, observation, embedding, np.random.default_rng((seed, 1)), disturbance
            )
            if not success and self._runner is None:
                return False
            writer.finish(
                instruction=info["instruction"],
                task=task,
                success=success,
                seed=seed,
                embedding=embedding,
                language_model=LANGUAGE_MODEL,
                split="valid" if seed % VALID_EVERY == 0 else "train",
            )
        return True

    def _drive(
        self,
        writer: EpisodeWriter,
        observation: dict[str, np.ndarray],
        embedding: np.ndarray,
        rng: np.random.Generator,
        level: float,
    ) -> bool:
        """Run one episode into `writer`: record the expert's action, execute the driver's. Returns success."""
        from ttm.sim.collection.disturbance import Disturbance
        from ttm.sim.experts import Expert

        env, expert, disturb = self._env, Expert(self._env), Disturbance(rng, level)
        takeover_tick = int(rng.integers(*TAKEOVER_TICKS)) if self._runner else 0
        if self._runner:
            self._runner.reset(env.instruction, embedding=embedding)
        ticks_left = FINAL_TICKS
        while ticks_left > 0:
            label = expert.action()
            command = self._runner.step(observation).values if self._runner else label
            if env.tick >= takeover_tick:
                command = label
            time_s, success = env.time_s, env.success
            writer.append(
                observation,
                label,
                timestamp_s=time_s,
                reward=float(success),
                done=success,
                executed_action=command,
            )
            executed = disturb(command) if command is label else command
            observation, _, _, truncated, _ = env.step(executed)
            if truncated:
                break
            ticks_left -= env.success
        return env.success
