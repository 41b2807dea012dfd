"""The result of an evaluation: outcomes, success rates with intervals, and `result.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import NormalDist, median
from typing import Any, Literal

from ttm.policy.errors import UserError
from ttm.policy.files import write_atomically
from ttm.sim.condition import KITCHEN, Condition
from ttm.sim.environment import WORDS, require_same_environment, same_environment
from ttm.sim.rollout import Choice, Outcome

CONFIDENCE = 0.95
RESULT_FILE = "result.json"
VIDEOS = "videos"
"""The folder of the videos, beside `RESULT_FILE`."""
FORMAT = 1
Measure = Literal["success", "choice"]
"""What two evaluations are compared by: whether episodes succeeded, or whether the choice was right."""


def wilson_interval(successes: int, episodes: int) -> tuple[float, float]:
    """Return the interval of rates that are compatible with `successes` of `episodes` (Wilson, 1927)."""
    if not 0 <= successes <= episodes:
        raise ValueError(f"{successes} successes of {episodes} episodes")
    if episodes == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    rate = successes / episodes
    scale = 1 + z**2 / episodes
    centre = (rate + z**2 / (2 * episodes)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / episodes + z**2 / (4 * episodes**2))
    # At the ends the closed form is exact except for rounding, which must not give -1e-17.
    low = 0.0 if successes == 0 else centre - half
    return low, 1.0 if successes == episodes else centre + half


@dataclass(frozen=True)
class PairedTest:
    """The outcomes of two policies on the same initial states."""

    both: int
    only_first: int
    only_second: int
    neither: int
    p_value: float
    """Two-sided: the probability that two equally good policies differ at least this much."""

    @property
    def difference(self) -> float:
        """The second one's rate less the first one's, 0 if there are no states."""
        states = self.both + self.only_first + self.only_second + self.neither
        return (self.only_second - self.only_first) / max(states, 1)

    @property
    def interval(self) -> tuple[float, float]:
        """Differences that are compatible with the outcomes (Agresti and Min, 2005).

        It is Wald's interval, after half an episode has been added to each of the four counts.
        """
        lost, won = self.only_first + 0.5, self.only_second + 0.5
        total = self.both + self.neither + lost + won + 1
        centre, z = (won - lost) / total, NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
        half = z * math.sqrt(max(0.0, lost + won - total * centre**2)) / total
        return max(-1.0, centre - half), min(1.0, centre + half)

    def __str__(self) -> str:
        """Return the difference and its interval, in points."""
        low, high = self.interval
        return f"{self.difference:+.0%} ({low:+.0%} to {high:+.0%})"


def mcnemar_exact(first: Sequence[bool], second: Sequence[bool]) -> PairedTest:
    """Return McNemar's test, with the exact binomial distribution, of outcomes from the same states."""
    pairs = [(bool(a), bool(b)) for a, b in zip(first, second, strict=True)]
    both, neither = pairs.count((True, True)), pairs.count((False, False))
    ours, theirs = pairs.count((True, False)), pairs.count((False, True))
    tail = sum(math.comb(ours + theirs, k) for k in range(min(ours, theirs) + 1))
    return PairedTest(both, ours, theirs, neither, min(1.0, 2 * tail / 2 ** (ours + theirs)))


@dataclass(frozen=True)
class Rate:
    """How many of the episodes of a task did something."""

    count: int
    episodes: int

    @property
    def rate(self) -> float:
        """The portion of the episodes, 0 if there are none."""
        return self.count / self.episodes if self.episodes else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.count, self.episodes)

    def __str__(self) -> str:
        low, high = self.interval
        counts = f"{self.count} of {self.episodes}"
        return f"{counts} = {self.rate:.0%}  (95 % interval {low:.0%} to {high:.0%})"


@dataclass(frozen=True)
class TaskResult:
    """All episodes of one task, ordered by the seed of their initial state."""

    task: str
    outcomes: tuple[Outcome, ...]

    @property
    def success(self) -> Rate:
        return Rate(sum(outcome.success for outcome in self.outcomes), len(self.outcomes))

    @property
    def episodes(self) -> int:
        return len(self.outcomes)

    @property
    def successes(self) -> int:
        return self.success.count

    @property
    def choices(self) -> Rate | None:
        """The right choices; None if this is no memory task. To choose nothing is wrong."""
        made = [outcome.choice for outcome in self.outcomes if outcome.choice]
        return Rate(sum(choice.is_right for choice in made), len(made)) if made else None

    @property
    def donor_choices(self) -> Rate | None:
        """The choices that follow the donor; None unless memories were exchanged."""
        made = [item.choice for item in self.outcomes if item.choice and item.choice.donor_choice]
        return Rate(sum(choice.follows_donor for choice in made), len(made)) if made else None

    @property
    def rates(self) -> dict[str, Rate]:
        """Name -> rate, of those that the task has."""
        choices = {"right choice": self.choices, "donor's choice": self.donor_choices}
        known = {name: rate for name, rate in choices.items() if rate}
        return {"success": self.success, **known}

    @property
    def by_instruction(self) -> dict[str, Rate]:
        """Instruction -> its successes."""
        found: dict[str, list[bool]] = {}
        for outcome in sorted(self.outcomes, key=lambda outcome: outcome.instruction):
            found.setdefault(outcome.instruction, []).append(outcome.success)
        return {text: Rate(sum(each), len(each)) for text, each in found.items()}

    @property
    def median_ticks(self) -> float | None:
        """Median number of ticks of the successful episodes, None if there are none."""
        ticks = [outcome.ticks for outcome in self.outcomes if outcome.success]
        return float(median(ticks)) if ticks else None

    def __str__(self) -> str:
        return f"{self.task}: " + "; ".join(f"{name} {rate}" for name, rate in self.rates.items())


