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
from ttm_policy.teleop.outputs import RecorderCalls


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
    assert calls.undo() == "recorder is not there; start it, or set recorder to its name"
    for name in ("start", "discard", "undo"):
        recorder.create_service(Trigger, f"~/{name}", serve(name))
    recorder.create_service(SetBool, "~/stop", serve("stop"))
    status = recorder.create_publisher(String, "~/status", LATCHED)

    def press(call: Callable[[], str], name: str, data: bool | None = None) -> None:
        nodes.until(lambda: call() == "asking recorder")
        nodes.until(lambda: (name, data) in called)

    press(calls.start_or_stop, "start")
    press(calls.discard, "discard")
    press(calls.undo, "undo")
    press(calls.stop_as_failure, "stop", False)
    status.publish(String(data=json.dumps({"state": "recording"})))
    nodes.until(lambda: calls._state == "recording")
    press(calls.start_or_stop, "stop", True)
    nodes.close()
