"""The web page's server: static files, pictures and films by GET, and all else by web sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import resources
from itertools import count
from typing import Any, NamedTuple

from aiohttp import WSMsgType, web
from aiohttp.http import HttpProcessingError

from ttm.policy.errors import UserError, require_instruction
from ttm_policy.parameters import WebParameters
from ttm_policy.web.access import HEADERS, Access, DriverLock, Greeter, PendingConnections
from ttm_policy.web.robot import RobotOverRos
from ttm_policy.web.views import Album

MOST_BYTES = 8192
"""The largest request."""
MOST_AXES = 64


class PageRequest(NamedTuple):
    """What a page asks for through its web socket, checked before anything is done."""

    do: str
    number: int
    values: Mapping[str, Any]


def read_request(text: str) -> PageRequest:
    """Return a request. Raises `UserError` if it is none.

    It is a JSON object with the name of an action under `do`, a number under `id` that its answer carries
    again, and all the values of the action, and no others.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError("the request is no JSON") from error
    if not isinstance(data, dict) or not isinstance(data.get("do"), str):
        raise UserError("a request is an object with the name of an action under 'do'")
    do, number = data.pop("do"), data.pop("id", 0)
    checks = ACTIONS.get(do)
    if checks is None:
        raise UserError(f"there is no such action; there are: {', '.join(ACTIONS)}")
    if type(number) is not int or not 0 <= number < 2**53:
        raise UserError("'id' must be a whole number")
    if data.keys() != checks.keys():
        raise UserError(f"'{do}' takes {', '.join(checks) or 'no values'}")
    return PageRequest(do, number, {name: check(data[name]) for name, check in checks.items()})


def _text(value: Any) -> str:
    if not isinstance(value, str) or not (text := require_instruction(value, "the text")):
        raise UserError("a text must not be empty")
    return text


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError("a value must be true or false")
    return value


