"""ListOps: expressions and their values, batches, and what a core learns."""

from __future__ import annotations

import itertools
import re
import statistics
from dataclasses import replace
from itertools import islice
from typing import get_args

import pytest
import torch

from ttm.policy import CoreConfig, UserError
from ttm.training.help_texts import CoreName
from ttm.training.sequence_model import SequenceModel, fit, study_core
from ttm.training.study.common import SMALL_CORE
from ttm.training.study.listops import (
    NUM_SYMBOLS,
    Expression,
    ListopsTask,
    evaluate,
    last_scores,
    listops_loss,
    predicted_values,
    to_batch,
    training_batches,
)

TASK = ListopsTask(min_length=8, max_length=30, depth=3, arguments=4, operator_probability=0.3)
TINY = ListopsTask(min_length=4, max_length=4, depth=1, arguments=2, operator_probability=0.0)


def listops_core(name: CoreName, max_length: int = 30) -> CoreConfig:
    own = {"window": max_length} if name in ("transformer", "hourglass") else {}
    return study_core(name, SMALL_CORE, {name: own})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[MIN 2 9 [MAX 4 7 ] 3 ]", 2),
        ("[MED 1 9 5 ]", 5),
        ("[MED 1 2 8 9 ]", 5),
        ("[MED 2 3 ]", 2),
        ("[SM 8 9 6 ]", 3),
        ("[SM 1 [SM 9 [MED 4 4 ] ] ]", 4),
        ("7", 7),
    ],
)
def test_values(text: str, value: int) -> None:
    assert evaluate(text.split()) == value


def depth(expression: Expression) -> int:
    """Return the number of operators within one another."""
    steps = (token.startswith("[") - (token == "]") for token in expression.tokens)
    return max(itertools.accumulate(steps))


def test_values_agree_with_another_reading_of_the_text() -> None:
    names = {
        "MIN": min,
        "MAX": max,
        "MED": lambda v: int(statistics.median(v)),
        "SM": lambda v: sum(v) % 10,
    }
    for expression in TASK.make(300, seed=1):
        text = " ".join(expression.tokens)
        python = re.sub(r"(\d)", r"\1,", text).replace("]", "]),").strip(",")
        assert eval(re.sub(r"\[(\w+)", r"\1([", python), {}, names) == expression.value, text


def test_expressions_keep_within_the_bounds_and_reach_them() -> None:
    made = TASK.make(1500, seed=0)
    lengths = [len(e.tokens) for e in made]
    assert (min(lengths), max(lengths)) == (8, 30)
    assert {depth(e) for e in made} == {2, 3}  # with 4 arguments no single operator has 8 tokens
    assert {e.value for e in made} == set(range(10))
    assert {e.tokens[0] for e in made} == {"[MIN", "[MAX", "[MED", "[SM"}
    assert {len(_arguments_of_first(e)) for e in made} == {2, 3, 4}


def _arguments_of_first(expression: Expression) -> list[int]:
    """Return the values of the outermost operator's arguments."""
    arguments, inner = [], []
    for token in expression.tokens[1:-1]:
        inner.append(token)
        if inner.count("]") == sum(part.startswith("[") for part in inner):
            arguments.append(evaluate(inner))
            inner = []
    return arguments


def test_the_seed_alone_decides_and_no_expression_comes_twice() -> None:
    first, same, other = (TASK.make(200, seed) for seed in (0, 0, 1))
    assert first == same != other
    assert len({e.tokens for e in first}) == 200
    assert TASK.make(50, 0) == first[:50]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": 7}, "--max-length is 7; give 8 or more"),
        ({"depth": 0}, "--depth is 0; give 1 or more"),
        ({"depth": 101}, "--depth is 101; give 100 or less"),
    ],
)
def test_bounds_out_of_range_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(TASK, **change)


def test_more_expressions_than_there_are_end_in_an_error() -> None:
    """There are 400 expressions: four operators on two digits."""
    assert len(TINY.make(390, seed=0)) == 390
    with pytest.raises(
        UserError, match="gave 400 different expressions of 4 to 4 tokens, and 401 are needed"
    ):
        TINY.make(401, seed=0)


