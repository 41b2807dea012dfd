"""Lets a simulated robot begin its scene anew, so that an episode is recorded from the start of one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from rclpy.task import Future
from std_msgs.msg import String
from std_srvs.srv import Trigger

from ttm.policy.errors import UserError
from ttm_policy.inputs.topic_text import read_json
from ttm_policy.qos import LATCHED

WITHIN_S = 30.0
"""The longest wait for a scene to begin, in wall time."""
SCENE = "scene"
"""The number of the scene in the state of an episode, counted from the start of the simulator."""


def promise(scene: int, seed: int) -> str:
    """Return what the simulator answers who asks for a scene: which one begins, in words."""
    return f"scene {scene}, initial state {seed}"


class SceneStart:
    """Asks a simulated robot for the same scene again, and says when it has begun.

    It is told by the number that the robot promises: another scene may have been about to begin.
    """

    def __init__(self, node: Node, simulator: str, on_begun: Callable[[], None]) -> None:
        """simulator: the name of its node. on_begun: called once for each `ask`."""
        self._node, self._simulator, self._on_begun = node, simulator, on_begun
        self._client = node.create_client(Trigger, f"{simulator}/same_scene")
        self._subscription = node.create_subscription(
            String, f"{simulator}/episode", self._on_episode, LATCHED
        )
        self._until_s: float | None = None
        self._asked: Future | None = None
        self._awaited: int | None = None
        self._newest = -1

    def ask(self, now_s: float) -> None:
        """Ask for the scene. Raises `UserError` if there is no simulated robot."""
        if not self._client.service_is_ready():
            raise UserError(
                f"{self._simulator} is not there; start it, or set simulator to its name"
            )
        self._until_s, self._awaited = now_s + WITHIN_S, None
        self._asked = self._client.call_async(Trigger.Request())
        self._asked.add_done_callback(self._on_answer)

    def forget(self) -> None:
        """Let the episode go whose scene is awaited."""
        self._until_s = None

    def problem(self, now_s: float) -> str:
        """Return why the scene that is awaited will not begin any more, or an empty text."""
        if self._until_s is None or now_s < self._until_s:
            return ""
        return f"{self._simulator} has not begun the scene within {WITHIN_S:g} s"

    def close(self) -> None:
        """Destroy topic and client."""
        self._node.destroy_subscription(self._subscription)
        self._node.destroy_client(self._client)

    def _on_answer(self, answer: Future) -> None:
        if (
            self._asked is None or answer is not self._asked
        ):  # that of an episode that was discarded
            return
        reply: Any = answer.result()
        found = re.match(r"scene (\d{1,18})\b", reply.message)
        self._awaited = int(found[1]) if found else None
        self._look()

    def _on_episode(self, message: String) -> None:
        if state := read_json(self._node, f"{self._simulator}/episode", message, {SCENE: -1}):
            self._newest = state[SCENE]
            self._look()

    def _look(self) -> None:
        if self._until_s is None or self._awaited is None or self._newest < self._awaited:
            return
        self._until_s = None
        self._on_begun()
