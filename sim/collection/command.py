"""The options of `ttm collect`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from ttm.policy.checks import options, require_at_least
from ttm.sim.environment import ALL_TASKS, FIRST_DEMONSTRATION_SEED, KITCHEN, CueName
from ttm.sim.tasks.table import GROUP_DESCRIPTIONS, TASK_DESCRIPTIONS, TASK_METAVAR
from ttm.sim.workers.options import RAY

TASK = arg(
    metavar=TASK_METAVAR,
    help=f"What to demonstrate, --episodes times each: {TASK_DESCRIPTIONS}; {GROUP_DESCRIPTIONS}. "
    "Another --env has tasks of its own.",
)


@dataclass(frozen=True)
class CollectCommand:
    """Record scripted demonstrations in the simulated kitchen, or in another environment.

    Episodes in which the expert failed under disturbance are not kept; others are made in their place.
    After 100 failures in a row the command ends with an error and keeps what it has recorded.

    Example: ttm collect --task pick --episodes 200 --out demos/pick
    """

    out: Path
    """Folder that gets one HDF5 file an episode; existing episodes there are kept, and not made again."""
    task: Annotated[str, TASK] = ALL_TASKS
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
    """How strongly the execution is disturbed, so that recovery is shown; 0 for clean demonstrations."""
    policy: Path | None = None
    """Checkpoint (or `shipped`) that drives at first while the expert labels (DAgger); keeps failures too."""
    gap: int | None = None
    """Ticks for which memory tasks hide their cue; without it each episode draws its own."""
    cue: CueName = "hidden"
    """Hide the cue of memory tasks, or leave it on, so that the episodes need no memory."""

    def run(self) -> int:
        require_at_least(1, options(self, "episodes", "workers"))
        require_at_least(0, options(self, "first_seed", "disturbance", "gap"))
        from ttm.sim.collection.collect import collect

        return collect(
            self.out,
            task=self.task,
            env=self.env,
            episodes=self.episodes,
            workers=self.workers,
            ray=self.ray,
            first_seed=self.first_seed,
            disturbance=self.disturbance,
            policy=self.policy,
            gap=self.gap,
            cue=self.cue,
        )
