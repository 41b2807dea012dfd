"""A policy on another machine: sessions, episode starts, a token, and a server that is gone."""

from __future__ import annotations

import asyncio
import copy
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgpack", reason="the extra [serve] is not here")

import aiohttp
import torch
from aiohttp import web

from ttm.policy import (
    PRESETS,
    ActorRunner,
    Policy,
    PolicyRunner,
    PolicySpec,
    Runner,
    UserError,
    load_runner,
    save_checkpoint,
)
from ttm.policy.errors import ObservationError, PolicyUnreachable
from ttm.policy.remote import TOKEN, RemoteRunner, decode, encode
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.serve import PolicyServer, ServeCommand

CAN, BOX = "pick up the red can", "pick up the blue box"
TICKS = 200
Serve = Callable[..., str]


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.manual_seed(0)
    made = Policy(SPEC, PRESETS["tiny"])
    made.known_instructions = {text: np.full(384, 0.05, np.float32) for text in (CAN, BOX)}
    return made


@pytest.fixture
def runner(policy: Policy) -> PolicyRunner:
    return PolicyRunner(policy, engine="torch")


@pytest.fixture
def serve(runner: PolicyRunner) -> Iterator[Serve]:
    """Serve policies on the loopback from a thread, and return the address."""
    stops: list[Callable[[], object]] = []

    def start(make: Callable[[], Runner] | None = None, token: str = "") -> str:
        loop, found = asyncio.new_event_loop(), list[str]()
        ready = threading.Event()
        server = PolicyServer(make or (lambda: copy.copy(runner)), token)
        task = loop.create_task(server.serve(0, lambda url: (found.append(url), ready.set())))

        def run() -> None:
            try:
                loop.run_until_complete(task)
            except asyncio.CancelledError:
                loop.close()

        thread = threading.Thread(target=run)
        thread.start()
        assert ready.wait(60)

        def stop() -> None:
            loop.call_soon_threadsafe(task.cancel)
            thread.join()

        stops.append(stop)
        return found[0].replace("0.0.0.0", "127.0.0.1")

    yield start
    for stop in stops:
        stop()


def observation(rng: np.random.Generator) -> dict[str, np.ndarray]:
    cameras = {
        camera.name: rng.integers(0, 256, (camera.height, camera.width, 3), dtype=np.uint8)
        for camera in SPEC.cameras
    }
    vectors = {each.name: rng.normal(0, 1, each.size) for each in SPEC.proprioception}
    return cameras | {name: value.astype(np.float32) for name, value in vectors.items()}


def test_ticks_over_the_loopback_are_those_in_process_bit_for_bit(
    serve: Serve, policy: Policy
) -> None:
    here, there = PolicyRunner(policy, engine="torch"), load_runner(serve(), SPEC)
    rng = np.random.default_rng(0)
    for tick in range(TICKS):
        if tick % 90 == 0:
            for each in (here, there):
                each.reset(CAN if tick else BOX)
        if tick % 7 == 3:  # what was done in place of the command, at some ticks
            did = rng.normal(0, 0.01, SPEC.action_size)
            for each in (here, there):
                each.executed(did)
        if tick == 100:
            for each in (here, there):
                each.erase_memory()
        seen, larger = observation(rng), {}
        if tick % 20 == 9:  # frames that are reduced to the same ones before they are sent
            larger = {camera.name: seen[camera.name].repeat(2, axis=1) for camera in SPEC.cameras}
        ours, theirs = here.step(seen), there.step(seen | larger)
        assert np.array_equal(ours.values, theirs.values)
        assert np.array_equal(here.memory_norms, there.memory_norms)
        assert (here.tick, here.instruction) == (there.tick, there.instruction)


def test_each_session_has_a_memory_of_its_own(serve: Serve, policy: Policy) -> None:
    url, alone = serve(), PolicyRunner(policy, engine="torch")
    first, second = load_runner(url, SPEC), load_runner(url, None)
    rng = np.random.default_rng(1)
    frames = [observation(rng) for _ in range(4)]
    alone.reset(CAN)
    expected = [alone.step(seen).values for seen in frames]
    first.reset(CAN)
    for seen, wanted in zip(frames, expected, strict=True):
        second.reset(BOX)
        second.step(seen)
        assert np.array_equal(first.step(seen).values, wanted)


def test_its_memory_can_be_saved_and_restored(serve: Serve, policy: Policy) -> None:
    url, rng = serve(), np.random.default_rng(2)
    first, second = load_runner(url, SPEC), load_runner(url, SPEC)
    first.reset(CAN)
    for _ in range(3):
        first.step(observation(rng))
    first.executed(np.ones(SPEC.action_size))
    second.restore(first.snapshot())
    assert (second.tick, second.instruction) == (3, CAN)
    assert np.array_equal(second.previous_action, np.ones(SPEC.action_size))
    seen = observation(rng)
    assert np.array_equal(first.step(seen).values, second.step(seen).values)


