"""The committed figures: the cores that they are of, and the table that the study prints of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from generated import ROOT

from ttm.policy import load_checkpoint
from ttm.policy.cores.registry import core_from_dict
from ttm.sim.shipped import SHIPPED_CHECKPOINT
from ttm.training.study.suite import parse_variant, suite_cores
from ttm.training.study.suite_report import (
    OURS,
    Report,
    by_task,
    merged_figures,
    read_figures,
)

RESULTS = ROOT / "training" / "study" / "results" / "suite"
FOLDERS = ("", "other_cores", "cue_left_on", "cue_left_on/alone", "cue_left_on/one_tick")


def report(folder: Path = RESULTS) -> Report:
    return Report(merged_figures([read_figures(path) for path in sorted(folder.glob("*.json"))]))


@pytest.mark.parametrize("name", FOLDERS)
def test_the_study_would_compare_the_same_cores_today(name: str) -> None:
    policy = load_checkpoint(SHIPPED_CHECKPOINT)[0]
    sizes = policy.config.width, policy.num_encoded
    ours = parse_variant(OURS)
    for training in report(RESULTS / name).figures.trainings:
        variant = parse_variant(training.variant)
        core = suite_cores(ours, [variant], *sizes)[variant.label]
        assert core == core_from_dict(training.core), training.variant
        assert variant.num_parameters(core, *sizes) == training.parameters


def test_the_table_has_a_row_for_each_core_gap_and_probe() -> None:
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in by_task(report()).split("\n")
    ]
    assert rows[0][:5] == ["core", "gap", "memory", "seeds", "`colour_shown`"]
    assert ["`lstm`", "15", "live", "3", "41 (36 to 47)", "100 (98 to 100)"] in [
        r[:6] for r in rows
    ]
    assert {tuple(row[:3]) for row in rows} >= {("`ours`", "15", "swap"), ("`none`", "45", "live")}