@dataclass(frozen=True)
class Evaluation:
    """One policy on all evaluated tasks."""

    checkpoint: str
    """A file's path, `none` (untrained) or `expert`."""
    sha256: str | None
    """That of the checkpoint's file, None where there is no file."""
    first_seed: int
    max_ticks: int | None
    tasks: Mapping[str, TaskResult]
    environment: str = KITCHEN
    """The environment's Gymnasium ID."""
    condition: Condition = Condition()  # noqa: RUF009 (frozen)

    def to_json(self) -> str:
        """Return what `result.json` holds. The same evaluation gives the same bytes.

        The environment is named unless it is the kitchen, and of the condition whatever is not the default.
        """
        kitchen = same_environment(self.environment, KITCHEN)
        data: dict[str, Any] = {
            "format": FORMAT,
            **({} if kitchen else {"environment": self.environment}),
            "checkpoint": self.checkpoint,
            "sha256": self.sha256,
            "first_seed": self.first_seed,
            "max_ticks": self.max_ticks,
            **self.condition.to_dict(),
            "confidence": CONFIDENCE,
            "tasks": {name: _task_json(result) for name, result in self.tasks.items()},
        }
        return json.dumps(data, indent=1) + "\n"

    def save(self, folder: Path) -> Path:
        """Write `result.json` in `folder`, and return its path."""
        path = folder / RESULT_FILE
        write_atomically(path, self.to_json())
        return path


def _task_json(result: TaskResult) -> dict[str, Any]:
    data: dict[str, Any] = {
        "episodes": result.episodes,
        "successes": result.successes,
        "rate": result.success.rate,
        "interval": result.success.interval,
        "median_ticks": result.median_ticks,
    }
    for name in ("choices", "donor_choices"):
        if rate := getattr(result, name):
            data[name] = {"count": rate.count, "rate": rate.rate, "interval": rate.interval}
    data["outcomes"] = [asdict(outcome) for outcome in result.outcomes]
    for outcome in data["outcomes"]:  # keys that say nothing are left out
        del outcome["task"]
        if outcome["choice"] is None:
            del outcome["choice"]
    return data


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
            name: TaskResult(name, tuple(_outcome(name, outcome) for outcome in task["outcomes"]))
            for name, task in data["tasks"].items()
        }
        names = ("checkpoint", "sha256", "first_seed", "max_ticks")
        facts = {name: data[name] for name in names} | {"tasks": tasks}
        condition = {f.name: data[f.name] for f in fields(Condition) if f.name in data}
        environment = data.get("environment", KITCHEN)
        return Evaluation(**facts, environment=environment, condition=Condition(**condition))
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(
            f"{file}: not a result of ttm evaluate ({error!r}); make it again"
        ) from error


def _outcome(task: str, data: Mapping[str, Any]) -> Outcome:
    choice = Choice(**data["choice"]) if "choice" in data else None
    return Outcome(task=task, **{**data, "choice": choice})


def compare(
    first: Evaluation, second: Evaluation, measure: Measure = "success"
) -> dict[str, PairedTest]:
    """Return a paired test for each task of both, on the initial states that both started from.

    Tasks without choices are left out where the measure is "choice". Raises `UserError` if the
    evaluations are of different environments.
    """
    require_same_environment(first.environment, second.environment)
    worded, tests = any(WORDS in each.condition.levels for each in (first, second)), {}
    for name in [name for name in second.tasks if name in first.tasks]:
        ours = _by_state(first.tasks[name].outcomes, measure, worded)
        theirs = _by_state(second.tasks[name].outcomes, measure, worded)
        if shared := ours.keys() & theirs.keys():
            tests[name] = mcnemar_exact([ours[s] for s in shared], [theirs[s] for s in shared])
    return tests


def _by_state(
    outcomes: Sequence[Outcome], measure: Measure, worded: bool
) -> dict[tuple[int, str, str], bool]:
    """Return seed, instruction and right choice -> whether the episode went well.

    A task that has changed is thus not compared with itself. worded: leave out the instruction.
    """
    found = {}
    for outcome in outcomes:
        choice, text = outcome.choice, "" if worded else outcome.instruction
        state = (outcome.seed, text, choice.right_choice if choice else "")
        if choice or measure == "success":
            found[state] = choice.is_right if choice and measure == "choice" else outcome.success
    return found
