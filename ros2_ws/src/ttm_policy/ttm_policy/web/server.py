"""The web page's server: static files, pictures and films by GET, and all else by web sockets."""

from __future__ import annotations

import asyncio
import logging
import threading
from importlib import resources
from itertools import count
from pathlib import Path

from aiohttp import web
from aiohttp.http import HttpProcessingError

from ttm.policy.errors import UserError
from ttm_policy.web.access import HEADERS, Access, Strangers, guard
from ttm_policy.web.page_socket import PageSocket, Surroundings

PAGE: dict[str, tuple[str, str]] = {
    "": ("page.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
}
"""Path -> file of the package and its type."""

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where to listen for the whole network -> how this machine reaches it."""

MOST_PAGES = 8
"""So many pages may be connected at once."""
START_S = 10.0


class WebServer:
    """Serves the page from a thread of its own.

    Parameters
    ----------
    surroundings
        Robot, album and wheel.
    token
        The first part of every path.
    host, port
        Where to listen. Port 0 takes a free one.
    """

    def __init__(
        self, surroundings: Surroundings, token: str, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._surroundings, self._token = surroundings, token
        self._host, self._port = host, port
        self._pages: dict[str, PageSocket] = {}
        self._names = count()
        folder = resources.files("ttm_policy.web") / "page"
        self._files = {path: (folder / file).read_bytes() for path, (file, _) in PAGE.items()}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="web server", daemon=True
        )
        log = logging.getLogger("ttm_policy.web")
        log.addFilter(_is_worth_a_line)
        self._strangers = Strangers(self._serve_connection)
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
            raise UserError(
                f"cannot serve the page at {self._host}:{self._port} ({error.strerror}); give another "
                "port, or 0 for any that is free"
            ) from error

    def close(self) -> None:
        """Let all pages go, which stops what they drive, and end the thread."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)

    async def _listen(self) -> None:
        await self._runner.setup()
        self._listener = await self._loop.create_server(
            self._strangers.welcome, self._host, self._port
        )
        self._port = int(self._listener.sockets[0].getsockname()[1])

    def _serve_connection(self) -> asyncio.Protocol:
        assert self._runner.server is not None
        return self._runner.server()

    async def _end(self) -> None:
        if self._listener is not None:
            self._listener.close()
        await asyncio.gather(*(page.close() for page in list(self._pages.values())))
        await self._runner.cleanup()

    def _application(self) -> web.Application:
        access = Access(self._token, self._host)
        application = web.Application(
            middlewares=[guard(access, self._strangers.let_in)], client_max_size=1024
        )
        base = "/{token}"
        application.router.add_get(f"{base}/socket", self._serve_socket)
        application.router.add_get(f"{base}/episodes/{{name}}/thumbnail.jpg", self._serve_thumbnail)
        application.router.add_get(f"{base}/episodes/{{name}}/film.mp4", self._serve_film)
        for path in PAGE:
            application.router.add_get(f"{base}/{path}", self._serve_page)
        return application

    async def _serve_page(self, request: web.Request) -> web.Response:
        path = request.path.rpartition("/")[2]
        return web.Response(
            body=self._files[path], content_type=PAGE[path][1], charset="utf-8", headers=HEADERS
        )

    async def _serve_socket(self, request: web.Request) -> web.StreamResponse:
        if len(self._pages) >= MOST_PAGES:
            raise web.HTTPServiceUnavailable(text=f"{MOST_PAGES} pages are open; close one\n")
        name = f"page {next(self._names)}"
        self._pages[name] = PageSocket(name, self._surroundings)
        try:
            return await self._pages[name].serve(request)
        finally:
            del self._pages[name]

    async def _serve_thumbnail(self, request: web.Request) -> web.Response:
        album, name = self._surroundings.album, request.match_info["name"]
        try:
            jpeg = await asyncio.to_thread(album.thumbnail, name)
        except UserError as error:
            raise web.HTTPNotFound(text=f"{error}\n") from error
        return web.Response(body=jpeg, content_type="image/jpeg")

    async def _serve_film(self, request: web.Request) -> web.StreamResponse:
        album, name = self._surroundings.album, request.match_info["name"]
        try:
            film: Path = await asyncio.to_thread(album.film, name)
        except UserError as error:
            raise web.HTTPNotFound(text=f"{error}\n") from error
        return web.FileResponse(film, headers={**HEADERS, "Content-Type": "video/mp4"})


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Return whether a message is to be logged: not that a request is malformed, or its sender gone."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError)
