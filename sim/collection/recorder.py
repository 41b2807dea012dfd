"""Recording one episode: the expert's actions, or a policy's that the expert takes over from.

With a driving policy every tick is labelled with what the expert would have done there, so that the
next policy learns to correct its own mistakes (DAgger, Ross et al. 2011).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ttm.datasets.episode_dataset import SPLIT_EVERY
from ttm.datasets.episode_writer import EpisodeWriter
from ttm.policy.network.language import LANGUAGE_MODEL, embed_instruction
from ttm.policy.run.runner import PolicyRunner
from ttm.sim.collection.disturbance import Disturbance
from ttm.sim.environment import EXECUTED, CueName, expert_of, make_env, reset_options, spec_of
from ttm.sim.evaluation.actors import load_policy

TAKEOVER_TICKS = (8, 45)
"""The expert takes over from a driving policy after a number of ticks in this range."""
FINAL_TICKS = 3
"""Ticks that are recorded after success, with `terminate` commanded."""


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
        """The episode's file."""
        kind = "rollout" if self.driven else "demo"
        return self.folder / f"{self.task}_{kind}_{self.seed}.hdf5"


class Recorder:
    """Records episodes with one environment and, if given, one driving policy.

    Parameters
    ----------
    environment : str
        The environment's Gymnasium ID.
    disturbance : float
        How strongly the execution is disturbed.
    policy : Path, optional
        Checkpoint of the driving policy.
    embeddings : mapping
        Instruction -> sentence embedding (L,). Others are computed when they are met.
    gap : int, optional
        The ticks for which memory tasks hide their cue. None for those that each episode draws.
    cue : {"hidden", "left_on"}
        Whether memory tasks hide their cue at all.
    """

    def __init__(
        self,
        environment: str,
        disturbance: float,
        policy: Path | None,
        embeddings: Mapping[str, np.ndarray],
        gap: int | None = None,
        cue: CueName = "hidden",
    ):
        self._env = make_env(environment)
        self._spec = spec_of(self._env)
        self._disturbance = disturbance
        self._runner = PolicyRunner(load_policy(str(policy), self._spec)) if policy else None
        self._embeddings, self._gap, self._cue = dict(embeddings), gap, cue

    def run(self, job: RecordingJob) -> bool:
        """Record one episode. Return whether it is worth keeping, and kept."""
        observation, info = self._env.reset(
            seed=job.seed, options=reset_options(job.task, self._gap, self._cue)
        )
        instruction = info["instruction"]
        embedding = self._embedding(instruction)
        rng = np.random.default_rng((job.seed, 1))
        with EpisodeWriter(job.path, self._spec) as writer:
            success = self._drive(writer, observation, info, embedding, rng)
            if not success and self._runner is None:
                return False
            writer.finish(
                instruction=instruction,
                task=job.task,
                success=success,
                seed=job.seed,
                embedding=embedding,
                language_model=LANGUAGE_MODEL,
                split="valid" if job.seed % SPLIT_EVERY == 0 else "train",
            )
        return True

    def close(self) -> None:
        """Free the environment."""
        self._env.close()

    def _embedding(self, instruction: str) -> np.ndarray:
        if instruction not in self._embeddings:
            self._embeddings[instruction] = embed_instruction(instruction)
        return self._embeddings[instruction]

    def _drive(
        self,
        writer: EpisodeWriter,
        observation: dict[str, np.ndarray],
        info: dict[str, Any],
        embedding: np.ndarray,
        rng: np.random.Generator,
    ) -> bool:
        """Run the episode into `writer`: record the expert's action, execute the driver's.

        What is recorded as executed is also what a driving policy is told.

        Returns whether the episode succeeded.
        """
        env, expert = self._env, expert_of(self._env)
        disturb = Disturbance(rng, self._disturbance, self._spec)
        takeover_tick = int(rng.integers(*TAKEOVER_TICKS)) if self._runner else 0
        if self._runner:
            self._runner.reset(info["instruction"], embedding=embedding)
        tick, ticks_left = 0, FINAL_TICKS
        while ticks_left > 0:
            label = expert.action()
            command = self._runner.step(observation).values if self._runner else label
            if tick >= takeover_tick:
                command = label
            success = bool(info["success"])
            seen, before = {name: np.array(value) for name, value in observation.items()}, info
            given = disturb(command) if command is label else command
            observation, _, _, truncated, info = env.step(given)
            executed = _executed(command, given, before, info)
            writer.append(
                seen,
                label,
                timestamp_s=before.get("time_s", tick * self._spec.control_dt_s),
                reward=float(success),
                done=success,
                executed_action=executed,
            )
            if self._runner:
                self._runner.executed(executed)
            tick += 1
            if truncated:
                break
            ticks_left -= bool(info["success"])
        return bool(info["success"])


def _executed(
    command: np.ndarray, given: np.ndarray, before: Mapping[str, Any], after: Mapping[str, Any]
) -> np.ndarray:
    """Return the action (A,) that the policy sees as its previous one at the next tick.

    It is what the environment says that it executed. A disturbance is left out, because it stands for
    what no robot reports, such as a slipping wheel. A robot that is held cannot be disturbed.
    command: the driver's; given: the same, perhaps disturbed. before and after: the infos of the tick.
    """
    disturbed = given is not command and before.get("go", True)
    executed: np.ndarray = command if disturbed else after.get(EXECUTED, command)
    return executed
