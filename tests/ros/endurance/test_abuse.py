"""The campaign of abuse: the quickest kinds end to end, and what is judged of a press."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from abuse import Outcome, Press, summary
from abuse_kinds import ATTACKS, KINDS
from e_stop_campaign import what_followed
from failing_robot import Command

SCRIPT = Path(__file__).with_name("run.py")
BUSY_MS = 5000.0
"""What a machine may take that runs other tests meanwhile: the bar itself is for an idle one."""
QUICK = ("wrong step", "one parameter again and again", "cameras stop")
LIMIT_S = 900.0


def test_the_quickest_kinds_hold_end_to_end(tmp_path: Path) -> None:
    out = tmp_path / "abuse.json"
    command = [sys.executable, str(SCRIPT), "abuse", "--presses", "1", "--bar-ms", str(BUSY_MS)]
    command += ["--json", str(out), "--only", *QUICK]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    figures = json.loads(out.read_text())
    assert (figures["kinds"], figures["presses"], figures["answered"]) == (3, 3, 3)
    assert figures["holds"]
    acts = {one["kind"]: one["acts"] for one in figures["each"]}
    assert all(acts[name] > 0 for name in QUICK[:2]), "the attackers have acted"
    lines = ran.stdout.splitlines()
    assert [name for name in QUICK if any(line.startswith(f"ok   {name}") for line in lines)] == [
        *QUICK
    ]


def test_there_are_at_least_44_kinds() -> None:
    assert len(KINDS.keys() - {"nothing"}) >= 44
    assert all(name in KINDS or any(kind.endswith(name) for kind in KINDS) for name in ATTACKS)


def _outcome(*presses: Press, **facts: Any) -> Outcome:
    outcome = Outcome("one", list(presses), **{"recovered_s": 1.0, **facts})
    outcome.judge(20.0)
    return outcome


GOOD = Press(0.005, 0, True)


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (_outcome(GOOD, Press(0.5, 0, True)), "late: 500 ms"),
        (_outcome(GOOD, Press(None, 0, True)), "1 of 2 presses were answered"),
        (_outcome(), "0 of 0 presses were answered"),
        (_outcome(Press(0.01, 2, True)), "moved 2 times after zero"),
        (_outcome(GOOD, recovered_s=None), "does not drive again"),
        (_outcome(GOOD, ended=["policy_node with -11"]), "ended: policy_node with -11"),
        (_outcome(GOOD, grown_mb=51.0), "memory grown by 51 MB"),
        (_outcome(GOOD, peak_mb=301.0), "memory larger by 301 MB meanwhile"),
    ],
)
def test_what_must_not_be_is_said(outcome: Outcome, problem: str) -> None:
    assert outcome.problems == [problem]
    figures = summary([_outcome(GOOD), outcome], [], 20.0)
    assert figures["failed"] == {"one": [problem]}
    assert not figures["holds"]
    assert outcome.line().startswith("FAIL one")


def test_good_outcomes_hold_and_a_bad_end_does_not() -> None:
    outcomes = [_outcome(GOOD, GOOD)]
    assert summary(outcomes, [], 20.0)["holds"]
    assert not summary(outcomes, ["zero was not the last command of policy_node"], 20.0)["holds"]
    assert not summary([], [], 20.0)["holds"], "without a press nothing is shown"


@pytest.mark.parametrize(
    ("commands", "took_s", "moved"),
    [
        ("arm 0.01, base 0.02", 0.02, 0),
        (
            "base 0.005 moves, arm 0.01, base 0.02",
            0.02,
            0,
        ),  # was under way before the press was heard
        ("base -0.1, arm 0.01", None, 0),  # zero from before the press is no answer
        ("arm 0.01, base 0.02, base 0.2 moves", None, 1),
        ("arm 0.01, base 0.02, base 0.2 moves, base 0.3", 0.3, 1),
        ("arm 0.01, base 0.02, base 0.2, arm 0.2", 0.02, 0),  # zero again
        ("", None, 0),
    ],
)
def test_a_press_is_answered_by_the_zero_after_which_nothing_moves(
    commands: str, took_s: float | None, moved: int
) -> None:
    pressed_s = 1000.0
    got = []
    for topic, after_s, *moves in (text.split() for text in commands.split(", ") if text):
        at_s = pressed_s + float(after_s)
        got.append(Command(topic, bool(moves), sent_s=at_s, received_s=at_s))
    assert what_followed(got, ("arm", "base"), pressed_s) == (pytest.approx(took_s), moved)


def test_a_suspended_node_can_answer_only_when_it_goes_on() -> None:
    late = [Command(topic, False, sent_s=12.01, received_s=12.01) for topic in ("arm", "base")]
    assert what_followed(late, ("arm", "base"), 10.0, 12.0) == (pytest.approx(0.01), 0)
