"""Starts the replay of an episode, which needs the ROS package, as a process."""

from __future__ import annotations

from pathlib import Path

from ttm.training.robot.options import require_contract
from ttm.training.robot.processes import run_program


def run_replay(episode: Path, demo: str | None, contract: Path | None, *, lockstep: bool) -> int:
    """Run `ttm_policy.replay.replay_episode`, and return its exit code.

    Raises `UserError` if ROS or the contract are missing.
    """
    require_contract(contract)
    options = {
        "episode": str(episode),
        "demo": demo,
        "contract": "" if contract is None else str(contract),
        "lockstep": lockstep,
    }
    return run_program("replay.replay_episode", options)
