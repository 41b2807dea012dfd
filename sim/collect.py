"""`ttm collect`: scripted demonstrations, one crash-safe HDF5 file per episode, by several workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ttm.datasets.console import track
from ttm.datasets.dataset import SPLIT_EVERY
from ttm.datasets.writer import EpisodeWriter
from ttm.policy.errors import UserError, options, require_at_least
from ttm.policy.files import partial_path
from ttm.policy.language import LANGUAGE_MODEL, embed_instruction
from ttm.policy.runner import PolicyRunner
from ttm.policy.spec import ActionPart, PolicySpec, checkpoint_path
from ttm.sim.actors import load_policy
from ttm.sim.condition import FIRST_DEMONSTRATION_SEED, KITCHEN, Condition, CueName
from ttm.sim.environment import (
    ALL_TASKS,
    EXECUTED,
    HELD,
    WORDS,
    expert_of,
    inspect_env,
    make_env,
    require_memory_tasks,
    reset_options,
    spec_of,
)
from ttm.sim.workers import RAY, TASK, VARY, WorkerPool

MOST_FAILURES = 100
"""After so many failed episodes of a task in a row, no more are tried. An expert that solves one in
ten initial states gets there in one of 38,000 cases."""
TAKEOVER_TICKS = (8, 45)
"""The expert takes over from a driving policy after so many ticks in which the robot may move."""
FINAL_TICKS = 3
"""Ticks that are recorded after success, with `terminate` commanded."""

BY_UNIT = {"m": (0.012, 0.04), "rad": (0.03, 0.08), "m/s": (0.08, 0.3), "rad/s": (0.08, 0.3)}
"""Unit of an action, without /tick -> standard deviation of a tick's noise, and the largest value of a push,
which lasts some ticks, at level 1."""
PORTIONS = (0.24, 0.8)
"""Portions of the largest command that the two do not exceed, and what they are in other units."""
PUSH_PROBABILITY = 0.05
SLIP_PROBABILITY = 0.015
"""Probability in each tick, at level 1, that the gripper opens or closes by itself for some ticks."""
TERMINATE, GRIPPER = "terminate", "gripper"


@dataclass(frozen=True)
class CollectCommand:
    """Record scripted demonstrations in the simulated kitchen, or in another environment.

    Episodes in which the expert failed under disturbance are not kept; others are made in their place.
    After 100 failures in a row the command ends with an error and keeps what it has recorded.

    Example: ttm collect --task pick --episodes 200 --out demos/pick
    """

    out: Path
    """Folder that gets one HDF5 file an episode; existing episodes there are kept, and not made again."""
    task: Annotated[tuple[str, ...], TASK] = (ALL_TASKS,)
    env: str = KITCHEN
    """Gymnasium ID of the environment, with the module that registers it if need be, such as
    my_package:MyEnv-v0. It must have an expert; see ttm.sim.environment.PolicyEnv."""
    episodes: int = 100
    """Number of demonstrations of each task."""
    workers: int | None = None
    """Processes that share the work, by default one for each core that may be used; the files are the
    same for any number."""
    ray: Annotated[str | None, RAY] = None
    first_seed: int = FIRST_DEMONSTRATION_SEED
    """Initial state of the first episode; evaluation uses 0, 1, 2, …, so stay above those."""
    disturbance: float = 1.0
    """How strongly the execution is disturbed, so that recovery is shown; 0 for clean demonstrations.
    1: noise of up to 12 mm, 0.03 rad, 0.08 m/s or 0.08 rad/s in each tick by the unit of the action part,
    or of 24 % of the largest command in another unit; pushes three times as large; slips of the gripper."""
    policy: Path | None = None
    """Checkpoint (or `shipped`) that drives at first while the expert labels (DAgger); keeps failures too."""
    gap: int | None = None
    """Ticks for which memory tasks hide their cue; without it each episode draws its own."""
    cue: CueName = "hidden"
    """Hide the cue of memory tasks, or leave it on, so that the episodes need no memory."""
    vary: Annotated[tuple[str, ...], VARY] = ()

    def run(self) -> int:
        """Record, and print how many episodes there are."""
        require_at_least(1, options(self, "episodes", "workers"))
        require_at_least(0, options(self, "first_seed", "disturbance", "gap"))
        facts = inspect_env(self.env)
        names = facts.choose(self.task)
        facts.require_expert()
        condition = Condition(self.gap, cue=self.cue, vary=facts.variant(self.vary))
        if WORDS in condition.levels:
            raise UserError(f"--vary {WORDS}: paraphrases are kept for ttm evaluate; leave it out")
        require_memory_tasks(self.env, names, condition.needs_memory_task)
        embeddings = {text: embed_instruction(text) for name in names for text in facts.tasks[name]}
        checkpoint = checkpoint_path(self.policy) if self.policy else None
        if checkpoint:
            load_policy(str(checkpoint), facts.spec)  # finds out here that it does not fit
        self.out.mkdir(parents=True, exist_ok=True)
        advice = "; what was recorded is kept, and the same command goes on"
        arguments = (self.env, self.disturbance, checkpoint, embeddings, condition)
        pool = WorkerPool(Recorder, arguments, workers=self.workers, ray=self.ray, advice=advice)
        begun: list[Path] = []
        try:
            with pool:
                for name in names:
                    first = RecordingJob(name, self.first_seed, self.out, checkpoint is not None)
                    kept = _record(first, self.episodes, pool, begun)
                    count = sum(track(kept, name, total=self.episodes))
                    print(f"{name}: {count} episodes in {self.out}")
        except KeyboardInterrupt:
            number = len(list(self.out.glob("*.hdf5")))
            print(f"{number} episodes are in {self.out}; the same command goes on", file=sys.stderr)
            raise
        finally:
            for path in begun:  # a worker that was ended leaves a part
                partial_path(path).unlink(missing_ok=True)
        return 0


@dataclass(frozen=True)
class RecordingJob:
    """One episode to record."""

    task: str
    seed: int
    folder: Path
    """Where the episode's file goes."""
    driven: bool = False
    """Whether a policy drives at first, which the file's name tells."""

    @property
    def path(self) -> Path:
        kind = "rollout" if self.driven else "demo"
        return self.folder / f"{self.task}_{kind}_{self.seed}.hdf5"


