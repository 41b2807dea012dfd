"""The options of `ttm evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from ttm.policy.checks import options, require_at_least
from ttm.policy.run.execution.choice import EXECUTION_HELP, NEWEST
from ttm.sim.environment import ALL_TASKS, KITCHEN, CueName
from ttm.sim.evaluation.condition import (
    LIVE,
    NOISE,
    PROBE_DESCRIPTIONS,
    SAME_STATE,
    DonorName,
    ProbeName,
)
from ttm.sim.tasks.table import GROUP_DESCRIPTIONS, TASK_DESCRIPTIONS, TASK_METAVAR
from ttm.sim.workers.options import RAY

TASK = arg(
    metavar=TASK_METAVAR,
    help=f"What is asked for: {TASK_DESCRIPTIONS}; {GROUP_DESCRIPTIONS}. "
    "Another --env has tasks of its own.",
)
PROBE = arg(
    help="What is done to the memory, one or several: "
    + "; ".join(f"{name}: {text}" for name, text in PROBE_DESCRIPTIONS.items())
    + "."
)

DONOR = arg(
    help="Of the probe swap: whose memory is given, that of the same initial state under another cue, or "
    "that of the next initial state which asks for something else."
)

EXECUTION = arg(help=f"{EXECUTION_HELP} One or several.")


@dataclass(frozen=True)
class EvaluateCommand:
    """Measure how often a policy succeeds in the simulated kitchen, or in another environment.

    Every initial state has a number, and the same numbers give the same result on the same machine, with
    any number of workers. OUT receives result.json, report.html (open it in a browser) and the videos.
    Success is judged by the simulator's state, never by the policy's own word.

    Memory tasks show a cue, hide it for a gap, and then let the robot choose. Probes change the memory
    from outside: a policy that uses its memory loses its choice when the memory is erased, and chooses
    as another episode's cue asked for when the memory is exchanged. With several gaps, probes or
    executions each combination has a folder of its own in OUT, and report.html shows them all, with
    curves over the gap.

    For example:
      ttm evaluate --task pick --episodes 100 --out runs/shipped
      ttm evaluate --checkpoint runs/mine/best.safetensors --out runs/mine/eval --against runs/shipped
      ttm evaluate --task memory --gap 5 15 45 --probe live erase swap --out runs/probes
      ttm evaluate --checkpoint expert --out runs/expert
    """

    out: Path
    """Folder for result.json, report.html and videos/."""
    checkpoint: str = "shipped"
    """A .safetensors file; or shipped (the policy that comes with the project), none (an untrained
    network), expert (the scripted demonstrator, which sees the simulator's state)."""
    task: Annotated[str, TASK] = ALL_TASKS
    env: str = KITCHEN
    """Gymnasium ID of the environment, with the module that registers it if need be, such as
    my_package:MyEnv-v0. See ttm.sim.environment.PolicyEnv for what it must have."""
    episodes: int = 50
    """Initial states for each task."""
    workers: int | None = None
    """Processes that share the episodes, by default one for each core that may be used; each needs about
    1 GB of memory."""
    ray: Annotated[str | None, RAY] = None
    first_seed: int = 0
    """Number of the first initial state. Stay below those of `ttm collect --first-seed`."""
    videos: int = 1
    """Record the first so many episodes of each task."""
    max_ticks: int | None = None
    """End episodes after so many ticks (5 a second); never later than the task's own limit."""
    against: Path | None = None
    """Another evaluation's OUT: adds a paired test on the initial states that both started from."""
    gap: tuple[int, ...] = ()
    """Ticks for which memory tasks hide their cue, one number or several; without it each task draws one."""
    probe: Annotated[tuple[ProbeName, ...], PROBE] = (LIVE,)
    noise: float = NOISE
    """Of the probe noise: the share of each token's norm."""
    donor: Annotated[DonorName, DONOR] = SAME_STATE
    cue: CueName = "hidden"
    """Hide the cue of memory tasks, or leave it on as a control, which a policy without memory solves."""
    execution: Annotated[tuple[str, ...], EXECUTION] = (NEWEST,)
    delay: float = 0.0
    """Seconds from an observation until its command is in force, as on a robot that goes on while its
    policy thinks. Policies of `ttm train --delay` are told it."""

    def run(self) -> int:
        require_at_least(1, options(self, "episodes", "workers", "max_ticks"))
        require_at_least(0, options(self, "videos", "first_seed"))
        from ttm.sim.evaluation.evaluate import evaluate_and_report

        return evaluate_and_report(
            self.out,
            checkpoint=self.checkpoint,
            task=self.task,
            env=self.env,
            episodes=self.episodes,
            workers=self.workers,
            ray=self.ray,
            first_seed=self.first_seed,
            videos=self.videos,
            max_ticks=self.max_ticks,
            against=self.against,
            gaps=self.gap,
            probes=self.probe,
            cue=self.cue,
            noise=self.noise,
            donor=self.donor,
            executions=self.execution,
            delay_s=self.delay,
        )
