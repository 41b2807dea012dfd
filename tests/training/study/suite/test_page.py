"""The committed figures: the cores that they are of, and the table that the study prints of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from generated import ROOT

from ttm.policy import load_checkpoint
from ttm.policy.cores.registry import core_from_dict
from ttm.policy.spec import SHIPPED_CHECKPOINT
from ttm.training.study.suite import parse_variant, suite_cores
from ttm.training.study.suite_report import (
    OURS,
    Report,
    merged_figures,
    read_figures,
)

RESULTS = ROOT / "training" / "study" / "results" / "suite"
FOLDERS = ("", "other_cores", "cue_left_on", "cue_left_on/alone")


def report(folder: Path = RESULTS) -> Report:
    return Report(merged_figures([read_figures(path) for path in sorted(folder.glob("*.json"))]))


@pytest.mark.parametrize("name", FOLDERS)
def test_the_study_would_compare_the_same_cores_today(name: str) -> None:
    policy = load_checkpoint(SHIPPED_CHECKPOINT)[0]
    ours = parse_variant(f"{OURS} sight=colours")  # as it was, whose size the others have
    found = {each.variant: each for each in report(RESULTS / name).figures.trainings}
    for training in found.values():
        variant = parse_variant(training.variant)
        core = suite_cores(ours, [variant], policy)[variant.label]
        assert core == core_from_dict(training.core), training.variant
        assert variant.num_parameters(core, policy) == training.parameters


def test_the_tables_have_the_rates_of_each_core_and_gap() -> None:
    tables = {
        table.heading: list(zip(*(column.cells for column in table.columns), strict=True))
        for table in report().tables()
    }
    live = {row[0]: row for row in tables["Right choices, colour_shown"]}
    assert live["lstm"][:3] == ("lstm", "3", "124/300 41 (36 to 47)")
