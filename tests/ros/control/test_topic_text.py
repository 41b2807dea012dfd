"""Texts of strangers on a topic: what is no JSON of the right kind is refused, and nothing ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from std_msgs.msg import String

from ttm.policy import UserError
from ttm_policy.inference import load_policy
from ttm_policy.inputs import (
    LARGEST,
    MOST_CHARACTERS,
    MOST_PARTS,
    read_instruction,
    read_json,
    read_json_texts,
)
from ttm_policy.parameters import PolicyParameters, RecorderParameters
from ttm_policy.recording.matching import Topics
from ttm_policy.recording.recorder import Recorder, SceneStart
from ttm_policy.recording.session import RecordingSession
from ttm_policy.session import PolicySession
from ttm_policy.simulator.episodes import Scenes
from ttm_policy.teleop.session import RecorderCalls
from ttm_policy.web.robot import LONGEST_NAME, LONGEST_REPORT, MOST_REPORTS, RECORDER, RobotOverRos

GOOD = {"state": "ready", "episodes": 2, "silent": ["head"], "lost": {"head": 1}, "remaining_s": 3}
FIELDS = {
    "state": str,
    "episodes": int,
    "silent": list,
    "lost": dict,
    "remaining_s": 0.0,
    "tick": 7,
}
BAD = {
    "empty": "",
    "prose": "ready\x1b[2J",
    "a list": "[]",
    "null": "null",
    "deep": "[" * 100_000,
    "long": json.dumps(GOOD | {"more": "x" * MOST_CHARACTERS}),
    "long number": "1" * 5000,
    "other type": json.dumps(GOOD | {"state": 1}),
    "bool": json.dumps(GOOD | {"episodes": True}),
    "left out": json.dumps({"episodes": 2}),
    "large": json.dumps(GOOD | {"episodes": LARGEST}),
    "NaN": json.dumps(GOOD | {"remaining_s": float("nan")}),
    "infinite": json.dumps(GOOD).replace(": 3", ": 1e999"),
    "many texts": json.dumps(GOOD | {"silent": ["x"] * (MOST_PARTS + 1)}),
    "no texts": json.dumps(GOOD | {"silent": [{}]}),
    "no numbers": json.dumps(GOOD | {"lost": {"head": "x"}}),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_what_is_not_the_json_that_is_expected_is_refused_with_a_short_warning(text: str) -> None:
    node = MagicMock()
    assert read_json(node, "recorder/status", String(data=text), FIELDS) is None
    (said,) = node.get_logger().warning.call_args.args
    assert "'recorder/status' is not used" in said
    assert len(said) < 400
    assert said.isprintable()
    assert read_json_texts(node, "texts", String(data=text)) in (None, [])


def test_json_gives_the_fields_that_are_asked_for_and_printable_texts() -> None:
    node, strange = MagicMock(), GOOD | {"state": "\ud800\x1b[2J" + "x" * 5000, "other": {}}
    data = read_json(node, "status", String(data=json.dumps(strange)), FIELDS)
    assert data is not None
    assert data.keys() == FIELDS.keys()
    assert (data["remaining_s"], data["tick"], data["lost"]) == (3.0, 7, {"head": 1})
    assert data["state"].encode().startswith(b"\\ud800")
    assert data["state"].isprintable()
    assert len(data["state"]) == MOST_PARTS
    assert read_json_texts(node, "texts", String(data='["/a  b", "\\u001b"]')) == ["/a  b", "\\x1b"]
    assert not node.get_logger().warning.called


def _by(kind: Any, name: str, **attributes: Any) -> tuple[Any, Callable[..., None]]:
    """Return an object of a class that listens, without its topics, and what takes a message."""
    listener = object.__new__(kind)
    vars(listener).update(_node=MagicMock(), **attributes)
    return listener, getattr(listener, name)


def test_every_listener_keeps_what_it_knew() -> None:
    logger = MagicMock()
    given: list[tuple[Any, Callable[[String], None], str, Any]] = [
        (*_by(RobotOverRos, "_on_recorder", _parameters=logger, _recorder=1), "_recorder", 1),
        (*_by(RobotOverRos, "_on_scene", _parameters=logger, _scene=2), "_scene", 2),
        (*_by(RobotOverRos, "_on_known", _parameters=logger, _known=["a"]), "_known", ["a"]),
        (*_by(RecorderCalls, "_on_status", _name="r", _state="ready"), "_state", "ready"),
        (*_by(Scenes, "_on_recorder", _recorder=("ready", 1)), "_recorder", ("ready", 1)),
        (*_by(SceneStart, "_on_episode", _simulator="s", _newest=3), "_newest", 3),
    ]
    for listener, receive, attribute, before in given:
        for text in ("", "[1]", '"ready"', "[" * 100_000, '{"state": 1, "scene": "x", "task": 0}'):
            receive(String(data=text))
        assert getattr(listener, attribute) == before, receive


@pytest.mark.parametrize("text", ["x" * 5_000_000, "pick \x1b[2J", "a" * 1001], ids=len)
def test_an_instruction_of_a_stranger_is_refused_and_the_one_in_force_stays(text: str) -> None:
    episode = MagicMock(instruction="wave")
    policy, hear = _by(PolicySession, "_on_instruction", _episode=episode, _goals=MagicMock())
    recorder, tell = _by(Recorder, "_on_instruction", _instruction="wave")
    for listener, take in ((policy, lambda message: hear(message, {})), (recorder, tell)):
        take(String(data=text))
        (said,) = listener._node.get_logger().warning.call_args.args
        assert "'instruction' is not used" in said
        assert len(said) < 400
        assert said.isprintable()
    assert (recorder._instruction, episode.instruction) == ("wave", "wave")
    assert not episode.begin.called


def test_a_parameter_is_refused_alike_before_anything_loads() -> None:
    for text in ("pick \x1b[2J", "x" * 1001):
        with pytest.raises(UserError, match=r"^instruction (is|has)"):
            load_policy(PolicyParameters(instruction=text), MagicMock())


def test_an_instruction_is_one_line() -> None:
    for text in (" pick up\nthe can\n", "pick\u00a0up\r\nthe can"):
        assert read_instruction(MagicMock(), String(data=text)) == "pick up the can"


def test_the_page_shows_few_and_short_complaints_and_the_policys_among_them() -> None:
    parameters = SimpleNamespace(policy="policy_node", recorder="recorder_node")
    facts = {"_reports": {}, "_own": "/web_node", "_parameters": parameters}
    page, receive = _by(RobotOverRos, "_on_diagnostics", **facts)

    def tell(name: str, text: str, level: bytes = DiagnosticStatus.WARN) -> None:
        status = DiagnosticStatus(name=name, message=text, level=level)
        receive(DiagnosticArray(status=[status]))

    tell("/policy_node: policy", "inactive")
    for number in range(10_000):
        tell(f"driver {number}: \x1b[2J", "lost\n" * 1000)
    for number in range(100):  # that call themselves so
        tell(f"/{number}/policy_node: policy", "x")
    found = page._complaints()
    assert len(found) == len(page._reports) == MOST_REPORTS
    tell("/policy_node: policy", "inactive")
    for number in range(MOST_REPORTS):
        tell(f"{'x' * 5000} {number}", "lost")
    found = page._complaints()
    assert ("/policy_node", "inactive") in found
    assert all(len(name) <= LONGEST_NAME and len(text) <= LONGEST_REPORT for name, text in found)
    tell("/policy_node: policy", "running", DiagnosticStatus.OK)
    assert "/policy_node" not in dict(page._complaints())


def test_what_a_recorder_says_is_what_its_listeners_read() -> None:
    none = frozenset[str]()
    parameters = RecorderParameters(rate_hz=10.0)
    session = RecordingSession(Topics(none, none, none), parameters, MagicMock())
    recorder: Any = SimpleNamespace(
        session=session, _instruction="wave", _sink=SimpleNamespace(waiting=0)
    )
    text = String(data=json.dumps(Recorder.status(recorder)))
    data = read_json(MagicMock(), "status", text, RECORDER)
    assert data is not None
    assert data["state"] == "ready"
