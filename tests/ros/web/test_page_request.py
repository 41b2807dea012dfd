"""What a page may ask for."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from ttm.policy import UserError
from ttm_policy.web.server import ACTIONS, read_request


def test_a_request_has_the_values_of_its_action() -> None:
    request = read_request('{"do": "steer", "id": 3, "axes": {"base.0": 0.5, "base.1": -1}}')
    assert (request.do, request.number) == ("steer", 3)
    assert request.values == {"axes": {"base.0": 0.5, "base.1": -1.0}}


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", "{}", '{"do": 3}', '{"do": "fly"}', '{"do": "start", "id": -1}',
        '{"do": "start", "id": true}', '{"do": "start", "more": 1}', '{"do": "steer"}',
        '{"do": "steer", "axes": []}', '{"do": "steer", "axes": {"a": 1.5}}',
        '{"do": "steer", "axes": {"a": NaN}}', '{"do": "steer", "axes": {"a": true}}',
        '{"do": "steer", "axes": {"a": "1"}}', '{"do": "steer", "axes": {"a": 1e400}}',
        '{"do": "stop", "success": 1}', '{"do": "stop", "success": null}', '{"do": "instruct", "text": " "}',
        '{"do": "instruct", "text": "a\\u001bb"}', '{"do": "instruct", "text": null}',
        '{"do": "delete", "episode": 0}', "[" * 8000,
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        read_request(text)


def test_random_values_are_refused_or_good() -> None:
    """Every accepted request is one that its action can take."""
    rng = random.Random(0)
    values: list[Any] = [
        None,
        True,
        0,
        -1,
        1e9,
        "",
        "x" * 1001,
        "wave",
        [],
        {},
        {"a": 2},
        {"a": 0.5},
    ]
    accepted = 0
    for _ in range(500):
        do = rng.choice([*ACTIONS, "fly", None])
        keys = rng.sample(["axes", "success", "text", "episode", "same", "id"], rng.randint(0, 3))
        data = {"do": do, **{key: rng.choice(values) for key in keys}}
        try:
            request = read_request(json.dumps(data))
        except UserError:
            continue
        accepted += 1
        assert request.values.keys() == ACTIONS[request.do].keys()
    assert accepted > 20
