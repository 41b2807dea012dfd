"""Calls of a policy's services by a simulated robot, at times that the test sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from std_srvs.srv import Trigger

from ttm_policy.messages import ResetReply
from ttm_policy.simulator import episodes
from ttm_policy.simulator.episodes import ANSWER_TIMEOUT_S, RosActor

REPLY = ResetReply("pick up the red can")


class SlowPolicy:
    """Answers each call after `slow_s`, of which every look at the answer takes a second."""

    def __init__(self, slow_s: float) -> None:
        self.now_s, self.slow_s, self.calls = 100.0, slow_s, 0

    def call_async(self, request: Any) -> Any:
        self.calls, due_s = self.calls + 1, self.now_s + self.slow_s
        answer = Trigger.Response(success=True, message=REPLY.to_json())
        return SimpleNamespace(done=lambda: self.now_s >= due_s, result=lambda: answer)

    def remove_pending_request(self, future: Any) -> None: ...

    def spin(self, timeout_s: float) -> None:
        self.now_s += 1.0


def test_a_policy_that_is_slow_to_answer_is_given_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = SlowPolicy(3 * ANSWER_TIMEOUT_S)
    monkeypatch.setattr(episodes, "time", SimpleNamespace(monotonic=lambda: policy.now_s))
    actor: Any = object.__new__(RosActor)
    actor._answer_timeout_s, actor.spin = ANSWER_TIMEOUT_S, policy.spin
    answers = [actor._call(policy) for _ in range(4)]
    assert answers == [None, None, REPLY, None], "after an answer the first time-out holds again"
