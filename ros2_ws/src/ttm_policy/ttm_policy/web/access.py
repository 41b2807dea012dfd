"""Who may talk to the web page's server, and which page drives the robot.

- The first part of every path is the token. It is compared in constant time.
- `Host` must name this machine, so that no foreign name that was made to point here (DNS rebinding)
  is answered.
- `Origin`, which browsers send with every web socket and every request of another page, must be the
  server's own.
- Nothing but GET is answered: all that changes anything goes through the web socket.
- A connection has `HEADER_S` to show the token, and `MOST_PENDING` may be about to: what others leave
  unfinished keeps no page out.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping

from aiohttp import web
from aiohttp.typedefs import Handler

from ttm.policy.errors import UserError

HEADER_S = 5.0
"""A connection that has not shown the token by then is cut, in seconds."""
MOST_PENDING = 64
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


def require_token(token: str) -> None:
    """Raise `UserError` unless the token can be part of an address and is not guessed at once."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{16,128}", token):
        raise UserError("the token must have 16 to 128 letters, digits, - and _; or leave it out")


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can reach a server that listens at `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """Decides about requests.

    token: the first part of every path. host: where the server listens; beyond loopback, requests may
    name this machine by any of its addresses. pending: the connections that have not shown the token.
    """

    def __init__(self, token: str, host: str, pending: PendingConnections) -> None:
        self._token, self._pending = token.encode(), pending
        self._loopback = is_loopback(host)
        self._names = {"localhost", host.lower()}
        if not self._loopback:
            name = socket.gethostname().lower()
            self._names |= {name, f"{name}.local"}

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request, or refuse it."""
        if refusal := self._refusal(request):
            refused = web.Response(status=403, text=f"{refusal}\n")
            refused.force_close()
            return refused
        self._pending.accept(request.transport)
        return await handler(request)

    def _refusal(self, request: web.Request) -> str:
        """Return why a request is not answered, or an empty text."""
        headers = request.headers
        given = request.path.split("/", 2)[1] if request.path.startswith("/") else ""
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._token):
            return "the address needs the token that the program has printed"
        if not all(value.isascii() for value in headers.values()):
            return "the headers are not ASCII"
        if request.method not in ("GET", "HEAD"):
            return "only GET is answered"
        host, origin = headers.get("Host", "").lower(), headers.get("Origin")
        if not self._is_ours(host):
            return "the request names another machine"
        is_socket = "upgrade" in headers.get("Connection", "").lower()
        own = (f"http://{host}", f"https://{host}")
        if (origin is not None or is_socket) and (origin or "").lower() not in own:
            return "the request comes from another page"
        return ""

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        name = name.strip("[]")
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._loopback


class PendingConnections:
    """The connections that have not shown the token yet. It is used from the server's loop alone.

    When there are too many, the oldest of the address that has most of them is cut, so that the newest,
    which may be a page, always gets in. serve: makes what serves a connection.
    """

    def __init__(self, serve: Callable[[], asyncio.Protocol]) -> None:
        self._serve = serve
        self._deadlines: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def add(self, transport: asyncio.Transport) -> None:
        """Serve a new connection, and cut it unless it shows the token in time."""
        protocol = self._serve()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        loop = asyncio.get_running_loop()
        self._deadlines[transport] = loop.call_later(HEADER_S, self._cut, transport)
        if len(self._deadlines) > MOST_PENDING:
            ((most, _),) = Counter(map(_address, self._deadlines)).most_common(1)
            self._cut(next(t for t in self._deadlines if _address(t) == most))

    def accept(self, transport: asyncio.Transport | None) -> None:
        """Let a connection stay, which has shown the token."""
        if transport is not None and transport in self._deadlines:
            self._deadlines.pop(transport).cancel()

    def _cut(self, transport: asyncio.Transport) -> None:
        self._deadlines.pop(transport).cancel()
        transport.abort()  # does nothing if it has ended


class Greeter(asyncio.Protocol):
    """Hands a connection over as soon as there is one."""

    def __init__(self, pending: PendingConnections) -> None:
        self._pending = pending

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._pending.add(transport)


def _address(transport: asyncio.Transport) -> str:
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else ""


Axes = Mapping[str, float]
"""How far each control is moved, -1 to 1, by its name. Those that are not named are at rest."""


class DriverLock:
    """Gives the controls to one page at a time, and takes them from a page that falls silent.

    It is used from the server's thread and from that of the node. timeout_s: the longest silence of the
    page that drives; after it the robot stops, and another page may drive.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._lock = threading.RLock()
        self._page: str | None = None
        self._axes: Axes = {}
        self._heard_s = 0.0
        self._gives_back = False

    def take(self, page: str, now_s: float) -> None:
        """Let a page drive. Raises `UserError` if another one does."""
        with self._lock:
            if self.driver(now_s) not in (None, page):
                raise UserError("somebody else drives; ask them to let go first")
            self._page, self._axes, self._heard_s = page, {}, now_s

    def release(self, page: str, *, back: bool = False) -> None:
        """Take the controls from a page, if it has them. back: whether a policy is to drive again."""
        with self._lock:
            if self._page == page:
                self._page = None
                self._gives_back |= back

    def stop(self) -> None:
        """Take the controls from whichever page has them."""
        with self._lock:
            self._page = None

    def gives_back(self) -> bool:
        """Return whether a page has asked, since the last call, that a policy drives again."""
        with self._lock:
            asked, self._gives_back = self._gives_back, False
            return asked

    def steer(self, page: str, axes: Axes, now_s: float) -> None:
        """Take the positions of the controls from the page that drives. Raises `UserError` if it does not."""
        with self._lock:
            if self.driver(now_s) != page:
                raise UserError("this page does not drive; take the controls first")
            self._axes, self._heard_s = dict(axes), now_s

    def driver(self, now_s: float) -> str | None:
        """Return the page that drives, or None."""
        with self._lock:
            if self._page is not None and now_s - self._heard_s > self.timeout_s:
                self._page = None
            return self._page

    def held(self, now_s: float) -> tuple[Axes, float] | None:
        """Return the positions of the controls and when they were heard, or None if nobody drives."""
        with self._lock:
            return None if self.driver(now_s) is None else (self._axes, self._heard_s)
