"""An episode begins with the scene that the simulated robot has promised, and with no other."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import MagicMock

import pytest
from rclpy.task import Future
from std_msgs.msg import String
from std_srvs.srv import Trigger

from ttm.policy import UserError
from ttm_policy.parameters import RecorderParameters
from ttm_policy.recording.matching import Topics
from ttm_policy.recording.recorder import SCENE, WITHIN_S, SceneStart, promise
from ttm_policy.recording.session import RecordingSession, State


class Simulator:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.node, self.session, self.calls = MagicMock(), MagicMock(), list[Future]()
        self.client = self.node.create_client.return_value
        self.client.call_async.side_effect = self._called
        self.start = SceneStart(self.node, "sim_node", self.session)

    def _called(self, _: Trigger.Request) -> Future:
        self.calls.append(Future())
        return self.calls[-1]

    @property
    def begun(self) -> int:
        return int(self.session.scene_begun.call_count)

    def answer(self, call: int, scene: int) -> None:
        # Without an executor, a future calls back at once.
        self.calls[call].set_result(Trigger.Response(success=True, message=promise(scene, 7)))

    def show(self, scene: int) -> None:
        receive: Any = self.node.create_subscription.call_args.args[2]
        receive(String(data=json.dumps({SCENE: scene, "tick": 0})))


@pytest.fixture
def simulator() -> Simulator:
    return Simulator()


@pytest.mark.parametrize("answered_first", [True, False])
def test_the_promised_scene_begins_the_episode_once(
    simulator: Simulator, answered_first: bool
) -> None:
    simulator.show(3)
    simulator.start.ask(0.0)
    simulator.show(4)  # it was about to begin anyway
    if answered_first:
        simulator.answer(0, 5)
    assert not simulator.begun
    simulator.show(5)
    if not answered_first:
        simulator.answer(0, 5)
    simulator.show(5)
    simulator.show(6)
    assert simulator.begun == 1


def test_the_answer_for_a_discarded_episode_does_not_begin_the_next_one(
    simulator: Simulator,
) -> None:
    simulator.start.ask(0.0)
    simulator.start.ask(1.0)
    simulator.show(4)
    simulator.answer(0, 4)
    assert not simulator.begun
    simulator.answer(1, 5)
    simulator.show(5)
    assert simulator.begun == 1


def test_a_robot_that_is_away_or_silent_is_told(simulator: Simulator) -> None:
    simulator.client.service_is_ready.return_value = False
    with pytest.raises(UserError, match="sim_node is not there; start it"):
        simulator.start.ask(0.0)
    simulator.client.service_is_ready.return_value = True
    simulator.start.ask(1.0)
    simulator.start.update(WITHIN_S)
    assert not simulator.session.scene_missing.called
    for _ in range(2):
        simulator.start.update(1 + WITHIN_S)
        simulator.session.scene_missing.assert_called_once_with(
            "sim_node has not begun the scene within 30 s"
        )


def test_an_episode_that_waits_for_its_scene_begins_with_it_or_not_at_all() -> None:
    none = frozenset[str]()
    parameters = RecorderParameters(rate_hz=10.0, countdown_s=1.0)
    session = RecordingSession(Topics(none, none, none), parameters, MagicMock())

    def wait_for_scene() -> None:
        assert session.start("wave", 0.0, waits=True) == "waiting for the scene: wave"
        session.update(60.0)
        assert session.state is State.WAITING

    wait_for_scene()
    with pytest.raises(UserError, match="it is waiting for the scene; stop or discard"):
        session.start("wave", 60.0)
    assert session.discard() == "discarded"
    session.scene_begun(60.0)
    assert session.state is State.READY, "what was discarded does not begin any more"
    wait_for_scene()
    session.scene_missing("the simulator is silent")
    assert (session.state, session.problem) == (State.READY, "the simulator is silent")
    wait_for_scene()
    session.scene_begun(60.0)
    assert (session.state, session.problem) == (State.COUNTDOWN, "")
    session.update(61.0)
    assert session.state is State.RECORDING
