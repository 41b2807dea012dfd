"""Has a recorder record one short episode after the other, however often it fails, is killed or starts anew.

`ttm bench record --kills` and `--fill` start it beside `recorder_node`. It notes what the recorder tells in a
file, a line of JSON each: `saved` with the path of an episode, `problem`, or `refused` with the answer to a
start. It goes on until a signal.

    python -m ttm_policy.sensors.episodes_load --ros-args -p contract:=robot.yaml -p out:=journal.jsonl
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rclpy.task import Future
from std_srvs.srv import SetBool, Trigger

from ttm_policy.parameters import Parameter
from ttm_policy.programs import StopSignals, run_with_ros
from ttm_policy.sensors.camera_load import CameraLoad, CameraLoadParameters

ASK_AGAIN_S = 1.0
"""A call that a killed recorder has not answered is made again after so long."""


@dataclass(frozen=True)
class EpisodesLoadParameters(CameraLoadParameters):
    """The parameters of `episodes_load`. `seconds` is the length of an episode, `out` the file of notes."""

    endless_after: Annotated[
        int, Parameter("The episode after so many goes on until it fails; 0 for none.", minimum=0)
    ] = 0


class EpisodesLoad(CameraLoad):
    """Starts and stops episodes by what the recorder's status says."""

    parameters: EpisodesLoadParameters

    def __init__(self, signals: StopSignals) -> None:
        super().__init__(signals, EpisodesLoadParameters)
        self._calls = {
            "start": (self.create_client(Trigger, "recorder_node/start"), Trigger.Request()),
            "stop": (
                self.create_client(SetBool, "recorder_node/stop"),
                SetBool.Request(data=True),
            ),
        }
        self._asked: Future[Any] | None = None
        self._asked_s = -ASK_AGAIN_S
        self._noted: dict[str, str] = {}
        self._num_saved = self._num_problems = 0

    def run(self) -> None:
        """Go on until a signal."""
        while not self._signals.requested:
            self._executor.spin_once(timeout_sec=0.05)
            self._num_saved += self._note("saved", self.status.get("last", ""))
            self._num_problems += self._note("problem", self.status.get("problem", ""))
            if self._state == "ready" and not self.status["missing"]:
                self._ask("start")
            elif self._state == "recording" and self._is_long_enough():
                self._ask("stop")

    def _is_long_enough(self) -> bool:
        given = self.parameters
        if self._num_saved == given.endless_after > 0 and not self._num_problems:
            return False
        return bool(self.status["ticks"] >= given.seconds * given.rate_hz)

    def _ask(self, name: str) -> None:
        """Call a service of the recorder, unless a call is still under way."""
        client, request = self._calls[name]
        under_way = self._asked is not None and not self._asked.done()
        if (under_way and time.monotonic() - self._asked_s < ASK_AGAIN_S) or (
            not client.service_is_ready()
        ):
            return
        self._asked, self._asked_s = client.call_async(request), time.monotonic()
        if name == "start":
            self._asked.add_done_callback(self._on_start)

    def _on_start(self, future: Future[Any]) -> None:
        """Note a refusal, unless it is that of a call that was made twice."""
        answer = future.result()
        if answer is not None and not answer.message.startswith("it is "):
            self._note("refused", "" if answer.success else answer.message)

    def _note(self, what: str, text: str) -> bool:
        """Note what is new, and return whether it is."""
        before, self._noted[what] = self._noted.get(what, ""), text
        if not text or text == before:
            return False
        with Path(self.parameters.out).open("a") as file:
            file.write(json.dumps({what: text}) + "\n")
        return True


def _run() -> int:
    EpisodesLoad(StopSignals()).run()
    return 0


def main() -> int:
    """Have episodes recorded until a signal."""
    return run_with_ros("episodes_load", _run)


if __name__ == "__main__":
    sys.exit(main())
