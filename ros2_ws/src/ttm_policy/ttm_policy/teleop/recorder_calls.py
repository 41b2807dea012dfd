"""Calls the services of a recorder in another process."""

from __future__ import annotations

from typing import Any

from rclpy.node import Node
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger

from ttm.policy.errors import printable
from ttm_policy.inputs.topic_text import read_json
from ttm_policy.qos import LATCHED

RECORDING = "recording"
"""The state of a recorder that takes an episode, as its status says."""


class RecorderCalls:
    """The `ttm_policy.recording.keys.EpisodeCalls` of a `recorder_node`.

    The calls return at once; what the recorder answers is printed when it comes.
    """

    def __init__(self, node: Node, recorder: str) -> None:
        """recorder: the name of the node."""
        self._node, self._name, self._state = node, recorder, ""
        self._subscription = node.create_subscription(
            String, f"{recorder}/status", self._on_status, LATCHED
        )
        self._triggers = {
            name: node.create_client(Trigger, f"{recorder}/{name}")
            for name in ("start", "discard", "undo")
        }
        self._stop = node.create_client(SetBool, f"{recorder}/stop")

    def start_or_stop(self) -> str:
        """Begin an episode, or end it as a success."""
        if self._state == RECORDING:
            return self._call(self._stop, SetBool.Request(data=True))
        return self._call(self._triggers["start"], Trigger.Request())

    def stop_as_failure(self) -> str:
        """End the episode as a failure."""
        return self._call(self._stop, SetBool.Request(data=False))

    def discard(self) -> str:
        """Drop the episode in hand."""
        return self._call(self._triggers["discard"], Trigger.Request())

    def undo(self) -> str:
        """Delete the last episode."""
        return self._call(self._triggers["undo"], Trigger.Request())

    def close(self) -> None:
        """Destroy the topic and the clients."""
        self._node.destroy_subscription(self._subscription)
        for client in (*self._triggers.values(), self._stop):
            self._node.destroy_client(client)

    def _on_status(self, message: String) -> None:
        if status := read_json(self._node, f"{self._name}/status", message, {"state": str}):
            self._state = status["state"]

    def _call(self, client: Any, request: Any) -> str:
        if not client.service_is_ready():
            return f"{self._name} is not there; start it, or set recorder to its name"
        client.call_async(request).add_done_callback(
            lambda future: print(printable(future.result().message), flush=True)
        )
        return f"asking {self._name}"
