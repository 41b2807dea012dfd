"""The picture of what a policy's memory did in an episode that was evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.sim.environment import EXECUTED, CueName
from ttm.sim.evaluation.actors import PolicyActor
from ttm.sim.evaluation.rollout import Choice, Outcome
from ttm.sim.memory_picture.strip import draw_strip
from ttm.sim.memory_picture.trace import SeenEpisode, trace_memory

QUALITY = 85
"""Of the picture, out of 100."""


class EpisodeMemory:
    """Collects what a policy sees in an episode, to draw afterwards what its memory did with it.

    The episode itself is left alone. The picture is of a replay, in which the policy is run by
    PyTorch: whatever engine ran the episode, its memory cannot be looked into without slowing it.
    """

    def __init__(self, actor: PolicyActor) -> None:
        self._actor = actor
        spec = actor.policy.spec
        names = [camera.name for camera in spec.cameras]
        names += [vector.name for vector in spec.proprioception]
        self._seen: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        self._executed: list[npt.NDArray[np.float32]] = []
        self._began = False

    def on_tick(self, observation: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        """Keep a copy of the observation; see `ttm.sim.evaluation.rollout.OnTick`."""
        for name, values in self._seen.items():
            values.append(np.array(observation[name]))
        if EXECUTED in info and self._began:  # before the first tick, nothing was executed
            self._executed.append(np.array(info[EXECUTED], np.float32))
        self._began = True

    def draw(self, path: Path, outcome: Outcome, cue: CueName) -> None:
        """Write the picture of the episode that ended with `outcome`, and in which the cue was `cue`."""
        # The last observation was shown, and not acted upon.
        observations = {
            name: np.stack(values[: outcome.ticks]) for name, values in self._seen.items()
        }
        seen = SeenEpisode(
            f"{outcome.task}, initial state {outcome.seed}",
            outcome.instruction,
            observations,
            self._actor.embedding(outcome.instruction),
            _moments(outcome.choice, cue),
            np.stack(self._executed) if self._executed else None,
            self._actor.delay_s,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure = draw_strip(trace_memory(self._actor.policy, seen))
        figure.savefig(path, pil_kwargs={"quality": QUALITY})


def _moments(choice: Choice | None, cue: CueName) -> dict[str, int]:
    """Return when the cue was gone and when the robot could act, as far as the episode went."""
    if choice is None or choice.go_tick is None:
        return {}
    first_of_gap = choice.go_tick - choice.gap
    gone = {"the cue is gone": first_of_gap} if cue == "hidden" and choice.gap else {}
    return {**gone, "the robot may act": choice.go_tick}
