"""A policy on another machine: openpi's messages over a WebSocket, and their client.

A connection is a session with a memory of its own. The server begins with a map that describes the policy.
Every message is a map in MessagePack, and so is its answer; a text instead of a map says what went wrong.

    prompt, episode_start    the instruction. True, or another prompt, begins an episode.
    observation names        (H, W, 3) uint8 and (K,) float32. The answer has `actions`, (1, A) float32.
    executed_action          what the robot did at the last tick, (A,), if it differs from the action
    delay_s                  the time until the command will be in force
    command                  "erase" the memory, "snapshot", or "restore" what stands at `snapshot`

Clients of openpi (https://github.com/Physical-Intelligence/openpi) can use such a server. From a server of
openpi, `RemoteRunner` takes the first action of each chunk. The token stands in the header as theirs:
`Authorization: Api-Key TOKEN`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NoReturn

import msgpack
import numpy as np
import numpy.typing as npt
import websocket

from ttm.policy.actor import Runner
from ttm.policy.errors import MalformedObservation, PolicyUnreachable, UserError, first_line
from ttm.policy.snapshot import array_to_text
from ttm.policy.spec import Action, Array, Observation, PolicySpec

TOKEN = "TTM_TOKEN"
"""The environment variable that holds the token, at both ends."""
RESERVED = frozenset(
    {"prompt", "episode_start", "executed_action", "delay_s", "command", "snapshot"}
)
"""Names of a message that no camera and no vector may have."""
START_TIMEOUT_S = 60.0
"""The longest wait for a connection, and for the begin of an episode: a language model may have to load."""
_ARRAY, _SCALAR = b"__ndarray__", b"__npgeneric__"


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message in MessagePack. Arrays become maps, as in `openpi_client.msgpack_numpy`."""
    return bytes(msgpack.packb(message, default=_pack))


def _pack(value: Any) -> Any:
    array = np.asarray(value)
    kind = {b"dtype": _numeric(array.dtype).str}
    if isinstance(value, np.generic):
        return {_SCALAR: True, b"data": value.item(), **kind}
    return {_ARRAY: True, b"data": array.tobytes(), b"shape": array.shape, **kind}


def decode(data: Any) -> dict[str, Any]:
    """Return a message, whose arrays may be read-only. Raises `UserError` for anything else."""
    try:
        message = msgpack.unpackb(data, object_hook=_unpack)
        if not isinstance(message, dict):
            raise TypeError("it is no map")
        return message
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise UserError(f"a message cannot be read ({first_line(error)})") from error


def _unpack(value: dict[Any, Any]) -> Any:
    if _ARRAY in value:
        return np.frombuffer(value[b"data"], _numeric(value[b"dtype"])).reshape(value[b"shape"])
    if _SCALAR in value:
        return _numeric(value[b"dtype"]).type(value[b"data"])
    return value


def _numeric(kind: npt.DTypeLike) -> np.dtype[Any]:
    """Return a type of numbers. Raises `TypeError` for objects, texts and records."""
    found = np.dtype(kind)
    if found.kind not in "biuf":
        raise TypeError(f"{found} are no numbers")
    return found