def _record(
    first: RecordingJob, episodes: int, pool: WorkerPool, begun: list[Path]
) -> Iterator[int]:
    """Yield 1 for each kept episode. Failed seeds are replaced by the next ones until all are kept.

    first: the one with the lowest seed. begun: receives the files that are being recorded.
    """
    missing, seed, failures = episodes, first.seed, 0
    while missing > 0:
        jobs = [replace(first, seed=seed + i) for i in range(missing)]
        seed += missing
        new = [job for job in jobs if not job.path.exists()]
        begun[:] = [job.path for job in new]
        there = [(0, True)] * (len(jobs) - len(new))
        for _, kept in chain(there, pool.run(new)):
            failures = 0 if kept else failures + 1
            if failures >= MOST_FAILURES:
                raise UserError(
                    f"the expert failed in {failures} episodes of task '{first.task}' in a row, and "
                    f"{episodes - missing} of {episodes} are recorded; see whether it solves the task "
                    "with ttm evaluate --checkpoint expert, or disturb it less with --disturbance"
                )
            missing -= kept
            if kept:
                yield 1


class Recorder:
    """Records episodes with one environment and, if given, the checkpoint of a driving policy.

    With a driving policy every tick is labelled with what the expert would have done there, so that the
    next policy learns to correct its own mistakes (DAgger, Ross et al. 2011). embeddings: instruction ->
    sentence embedding (L,); others are computed when they are met. condition: gap, cue and variation. See
    `CollectCommand` for the rest.
    """

    def __init__(
        self,
        environment: str,
        disturbance: float,
        policy: Path | None,
        embeddings: Mapping[str, np.ndarray],
        condition: Condition = Condition(),  # noqa: B008 (frozen)
    ):
        self._env = make_env(environment)
        self._spec, self._disturbance = spec_of(self._env), disturbance
        self._runner = PolicyRunner(load_policy(str(policy), self._spec)) if policy else None
        self._embeddings, self._condition = dict(embeddings), condition

    def run(self, job: RecordingJob) -> bool:
        """Record one episode. Return whether it is worth keeping, and kept."""
        asked = self._condition
        options = reset_options(job.task, asked.gap, asked.cue, vary=asked.levels)
        observation, info = self._env.reset(seed=job.seed, options=options)
        instruction = info["instruction"]
        if instruction not in self._embeddings:
            self._embeddings[instruction] = embed_instruction(instruction)
        embedding = self._embeddings[instruction]
        if self._runner:
            self._runner.reset(instruction, embedding=embedding)
        rng = np.random.default_rng((job.seed, 1))
        with EpisodeWriter(job.path, self._spec) as writer:
            success = self._drive(writer, observation, info, rng)
            if not success and self._runner is None:
                return False
            split = "valid" if job.seed % SPLIT_EVERY == 0 else "train"
            facts: Any = {"task": job.task, "seed": job.seed, "success": success, "split": split}
            facts |= {"embedding": embedding, "language_model": LANGUAGE_MODEL}
            writer.finish(instruction=instruction, variation=asked.vary, **facts)
        return True

    def close(self) -> None:
        self._env.close()

    def _drive(
        self,
        writer: EpisodeWriter,
        observation: Any,
        info: dict[str, Any],
        rng: np.random.Generator,
    ) -> bool:
        """Record the expert's action, execute the driver's, and return whether the episode succeeded.

        What is recorded as executed is also what a driving policy is told.
        """
        expert = expert_of(self._env)
        disturb = Disturbance(rng, self._disturbance, self._spec)
        to_drive = int(rng.integers(*TAKEOVER_TICKS)) if self._runner else 0
        ticks_left = FINAL_TICKS
        for tick in count():
            label = expert.action()
            driven = self._runner.step(observation).values if self._runner else label
            command = driven if to_drive > 0 else label
            seen, before = {name: np.array(value) for name, value in observation.items()}, info
            success = bool(before["success"])
            given = disturb(command) if command is label else command
            observation, _, _, truncated, info = self._env.step(given)
            # A disturbance is left out, because it stands for what no robot reports, such as a slipping
            # wheel. A robot that is held cannot be disturbed.
            held = info.get(HELD, not before.get("go", True))
            to_drive -= not held
            disturbed = given is not command and not held
            executed = command if disturbed else info.get(EXECUTED, command)
            time_s = before.get("time_s", tick * self._spec.control_dt_s)
            facts = {"timestamp_s": time_s, "reward": float(success), "done": success}
            writer.append(seen, label, executed_action=executed, **facts)
            if self._runner:
                self._runner.executed(executed)
            ticks_left -= bool(info["success"])
            if truncated or not ticks_left:
                break
        return bool(info["success"])


