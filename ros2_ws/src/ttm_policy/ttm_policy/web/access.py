"""Who may talk to the web page's server: those who know its token, from the page itself.

- The first part of every path is the token. It is compared in constant time.
- `Host` must name this machine, so that no foreign name that was made to point here (DNS rebinding)
  is answered.
- `Origin`, which browsers send with every web socket and every request of another page, must be the
  server's own.
- Nothing but GET is answered: all that changes anything goes through the web socket.
- A connection has `HEADER_S` to show the token, and `MOST_STRANGERS` may be about to: what others leave
  unfinished keeps no page out.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from ttm.policy.errors import UserError

HEADER_S = 5.0
"""A connection that has not shown the token by then is cut, in seconds."""
MOST_STRANGERS = 64
"""So many connections may not have shown the token yet."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "media-src 'self'; connect-src 'self' ws: wss:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def new_token() -> str:
    """Return a new token of 128 random bits."""
    return secrets.token_urlsafe(16)


def require_token(token: str) -> None:
    """Raise `UserError` unless the token can be part of an address and is not guessed at once."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{16,128}", token):
        raise UserError(
            "the token must have 16 to 128 letters, digits, - and _; leave it out for a new one"
        )


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can reach a server that listens at `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """Decides about requests.

    Parameters
    ----------
    token
        The first part of every path.
    host
        Where the server listens. Beyond loopback, requests may name this machine by any of its
        addresses.
    """

    def __init__(self, token: str, host: str) -> None:
        self._token = token.encode()
        self._loopback = is_loopback(host)
        self._names: Collection[str] = {"localhost", host.lower()}
        if not self._loopback:
            name = socket.gethostname().lower()
            self._names = {*self._names, name, f"{name}.local"}

    def refusal(self, request: web.Request) -> str:
        """Return why a request is not answered, or an empty text."""
        given = request.path.split("/", 2)[1] if request.path.startswith("/") else ""
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._token):
            return "the address needs the token that the program has printed"
        if not all(value.isascii() for value in request.headers.values()):
            return "the headers are not ASCII"
        if request.method not in ("GET", "HEAD"):
            return "only GET is answered"
        if not self._is_ours(request.headers.get("Host", "")):
            return "the request names another machine"
        origin = request.headers.get("Origin")
        is_socket = "upgrade" in request.headers.get("Connection", "").lower()
        if (origin is not None or is_socket) and not self._is_own(origin, request):
            return "the request comes from another page"
        return ""

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        name = name.strip("[]").lower()
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._loopback

    @staticmethod
    def _is_own(origin: str | None, request: web.Request) -> bool:
        host = request.headers.get("Host", "").lower()
        return origin is not None and origin.lower() in (f"http://{host}", f"https://{host}")


class Strangers:
    """The connections that have not shown the token yet. It is used from the server's loop alone.

    When there are too many, the oldest of the address that has most of them is cut, so that the newest,
    which may be a page, always gets in.

    Parameters
    ----------
    serve
        Makes what serves a connection.
    """

    def __init__(self, serve: Callable[[], asyncio.Protocol]) -> None:
        self._serve = serve
        self._deadlines: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def welcome(self) -> asyncio.Protocol:
        """Return what takes the next connection. The server's loop calls it for each."""
        return _Door(self)

    def came(self, transport: asyncio.Transport) -> None:
        """Serve a new connection, and cut it unless it shows the token in time."""
        protocol = self._serve()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        loop = asyncio.get_running_loop()
        self._deadlines[transport] = loop.call_later(HEADER_S, self._cut, transport)
        if len(self._deadlines) > MOST_STRANGERS:
            addresses = Counter(map(_address, self._deadlines))
            ((most, _),) = addresses.most_common(1)
            self._cut(next(t for t in self._deadlines if _address(t) == most))

    def let_in(self, transport: asyncio.Transport | None) -> None:
        """Let a connection stay, which has shown the token."""
        if transport is not None and transport in self._deadlines:
            self._deadlines.pop(transport).cancel()

    def _cut(self, transport: asyncio.Transport) -> None:
        self._deadlines.pop(transport).cancel()
        transport.abort()  # does nothing if it has ended


class _Door(asyncio.Protocol):
    """Hands a connection on as soon as there is one."""

    def __init__(self, strangers: Strangers) -> None:
        self._strangers = strangers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._strangers.came(transport)


def _address(transport: asyncio.Transport) -> str:
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else ""


def guard(access: Access, let_in: Callable[[asyncio.Transport | None], None]) -> Middleware:
    """Return the middleware that asks `access` before anything else, and sets the headers of answers.

    let_in: called with the connection of each request that `access` allows.
    """

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        if refusal := access.refusal(request):
            refused = web.Response(status=403, text=f"{refusal}\n", headers=HEADERS)
            refused.force_close()
            return refused
        let_in(request.transport)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    return answer


# Which page drives the robot. It uses no server and no ROS, so that tests can set the time.

Axes = Mapping[str, float]
"""How far each control is moved, -1 to 1, by its name. Those that are not named are at rest."""


class Wheel:
    """Gives the controls to one page at a time, and takes them from a page that falls silent.

    It is used from the server's thread and from that of the node.

    Parameters
    ----------
    timeout_s
        The longest silence of the page that drives. After it the robot stops, and another page may
        drive.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._page: str | None = None
        self._axes: dict[str, float] = {}
        self._heard_s = 0.0
        self._gives_back = False

    def take(self, page: str, now_s: float) -> None:
        """Let a page drive. Raises `UserError` if another one does."""
        with self._lock:
            if self._driving(now_s) not in (None, page):
                raise UserError("somebody else drives; ask them to let go first")
            self._page, self._axes, self._heard_s = page, {}, now_s

    def release(self, page: str, *, back: bool = False) -> None:
        """Take the controls from a page, if it has them. back: whether a policy is to drive again."""
        with self._lock:
            if self._page == page:
                self._page, self._axes = None, {}
                self._gives_back |= back

    def stop(self) -> None:
        """Take the controls from whichever page has them."""
        with self._lock:
            self._page, self._axes = None, {}

    def gives_back(self) -> bool:
        """Return whether a page has asked, since the last call, that a policy drives again."""
        with self._lock:
            asked, self._gives_back = self._gives_back, False
            return asked

    def steer(self, page: str, axes: Axes, now_s: float) -> None:
        """Take the positions of the controls from the page that drives.

        Raises `UserError` if it does not drive, or does not drive any more.
        """
        with self._lock:
            if self._driving(now_s) != page:
                raise UserError("this page does not drive; take the controls first")
            self._axes, self._heard_s = dict(axes), now_s

    def driver(self, now_s: float) -> str | None:
        """Return the page that drives, or None."""
        with self._lock:
            return self._driving(now_s)

    def held(self, now_s: float) -> tuple[Axes, float] | None:
        """Return the positions of the controls and when they were heard, or None if nobody drives."""
        with self._lock:
            return None if self._driving(now_s) is None else (self._axes, self._heard_s)

    def _driving(self, now_s: float) -> str | None:
        if self._page is not None and now_s - self._heard_s > self.timeout_s:
            self._page, self._axes = None, {}
        return self._page
