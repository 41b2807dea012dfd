"""The keys of a recorder in another process call its services."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.node import Node
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger
from teleoperation import ServedNodes

from ttm_policy.qos import LATCHED
from ttm_policy.teleop.session import RecorderCalls


def test_each_key_calls_its_service() -> None:
    rclpy.init()
    person, recorder, called = Node("person"), Node("recorder"), []
    nodes = ServedNodes(person, recorder)

    def serve(name: str) -> Callable[[Any, Any], Any]:
        def answer(request: Any, response: Any) -> Any:
            called.append((name, getattr(request, "data", None)))
            return response

        return answer

    calls = RecorderCalls(person, "recorder")
    assert calls.ask("undo") == "recorder is not there; start it, or set recorder to its name"
    for name in ("start", "discard", "undo"):
        recorder.create_service(Trigger, f"~/{name}", serve(name))
    recorder.create_service(SetBool, "~/stop", serve("stop"))
    status = recorder.create_publisher(String, "~/status", LATCHED)

    def press(name: str, *data: bool) -> None:
        nodes.until(lambda: calls.ask(name, *data) == "asking recorder")
        nodes.until(lambda: (name, data[0] if data else None) in called)

    for name in ("start", "discard", "undo"):
        press(name)
    press("stop", False)
    assert not calls.is_recording
    status.publish(String(data=json.dumps({"state": "recording"})))
    nodes.until(lambda: calls.is_recording)
    nodes.close()