def _axes(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or len(value) > MOST_AXES:
        raise UserError(f"'axes' must be an object of at most {MOST_AXES} numbers")
    for number in value.values():
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not (is_number and math.isfinite(number) and -1 <= number <= 1):
            raise UserError("an axis must be a number from -1 to 1")
    return {name: float(number) for name, number in value.items()}


Check = Callable[[Any], Any]


def _or_none(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


ACTIONS: Mapping[str, Mapping[str, Check]] = {
    "take": {},  # let this page drive
    "release": {"back": _bool},  # let go of the controls; back: let a policy drive again
    "steer": {"axes": _axes},  # the positions of the controls, {name: -1 to 1}
    "seen": {},  # a frame was shown
    "start": {},  # begin an episode
    "stop": {"success": _bool},  # end it and keep it
    "discard": {},  # end it and drop it
    "instruct": {"text": _text},  # what the robot is told
    "scene": {"same": _bool},  # in simulation: begin the same scene again, or the next
    "e_stop": {},  # stop the robot, whoever drives, until `rearm`
    "rearm": {},  # go on after an emergency stop
    # write into a recorded episode; either value may be null
    "label": {"episode": _text, "success": _or_none(_bool), "instruction": _or_none(_text)},
    "delete": {"episode": _text},  # delete a recorded episode
    "undo": {},  # take back the newest change of recorded episodes
}
"""Action -> its values, and what checks each of them. An action that says nothing is answered only if it
is refused."""

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


class PageSocket:
    """Talks to one page until it goes away; then it lets go of the controls."""

    def __init__(self, name: str, robot: RobotOverRos, album: Album, lock: DriverLock) -> None:
        self._name, self._robot, self._album, self._lock = name, robot, album, lock
        # JPEGs get no smaller by compression.
        self._socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT_S, max_msg_size=MOST_BYTES, compress=False
        )
        self._unseen, self._refused = 0, 0
        self._shown: dict[str, Any] = {}
        self._turn, self._waiting = asyncio.Lock(), set[asyncio.Task[None]]()
        self._actions: Mapping[str, Callable[..., Awaitable[str | None]]] = {
            "take": self._take,
            "release": self._release,
            "steer": self._steer,
            "seen": self._seen,
            "start": robot.start,
            "stop": robot.stop,
            "discard": robot.discard,
            "instruct": robot.instruct,
            "scene": robot.scene,
            "e_stop": self._e_stop,
            "rearm": robot.rearm,
            "label": partial(self._edit, album.label),
            "delete": partial(self._edit, album.delete),
            "undo": partial(self._edit, album.undo),
        }

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
                await self._hear(message.data)
        finally:
            for sender in senders:
                sender.cancel()
            await self.close()
            await asyncio.gather(*self._waiting)

    async def close(self) -> None:
        """Take the controls from this page, so that the robot stops, and end the connection."""
        self._lock.release(self._name)
        await self._socket.close()

    async def _hear(self, text: str) -> None:
        try:
            request = read_request(text)
        except UserError as error:
            self._refused += 1
            await self._answer(0, False, str(error))
            return
        if request.do in AT_ONCE:
            await self._do(request)
        elif len(self._waiting) < MOST_WAITING:
            waiting = asyncio.create_task(self._do_in_turn(request))
            self._waiting.add(waiting)
            waiting.add_done_callback(self._waiting.discard)
        else:
            await self._answer(request.number, False, f"{MOST_WAITING} requests wait; wait, too")

    async def _do_in_turn(self, request: PageRequest) -> None:
        """Do what may take its time after all before it, while the page steers on."""
        async with self._turn:
            with suppress(ConnectionError):  # the page went away
                await self._do(request)

    async def _do(self, request: PageRequest) -> None:
        try:
            said, ok = await self._actions[request.do](**request.values), True
        except (UserError, OSError) as error:
            said, ok = " ".join(str(error).split()), False
        if said is not None:
            await self._answer(request.number, ok, said)

    async def _answer(self, number: int, ok: bool, text: str) -> None:
        await self._send("answer", {"id": number, "ok": ok, "text": text})

    async def _take(self) -> str:
        self._lock.take(self._name, time.monotonic())
        return "you drive"

    async def _release(self, back: bool) -> None:
        self._lock.release(self._name, back=back)

    async def _e_stop(self) -> str:
        self._lock.stop()  # at once, and even if no message of the emergency stop got through
        return await self._robot.e_stop()

    async def _steer(self, axes: Mapping[str, float]) -> None:
        self._lock.steer(self._name, axes, time.monotonic())

    async def _seen(self) -> None:
        self._unseen = max(self._unseen - 1, 0)

    async def _edit(self, edit: Callable[..., str], **values: Any) -> str:
        said = await asyncio.to_thread(edit, **values)
        await self._send_episodes()
        return said

    async def _keep_sending(self) -> None:
        numbers: dict[str, int] = {}
        with suppress(ConnectionError):
            while not self._socket.closed:
                facts = {**self._robot.facts(), "cameras": self._robot.cameras.names}
                await self._send_new("facts", facts)
                await self._send_frames(numbers)
                driver = self._lock.driver(time.monotonic())
                driving = "nobody" if driver is None else "me" if driver == self._name else "other"
                await self._send_new("state", {**self._robot.state(), "driver": driving})
                await asyncio.sleep(SEND_S)

    async def _keep_listing(self) -> None:
        with suppress(ConnectionError):
            while not self._socket.closed:
                await self._send_episodes()
                await asyncio.sleep(LIST_S)

    async def _send_episodes(self) -> None:
        episodes = await asyncio.to_thread(self._album.episodes)
        await self._send_new("episodes", {"list": episodes})

    async def _send_frames(self, numbers: dict[str, int]) -> None:
        """Send each camera's newest frame as a byte with the camera's place, and the JPEG."""
        cameras = self._robot.cameras
        most = MOST_UNSEEN * len(cameras.names)
        for place, camera in enumerate(cameras.names):
            frame = cameras.frame(camera)
            if frame and frame.number != numbers.get(camera) and self._unseen < most:
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


PAGE = {"": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
"""Path -> type of a file of the package; without a name, it is `page.html`."""

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where to listen for the whole network -> how this machine reaches it."""

MOST_PAGES = 8
"""So many pages may be connected at once."""
START_S = 10.0


class WebServer:
    """Serves the page from a thread of its own."""

    def __init__(
        self, robot: RobotOverRos, album: Album, lock: DriverLock, parameters: WebParameters
    ) -> None:
        """parameters: token, the first part of every path; host and port, where 0 takes a free one."""
        self._album, self._token = album, parameters.token
        self._host, self._port = parameters.host, parameters.port
        names = count()
        self._new_page = lambda: PageSocket(f"page {next(names)}", robot, album, lock)
        self._pages: set[PageSocket] = set()
        folder = resources.files("ttm_policy.web") / "page"
        self._files = {path: (folder / (path or "page.html")).read_bytes() for path in PAGE}
        self._loop = asyncio.new_event_loop()
        run = self._loop.run_forever
        self._thread = threading.Thread(target=run, name="web server", daemon=True)
        log = logging.getLogger("ttm_policy.web")
        log.addFilter(_is_worth_a_line)
        self._pending = PendingConnections(self._serve_connection)
        self._listener: asyncio.Server | None = None
        self._runner = web.AppRunner(
            self._application(), access_log=None, logger=log, shutdown_timeout=1.0
        )

    @property
    def address(self) -> str:
        """What to open in a browser on this machine."""
        name = EVERYWHERE.get(self._host, self._host)
        name = f"[{name}]" if ":" in name else name
        return f"http://{name}:{self._port}/{self._token}/"

    def start(self) -> None:
        """Listen. Raises `UserError` if the address cannot be had."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(START_S)
        except OSError as error:
            self.close()
            where = f"{self._host}:{self._port} ({error.strerror})"
            raise UserError(f"cannot serve the page at {where}; give another port, or 0") from error

    def close(self) -> None:
        """Let all pages go, which stops what they drive, and end the thread."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)

    async def _listen(self) -> None:
        await self._runner.setup()
        greet = partial(Greeter, self._pending)
        self._listener = await self._loop.create_server(greet, self._host, self._port)
        self._port = int(self._listener.sockets[0].getsockname()[1])

    def _serve_connection(self) -> asyncio.Protocol:
        assert self._runner.server is not None
        return self._runner.server()

    async def _end(self) -> None:
        if self._listener is not None:
            self._listener.close()
        await asyncio.gather(*(page.close() for page in self._pages))
        await self._runner.cleanup()

    def _application(self) -> web.Application:
        access = Access(self._token, self._host, self._pending)
        application = web.Application(middlewares=[access.check], client_max_size=1024)
        application.on_response_prepare.append(_set_headers)
        get, base = application.router.add_get, "/{token}"
        get(f"{base}/socket", self._serve_socket)
        get(f"{base}/episodes/{{name}}/thumbnail.jpg", self._serve_thumbnail)
        get(f"{base}/episodes/{{name}}/film.mp4", self._serve_film)
        for path in PAGE:
            get(f"{base}/{path}", self._serve_page)
        return application

    async def _serve_page(self, request: web.Request) -> web.Response:
        path = request.path.rpartition("/")[2]
        return web.Response(body=self._files[path], content_type=PAGE[path], charset="utf-8")

    async def _serve_socket(self, request: web.Request) -> web.StreamResponse:
        if len(self._pages) >= MOST_PAGES:
            raise web.HTTPServiceUnavailable(text=f"{MOST_PAGES} pages are open; close one\n")
        page = self._new_page()
        self._pages.add(page)
        try:
            return await page.serve(request)
        finally:
            self._pages.remove(page)

    async def _serve_thumbnail(self, request: web.Request) -> web.Response:
        jpeg = await self._of_episode(self._album.thumbnail, request)
        return web.Response(body=jpeg, content_type="image/jpeg")

    async def _serve_film(self, request: web.Request) -> web.StreamResponse:
        film = await self._of_episode(self._album.film, request)
        return web.FileResponse(film, headers={"Content-Type": "video/mp4"})

    @staticmethod
    async def _of_episode(make: Callable[[str], Any], request: web.Request) -> Any:
        try:
            return await asyncio.to_thread(make, request.match_info["name"])
        except UserError as error:
            raise web.HTTPNotFound(text=f"{error}\n") from error


async def _set_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Return whether a message is to be logged: not that a request is malformed, or its sender gone."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError)