def test_a_client_of_openpi_is_served(serve: Serve, policy: Policy) -> None:
    """It sends nothing but the observation and the prompt, and looks for `actions` alone."""
    url, alone = serve(), PolicyRunner(policy, engine="torch")
    rng = np.random.default_rng(3)
    frames = [observation(rng) for _ in range(3)]

    async def talk() -> list[np.ndarray]:
        found = []
        async with aiohttp.ClientSession() as http, http.ws_connect(url) as socket:
            assert PolicySpec.from_json(decode(await socket.receive_bytes())["spec"]) == SPEC
            for prompt in (CAN, BOX):
                for seen in frames:
                    await socket.send_bytes(encode({**seen, "prompt": prompt}))
                    found.append(decode(await socket.receive_bytes())["actions"])
        return found

    expected = []
    for prompt in (CAN, BOX):
        alone.reset(prompt)
        expected += [alone.step(seen).values[None] for seen in frames]
    assert all(map(np.array_equal, asyncio.run(talk()), expected))


def test_a_proxy_for_the_web_is_not_asked(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "another.host")
    assert load_runner(serve(), SPEC).spec == SPEC


def test_a_server_of_openpi_may_end_an_idle_connection_between_episodes() -> None:
    """It says nothing of its policy, answers with chunks, and here ends each connection after one."""
    heard: list[dict[str, Any]] = []

    async def session(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_bytes(encode({}))
        chunk = np.arange(3 * SPEC.action_size, dtype=np.float32).reshape(3, -1) * 1e-4
        async for frame in socket:
            heard.append(decode(frame.data))
            await socket.send_bytes(encode({"actions": chunk}))
            await socket.close()
        return socket

    async def serving() -> None:
        app = web.Application()
        app.router.add_get("/", session)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        await asyncio.to_thread(drive, f"ws://127.0.0.1:{runner.addresses[0][1]}")
        await runner.cleanup()

    def drive(url: str) -> None:
        there, seen = load_runner(url, SPEC), observation(np.random.default_rng(8))
        for prompt in (CAN, BOX):
            there.reset(prompt)
            assert np.allclose(there.step(seen).values[:6], np.arange(6) * 1e-4)
        with pytest.raises(PolicyUnreachable):
            there.step(seen)

    asyncio.run(serving())
    assert [message["prompt"] for message in heard] == [CAN, BOX]


def test_only_those_with_the_token_are_served_and_no_web_page(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serve(token="a secret")
    for token in ("", "another"):
        monkeypatch.setenv(TOKEN, token)
        with pytest.raises(UserError, match=TOKEN):
            load_runner(url, SPEC)
    monkeypatch.setenv(TOKEN, "a secret")
    assert load_runner(url, SPEC).spec == SPEC

    async def page() -> int:
        headers = {"Origin": "http://somewhere", "Authorization": "Api-Key a secret"}
        address = url.replace("ws", "http")
        async with aiohttp.ClientSession() as http, http.get(address, headers=headers) as answer:
            return answer.status

    assert asyncio.run(page()) == 403


@pytest.mark.parametrize(
    "sent",
    [
        '{"prompt": "pick up the red can"}',
        b"\xff\x00",
        b"",
        b"\x93\x01\x02\x03",
        encode({"prompt": 7}),
        encode({"prompt": CAN, "head": np.zeros((2, 2, 3), np.uint8)}),
        encode({"command": "restore", "snapshot": {"tick": np.array(3)}}),
        encode({"command": "restore"}),
        encode({"command": "snapshot"}),
        encode({"executed_action": np.zeros(3)}),
        encode({"head": {b"__ndarray__": True, b"data": b"12", b"dtype": "|O", b"shape": [2]}}),
        encode({"head": {b"__npgeneric__": True, b"data": 10**9, b"dtype": "S9", b"shape": []}}),
        encode({"head": {b"__ndarray__": True, b"data": 7, b"dtype": "f4", b"shape": [-5]}}),
    ],
)
def test_a_message_that_makes_no_sense_is_refused_and_the_session_goes_on(
    serve: Serve, sent: bytes | str
) -> None:
    async def talk() -> tuple[Any, dict[str, Any]]:
        async with aiohttp.ClientSession() as http, http.ws_connect(serve()) as socket:
            await socket.receive_bytes()
            await (socket.send_str(sent) if isinstance(sent, str) else socket.send_bytes(sent))
            refused = await socket.receive(timeout=30)
            await socket.send_bytes(encode({"prompt": CAN, **observation(rng)}))
            return refused, decode(await socket.receive_bytes())

    rng = np.random.default_rng(4)
    refused, answer = asyncio.run(talk())
    assert refused.type is aiohttp.WSMsgType.TEXT
    assert answer["actions"].shape == (1, SPEC.action_size)


class Sleepy:
    """An actor that takes its time, or fails, when the front camera is bright."""

    def __init__(self) -> None:
        self.fault: Callable[[], object] = lambda: None

    def reset(self, instruction: str) -> None:
        pass

    def act(self, observation: Any) -> np.ndarray:
        if observation["head"].any():
            self.fault()
        return np.zeros(SPEC.action_size, np.float32)


def _raise() -> None:
    raise RuntimeError("out of memory")


@pytest.mark.parametrize("fault", ["hangs", "broken"])
def test_after_a_fault_nothing_moves_until_a_new_episode_begins(serve: Serve, fault: str) -> None:
    actor, rng = Sleepy(), np.random.default_rng(5)
    over = threading.Event()
    actor.fault = over.wait if fault == "hangs" else _raise
    there = load_runner(serve(lambda: ActorRunner(actor, SPEC)), SPEC, timeout_s=3.0)
    there.reset(CAN)
    bright = observation(rng)
    dark = {**bright, "head": np.zeros_like(bright["head"])}
    bright["head"] = np.ones_like(bright["head"])
    there.step(dark)
    with pytest.raises(ObservationError):
        there.step(bright)
    assert there.tick == 1
    for _ in range(2):
        with pytest.raises(PolicyUnreachable):  # at once, and without another message
            there.step(dark)
    with pytest.raises(UserError):
        there.erase_memory()
    over.set()
    there.reset(CAN)
    there.step(dark)
    assert there.tick == 1


def test_after_ctrl_c_no_answer_is_taken_for_that_of_another_tick(serve: Serve) -> None:
    actor, over = Sleepy(), threading.Event()
    main = threading.main_thread().ident
    assert main is not None
    actor.fault = lambda: (signal.pthread_kill(main, signal.SIGINT), over.wait())
    there = load_runner(serve(lambda: ActorRunner(actor, SPEC)), SPEC)
    there.reset(CAN)
    bright = observation(np.random.default_rng(7))
    dark = {**bright, "head": np.zeros_like(bright["head"])}
    bright["head"] = np.ones_like(bright["head"])
    with pytest.raises(KeyboardInterrupt):
        there.step(bright)
    over.set()
    with pytest.raises(PolicyUnreachable, match="interrupted"):
        there.step(dark)
    there.reset(CAN)
    there.step(dark)
    assert there.tick == 1


def test_the_command_serves_and_a_killed_server_is_noticed_at_once(
    policy: Policy, tmp_path: Path
) -> None:
    path, rng = tmp_path / "policy.safetensors", np.random.default_rng(6)
    save_checkpoint(path, policy, {})
    command = [sys.executable, "-m", "ttm.training.cli", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--checkpoint", str(path)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    there, alone = load_runner(url, SPEC), PolicyRunner.from_checkpoint(path)
    assert isinstance(there, RemoteRunner)
    seen = observation(rng)
    for each in (there, alone):
        each.reset(CAN)
    assert np.array_equal(there.step(seen).values, alone.step(seen).values)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    begun_s = time.monotonic()
    with pytest.raises(PolicyUnreachable, match=url):
        there.step(seen)
    assert time.monotonic() - begun_s < 15  # and not the 30 s of the time-out
    with pytest.raises(UserError):
        there.reset(CAN)


def test_a_notebook_whose_event_loop_runs_can_use_it(serve: Serve) -> None:
    async def cell() -> np.ndarray:
        far = load_runner(serve(), SPEC)
        far.reset(CAN)
        return far.step(observation(np.random.default_rng(0))).values

    assert np.isfinite(asyncio.run(cell())).all()


def test_a_port_that_is_taken_is_named(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    port = int(serve().rpartition(":")[2])
    for wrong in (port, 70_000):
        with pytest.raises(UserError, match=str(wrong)):
            ServeCommand(port=wrong, checkpoint="own_policy:OwnPolicy").run()


def test_an_actor_is_served_for_the_robot_of_a_spec(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    other, made = replace(SPEC, robot="mine"), list[Runner]()
    path = tmp_path / "mine.safetensors"
    save_checkpoint(path, Policy(other, policy.config), {})
    monkeypatch.setattr(
        PolicyServer, "__init__", lambda self, make, token: made.append(make()) or exit()
    )
    with pytest.raises(SystemExit):
        ServeCommand(checkpoint="own_policy:OwnPolicy", spec=str(path)).run()
    assert made[0].spec == other
    with pytest.raises(UserError, match="--spec is for an actor"):
        ServeCommand(checkpoint=str(path), spec=str(path)).run()


def test_without_a_server_the_address_is_named() -> None:
    for url in ("ws://127.0.0.1:1", "ws://", "ws://no such host:8000"):
        with pytest.raises(UserError, match="policy server"):
            load_runner(url, SPEC)
