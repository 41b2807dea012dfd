"""One page that is connected: it gets frames and states, and asks for things."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import WSMsgType, web

from ttm.policy.errors import UserError
from ttm_policy.web.album import Album
from ttm_policy.web.page_request import MOST_BYTES, PageRequest, read_request
from ttm_policy.web.robot_side import RobotSide
from ttm_policy.web.wheel import Wheel

SEND_S = 0.03
"""The time between two looks for new frames and states."""
HEARTBEAT_S = 5.0
"""A page that does not answer a ping for half of that is closed."""
MOST_UNSEEN = 2
"""So many frames of each camera may be on their way: a slow network shows fewer frames, not late ones."""
MOST_REFUSED = 50
"""A page is closed after so many requests that were none."""
AT_ONCE = ("take", "release", "steer", "seen", "e_stop")
"""The actions that wait for nothing, and never for the others: a page drives on while these are done."""
MOST_WAITING = 16
"""So many requests of a page may wait for the robot or for a file."""
LIST_S = 1.0
"""The time between two looks for new episodes."""


@dataclass(frozen=True)
class Surroundings:
    """What all pages share."""

    robot: RobotSide
    album: Album
    wheel: Wheel


class PageSocket:
    """Talks to one page until it goes away; then it lets go of the controls."""

    def __init__(self, name: str, surroundings: Surroundings) -> None:
        self._name = name
        self._robot, self._album = surroundings.robot, surroundings.album
        self._wheel = surroundings.wheel
        # JPEGs get no smaller by compression.
        self._socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT_S, max_msg_size=MOST_BYTES, compress=False
        )
        self._unseen, self._refused = 0, 0
        self._shown: dict[str, Any] = {}
        self._calls = self._actions()
        self._turn, self._waiting = asyncio.Lock(), set[asyncio.Task[None]]()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve the page."""
        with suppress(ConnectionError):  # the page went away
            await self._socket.prepare(request)
            await self._talk()
        return self._socket if self._socket.prepared else web.Response(status=400)

    async def _talk(self) -> None:
        senders = [asyncio.create_task(s()) for s in (self._keep_sending, self._keep_listing)]
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.TEXT or self._refused > MOST_REFUSED:
                    break
                await self._take(message.data)
        finally:
            self.let_go()
            for sender in senders:
                sender.cancel()
            await self._socket.close()
            await asyncio.gather(*self._waiting)

    async def close(self) -> None:
        """End the connection."""
        self.let_go()
        await self._socket.close()

    def let_go(self) -> None:
        """Take the controls from this page, so that the robot stops."""
        self._wheel.release(self._name)

    async def _take(self, text: str) -> None:
        number = 0
        try:
            request = read_request(text)
            number = request.number
        except UserError as error:
            self._refused += 1
            await self._send("answer", {"id": number, "ok": False, "text": str(error)})
            return
        if request.do in AT_ONCE:
            await self._do(request)
        elif len(self._waiting) < MOST_WAITING:
            waiting = asyncio.create_task(self._do_in_turn(request))
            self._waiting.add(waiting)
            waiting.add_done_callback(self._waiting.discard)
        else:
            text = f"{MOST_WAITING} requests wait for their answers; wait, too"
            await self._send("answer", {"id": number, "ok": False, "text": text})

    async def _do_in_turn(self, request: PageRequest) -> None:
        """Do what may take its time after all before it, while the page steers on."""
        async with self._turn:
            with suppress(ConnectionError):  # the page went away
                await self._do(request)

    async def _do(self, request: PageRequest) -> None:
        try:
            said, ok = await self._calls[request.do](request), True
        except (UserError, OSError) as error:
            said, ok = " ".join(str(error).split()), False
        if said or not ok:
            await self._send("answer", {"id": request.number, "ok": ok, "text": said})

    def _actions(self) -> Mapping[str, Callable[[PageRequest], Awaitable[str]]]:
        robot, album = self._robot, self._album
        return {
            "take": self._take_wheel,
            "release": self._release,
            "steer": self._steer,
            "seen": self._seen,
            "start": lambda _: robot.start(),
            "stop": lambda request: robot.stop(**request.values),
            "discard": lambda _: robot.discard(),
            "instruct": lambda request: robot.instruct(**request.values),
            "scene": lambda request: robot.scene(**request.values),
            "e_stop": self._e_stop,
            "rearm": lambda _: robot.rearm(),
            "label": lambda request: self._edit(
                album.label,
                request.values["episode"],
                request.values["success"],
                request.values["instruction"],
            ),
            "delete": lambda request: self._edit(album.delete, request.values["episode"]),
            "undo": lambda _: self._edit(album.undo),
        }

    async def _take_wheel(self, request: PageRequest) -> str:
        self._wheel.take(self._name, time.monotonic())
        return "you drive"

    async def _release(self, request: PageRequest) -> str:
        self._wheel.release(self._name, back=request.values["back"])
        return ""

    async def _e_stop(self, request: PageRequest) -> str:
        self._wheel.stop()  # at once, and even if no message of the emergency stop got through
        return await self._robot.e_stop()

    async def _steer(self, request: PageRequest) -> str:
        self._wheel.steer(self._name, request.values["axes"], time.monotonic())
        return ""

    async def _seen(self, request: PageRequest) -> str:
        self._unseen = max(self._unseen - 1, 0)
        return ""

    async def _edit(self, edit: Callable[..., str], *values: Any) -> str:
        said = await asyncio.to_thread(edit, *values)
        await self._send_episodes()
        return said

    async def _keep_sending(self) -> None:
        numbers: dict[str, int] = {}
        with suppress(ConnectionError):
            while not self._socket.closed:
                facts = {**self._robot.facts(), "cameras": list(self._robot.cameras)}
                await self._send_new("facts", facts)
                await self._send_frames(numbers)
                await self._send_new("state", self._state())
                await asyncio.sleep(SEND_S)

    async def _keep_listing(self) -> None:
        with suppress(ConnectionError):
            while not self._socket.closed:
                await self._send_episodes()
                await asyncio.sleep(LIST_S)

    async def _send_episodes(self) -> None:
        episodes = await asyncio.to_thread(self._album.episodes)
        await self._send_new("episodes", {"list": episodes})

    def _state(self) -> dict[str, Any]:
        driver = self._wheel.driver(time.monotonic())
        driving = "nobody" if driver is None else "me" if driver == self._name else "other"
        return {**self._robot.state(), "driver": driving}

    async def _send_frames(self, numbers: dict[str, int]) -> None:
        """Send each camera's newest frame as a byte with the camera's place, and the JPEG."""
        for place, camera in enumerate(self._robot.cameras):
            frame = self._robot.frame(camera)
            most = MOST_UNSEEN * len(self._robot.cameras)
            if frame is None or frame.number == numbers.get(camera) or self._unseen >= most:
                continue
            numbers[camera] = frame.number
            self._unseen += 1
            await self._socket.send_bytes(bytes([place]) + frame.jpeg)

    async def _send_new(self, kind: str, data: dict[str, Any]) -> None:
        """Send a state if it is not the one that the page has."""
        if self._shown.get(kind) != data:
            self._shown[kind] = data
            await self._send(kind, data)

    async def _send(self, kind: str, data: Mapping[str, Any]) -> None:
        await self._socket.send_str(json.dumps({"kind": kind, **data}, ensure_ascii=False))
