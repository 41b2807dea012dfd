"""Who may talk to the web page's server: those who know its token, from the page itself.

- The first part of every path is the token. It is compared in constant time.
- `Host` must name this machine, so that no foreign name that was made to point here (DNS rebinding)
  is answered.
- `Origin`, which browsers send with every web socket and every request of another page, must be the
  server's own.
- Nothing but GET is answered: all that changes anything goes through the web socket.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Collection

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from ttm.policy.errors import UserError

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


def guard(access: Access) -> Middleware:
    """Return the middleware that asks `access` before anything else, and sets the headers of answers."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        if refusal := access.refusal(request):
            return web.Response(status=403, text=f"{refusal}\n", headers=HEADERS)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    return answer
