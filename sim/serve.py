"""`ttm serve`: a policy for robots and evaluations on other machines. See `ttm.policy.remote`."""

from __future__ import annotations

import asyncio
import copy
import hmac
import json
import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from ttm.datasets.dataset import read_spec
from ttm.policy.actor import Runner, load_runner
from ttm.policy.engines import cpu_threads
from ttm.policy.errors import (
    UserError,
    options,
    require_at_least,
    require_at_most,
    require_instruction,
)
from ttm.policy.language import embed_instruction
from ttm.policy.remote import RESERVED, TOKEN, decode, encode
from ttm.policy.runner import PolicyRunner
from ttm.policy.snapshot import MOST_BYTES
from ttm.policy.spec import SHIPPED, checkpoint_path


@dataclass(frozen=True)
class ServeCommand:
    """Run a policy for robots and evaluations on other machines, such as on a computer with a GPU.

    Each connection is a session with a memory of its own. They take turns with the network. Without a token,
    only programs on this machine are served. With the environment variable TTM_TOKEN everybody is who sends
    it; nothing is encrypted. The messages are those of openpi, whose clients can connect, too. Ctrl-C ends.

    For example:
      TTM_TOKEN=secret ttm serve --checkpoint runs/mine/best.safetensors --device cuda
      TTM_TOKEN=secret ttm robot --actor ws://gpu.local:8000 --contract my_robot.yaml
    """

    checkpoint: str = SHIPPED
    """A .safetensors file; shipped; or, with a colon in it, an actor as ttm evaluate --actor takes it."""
    spec: str = SHIPPED
    """Of an actor: a checkpoint, or episodes, of the robot that it is for."""
    device: str = "cpu"
    """Torch device of a checkpoint's network, such as cpu or cuda."""
    port: int = 8000
    """TCP port; 0 for one that is free."""

    def run(self) -> int:
        """Serve until Ctrl-C."""
        require_at_least(0, options(self, "port"))
        require_at_most(65535, options(self, "port"))
        make: Callable[[], Runner]
        with cpu_threads(1):
            if ":" in self.checkpoint:
                make = partial(load_runner, self.checkpoint, read_spec(self.spec))
            elif self.spec != SHIPPED:
                raise UserError("--spec is for an actor; a checkpoint has its own")
            else:
                path = checkpoint_path(self.checkpoint)
                first = PolicyRunner.from_checkpoint(path, device=self.device)
                make = partial(copy.copy, first)  # its state is replaced, and never changed
            server = PolicyServer(make, os.environ.get(TOKEN, ""))
            asyncio.run(server.serve(self.port, lambda url: print(f"serving at {url}", flush=True)))
        return 0


class PolicyServer:
    """Answers the messages of `ttm.policy.remote`, one tick at a time over all sessions."""

    def __init__(self, make: Callable[[], Runner], token: str = "") -> None:
        """make: returns the runner of a session. token: what clients have to send; "" for none.

        Raises `UserError` if the policy cannot be served.
        """
        self._make, self._token = make, token
        if names := RESERVED.intersection(make().spec.observation_names):
            raise UserError(f"observation {min(names)} has a name that messages need; give another")

    async def serve(self, port: int, ready: Callable[[str], object] = print) -> None:
        """Serve until the task is cancelled. port: 0 for a free one. ready: gets the address."""
        app = web.Application()
        app.router.add_get("/", self._session)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            host = "0.0.0.0" if self._token else "127.0.0.1"
            try:
                await web.TCPSite(runner, host, port).start()
            except OSError as error:
                raise UserError(f"--port {port} ({error.strerror}); give another one") from error
            ready(f"ws://{host}:{runner.addresses[0][1]}")
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _session(self, request: web.Request) -> web.StreamResponse:
        """Serve one connection until its end."""
        given = request.headers.get("Authorization", "").removeprefix("Api-Key ")
        if "Origin" in request.headers:  # a page in somebody's browser
            return web.Response(status=403, text="web pages are not served\n")
        if self._token and not hmac.compare_digest(given.encode(), self._token.encode()):
            return web.Response(status=401, text=f"the token is not that of {TOKEN}\n")
        socket = web.WebSocketResponse(max_msg_size=MOST_BYTES, compress=False)
        await socket.prepare(request)
        runner = self._make()
        print(f"{request.remote}: session begun", flush=True)
        about = {
            "ttm": 1,
            "spec": runner.spec.to_json(),
            "longest_delay_s": runner.longest_delay_s,
            "remembers": runner.remembers,
        }
        await socket.send_bytes(encode(about))
        async for frame in socket:
            try:
                answer = encode(await self._answer(runner, decode(frame.data)))
            except UserError as error:
                await socket.send_str(str(error))
            except Exception as error:
                traceback.print_exc()
                await socket.send_str(f"the policy failed: {error!r}")
                await socket.close(code=1011)
            else:
                await socket.send_bytes(answer)
        print(f"{request.remote}: session ended after {runner.tick} ticks", flush=True)
        return socket

    async def _answer(self, runner: Runner, message: dict[str, Any]) -> Mapping[str, Any]:
        """Do what a message asks for. Raises `UserError` if that cannot be done."""
        begun_s = time.perf_counter()
        if "executed_action" in message:
            runner.executed(message["executed_action"])
        answer: dict[str, Any] = {}
        prompt = message.get("prompt", runner.instruction)
        if message.get("episode_start") or (prompt is not None and prompt != runner.instruction):
            await _reset(runner, prompt)
        command = message.get("command")
        if command == "erase":
            runner.erase_memory()
        elif command == "snapshot":
            answer["snapshot"] = runner.snapshot()
        elif command == "restore":
            runner.restore(message.get("snapshot", {}))
        if not message.keys() <= RESERVED:
            action = runner.step(message, delay_s=float(message.get("delay_s", 0.0)))
            answer["actions"] = action.values[None]
        took_ms = 1e3 * (time.perf_counter() - begun_s)
        return answer | {
            "memory_norms": runner.memory_norms,
            "server_timing": {"infer_ms": took_ms},
        }


async def _reset(runner: Runner, prompt: Any) -> None:
    """Begin an episode. A language model that computes an embedding lets other sessions go on meanwhile."""
    if not isinstance(prompt, str):
        raise UserError(f"the prompt is {json.dumps(prompt, default=str)}; give an instruction")
    prompt, embedding = require_instruction(prompt), None
    if isinstance(runner, PolicyRunner) and prompt not in runner.policy.known_instructions:
        model = runner.policy.config.language_model
        embedding = await asyncio.to_thread(embed_instruction, prompt, model)
    runner.reset(prompt, embedding=embedding)
