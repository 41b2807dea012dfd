"""Nobody drives who is silent, and a policy drives again when the person says so."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from teleoperation import FakeSource, kitchen_context

from ttm_policy.parameters import TeleopParameters
from ttm_policy.teleop import session as teleop_session
from ttm_policy.teleop.session import Output, TeleopSession
from ttm_policy.teleop.source import Vector


class NotedOutput(Output):
    """Keeps the newest wish, or None while the robot stands still."""

    problem = ""

    def __init__(self, *_: object) -> None:
        self.moves, self.wish, self.given_back = False, None, 0

    def send(self, wish: Vector) -> None:
        self.moves, self.wish = True, float(wish[0])

    def rest(self) -> None:
        self.moves, self.wish = False, None

    def give_back(self) -> None:
        self.given_back += 1


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> TeleopSession:
    for name, made in (("RobotOutput", NotedOutput), ("DiagnosticStatus", MagicMock()),
                       ("DiagnosticArray", MagicMock())):  # fmt: skip
        monkeypatch.setattr(teleop_session, name, made)
    return TeleopSession(MagicMock(), kitchen_context(), TeleopParameters(), FakeSource("hand"))


def step(session: TeleopSession, now_s: float, monkeypatch: pytest.MonkeyPatch) -> float | None:
    monkeypatch.setattr(teleop_session.time, "monotonic", lambda: now_s)
    session.step()
    wish: float | None = session.output.wish
    return wish


def test_silence_stops_within_the_time_out_and_is_told(
    session: TeleopSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = session._source
    assert step(session, 0.0, monkeypatch) is None
    assert (session.driver, session.problem) == ("", "")
    hand.touch(1.0, 0.0)
    assert step(session, 0.3, monkeypatch) == 1.0
    assert session.driver == "hand"
    assert step(session, 0.31, monkeypatch) is None
    assert session.problem.startswith("hand has been silent for more than 0.3 s")
    assert session.driver == ""
    hand.touch(2.0, 0.4)
    assert step(session, 0.4, monkeypatch) == 2.0
    hand.wanted = None
    assert step(session, 0.5, monkeypatch) is None
    assert (session.driver, session.problem) == ("", "")


def test_what_is_refused_stops_the_robot(
    session: TeleopSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session._source.touch(1.0, 0.0)
    assert step(session, 0.0, monkeypatch) == 1.0
    session.output.problem = "emergency stop: it is pressed"
    assert step(session, 0.1, monkeypatch) is None
    assert (session.driver, session.problem) == ("", "emergency stop: it is pressed")


def test_giving_back_is_asked_once(session: TeleopSession, monkeypatch: pytest.MonkeyPatch) -> None:
    session._source.ask_to_give_back()
    step(session, 0.0, monkeypatch)
    step(session, 0.1, monkeypatch)
    assert session.output.given_back == 1