def test_bounds_that_are_met_too_seldom_end_in_an_error() -> None:
    seldom = replace(TASK, min_length=80, max_length=85, operator_probability=0.01)
    for never in (seldom, replace(TASK, depth=1, arguments=5)):
        with pytest.raises(UserError, match=r"gave 0 different .* give fewer"):
            never.make(3, seed=0)


@pytest.mark.parametrize("name", get_args(CoreName))
def test_padding_does_not_change_the_scores(name: CoreName) -> None:
    torch.manual_seed(0)
    model = SequenceModel(listops_core(name, TASK.max_length), NUM_SYMBOLS, 10, 16)
    short, *longer = sorted(TASK.make(4, seed=0), key=lambda e: len(e.tokens))
    assert len(longer[-1].tokens) > len(short.tokens)
    scores = []
    for symbols, last, _ in (to_batch([short]), to_batch([short, *longer])):
        scores.append(last_scores(model, symbols, last)[0])
    torch.testing.assert_close(scores[0], scores[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["transformer", "hourglass", "lstm", "ttm", "tlb", "none"])
def test_the_scores_depend_on_the_whole_expression_unless_there_is_no_memory(
    name: CoreName,
) -> None:
    torch.manual_seed(0)
    model = SequenceModel(listops_core(name, TASK.max_length), NUM_SYMBOLS, 10, 16).double()
    expression = max(TASK.make(20, seed=0), key=lambda e: len(e.tokens))
    embedded = model.embedding(to_batch([expression])[0]).detach().requires_grad_()
    model.scores(embedded)[0, -1, 0].backward()
    assert embedded.grad is not None
    seen = embedded.grad[0].abs().sum(dim=1) > 0
    assert seen.tolist() == [name != "none"] * (len(seen) - 1) + [True]


def test_a_pass_has_every_expression_once_and_the_seed_decides_the_order() -> None:
    expressions = TASK.make(50, seed=0)
    first, same, other = (
        list(islice(training_batches(expressions, 8, seed), 7)) for seed in (0, 0, 1)
    )
    rows = [
        tuple(row[: last + 1].tolist())
        for symbols, lasts, _ in first
        for row, last in zip(symbols, lasts, strict=True)
    ]
    symbols, lasts, _ = to_batch(expressions)
    assert len(rows) == 50
    assert set(rows) == {tuple(r[: n + 1].tolist()) for r, n in zip(symbols, lasts, strict=True)}
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, same, strict=True))
    assert not all(torch.equal(a[2], b[2]) for a, b in zip(first, other, strict=True))
    assert len(list(islice(training_batches(expressions, 8, 0), 10))) == 10  # begins again


def test_predicted_values_come_in_the_order_asked() -> None:
    torch.manual_seed(0)
    model = SequenceModel(listops_core("lstm", 30), NUM_SYMBOLS, 10, 16)
    expressions = TASK.make(20, seed=0)
    with torch.no_grad():
        model.head.weight.mul_(20)  # so that not all are told the same
    told = predicted_values(model, expressions)
    assert len(set(told)) > 1
    assert told == [predicted_values(model, [e])[0] for e in expressions]


def test_a_memory_learns_operators_on_two_digits() -> None:
    assert _accuracy_on_two_digits("lstm", steps=120) > 0.6


def test_without_a_memory_there_is_but_one_value_to_tell() -> None:
    assert _accuracy_on_two_digits("none", steps=10) < 0.25


def _accuracy_on_two_digits(name: CoreName, steps: int) -> float:
    """Return the accuracy on the quarter of the 400 expressions that is held out."""
    made = TINY.make(400, seed=0)
    torch.manual_seed(0)
    model = SequenceModel(listops_core(name, 4), NUM_SYMBOLS, 10, 32)
    batches = islice(training_batches(made[100:], 50, 0), steps)
    *_, _ = fit(model, batches, listops_loss, learning_rate=1e-2)
    told = predicted_values(model, made[:100])
    return sum(value == each.value for value, each in zip(told, made, strict=False)) / 100


def test_the_loss_is_of_the_last_token() -> None:
    torch.manual_seed(0)
    model = SequenceModel(listops_core("lstm", 30), NUM_SYMBOLS, 10, 16)
    made = TASK.make(3, seed=0)
    alone = [listops_loss(model, *to_batch([expression])) for expression in made]
    together = listops_loss(model, *to_batch(made))
    torch.testing.assert_close(together, torch.stack(alone).mean())