class Disturbance:
    """Disturbs the executed action, so that demonstrations show recovery (DART, Laskey et al. 2017).

    The robot executes the disturbed action, and the expert's own is recorded. Continuous parts get noise at
    every tick and sometimes a push, by their units if these are m, rad, m/s or rad/s (of each value, or of
    all), and otherwise by their limits, if they have any. Binary parts but `terminate`, and what is named
    `gripper`, sometimes slip to one of their two limits. A third of the episodes is left alone, so that
    the clean motion is seen too. level: scales the disturbance.
    """

    def __init__(self, rng: np.random.Generator, level: float, spec: PolicySpec):
        self._rng = rng
        self._level = 0.0 if rng.random() < 1 / 3 else level * rng.uniform(0.2, 1.0)
        parts = [(part, spec.action_slices[part.name]) for part in spec.actions]
        sizes = [(where, *_sizes(part)) for part, where in parts if part.kind == "continuous"]
        self._parts = [(where, noise, push) for where, noise, push in sizes if push.any()]
        """Dimensions of each part that is disturbed, the deviations of its noise and its largest pushes."""
        self._slipping = [
            (where, part.limits)
            for part, where in parts
            if (part.kind == "binary" and part.name != TERMINATE)
            or (part.name == GRIPPER and np.isfinite(part.limits).all())
        ]
        self._push = np.zeros(spec.action_size)
        self._push_ticks = self._slip_ticks = self._slip_to = 0

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """Return the action (A,) to execute instead of `action` (A,)."""
        if self._level == 0.0:
            return action
        executed = action.astype(np.float64)
        self._draw()
        for where, deviations, _ in self._parts:
            executed[where] += self._level * self._rng.normal(0.0, deviations)
        if self._push_ticks > 0:
            executed += self._push
            self._push_ticks -= 1
        if self._slip_ticks > 0:
            for where, limits in self._slipping:
                executed[where] = limits[self._slip_to]
            self._slip_ticks -= 1
        return executed

    def _draw(self) -> None:
        """Decide whether a push or a slip begins at this tick."""
        if self._push_ticks == 0 and self._rng.random() < PUSH_PROBABILITY:
            self._push_ticks = int(self._rng.integers(2, 7))
            self._push[:] = 0.0
            for where, _, largest in self._parts:
                self._push[where] = self._level * self._rng.uniform(-largest, largest)
        if (
            self._slipping
            and self._slip_ticks == 0
            and self._rng.random() < SLIP_PROBABILITY * self._level
        ):
            self._slip_ticks = int(self._rng.integers(1, 4))
            self._slip_to = int(self._rng.integers(2))


def _sizes(part: ActionPart) -> tuple[np.ndarray, np.ndarray]:
    """Return the deviations of the noise of a continuous part and its largest pushes, (size,) each.

    They are 0 where neither its units nor its limits say how much it may be disturbed.
    """
    units = [unit.strip().removesuffix("/tick") for unit in part.unit.split(",")]
    units = units if len(units) in (1, part.size) else [""]
    by_unit = np.array([BY_UNIT.get(unit, (np.inf, np.inf)) for unit in units])  # (1 or size, 2)
    sizes = np.minimum(by_unit, np.multiply(PORTIONS, max(map(abs, part.limits))))
    noise, push = np.broadcast_to(np.where(np.isinf(sizes), 0.0, sizes), (part.size, 2)).T
    return noise, push
