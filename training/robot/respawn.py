"""Run the same episodes with and without kills, and compare them."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ttm.policy.errors import UserError, options, require_at_least
from ttm.policy.snapshot import snapshot_from_bytes
from ttm.sim.results import Evaluation, compare, describe_test, load_evaluation
from ttm.training.robot.processes import require_rclpy
from ttm.training.robot.robot import drive_simulation
from ttm_policy.parameters import PolicyParameters, SimParameters

# Kills a policy's process in mid-episode.


class Killer:
    """Kills a process once in each episode, at a tick drawn from 1 to `latest_tick` by a seed.

    It learns the ticks from the file in which the policy keeps its memory. An episode that is over before its
    tick comes is spared.
    """

    def __init__(self, memory: Path, *, seed: int, latest_tick: int):
        self._memory, self._latest_tick = memory, latest_tick
        self._rng = np.random.default_rng(seed)
        self._last_tick: int | None = None
        self._kill_at: int | None = None
        self.kills = 0

    def look(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the process if it is time."""
        tick = self._saved_tick()
        if tick is not None and self.is_due(tick):
            process.kill()
            process.wait()
            self.kills += 1

    def is_due(self, tick: int) -> bool:
        """Return whether to kill now. tick: that of the memory, which begins at 0 in each episode."""
        if self._last_tick is None or tick < self._last_tick:
            self._kill_at = int(self._rng.integers(1, self._latest_tick + 1))
        self._last_tick = tick
        if self._kill_at is None or tick < self._kill_at:
            return False
        self._kill_at = None
        return True

    def _saved_tick(self) -> int | None:
        try:
            return int(snapshot_from_bytes(self._memory.read_bytes())["tick"])
        except (OSError, UserError):
            return None


# The options of `ttm bench respawn`.


@dataclass(frozen=True)
class RespawnOptions:
    """Which episodes, and when the policy is killed."""

    task: str = "pick"
    """Task of the simulated kitchen; the first one if this is empty."""
    episodes: int = 50
    """Episodes with kills, and as many without."""
    first_seed: int = 0
    """Number of the first initial state."""
    latest_tick: int = 10
    """The policy is killed at a tick between 1 and this one."""
    seed: int = 0
    """Seed of these ticks."""
    checkpoint: Path | None = None
    """A .safetensors file; by default the policy that ships with the project."""
    patience_s: float = 600.0
    """The longest time that a killed policy may take to come back."""
    out: Path | None = None
    """Also keep both results there, in the folders `undisturbed` and `killed`."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_at_least(1, options(self, "episodes", "latest_tick", "patience_s"))
        require_at_least(0, options(self, "first_seed", "seed"))


UNDISTURBED, KILLED = "undisturbed", "killed"
SIGNIFICANT = 0.05


def run_bench(options: RespawnOptions) -> int:
    """Run, print both rates, and return 1 if the kills have cost success.

    Raises `UserError` if a run does not come to its end, or nothing was killed.
    """
    with tempfile.TemporaryDirectory(prefix="ttm_bench_") as folder:
        out = options.out or Path(folder)
        memory = Path(folder) / "memory.npz"
        killer = Killer(memory, seed=options.seed, latest_tick=options.latest_tick)
        undisturbed = _drive(options, memory, out / UNDISTURBED, None)
        killed = _drive(options, memory, out / KILLED, killer)
    if not killer.kills:
        raise UserError("no episode was long enough for a kill; lower --latest-tick")
    [(task, test)] = compare(undisturbed, killed).items()
    print(f"undisturbed: {undisturbed.tasks[task]}")
    print(f"killed {killer.kills} times: {killed.tasks[task]}")
    print(describe_test(test, UNDISTURBED, KILLED))
    return int(test.only_first > test.only_second and test.p_value < SIGNIFICANT)


def _drive(options: RespawnOptions, memory: Path, out: Path, killer: Killer | None) -> Evaluation:
    policy = PolicyParameters(
        checkpoint=str(options.checkpoint or ""),
        lockstep=True,
        recovery_path=str(memory),
        recovery_max_age_s=options.patience_s,
    )
    sim = SimParameters(
        task=options.task,
        episodes=options.episodes,
        first_seed=options.first_seed,
        out=str(out),
        lockstep=True,
        startup_timeout_s=options.patience_s,
        command_timeout_s=options.patience_s,
    )
    watch = (lambda _: None) if killer is None else killer.look
    if drive_simulation(policy, sim, respawn=killer is not None, watch=watch):
        raise UserError("the episodes did not run to the end; see the messages above")
    return load_evaluation(out)


# `ttm bench respawn`: kill the policy once in each episode.


@dataclass(frozen=True)
class BenchRespawnCommand(RespawnOptions):
    """Kill the policy's node once in each episode over ROS 2, and see whether it still succeeds.

    The node is killed with SIGKILL at a tick drawn at random, is started again, and goes on with the memory
    that it had. The same initial states run without kills, too. Prints both success rates with their
    intervals. The exit code is 1 if the kills cost success (McNemar's exact test, p < 0.05).
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        require_rclpy()

        return run_bench(self)
