"""The campaign of kills: whether a policy that is killed in mid-episode goes on as if nothing had been."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ttm.policy import UserError
from ttm.policy.errors import options, require_at_least
from ttm.policy.snapshot import snapshot_from_bytes
from ttm.sim import Evaluation, load_evaluation
from ttm.sim.results import compare
from ttm.training.robot.robot import drive_simulation
from ttm_policy.parameters import PolicyParameters, SimParameters

PATIENCE_S = 600.0
"""The longest time that a killed policy may take to come back."""
SIGNIFICANT = 0.05


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
        try:
            tick = int(snapshot_from_bytes(self._memory.read_bytes())["tick"])
        except (OSError, UserError):  # not yet there, or being written
            return
        if self.is_due(tick):
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


@dataclass(frozen=True)
class RespawnCampaign:
    """Kill the policy's node once in each episode over ROS 2, and see whether it still succeeds.

    The node is killed with SIGKILL at a tick drawn at random, is started again, and goes on with the memory
    that it had. The same initial states run without kills, too. Prints both success rates with their
    intervals. The exit code is 1 if the kills cost success (McNemar's exact test, p < 0.05).
    """

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
    out: Path | None = None
    """Also keep both results there, in the folders `undisturbed` and `killed`."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_at_least(1, options(self, "episodes", "latest_tick"))
        require_at_least(0, options(self, "first_seed", "seed"))

    def run(self) -> int:
        """Run the episodes, print both rates, and return the exit code.

        Raises `UserError` if a run does not come to its end, or nothing was killed.
        """
        with tempfile.TemporaryDirectory(prefix="ttm_endurance_") as folder:
            out, memory = self.out or Path(folder), Path(folder) / "memory.npz"
            killer = Killer(memory, seed=self.seed, latest_tick=self.latest_tick)
            undisturbed = self._drive(memory, out / "undisturbed", None)
            killed = self._drive(memory, out / "killed", killer)
        if not killer.kills:
            raise UserError("no episode was long enough for a kill; lower --latest-tick")
        [(task, test)] = compare(undisturbed, killed).items()
        print(f"undisturbed: {undisturbed.tasks[task]}")
        print(f"killed {killer.kills} times: {killed.tasks[task]}")
        print(f"McNemar's exact test: {test}")
        return int(test.only_first > test.only_second and test.p_value < SIGNIFICANT)

    def _drive(self, memory: Path, out: Path, killer: Killer | None) -> Evaluation:
        policy = PolicyParameters(
            checkpoint=str(self.checkpoint or ""),
            lockstep=True,
            recovery_path=str(memory),
            recovery_max_age_s=PATIENCE_S,
        )
        sim = SimParameters(
            task=self.task,
            episodes=self.episodes,
            first_seed=self.first_seed,
            out=str(out),
            lockstep=True,
            startup_timeout_s=PATIENCE_S,
            command_timeout_s=PATIENCE_S,
        )
        watch = (lambda _: None) if killer is None else killer.look
        if drive_simulation(policy, sim, respawn=killer is not None, watch=watch):
            raise UserError("the episodes did not run to the end; see the messages above")
        return load_evaluation(out)
