"""Record what the memory of a policy reads and writes, tick by tick, by hooks on its modules.

with record_attention(policy) as record:
    runner.step(observation)
record.latest.read_shares()      # {"memory": 0.41, "head": 0.32, ...}
record.latest.image_map("head")  # (h, w), which parts of the head camera's image were read
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ttm.policy.cores.ttm.attending_read import AttendingRead
from ttm.policy.cores.ttm.gated_write import GatedWrite
from ttm.policy.cores.ttm.machine import TokenTuringMachine
from ttm.policy.cores.ttm.memory_write import ConcatenationWrite, EraseAddWrite
from ttm.policy.errors import UserError
from ttm.policy.layers.positioned_summarizer import PositionedSummarizer
from ttm.policy.layers.token_learner import Summarizer
from ttm.policy.network.policy import Policy
from ttm.policy.network.vision_tokens import CameraTokens
from ttm.policy.run.memory_attention import Floats, MemoryAttention


class AttentionRecord:
    """The attention of the newest tick that `record_attention` has seen. It does not grow."""

    def __init__(self) -> None:
        self._latest: MemoryAttention | None = None

    @property
    def latest(self) -> MemoryAttention:
        """The attention of the newest tick. Raises `UserError` if there was none."""
        if self._latest is None:
            raise UserError(
                "no attention was recorded: the policy took no tick inside record_attention, or its "
                "runner runs a compiled copy of it; make the runner with "
                'PolicyRunner(policy, engine="torch") on a CPU'
            )
        return self._latest


def has_token_memory(policy: Policy) -> bool:
    """Return whether the core of the policy is a Token Turing Machine, which can be looked into."""
    return isinstance(policy.core, TokenTuringMachine)


@contextmanager
def record_attention(policy: Policy) -> Iterator[AttentionRecord]:
    """Record every tick that `policy` takes within the `with` statement, by forward hooks.

    The hooks do not change the outputs, not by a bit, and are removed afterwards. Only ticks of one
    robot can be recorded: `policy.step` with B = T = 1, as a `PolicyRunner` with engine="torch" on a
    CPU calls it. The other engines run a compiled copy, which has no hooks. Raises `UserError` if the
    core of the policy is not a Token Turing Machine.
    """
    core = policy.core
    if not isinstance(core, TokenTuringMachine):
        raise UserError(
            f"this policy's temporal core is a {type(core).__name__}, which has no token memory "
            "to look into; take a checkpoint whose core is a Token Turing Machine"
        )
    record = AttentionRecord()
    handles = _attach(policy, core, record)
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


def _attach(
    policy: Policy, core: TokenTuringMachine, record: AttentionRecord
) -> list[RemovableHandle]:
    """Add hooks that gather the pieces in the order of a tick: cameras, read, write, all together."""
    pieces: dict[str, Floats] = {}
    cameras: dict[str, Floats] = {}
    sources = policy.token_sources
    handles = []

    def finish(module: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        record._latest = MemoryAttention(
            memory_size=args[0].shape[1],
            read=pieces["read"],
            write=pieces.get("write"),
            slots=pieces.get("slots"),
            sources=sources,
            camera_weights=dict(cameras),
        )

    for camera, module in zip(policy.spec.cameras, policy.camera_tokens, strict=True):
        handles += _watch_camera(module, camera.name, cameras)
    handles.append(_watch_read(core.unit.read, pieces))
    handles.append(_watch_write(core.unit.write, pieces))
    handles.append(_after(core.unit, finish))
    return handles


def _watch_camera(
    module: nn.Module, name: str, cameras: dict[str, Floats]
) -> list[RemovableHandle]:
    def to_grid(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        tokens, height, width = len(cameras[name]), *args[0].shape[-2:]
        cameras[name] = cameras[name].T.reshape(height, width, tokens)

    return [_watch_summarizer(module, name, cameras), _after(module, to_grid)]


def _watch_read(module: nn.Module, pieces: dict[str, Floats]) -> RemovableHandle:
    def attended(module: AttendingRead, args: tuple[Tensor, ...], output: Tensor) -> None:
        pieces["read"] = _rows(module.weights(*args))

    if isinstance(module, AttendingRead):
        return _after(module, attended)
    return _watch_summarizer(module, "read", pieces)


def _watch_write(module: nn.Module, pieces: dict[str, Floats]) -> RemovableHandle:
    def slots(module: EraseAddWrite, args: tuple[Tensor, ...], output: Tensor) -> None:
        pieces["slots"] = _rows(module.weights(args[0]))

    def moved(module: ConcatenationWrite, args: tuple[Tensor, ...], output: Tensor) -> None:
        sizes = [tokens.shape[1] for tokens in args]
        one_hot = torch.eye(sum(sizes))[None]  # moved like the tokens, it tells where each went
        pieces["write"] = _rows(module.forward(*torch.split(one_hot, sizes, dim=1)).transpose(1, 2))

    def gated(module: GatedWrite, args: tuple[Tensor, ...], output: Tensor) -> None:
        pieces["write"] = _rows(module.weights(*args))

    if isinstance(module, EraseAddWrite):
        return _after(module, slots)
    if isinstance(module, GatedWrite):
        return _after(module, gated)
    if isinstance(module, ConcatenationWrite):
        return _after(module, moved)
    return _watch_summarizer(module, "write", pieces)


def _watch_summarizer(owner: nn.Module, name: str, pieces: dict[str, Floats]) -> RemovableHandle:
    """Compute the weights a second time, so that the forward pass itself stays unchanged."""
    assert isinstance(owner, PositionedSummarizer | CameraTokens)

    def hook(module: Summarizer, args: tuple[Tensor, ...], output: Tensor) -> None:
        pieces[name] = _rows(module.weights(args[0]))

    return _after(owner.summarizer, hook)


def _after(module: nn.Module, hook: Callable[..., None]) -> RemovableHandle:
    """Run `hook` after every forward pass of `module`, except while an engine is compiled from it."""

    def unless_compiling(module: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        tracing: bool = torch.jit.is_tracing()  # type: ignore[no-untyped-call]
        if not (tracing or torch.compiler.is_compiling()):
            hook(module, args, output)

    return module.register_forward_hook(unless_compiling)


def _rows(weights: Tensor) -> Floats:
    """Return weights of shape (1, P, K), which sum to one over P, as an array (K, P)."""
    if len(weights) != 1:
        raise UserError(
            f"attention is recorded for one tick of one robot, but the policy was given "
            f"{len(weights)} at once; leave record_attention, or step with B = T = 1 as a PolicyRunner does"
        )
    rows: Floats = weights[0].T.detach().float().cpu().numpy()
    return rows
