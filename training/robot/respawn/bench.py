"""Run the same episodes with and without kills, and compare them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ttm.policy.errors import UserError
from ttm.sim.evaluation.result import Evaluation, compare, describe_test, load_evaluation
from ttm.training.robot.respawn.killer import Killer
from ttm.training.robot.respawn.options import RespawnOptions
from ttm.training.robot.robot import drive_simulation
from ttm_policy.parameters import PolicyParameters, SimParameters

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
