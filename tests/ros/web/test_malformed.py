"""Malformed requests do no harm: hundreds of random ones, drawn from a seed.

python tests/ros/web/test_malformed.py 10000        (as many as wanted)
"""

from __future__ import annotations

import base64
import random
import socket
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

NUM_REQUESTS = 300
BATCH = 20
"""So many connections are open at once."""
WAIT_S = 60.0
PATHS = (
    "", "socket", "page.js", "episodes/../../etc/passwd/film.mp4", "episodes/%2e%2e/thumbnail.jpg",
    "episodes/a%00.hdf5/film.mp4", "episodes/" + "x" * 5000, "..", "%", "\xff", "?" * 300, "a" * 20000,
)  # fmt: skip
TEXTS = (
    "", "{", "[]", '{"do":"take","id":-1}', '{"do":"steer","axes":{"base.0":2}}', '{"do":"start","x":1}',
    '{"do":"stop","success":"yes"}', '{"do":"delete","episode":"../secret.hdf5"}', "\u0000", "[" * 4000,
    '{"do":"instruct","text":"\\n"}', '{"do":["start"]}', '{"do":"delete","episode":"/etc/passwd"}',
)  # fmt: skip


class Attacker:
    """Sends what no browser would."""

    def __init__(self, port: int, token: str, seed: int) -> None:
        self._port, self._token, self._rng = port, token, random.Random(seed)
        self._host = f"127.0.0.1:{port}"

    def attack(self, num_requests: int) -> list[bytes]:
        """Send malformed requests, each on a connection of its own. Return what is answered first to each.

        Some are never answered, since their end is missing. The page's own request is sent after them:
        what has no answer when it is answered counts as unanswered.
        """
        with ExitStack() as stack:
            connections = [stack.enter_context(self._sent()) for _ in range(num_requests)]
            self._require_page()
            return [self._answer(connection) for connection in connections]

    def _sent(self) -> socket.socket:
        kind = self._rng.choice(
            [self._noise, self._wrong_request, self._broken, self._wrong_frames]
        )
        connection = self._connection()
        with suppress(ConnectionError):  # hung up
            connection.sendall(kind())
        return connection

    def _require_page(self) -> None:
        with self._connection() as connection:
            connection.sendall(
                f"GET /{self._token}/ HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode()
            )
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")

    def _connection(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), WAIT_S)

    @staticmethod
    def _answer(connection: socket.socket) -> bytes:
        connection.setblocking(False)
        try:
            return connection.recv(65536)
        except (ConnectionError, BlockingIOError):  # hung up, or waiting for the rest
            return b""

    def _noise(self) -> bytes:
        return self._rng.randbytes(self._rng.choice([1, 10, 1000, 20000]))

    def _wrong_request(self) -> bytes:
        """A request with a wrong token, method, host or origin, or a path that leads nowhere."""
        rng = self._rng
        token = rng.choice([self._token, self._token[:-1], self._token.upper(), "", "%00", "*"])
        method = rng.choice(["POST", "DELETE", "GET", "GET", "CONNECT", "G\x00T", "get", "PRI"])
        host = rng.choice([self._host, "evil.example", "", "[::", "127.0.0.1:x"])
        origin = rng.choice(["http://evil.example", "null", "", "\x01", f"http://{self._host}"])
        path = rng.choice(PATHS)
        head = f"{method} /{token}/{path} HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\n"
        length = rng.choice(["", "Content-Length: -1\r\n", "Content-Length: 99999999999\r\n",
                             "Transfer-Encoding: chunked\r\n"])  # fmt: skip
        return f"{head}{length}\r\nzz\r\n".encode("latin-1")

    def _broken(self) -> bytes:
        """The page's own request, with bytes that are changed, cut off or repeated."""
        rng, data = self._rng, bytearray(self._upgrade())
        for _ in range(rng.randint(1, 8)):
            place = rng.randrange(len(data))
            data[place : place + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        return bytes(data[: rng.randint(1, len(data))])

    def _wrong_frames(self) -> bytes:
        """An upgrade as the page asks for it, and then frames with nothing that may be done."""
        frames = b"".join(self._frame() for _ in range(self._rng.randint(1, 5)))
        return self._upgrade() + frames

    def _upgrade(self) -> bytes:
        key = base64.b64encode(self._rng.randbytes(16)).decode()
        return (
            f"GET /{self._token}/socket HTTP/1.1\r\nHost: {self._host}\r\nOrigin: http://{self._host}\r\n"
            f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {key}\r\n\r\n"
        ).encode()

    def _frame(self) -> bytes:
        rng = self._rng
        if rng.random() < 0.3:
            return rng.randbytes(rng.randint(1, 200))
        text = rng.choice(TEXTS).encode()
        mask = rng.randbytes(4)
        body = bytes(byte ^ mask[place % 4] for place, byte in enumerate(text))
        size = bytes([0x80 | 126]) + len(text).to_bytes(2, "big")
        code = rng.choice([0x81, 0x81, 0x82, 0x01, 0x89, 0xFF])
        return bytes([code]) + size + mask + body


def require_no_harm(served: Any, num_requests: int, seed: int) -> None:
    """Attack, and then see that nothing has happened and the page is served as before."""
    secret = served.folder.parent / "secret.hdf5"
    secret.write_bytes(b"a secret")
    episode = served.folder / "episode_00000.hdf5"
    episode.write_bytes(b"an episode")
    attacker = Attacker(served.port, served.token, seed)
    refused = 0
    for begin in range(0, num_requests, BATCH):
        for answer in attacker.attack(min(BATCH, num_requests - begin)):
            refused += answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
            assert b"a secret" not in answer
            assert b"root:" not in answer
    assert refused > num_requests / 10
    assert served.robot.done == []
    assert served.lock.driver(time.monotonic()) is None
    assert (secret.read_bytes(), episode.read_bytes()) == (b"a secret", b"an episode")

    async def talk(session: Any) -> None:
        async with session.get(served.address) as response:
            assert response.status == 200
        async with session.ws_connect(f"{served.address}socket") as page:
            await page.send_json({"do": "take", "id": 1})
            assert (await served.answer(page))["ok"]

    served.run(talk)


@pytest.mark.parametrize("seed", [0])
def test_malformed_requests_do_no_harm(served: Any, seed: int) -> None:
    require_no_harm(served, NUM_REQUESTS, seed)


if __name__ == "__main__":
    from conftest import Served

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "episodes"
        folder.mkdir()
        server = Served(folder)
        require_no_harm(server, int(sys.argv[1]), seed=1)
        server.close()
        print(f"{sys.argv[1]} malformed requests did no harm")
