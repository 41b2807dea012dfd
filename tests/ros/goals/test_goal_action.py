"""The action server of goals, beside a stand-in of rclpy's: its type has to be built, and is not here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from rclpy.action import CancelResponse, GoalResponse

from ttm.policy import UserError
from ttm_policy import goals as goal_action
from ttm_policy.goals import GoalAction, GoalReport, GoalState

CAN = "pick up the red can"
KIND = SimpleNamespace(Result=SimpleNamespace, Feedback=SimpleNamespace)


class Handle:
    """A goal as rclpy hands it over. It ends only in states that ROS allows."""

    def __init__(self, text: str = CAN, timeout_s: float = 0.0) -> None:
        self.request = SimpleNamespace(instruction=text, timeout_s=timeout_s)
        self.is_cancel_requested, self.state = False, "executing"
        self.feedback: list[int] = []

    def publish_feedback(self, feedback: Any) -> None:
        self.feedback.append(feedback.tick)

    def succeed(self) -> None:
        self.state = "succeeded"

    def abort(self) -> None:
        self.state = "aborted"

    def canceled(self) -> None:
        assert self.is_cancel_requested
        self.state = "canceled"


class Keeper:
    """Accepts every goal that has a text and a time limit that can be."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[GoalReport], None]] = []
        self.goals = 0

    def require_acceptable(self, instruction: str, timeout_s: float) -> str:
        if not instruction or timeout_s < 0:
            raise UserError("no instruction yet, or no such time limit")
        return instruction

    def request(self, instruction: str, timeout_s: float) -> GoalReport:
        self.goals += 1
        return GoalReport(self.goals, instruction)

    def tell(self, state: GoalState, tick: int, goal: int = 1) -> None:
        for listener in self.listeners:
            listener(GoalReport(goal, CAN, state, tick=tick))

    def cancel(self) -> None:
        self.tell(GoalState.CANCELED, 3)


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


@pytest.fixture
def action(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(goal_action, "ActionServer", lambda *_, **__: None)
    monkeypatch.setattr(goal_action, "Future", lambda: asyncio.get_running_loop().create_future())
    node = SimpleNamespace(get_logger=lambda: SimpleNamespace(warning=lambda _: None))
    return GoalAction(node, keeper, KIND)


async def _executing(action: Any, handle: Handle) -> asyncio.Task[Any]:
    task = asyncio.create_task(action._execute(handle))
    await asyncio.sleep(0)
    return task


def test_a_goal_that_cannot_be_is_rejected(action: Any) -> None:
    assert action._accept(Handle("").request) is GoalResponse.REJECT
    assert action._accept(Handle(CAN, -1.0).request) is GoalResponse.REJECT
    assert action._accept(Handle().request) is GoalResponse.ACCEPT


@pytest.mark.parametrize("state", [GoalState.SUCCEEDED, GoalState.ABORTED])
def test_feedback_at_each_tick_and_the_result_at_the_end(
    action: Any, keeper: Keeper, state: GoalState
) -> None:
    async def run() -> tuple[Handle, Any]:
        handle = Handle()
        task = await _executing(action, handle)
        keeper.tell(GoalState.EXECUTING, 1)
        keeper.tell(GoalState.EXECUTING, 7, goal=2)  # somebody else's
        keeper.tell(GoalState.EXECUTING, 2)
        keeper.tell(state, 3)
        return handle, await task

    handle, result = asyncio.run(run())
    assert (handle.state, handle.feedback) == (state.value, [1, 2])
    assert (result.ticks, result.message) == (3, f"goal 1 {state.value}")


def test_a_client_cancels_its_own_goal_only(action: Any, keeper: Keeper) -> None:
    async def run() -> Handle:
        handle = Handle()
        task = await _executing(action, handle)
        assert action._cancel(Handle()) is CancelResponse.REJECT
        assert action._cancel(handle) is CancelResponse.ACCEPT
        handle.is_cancel_requested = True  # as rclpy does after that
        await task
        return handle

    assert asyncio.run(run()).state == "canceled"


def test_a_goal_that_the_service_canceled_is_aborted_for_the_client(
    action: Any, keeper: Keeper
) -> None:
    """ROS knows the state canceled only after a request of the client."""

    async def run() -> Handle:
        handle = Handle()
        task = await _executing(action, handle)
        keeper.cancel()
        await task
        return handle

    assert asyncio.run(run()).state == "aborted"
