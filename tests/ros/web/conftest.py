"""A server with a robot that only notes what it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from teleoperation import kitchen_context

from ttm.datasets import EpisodeWriter
from ttm.policy import ActionPart, CameraSpec, PolicySpec, UserError
from ttm_policy.parameters import WebParameters
from ttm_policy.teleop.controls import default_keyboard
from ttm_policy.web.access import DriverLock
from ttm_policy.web.robot import LiveCameras, LiveFrame, RobotOverRos
from ttm_policy.web.server import WebServer
from ttm_policy.web.views import Album, page_layout

TOKEN = "a-token-for-tests-only"
TIMEOUT_S = 60.0
SPEC = PolicySpec("tiny", (CameraSpec("eye", 8, 8),), (), (ActionPart("base", 2, "m/s"),), 10.0)


class NotedCameras(LiveCameras):
    """One camera with one frame."""

    def __init__(self) -> None:
        self.names = ["eye"]

    def frame(self, camera: str) -> LiveFrame:
        return LiveFrame(1, b"\xff\xd8jpeg")


class NotedRobot(RobotOverRos):
    """A robot that notes what it is told, without ROS."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.recorder: dict[str, Any] | None = None
        self.known = ["wave"]
        self.stopped = False
        self.cameras = NotedCameras()
        self.answers = asyncio.Event()
        self.answers.set()
        context = kitchen_context()
        self._layout = page_layout(context, default_keyboard(context))

    def facts(self) -> Mapping[str, Any]:
        return {"robot": "tiny", "rate_hz": 10.0, "instructions": self.known, **self._layout}

    def state(self) -> Mapping[str, Any]:
        return {
            "recorder": self.recorder,
            "scene": None,
            "reasons": [],
            "stopped": self.stopped,
            "rearm": self.stopped,
        }

    async def start(self) -> str:
        self.done.append(("start",))
        return "countdown"

    async def stop(self, success: bool) -> str:
        await self.answers.wait()
        self.done.append(("stop", success))
        return "saving"

    async def discard(self) -> str:
        raise UserError("there is no episode to discard")

    async def scene(self, same: bool) -> str:
        self.done.append(("scene", same))
        return "another scene"

    async def e_stop(self) -> str:
        self.stopped = True
        self.done.append(("e_stop",))
        return "stopping"

    async def rearm(self) -> str:
        self.stopped = False
        self.done.append(("rearm",))
        return "armed"

    async def instruct(self, text: str) -> str:
        self.done.append(("instruct", text))
        return text


class Served:
    """A server that runs, and ways to talk to it. Its films are none."""

    token = TOKEN

    def __init__(self, folder: Path, timeout_s: float = TIMEOUT_S) -> None:
        self.robot, self.lock, self.folder = NotedRobot(), DriverLock(timeout_s), folder
        self.drawn: list[Path] = []
        self.album = Album(folder, self._draw)
        self.server = WebServer(
            self.robot, self.album, self.lock, WebParameters(token=TOKEN, port=0)
        )
        self.server.start()
        self.address = self.server.address
        self.origin = self.address.removesuffix(f"/{TOKEN}/")
        self.port = int(self.origin.rpartition(":")[2])

    def _draw(self, episode: Path, film: Path) -> None:
        self.drawn.append(episode)
        film.write_bytes(b"a film")

    def run(self, talk: Callable[[aiohttp.ClientSession], Awaitable[Any]]) -> Any:
        """Run a coroutine with a session of an own-page client."""

        async def talking() -> Any:
            headers = {"Origin": self.origin}
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
            async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
                return await talk(session)

        return asyncio.run(talking())

    @staticmethod
    async def answer(
        socket: aiohttp.ClientWebSocketResponse, kind: str = "answer"
    ) -> dict[str, Any]:
        """Return the next message of a kind, without its kind."""
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                data = message.json()
                if data.pop("kind") == kind:
                    return dict(data)
        raise AssertionError("the server has closed the socket")

    def close(self) -> None:
        self.server.close()
        self.album.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "episodes"
    folder.mkdir()
    server = Served(folder)
    yield server
    server.close()


@pytest.fixture
def record(served: Served) -> Callable[[int], Path]:
    """Write a tiny episode of that number."""

    def write(number: int) -> Path:
        path = served.folder / f"episode_{number:05d}.hdf5"
        writer = EpisodeWriter(path, SPEC)
        for tick in range(4):
            frame = np.full((8, 8, 3), 60 * tick, np.uint8)
            writer.append({"eye": frame}, np.zeros(2, np.float32), timestamp_s=tick / 10)
        return writer.finish(instruction="wave", success=None, split=None)

    return write
