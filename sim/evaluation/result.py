"""The result of an evaluation: outcomes, success rates with intervals, and `result.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ttm.policy.errors import UserError
from ttm.policy.files import write_atomically
from ttm.sim.environment import KITCHEN, require_same_environment, same_environment
from ttm.sim.evaluation.intervals import CONFIDENCE, PairedTest, mcnemar_exact, wilson_interval
from ttm.sim.evaluation.rollout import Outcome

RESULT_FILE = "result.json"
FORMAT = 1


@dataclass(frozen=True)
class TaskResult:
    """All episodes of one task, ordered by the seed of their initial state."""

    task: str
    outcomes: tuple[Outcome, ...]

    @property
    def episodes(self) -> int:
        return len(self.outcomes)

    @property
    def successes(self) -> int:
        return sum(outcome.success for outcome in self.outcomes)

    @property
    def rate(self) -> float:
        """The portion of the episodes that succeeded, 0 if there are none."""
        return self.successes / self.episodes if self.outcomes else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the rate."""
        return wilson_interval(self.successes, self.episodes)

    @property
    def median_ticks(self) -> float | None:
        """Median number of ticks of the successful episodes, None if there are none."""
        ticks = sorted(outcome.ticks for outcome in self.outcomes if outcome.success)
        if not ticks:
            return None
        return (ticks[(len(ticks) - 1) // 2] + ticks[len(ticks) // 2]) / 2

    def __str__(self) -> str:
        low, high = self.interval
        counts = f"{self.successes} of {self.episodes}"
        return f"{self.task}: {counts} = {self.rate:.0%}  (95 % interval {low:.0%} to {high:.0%})"


@dataclass(frozen=True)
class Evaluation:
    """One policy on all evaluated tasks."""

    checkpoint: str
    """A file's path, `none` (untrained) or `expert`."""
    sha256: str | None
    """SHA-256 of the checkpoint's file, None where there is no file."""
    first_seed: int
    max_ticks: int | None
    tasks: Mapping[str, TaskResult]
    environment: str = KITCHEN
    """The environment's Gymnasium ID."""

    def to_json(self) -> str:
        """Return what `result.json` holds.

        It has neither a time nor the number of workers, so that the same evaluation gives the same
        bytes. The environment is named unless it is the kitchen.
        """
        kitchen = same_environment(self.environment, KITCHEN)
        data: dict[str, Any] = {
            "format": FORMAT,
            **({} if kitchen else {"environment": self.environment}),
            "checkpoint": self.checkpoint,
            "sha256": self.sha256,
            "first_seed": self.first_seed,
            "max_ticks": self.max_ticks,
            "confidence": CONFIDENCE,
            "tasks": {name: _task_json(result) for name, result in self.tasks.items()},
        }
        return json.dumps(data, indent=1) + "\n"

    def save(self, folder: Path) -> Path:
        """Write `result.json` in `folder`, which is made if it is missing, and return its path."""
        path = folder / RESULT_FILE
        write_atomically(path, self.to_json())
        return path


def load_evaluation(path: Path) -> Evaluation:
    """Read an evaluation from its `--out` folder, or from the `result.json` in it.

    Raises `UserError` if there is none.
    """
    file = path / RESULT_FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{file}: no such evaluation; make one with: ttm evaluate --out {path}")
    try:
        data = json.loads(file.read_text())
        tasks = {
            name: TaskResult(
                name, tuple(Outcome(task=name, **outcome) for outcome in task["outcomes"])
            )
            for name, task in data["tasks"].items()
        }
        return Evaluation(
            data["checkpoint"],
            data["sha256"],
            data["first_seed"],
            data["max_ticks"],
            tasks,
            data.get("environment", KITCHEN),
        )
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(
            f"{file}: not the result of an evaluation ({error!r}); make it with ttm evaluate"
        ) from error


def compare(first: Evaluation, second: Evaluation) -> dict[str, PairedTest]:
    """Return a paired test for each task of both, on the initial states that both started from.

    Raises `UserError` if they are of different environments.
    """
    require_same_environment(first.environment, second.environment)
    tests = {}
    for name in [name for name in second.tasks if name in first.tasks]:
        ours = _by_state(first.tasks[name].outcomes)
        theirs = _by_state(second.tasks[name].outcomes)
        shared = sorted(ours.keys() & theirs.keys())
        if shared:
            tests[name] = mcnemar_exact([ours[s] for s in shared], [theirs[s] for s in shared])
    return tests


def describe_test(test: PairedTest, first: str, second: str) -> str:
    """Return one line that says which of the two was better on how many states, with the p-value."""
    shared = test.both + test.neither + test.only_first + test.only_second
    return (
        f"of {shared} initial states both solved {test.both}, only {first} {test.only_first}, "
        f"only {second} {test.only_second}; McNemar's exact p = {test.p_value:.2g}"
    )


def _by_state(outcomes: Sequence[Outcome]) -> dict[tuple[int, str], bool]:
    """Return success by seed and instruction, so that a changed task is not compared with itself."""
    return {(outcome.seed, outcome.instruction): outcome.success for outcome in outcomes}


def _task_json(result: TaskResult) -> dict[str, Any]:
    outcomes = [
        {key: value for key, value in asdict(item).items() if key != "task"}
        for item in result.outcomes
    ]
    return {
        "episodes": result.episodes,
        "successes": result.successes,
        "rate": result.rate,
        "interval": list(result.interval),
        "median_ticks": result.median_ticks,
        "outcomes": outcomes,
    }