class RemoteRunner(Runner):
    """Runs a policy that a server holds, one episode at a time, over one connection.

    When the server does not answer in time, or is gone, every `step` raises `PolicyUnreachable` until `reset`
    connects anew: what the policy remembered is lost.
    """

    def __init__(self, url: str, spec: PolicySpec | None, timeout_s: float) -> None:
        """url: ws://HOST:PORT. spec: of the robot, or None. timeout_s: the longest wait for an action.

        Raises `UserError` if there is no server, or its policy is for another robot.
        """
        self._url, self._timeout_s = url, timeout_s
        self._socket: Any = None
        self._lost, self._news = "", dict[str, Any]()
        self.infer_ms = 0.0
        """What the policy itself took of the last answer's time, as the server says."""
        about = self._connect()
        self._is_ttm = "ttm" in about
        own = PolicySpec.from_json(about["spec"]) if self._is_ttm else None
        if own is not None and spec is not None:
            own.require_robot(spec, ours=url)
        if (known := own or spec) is None:
            raise UserError(f"{url} does not say what its policy is for; give spec")
        super().__init__(known)
        self.longest_delay_s = float(about.get("longest_delay_s", 0.0))
        self.remembers = bool(about.get("remembers", False))
        self._norms = super().memory_norms

    @property
    def memory_norms(self) -> npt.NDArray[np.float32]:
        return self._norms

    def reset(self, instruction: str, *, embedding: Array | None = None) -> None:
        """See `Runner`. The server knows the embedding. Connects anew if the connection was lost.

        Always does so with a server of openpi, which ends connections that were idle for a while.
        """
        if self._socket is None or not self._is_ttm:
            self._connect()
        self._begin(instruction)
        self._news = {}
        if self._is_ttm:
            self._ask({"prompt": instruction, "episode_start": True}, START_TIMEOUT_S)

    def step(self, observation: Observation, *, delay_s: float = 0.0) -> Action:
        """See `Runner`. Raises `PolicyUnreachable` if the server gives no action in time."""
        self._require_episode()
        observation = self.spec.seen(observation)
        seen = {name: np.asarray(observation[name]) for name in self.spec.observation_names}
        delay = {"delay_s": delay_s} if self.longest_delay_s else {}
        answer = self._ask({**seen, "prompt": self.instruction, **delay}, self._timeout_s)
        try:
            action = np.array(answer["actions"], np.float32).reshape(-1, self.spec.action_size)[0]
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise UserError(f"{self._url} gave no actions ({first_line(error)})") from error
        if not np.isfinite(action).all():
            raise MalformedObservation(f"the action of {self._url} is not finite; check its policy")
        return self._ticked(*self._chosen(action))

    def executed(self, action: npt.ArrayLike) -> None:
        super().executed(action)
        self._news = {"executed_action": self.previous_action}

    def erase_memory(self) -> None:
        self._command("erase")

    def snapshot(self) -> dict[str, Array]:
        return dict(self._command("snapshot")["snapshot"])

    def restore(self, snapshot: Mapping[str, Array]) -> None:
        self._news = {}
        self._command("restore", snapshot=dict(snapshot))
        self.tick, self.instruction = int(snapshot["tick"]), array_to_text(snapshot["instruction"])
        self._previous_action = np.array(snapshot["previous_action"], np.float32)

    def _command(self, name: str, **more: Any) -> dict[str, Any]:
        if not self.remembers and name != "erase":
            raise UserError(f"the memory of the policy at {self._url} cannot be read")
        return self._ask({"command": name, **more}, START_TIMEOUT_S)

    def _ask(self, message: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a message, and return the answer. Raises `UserError` with the server's text."""
        if self._socket is None:
            raise PolicyUnreachable(self._lost)
        answer = self._receive(timeout_s, encode({**message, **self._news}))
        self._news = {}
        self._norms = np.array(answer.get("memory_norms", self._norms), np.float32)
        self.infer_ms = float(answer["server_timing"]["infer_ms"]) if self._is_ttm else 0.0
        return answer

    def _receive(self, timeout_s: float, message: bytes | None = None) -> dict[str, Any]:
        """Send a message, if any, and return what comes. Without an answer the connection is given up."""
        try:
            self._socket.settimeout(timeout_s)
            if message is not None:
                self._socket.send_binary(message)
            kind, data = self._socket.recv_data()
        except KeyboardInterrupt as error:  # an answer to come would be taken for the next one
            self._give_up("was interrupted", error)
        except websocket.WebSocketTimeoutException:
            self._give_up(f"gave no answer within {timeout_s:g} s")
        except (websocket.WebSocketException, OSError) as error:
            self._give_up(f"cannot be reached ({first_line(error)})")
        if kind == websocket.ABNF.OPCODE_BINARY:
            return decode(data)
        if kind != websocket.ABNF.OPCODE_TEXT:
            self._give_up("closed the connection")
        raise MalformedObservation(f"{self._url}: {data.decode().strip().splitlines()[-1]}")

    def _give_up(self, why: str, error: BaseException | None = None) -> NoReturn:
        if self._socket is not None:
            self._socket.shutdown()
        self._socket = None
        self._lost = f"the policy server {self._url} {why}"
        raise error or PolicyUnreachable(self._lost)

    def _connect(self) -> dict[str, Any]:
        """Open a session, and return what the server says of its policy. Raises `UserError` without one."""
        token = os.environ.get(TOKEN)
        if self._socket is not None:
            self._socket.shutdown()
        try:
            self._socket = websocket.create_connection(
                self._url,
                START_TIMEOUT_S,
                header={"Authorization": f"Api-Key {token}"} if token else {},
                suppress_origin=True,  # which web pages send
                # A proxy for the web, of the environment, does not know the robot's network.
                http_proxy_host="none",
                http_no_proxy=["*"],
            )
        except websocket.WebSocketBadStatusException as error:
            self._give_up(f"refused ({error.status_code}); is {TOKEN} the same at both ends?")
        except (websocket.WebSocketException, OSError, ValueError) as error:
            self._give_up(f"cannot be reached ({first_line(error)})")
        return self._receive(START_TIMEOUT_S)
