"""Options of `ttm demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from ttm.policy.checks import options, require_above_0, require_at_least, require_choice
from ttm.policy.errors import UserError
from ttm.sim.tasks.table import MEMORY_NAMES
from ttm.sim.workers.cores import usable_cores


@dataclass(frozen=True)
class DemoOptions:
    """The size of each step of the demo."""

    out: Path = Path("demo_out")
    """Folder for everything that it makes."""
    checkpoint: str = "shipped"
    """The policy to start from: shipped, a .safetensors file, or none (an untrained network)."""
    only_vision: bool = True
    """Keep only the vision of the policy at first: core and action head start from random weights."""
    demonstrations: int = 40
    """Demonstrations of each task to record and to train on; every tenth is held out."""
    minutes: float = 4.0
    """Longest time of the training."""
    steps: int = 600
    """Largest number of training steps."""
    episodes: int = 25
    """Initial states of each task to evaluate on, before and after."""
    memory_task: Annotated[str, arg(metavar="{" + ",".join(MEMORY_NAMES) + "}")] = "side_shown"
    """Memory task on which the policy to start from is shown live and with its memory erased."""
    gap: int = 15
    """Ticks for which the memory task hides its cue."""
    memory_episodes: int = 40
    """Initial states of the memory task."""
    ros_episodes: int = 5
    """Number of the initial states to repeat over ROS 2, for each task."""
    workers: int = usable_cores()
    """Processes for the simulation."""
    max_ticks: int | None = None
    """End evaluated episodes after this many ticks; by default at the limit of the task."""

    def check(self) -> None:
        """Raise `UserError` if a value is out of its range."""
        if self.checkpoint == "expert":
            raise UserError("--checkpoint is expert, which cannot be trained; give a policy")
        if self.demonstrations < 2:
            raise UserError(
                f"--demonstrations is {self.demonstrations}; give 2 or more: the first is held out"
            )
        most = min(self.episodes, self.memory_episodes)
        if not 1 <= self.ros_episodes <= most:
            raise UserError(
                f"--ros-episodes is {self.ros_episodes}; give 1 to {most}, which is the smaller one of "
                "--episodes and --memory-episodes"
            )
        require_choice("--memory-task", self.memory_task, MEMORY_NAMES)
        require_at_least(0, options(self, "gap"))
        require_at_least(1, options(self, "workers", "max_ticks", "steps"))
        require_above_0(options(self, "minutes"))
