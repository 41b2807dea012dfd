"""Episodes over ROS 2: policy and simulator as processes that share nothing but ROS topics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ttm.policy.errors import UserError
from ttm.sim.evaluation.condition import Condition
from ttm.sim.evaluation.pages.media import video_path
from ttm.sim.evaluation.result import Evaluation, load_evaluation

PATIENCE_S = "600"
"""How long the simulator waits for a policy that lives, in seconds. The computer may be busy."""


def drive_over_ros(
    checkpoint: str,
    task: str,
    folder: Path,
    videos: Path,
    *,
    episodes: int,
    max_ticks: int | None,
    condition: Condition = Condition(),  # noqa: B008 (frozen)
) -> Evaluation:
    """Run the first initial states of a task with `ttm robot --sim`, and return what came out.

    folder: for result.json and actions.npz. videos: folder for the video of the first one.
    """
    arguments = ["--sim", "--checkpoint", checkpoint, "--task", task]
    if condition.gap is not None:
        arguments += ["--gap", str(condition.gap), "--probe", condition.probe]
    arguments += ["--episodes", str(episodes), "--out", str(folder)]
    arguments += ["--video", str(video_path(videos, task, 0))]
    arguments += ["--max-ticks", str(max_ticks or 0)]
    arguments += ["--startup-timeout-s", PATIENCE_S, "--command-timeout-s", PATIENCE_S]
    command = [sys.executable, "-m", "ttm.training.cli", "robot", *arguments]
    print("  ttm robot " + " ".join(arguments), flush=True)
    require_success(subprocess.run(command, check=False).returncode, "robot")
    return load_evaluation(folder)


def same_outcomes(in_process: Evaluation, ros: Evaluation) -> tuple[int, int, int]:
    """Return how many initial states were run both ways, and of these how many ended the same way.

    The third number is of those that also ended at the same tick, after the same choice.
    """
    pairs = []
    for name, result in ros.tasks.items():
        known = {outcome.seed: outcome for outcome in in_process.tasks[name].outcomes}
        pairs += [(known[outcome.seed], outcome) for outcome in result.outcomes]
    same = sum(ours.success == theirs.success for ours, theirs in pairs)
    return len(pairs), same, sum(ours == theirs for ours, theirs in pairs)


def describe_same(count: int, same: int, at_the_same_tick: int) -> str:
    """Return the numbers of `same_outcomes` in words."""
    return (
        f"{same} of {count} initial states ended as they did in process; "
        f"{at_the_same_tick} of them at the very same tick"
    )


def require_success(exit_code: int, command: str) -> None:
    """Raise `KeyboardInterrupt` if a step was interrupted, and `UserError` if it failed."""
    if exit_code in (130, 143):
        raise KeyboardInterrupt
    if exit_code != 0:
        raise UserError(
            f"ttm {command} ended with exit code {exit_code}; what it says above tells why"
        )
