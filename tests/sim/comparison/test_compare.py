"""`ttm compare`: which evaluations are paired, and what is printed and drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ttm.policy import UserError
from ttm.sim import Evaluation
from ttm.sim.compare import (
    CompareCommand,
    Entry,
    _opening,
    pairs_of,
    pairs_table,
    rates_table,
    read_entries,
)
from ttm.sim.condition import SAME_STATE, Condition
from ttm.sim.evaluation import EpisodeJob, _contrasts
from ttm.sim.results import TaskResult
from ttm.sim.rollout import Choice, Outcome
from ttm.training.cli import main


def skill(successes: str) -> Evaluation:
    """One episode for each letter: s for success, anything else for failure."""
    outcomes = [
        Outcome("pick", seed, "pick it", letter == "s", 9, None)
        for seed, letter in enumerate(successes)
    ]
    return Evaluation("none", None, 0, None, {"pick": TaskResult("pick", tuple(outcomes))})


def recall(choices: str, gap: int, cue: str = "r") -> Evaluation:
    """One episode for each letter, the first of what was chosen. Only some of the right ones succeed."""
    outcomes = tuple(
        Outcome(
            "recall", n, "go", letter == cue and n > 0, 9, None, Choice(letter, cue, gap, 2 + gap)
        )
        for n, letter in enumerate(choices)
    )
    tasks = {"recall": TaskResult("recall", outcomes)}
    return Evaluation("none", None, 0, None, tasks, condition=Condition(gap))


def test_any_number_is_compared_with_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, successes in {"a": "ssss", "b": "ss..", "c": "...."}.items():
        skill(successes).save(tmp_path / name)
    assert CompareCommand(tuple(tmp_path / name for name in "abc"), tmp_path / "out").run() == 0
    printed = capsys.readouterr().out.replace(str(tmp_path), "")
    assert [line.split()[:3] for line in printed.splitlines()[1:4]] == [
        ["pick", "/a", "4"], ["pick", "/b", "2"], ["pick", "/c", "0"]
    ]  # fmt: skip
    assert "4 of 4 = 100% (51% to 100%)" in printed
    assert "right choice" not in printed
    assert [line.split() for line in printed.splitlines()[-3:-1]] == [
        ["pick", "/a", "/b", "2", "2", "0", "0", "-50%", "(-83%", "to", "+17%)", "0.5"],
        ["pick", "/a", "/c", "0", "4", "0", "0", "-100%", "(-100%", "to", "-17%)", "0.12"],
    ]
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"{tmp_path}/c" in page
    assert page.count('class="bar"') >= 3
    assert "success in 2 of 4 episodes (95 % interval 15 to 85 %)" in page
    assert "0.12" in page


def test_where_to_write_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "a", "b"])
    assert "--out" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_each_gap_has_pairs_of_its_own() -> None:
    ours = [Entry("ours", recall("rrrr", gap)) for gap in (5, 15)]
    theirs = [Entry("theirs", recall("rbbr", gap)) for gap in (5, 15)]
    pairs = [pair for pair in pairs_of([*ours, *theirs]) if pair.measure == "choice"]
    assert [(pair.first.label, pair.second.label) for pair in pairs] == [
        ("ours, gap 5", "ours, gap 15"),
        ("ours, gap 5", "theirs, gap 5"),
        ("ours, gap 15", "theirs, gap 15"),
    ]
    assert [pair.test.only_first for pair in pairs] == [0, 2, 2]


def test_choice_and_success_are_tested_each() -> None:
    entries = [Entry("ours", recall("rrr", 5)), Entry("theirs", recall("bbr", 5))]
    counts = {pair.measure: pair.test.only_first for pair in pairs_of(entries)}
    assert counts == {"success": 1, "choice": 2}
    assert len(pairs_table(pairs_of(entries)).splitlines()) == 2, "the terminal tells choices alone"
    assert "3 of 3 = 100%" in rates_table(entries)


def test_states_of_another_cue_are_not_paired() -> None:
    assert (
        pairs_of([Entry("ours", recall("rrr", 5)), Entry("theirs", recall("rrr", 5, cue="b"))])
        == []
    )


@pytest.mark.parametrize("names", [[], ["a", "a"], ["a", "nowhere"], ["a", "point"]])
def test_what_cannot_be_compared_is_an_error(tmp_path: Path, names: list[str]) -> None:
    skill("s.").save(tmp_path / "a")
    replace(skill("s."), environment="point_env:test/Point-v0").save(tmp_path / "point")
    with pytest.raises(
        UserError, match=r"RESULT is empty|twice|no such evaluation|same environment"
    ):
        CompareCommand(tuple(tmp_path / name for name in names), tmp_path / "out").run()
    assert not (tmp_path / "out").exists()


def test_combinations_are_read_in_the_order_of_gaps_and_probes(tmp_path: Path) -> None:
    for gap in (15, 5):
        for probe in ("swap", "live"):
            condition = Condition(gap, probe, donor=SAME_STATE)
            replace(recall("r", gap), condition=condition).save(tmp_path / condition.folder)
    labels = [entry.label.removeprefix(str(tmp_path)) for entry in read_entries(tmp_path)]
    assert labels == [", gap 5", " (swap), gap 5", ", gap 15", " (swap), gap 15"]


def film(state: int, *, success: bool) -> dict[str, Any]:
    outcome = Outcome("pick", state, "pick it", success, 9, None)
    return {"state": ("pick", state, -1), "outcome": outcome}


def test_a_page_opens_with_a_success_and_a_failure_of_the_same_state() -> None:
    films = [film(0, success=True), film(1, success=False), film(2, success=False)]
    assert _opening(films) == [films[0], films[1]]
    films.append(film(2, success=True))
    assert _opening(films) == [films[3], films[2]]
    assert _opening(films[1:3]) == films[1:3], "failures are shown if there is nothing else"
    assert _opening(films[:1]) == films[:1]


def test_films_show_both_outcomes(tmp_path: Path) -> None:
    """Of the first state alone there is a film; the first failure is filmed as well."""
    conditions = Condition(), Condition(probe="zero")
    jobs = [
        EpisodeJob("pick", seed, None, each, tmp_path, video=seed == 0, picture=False)
        for each in conditions
        for seed in range(3)
    ]

    def filmed(successes: str) -> list[tuple[str, int]]:
        outcomes = {
            n: Outcome("pick", jobs[n].seed, "pick it", letter == "s", 9, None)
            for n, letter in enumerate(successes)
        }
        return [(job.condition.probe, job.seed) for job in _contrasts(jobs, outcomes)]

    assert filmed("ssssss") == []
    assert filmed("sss.ss") == [], "the films of the first state show both"
    assert filmed("sssss.") == [("live", 2), ("zero", 2)]
    assert filmed("s.ss.s") == [("live", 1)]
