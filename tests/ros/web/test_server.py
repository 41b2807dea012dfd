"""The page's server: what it serves, who may talk to it, and who drives."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ttm.datasets import EpisodeReader
from ttm_policy.web import access
from ttm_policy.web.server import MOST_WAITING
from ttm_policy.web.views import draw

WAIT_S = 30.0


def get(served: Any, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    """Return status and body. path: after the port."""

    async def talk(session: aiohttp.ClientSession) -> tuple[int, bytes]:
        async with session.request(method, served.origin + path, headers=headers) as response:
            return response.status, await response.read()

    result: tuple[int, bytes] = served.run(talk)
    return result


@pytest.fixture
def knock(served: Any) -> Iterator[Callable[..., socket.socket]]:
    """Open a connection, from an address of this machine, and send the beginning of a request."""
    with ExitStack() as opened:

        def connect(begun: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
            address = "127.0.0.1", served.port
            client = socket.create_connection(address, WAIT_S, source_address=(source, 0))
            opened.enter_context(client)
            client.sendall(begun)
            return client

        yield connect


def is_cut(client: socket.socket) -> bool:
    """Wait until the server has ended a connection."""
    try:
        while client.recv(4096):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def test_a_connection_that_never_shows_the_token_is_cut(
    served: Any, knock: Callable[..., socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "HEADER_S", 2.0)

    async def talk(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(f"{served.address}socket") as page:
            begun = f"GET /{served.token}/ HTTP/1.1\r\nHost: localhost\r\n".encode()
            body = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
            for stranger in [knock(b) for b in (b"", b"GET", begun, body)]:
                assert await asyncio.to_thread(is_cut, stranger)
            await page.send_json({"do": "take", "id": 1})  # who has shown it stays
            assert (await served.answer(page))["ok"]

    served.run(talk)


def test_new_pages_get_in_while_others_leave_their_requests_unfinished(
    served: Any, knock: Callable[..., socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "HEADER_S", 1000.0)
    neighbour = knock(b"GET", "127.0.0.2")
    many = [knock(b"GET") for _ in range(2 * access.MOST_PENDING)]
    assert get(served, f"/{served.token}/")[0] == 200
    # The oldest went, and only of the address that has most of them.
    assert all(is_cut(client) for client in many[: access.MOST_PENDING])
    neighbour.sendall(f" /{served.token}/ HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert neighbour.recv(15) == b"HTTP/1.1 200 OK"
    many[-1].sendall(f" /{served.token}/ HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert many[-1].recv(15) == b"HTTP/1.1 200 OK"


def test_page_and_its_files_are_served_with_the_token_alone(served: Any) -> None:
    for path, start in (("", b"<!doctype"), ("page.css", b"/*"), ("page.js", b'"use strict"')):
        status, body = get(served, f"/{served.token}/{path}")
        assert (status, body[: len(start)]) == (200, start)
        for wrong in (
            f"/{path}",
            f"/{served.token[:-1]}/{path}",
            f"/{served.token}x/{path}",
            f"//{served.token}/{path}",
        ):
            status, body = get(served, wrong)
            assert status == 403
            assert start not in body


@pytest.mark.parametrize(("path", "status"), [("", 200), ("nothing", 404), ("../elsewhere", 403)])
def test_headers_keep_the_token_and_other_pages_apart(served: Any, path: str, status: int) -> None:
    async def talk(session: aiohttp.ClientSession) -> Any:
        async with session.get(f"{served.address}{path}") as response:
            return response.status, response.headers

    found, headers = served.run(talk)
    assert found == status
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_get_is_answered(served: Any, method: str) -> None:
    assert get(served, f"/{served.token}/", method)[0] == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 403),  # the origin is another one
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),  # through a tunnel
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Host": "192.0.2.1:80", "Origin": "http://192.0.2.1:80"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_requests_of_other_pages_and_names_are_refused(
    served: Any, headers: dict[str, str], status: int
) -> None:
    assert get(served, f"/{served.token}/page.css", **headers)[0] == status


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "", None])
def test_a_socket_of_another_page_is_refused(served: Any, origin: str | None) -> None:
    async def talk(_: aiohttp.ClientSession) -> int:
        headers = {} if origin is None else {"Origin": origin}
        async with aiohttp.ClientSession(headers=headers) as session:
            try:
                await session.ws_connect(f"{served.address}socket")
            except aiohttp.WSServerHandshakeError as error:
                return error.status
        return 101

    assert served.run(talk) == 403


def test_two_pages_cannot_drive_at_once_and_one_that_goes_away_lets_go(served: Any) -> None:
    async def talk(session: aiohttp.ClientSession) -> None:
        address = f"{served.address}socket"
        async with session.ws_connect(address) as first, session.ws_connect(address) as second:
            await first.send_json({"do": "take", "id": 1})
            assert await served.answer(first) == {"id": 1, "ok": True, "text": "you drive"}
            while (await served.answer(second, "state"))["driver"] != "other":
                pass
            await first.send_json({"do": "steer", "axes": {"base.0": 0.5}})
            await second.send_json({"do": "take", "id": 2})
            refused = await served.answer(second)
            assert (refused["ok"], "somebody else drives" in refused["text"]) == (False, True)
            await second.send_json({"do": "steer", "axes": {"base.0": -1.0}})
            assert "does not drive" in (await served.answer(second))["text"]
            held = served.lock.held(time.monotonic())
            assert held is not None
            assert held[0] == {"base.0": 0.5}
        while served.lock.driver(time.monotonic()) is not None:
            await asyncio.sleep(0.01)

    served.run(talk)


def test_requests_reach_the_robot_and_refusals_come_back(served: Any) -> None:
    async def talk(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(f"{served.address}socket") as socket:
            assert (await served.answer(socket, "facts"))["cameras"] == ["eye"]
            for number, (request, said) in enumerate(
                (
                    ({"do": "start"}, (True, "countdown")),
                    ({"do": "stop", "success": True}, (True, "saving")),
                    ({"do": "instruct", "text": " wave "}, (True, "wave")),
                    ({"do": "scene", "same": False}, (True, "another scene")),
                    ({"do": "rearm"}, (True, "armed")),
                    ({"do": "discard"}, (False, "there is no episode to discard")),
                )
            ):
                await socket.send_json({**request, "id": number})
                got = await served.answer(socket)
                assert (got["id"], (got["ok"], got["text"])) == (number, said)

    served.run(talk)
    assert served.robot.done == [
        ("start",), ("stop", True), ("instruct", "wave"), ("scene", False), ("rearm",),
    ]  # fmt: skip


def test_any_page_stops_the_robot_at_once_and_whoever_drives_has_let_go(served: Any) -> None:
    served.robot.answers.clear()  # the robot keeps another request waiting

    async def talk(session: aiohttp.ClientSession) -> None:
        address = f"{served.address}socket"
        async with session.ws_connect(address) as first, session.ws_connect(address) as second:
            await first.send_json({"do": "take"})
            await first.send_json({"do": "steer", "axes": {"base.0": 0.5}})
            while not served.lock.held(time.monotonic()):
                await asyncio.sleep(0.01)
            await second.send_json({"do": "stop", "success": True, "id": 1})
            await second.send_json({"do": "e_stop", "id": 2})
            assert (await served.answer(second))["id"] == 2
            assert served.lock.driver(time.monotonic()) is None
            while not (await served.answer(first, "state"))["stopped"]:
                pass
            served.server._loop.call_soon_threadsafe(served.robot.answers.set)

    served.run(talk)
    assert served.robot.done[0] == ("e_stop",)


def test_a_page_steers_and_lets_go_while_the_robot_keeps_it_waiting(served: Any) -> None:
    served.robot.answers.clear()

    async def talk(session: aiohttp.ClientSession) -> list[int]:
        async with session.ws_connect(f"{served.address}socket") as socket:
            await socket.send_json({"do": "take"})
            for number in range(1, MOST_WAITING + 2):
                await socket.send_json({"do": "stop", "success": number == 1, "id": number})
            await socket.send_json({"do": "steer", "axes": {"base.0": 0.5}})
            while (served.lock.held(time.monotonic()) or [{}])[0] != {"base.0": 0.5}:
                await asyncio.sleep(0.01)
            await socket.send_json({"do": "release", "back": False})
            while served.lock.driver(time.monotonic()) is not None:
                await asyncio.sleep(0.01)
            assert (await served.answer(socket))["text"] == "you drive"
            refused = await served.answer(socket)
            assert (refused["id"], refused["ok"]) == (MOST_WAITING + 1, False)
            assert served.robot.done == []
            served.server._loop.call_soon_threadsafe(served.robot.answers.set)
            return [(await served.answer(socket))["id"] for _ in range(MOST_WAITING)]

    assert served.run(talk) == list(range(1, MOST_WAITING + 1))
    assert served.robot.done[:2] == [("stop", True), ("stop", False)]


def test_instructions_that_become_known_later_reach_the_page(served: Any) -> None:
    async def talk(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(f"{served.address}socket") as socket:
            assert (await served.answer(socket, "facts"))["instructions"] == ["wave"]
            served.robot.known = ["wave", "nod"]
            assert (await served.answer(socket, "facts"))["instructions"] == ["wave", "nod"]

    served.run(talk)


def test_frames_come_once_each_and_episodes_when_they_change(
    served: Any, record: Callable[[int], Path]
) -> None:
    async def talk(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(f"{served.address}socket") as socket:
            frames = []
            assert (await served.answer(socket, "episodes"))["list"] == []
            await asyncio.to_thread(record, 3)
            while not (episodes := (await served.answer(socket, "episodes"))["list"]):
                pass
            assert (episodes[0]["instruction"], episodes[0]["ticks"]) == ("wave", 4)
            await socket.send_json({"do": "delete", "episode": episodes[0]["name"], "id": 1})
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    frames.append(message.data)
                elif message.json()["kind"] == "answer":
                    break
            assert len(frames) <= 1

    served.run(talk)
    assert not list(served.folder.glob("*.hdf5"))


def test_episodes_are_labelled_deleted_and_brought_back(
    served: Any, record: Callable[[int], Path]
) -> None:
    name = record(0).name

    async def talk(session: aiohttp.ClientSession) -> list[bool]:
        async with session.ws_connect(f"{served.address}socket") as socket:
            done = []
            for request in (
                {"do": "label", "episode": name, "success": True, "instruction": None},
                {"do": "label", "episode": name, "success": None, "instruction": "nod"},
                {"do": "delete", "episode": name},
                {"do": "undo"},
                {"do": "delete", "episode": "../conftest.py"},
            ):
                await socket.send_json({**request, "id": 1})
                done.append((await served.answer(socket))["ok"])
            return done

    assert served.run(talk) == [True, True, True, True, False]
    episode = EpisodeReader.open(served.folder / name)
    assert (episode.instruction, episode.success) == ("nod", True)


def test_pictures_and_films_of_episodes(served: Any, record: Callable[[int], Path]) -> None:
    name = record(0).name
    status, jpeg = get(served, f"/{served.token}/episodes/{name}/thumbnail.jpg")
    assert (status, jpeg[:2]) == (200, b"\xff\xd8")
    status, film = get(served, f"/{served.token}/episodes/{name}/film.mp4")
    assert (status, film) == (200, b"a film")
    assert get(served, f"/{served.token}/episodes/{name}/film.mp4", Range="bytes=2-3") == (
        206,
        b"fi",
    )
    assert served.drawn == [served.folder / name]


def test_a_film_is_one_that_browsers_play(record: Callable[[int], Path], tmp_path: Path) -> None:
    draw(record(0), tmp_path / "film.mp4")
    assert (tmp_path / "film.mp4").read_bytes()[4:8] == b"ftyp"


def test_no_path_leaves_the_folder_of_episodes(
    served: Any, record: Callable[[int], Path], tmp_path: Path
) -> None:
    outside = tmp_path / "secret.hdf5"
    record(0).rename(outside)
    (served.folder / "link.hdf5").symlink_to(outside)
    for name in (
        "../secret.hdf5", "..%2fsecret.hdf5", "%2e%2e%2fsecret.hdf5", "link.hdf5", str(outside),
        "..", ".hdf5", "episode_00000.hdf5%00", "....//secret.hdf5", "..%5csecret.hdf5",
    ):  # fmt: skip
        for file in ("thumbnail.jpg", "film.mp4"):
            status, body = get(served, f"/{served.token}/episodes/{name}/{file}")
            assert status in (400, 403, 404)
            assert b"\xff\xd8" not in body
    assert served.album.episodes() == []
