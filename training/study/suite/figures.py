"""The figures of the study: what a report is made from, as records and as one JSON file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ttm.policy.errors import UserError
from ttm.sim.evaluation.condition import LIVE
from ttm.sim.evaluation.result import Evaluation, Rate, TaskResult
from ttm.training.study.suite.run_folder import LATER_SETTINGS, RunFolder, run_folders

NOT_REPORTED = ("data", "init")
"""Settings that say nothing on another machine."""


@dataclass(frozen=True)
class Training:
    """One finished training."""

    variant: str
    seed: int
    core: Mapping[str, Any]
    parameters: int
    """Number of parameters of the core."""
    all_parameters: int
    """Number of parameters of the whole policy."""
    steps: int
    minutes: float
    validation_error: float | None
    """Of the actions in held-out demonstrations, in standard deviations; None if there are none."""


@dataclass(frozen=True)
class Choices:
    """What one policy chose in one task under one condition."""

    variant: str
    seed: int
    task: str
    gap: int
    probe: str
    first_seed: int
    """Number of the first initial state."""
    episodes: int
    right: int
    donor: int | None
    """Choices that followed the donor's cue; None unless memories were exchanged."""
    successes: int
    each: str | None
    """With the live memory, a 1 for each right choice and a 0 for each other, in the order of the
    initial states, for paired tests; otherwise None."""

    @property
    def rate(self) -> Rate:
        return Rate(self.right, self.episodes)


@dataclass(frozen=True)
class Figures:
    """All that the study has found so far. The fields are the format of the JSON file."""

    settings: Mapping[str, Any]
    trainings: Sequence[Training]
    choices: Sequence[Choices]

    def to_json(self) -> str:
        """Return one line for each record, so that the file is small and differences are readable."""
        records = {
            "trainings": [asdict(training) for training in self.trainings],
            "choices": [asdict(choices) for choices in self.choices],
        }
        parts = [f'"settings": {json.dumps(dict(self.settings))}']
        for name, values in records.items():
            lines = ",\n  ".join(json.dumps(_present(each)) for each in values)
            parts.append(f'"{name}": [\n  {lines}\n ]')
        return "{\n " + ",\n ".join(parts) + "\n}\n"


def read_figures(path: Path) -> Figures:
    """Read what `Figures.to_json` wrote. Raises `UserError` for any other file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        trainings = [
            Training(**{"validation_error": None, **fields}) for fields in data["trainings"]
        ]
        choices = [Choices(**{"donor": None, "each": None, **each}) for each in data["choices"]]
        if not trainings:
            raise ValueError("there is no training in it")
        return Figures(LATER_SETTINGS | data["settings"], trainings, choices)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: no figures of this study ({error}); give a file that its --json wrote"
        ) from error


def merged_figures(several: Sequence[Figures]) -> Figures:
    """Return the figures of several studies as those of one, such as studies of one task each.

    A setting in which they differ becomes the list of its values. Raises `UserError` if two of them
    hold the same evaluation.
    """
    choices = [each for figures in several for each in figures.choices]
    keys = [(each.variant, each.seed, each.task, each.gap, each.probe) for each in choices]
    twice = next((key for key, number in Counter(keys).items() if number > 1), None)
    if twice is not None:
        variant, seed, task, gap, probe = twice
        raise UserError(
            f"two of the studies hold {variant}, seed {seed}, in {task} at a gap of {gap} ({probe}); "
            "leave one of them out"
        )
    trainings = [each for figures in several for each in figures.trainings]
    names = dict.fromkeys(name for figures in several for name in figures.settings)
    values = {name: _distinct([each.settings.get(name) for each in several]) for name in names}
    return Figures(
        {name: found[0] if len(found) == 1 else found for name, found in values.items()},
        trainings,
        choices,
    )


def collect_figures(out: Path) -> Figures:
    """Return what the folder of a study holds. Unfinished trainings are left out.

    Raises `UserError` if nothing is finished, or if trainings in it differ in their settings.
    """
    folders = [folder for folder in run_folders(out) if folder.training_result is not None]
    if not folders:
        raise UserError(f"{out} holds no finished training; make one without --report")
    _require_one_study(folders)
    settings = folders[0].facts.settings if folders[0].facts else {}
    return Figures(
        {name: value for name, value in settings.items() if name not in NOT_REPORTED},
        [_training(folder) for folder in folders],
        [each for folder in folders for each in _choices(folder)],
    )


def _require_one_study(folders: Sequence[RunFolder]) -> None:
    first = folders[0]
    for folder in folders[1:]:
        if folder.facts and first.facts and folder.facts.settings != first.facts.settings:
            raise UserError(
                f"{first.path} and {folder.path} were trained with different settings and cannot be "
                "compared; move one of them out of the folder"
            )


def _training(folder: RunFolder) -> Training:
    facts, result = folder.facts, folder.training_result
    assert facts is not None
    assert result is not None
    error = result["validation"]["policy"]["normalized"] if "validation" in result else None
    return Training(
        facts.variant,
        facts.seed,
        facts.core,
        facts.parameters,
        facts.all_parameters,
        result["step"],
        round(result["elapsed_s"] / 60, 2),
        None if error is None else round(error, 4),
    )


def _choices(folder: RunFolder) -> list[Choices]:
    return [
        _choices_of(folder, evaluation, result)
        for evaluation in folder.evaluations()
        for result in evaluation.tasks.values()
    ]


def _choices_of(folder: RunFolder, evaluation: Evaluation, result: TaskResult) -> Choices:
    facts, condition = folder.facts, evaluation.condition
    assert facts is not None
    assert condition.gap is not None
    made = [outcome.choice for outcome in result.outcomes]
    right = "".join(str(int(choice is not None and choice.is_right)) for choice in made)
    donors = result.donor_choices
    return Choices(
        facts.variant,
        facts.seed,
        result.task,
        condition.gap,
        condition.probe,
        evaluation.first_seed,
        result.episodes,
        right.count("1"),
        donors.count if donors else None,
        result.successes,
        right if condition.probe == LIVE else None,
    )


def _distinct(values: Sequence[Any]) -> list[Any]:
    """Return each value once, also where values cannot be hashed."""
    return [value for place, value in enumerate(values) if value not in values[:place]]


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
