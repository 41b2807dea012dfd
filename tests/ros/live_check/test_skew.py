"""Whether the inputs of a contract were captured together."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ttm_policy.contract import load_contract
from ttm_policy.live_check import _hear, _skew

CONTRACT = replace(load_contract(), max_skew_s=0.2)
SECOND_NS = 1_000_000_000


def _inputs(**stamps_s: float | None) -> list[Any]:
    """Inputs of topic `t`, `t2`, …: a digit after `_` tells inputs of one topic apart."""
    return [
        SimpleNamespace(
            source=SimpleNamespace(topic=name.partition("_")[0]),
            stamp_ns=None if stamp_s is None else round(stamp_s * SECOND_NS),
        )
        for name, stamp_s in stamps_s.items()
    ]


@pytest.mark.parametrize("names", [("odom", "head", "joints"), ("odom", "joints_1", "joints_2")])
def test_inputs_that_are_far_apart_are_told(names: tuple[str, str, str]) -> None:
    (finding,) = _skew(_inputs(**dict(zip(names, (5.0, 5.1, 5.25), strict=True))), CONTRACT)
    assert finding.seen == "0.250 s"
    (problem,) = finding.problems
    last = names[2].partition("_")[0]
    assert problem.startswith(f"odom is 0.250 s older than {last}, and the contract accepts 0.2 s")


def test_inputs_that_are_near_each_other_fit() -> None:
    (finding,) = _skew(_inputs(odom=5.0, head=5.15), CONTRACT)
    assert (finding.seen, finding.problems) == ("0.150 s", ())


def test_without_a_limit_or_with_an_input_missing_nothing_is_said() -> None:
    assert _skew(_inputs(odom=5.0, head=9.0), load_contract()) == []
    assert _skew(_inputs(odom=5.0, head=None), CONTRACT) == []


def test_what_waits_at_the_end_is_heard_before_it_is_judged() -> None:
    waiting = list(range(50))
    executor: Any = SimpleNamespace(spin_once=lambda timeout_sec: waiting and waiting.pop())
    _hear(executor, seconds=0.0)
    assert not waiting
