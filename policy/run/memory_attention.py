"""Looking into the memory: what a Token Turing Machine reads and writes at a tick, down to the camera image.

The summarisers of the machine (Ryoo et al. 2022, eq. 1 and 3) are weighted sums, and their weights say where
every token read, and every token written, came from:

    with record_attention(policy) as record:
        runner.step(observation)
    record.latest.read_shares()      # {"memory": 0.41, "head": 0.32, ...}
    record.latest.image_map("head")  # (h, w), which parts of the head camera's image were read

Weights count tokens, not what is in them: a memory token that is still zero gives nothing, whatever its weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ttm.policy.cores.ttm.machine import PositionedSummarizer, TokenTuringMachine
from ttm.policy.cores.ttm.memory_write import ConcatenationWrite, EraseAddWrite
from ttm.policy.errors import UserError
from ttm.policy.layers.token_learner import Summarizer
from ttm.policy.network.policy import Policy
from ttm.policy.network.vision_tokens import CameraTokens

Floats = npt.NDArray[np.float32]
Which = Literal["read", "write"]

MEMORY, OUTPUTS = "memory", "outputs"
"""Names of the two sources of tokens that are not inputs: the memory of the last tick, the processed tokens."""


@dataclass(frozen=True, eq=False)
class MemoryAttention:
    """Where the r tokens read at one tick, and the m memory tokens then written, came from."""

    memory_size: int
    """m."""
    read: Floats
    """(r, m + N): of each token read, its weights on [memory ‖ inputs]; rows sum to one."""
    write: Floats | None
    """(m, m + N + r): of each new memory token, its weights on [memory ‖ inputs ‖ outputs]; rows sum to one.

    Writing by concatenation moves tokens whole, so its weights are 0 or 1. Erase-and-add is no weighted sum: None.
    """
    slots: Floats | None
    """(T, m): of erase-and-add alone, to which memory slots each of its T vectors went; rows sum to one."""
    sources: Mapping[str, slice]
    """Which of the N inputs come from where; see `Policy.token_sources`."""
    camera_weights: Mapping[str, Floats]
    """Camera -> (h, w, K): of its K tokens, the weights on the cells of the feature map; each sums to one."""

    def read_shares(self) -> dict[str, float]:
        """Source -> its share of what was read, the mean over the r tokens: "memory", then `sources`; sums to one."""
        return self._shares(self.read)

    def write_shares(self) -> dict[str, float]:
        """Source -> its share of the new memory: "memory", then `sources`, then "outputs"; sums to one."""
        return self._shares(self._written)

    @property
    def kept(self) -> Floats:
        """(m,): of each new memory token, how much is old memory."""
        kept: Floats = self._written[:, : self.memory_size].sum(axis=1)
        return kept

    def image_map(self, camera: str, which: Which = "read") -> Floats:
        """(h, w): how much of each cell of the camera's map was read, or written; sums to the camera's share.

        It follows the weights through the camera's tokens; `cell_centres` says where in the image a cell looks.
        What the outputs took from the image, and the memory from earlier ones, is not in it.
        """
        if camera not in self.camera_weights:
            known = ", ".join(self.camera_weights)
            raise UserError(f"there is no map of '{camera}'; this policy has the cameras: {known}")
        weights = self.read if which == "read" else self._written
        tokens = self._inputs(weights)[:, self.sources[camera]].mean(axis=0)  # (K,)
        cells: Floats = self.camera_weights[camera] @ tokens
        return cells

    @property
    def _written(self) -> Floats:
        if self.write is None:
            raise UserError(
                "this policy writes its memory by erase-and-add, which is no weighted sum of tokens and has no "
                "write attention; `slots` says where it wrote, and reading can be shown"
            )
        return self.write

    def _inputs(self, weights: Floats) -> Floats:
        return weights[:, self.memory_size :]

    def _shares(self, weights: Floats) -> dict[str, float]:
        mean = weights.mean(axis=0)
        inputs = mean[self.memory_size :]
        shares = {MEMORY: float(mean[: self.memory_size].sum())}
        shares |= {name: float(inputs[where].sum()) for name, where in self.sources.items()}
        after = max(where.stop for where in self.sources.values())
        return shares | ({OUTPUTS: float(inputs[after:].sum())} if len(inputs) > after else {})


def cell_centres(pixels: int, cells: int) -> npt.NDArray[np.float64]:
    """(cells,): where along an axis of `pixels` the cells of the feature map look, in pixels from the edge.

    These are the middles of their receptive fields, which are several cells wide. EfficientNet pads as TensorFlow
    does: a stride of two on an even size pads at the end alone, which moves all that follows half a step that way.
    So the cells of a map of even sizes look at the far corners of the squares that they divide the image into.
    """
    size, stride, shift = pixels, 1, 0
    while size > cells:
        shift += stride * (size % 2 == 0)
        size, stride = -(-size // 2), 2 * stride
    centres: npt.NDArray[np.float64] = np.arange(cells, dtype=np.float64) * stride + shift + 0.5
    return centres


class AttentionRecord:
    """What `record_attention` has seen so far; it keeps the newest tick alone, and so never grows."""

    def __init__(self) -> None:
        self._latest: MemoryAttention | None = None

    @property
    def latest(self) -> MemoryAttention:
        """Of the newest tick; `UserError` if the policy has not taken one inside `record_attention`."""
        if self._latest is None:
            raise UserError(
                "no attention was recorded: the policy took no tick inside record_attention, or its runner runs a "
                'compiled copy of it; make the runner with PolicyRunner(policy, engine="torch") on a CPU'
            )
        return self._latest


@contextmanager
def record_attention(policy: Policy) -> Iterator[AttentionRecord]:
    """Records every tick that `policy` takes inside the `with`, by forward hooks, which are gone afterwards.

    Outputs are the same to the last bit inside and outside. Only ticks of one robot can be recorded: `policy.step`
    with B = T = 1, as a `PolicyRunner` with engine="torch" on a CPU takes them; other engines run a compiled copy,
    which has no hooks. `UserError` if the policy's core is no Token Turing Machine.
    """
    core = policy.core
    if not isinstance(core, TokenTuringMachine):
        raise UserError(
            f"this policy's temporal core is a {type(core).__name__}, which has no token memory to look into; "
            "take a checkpoint whose core is a Token Turing Machine"
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
    """Hooks that gather the pieces in the order of a tick: cameras, reading, writing, and then the whole."""
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
    handles.append(_watch_summarizer(core.unit.read, "read", pieces))
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


def _watch_write(module: nn.Module, pieces: dict[str, Floats]) -> RemovableHandle:
    def slots(module: EraseAddWrite, args: tuple[Tensor, ...], output: Tensor) -> None:
        pieces["slots"] = _rows(module.weights(args[0]))

    def moved(module: ConcatenationWrite, args: tuple[Tensor, ...], output: Tensor) -> None:
        sizes = [tokens.shape[1] for tokens in args]
        one_hot = torch.eye(sum(sizes))[
            None
        ]  # each token by itself: what comes out says where it went
        pieces["write"] = _rows(module.forward(*torch.split(one_hot, sizes, dim=1)).transpose(1, 2))

    if isinstance(module, EraseAddWrite):
        return _after(module, slots)
    if isinstance(module, ConcatenationWrite):
        return _after(module, moved)
    return _watch_summarizer(module, "write", pieces)


def _watch_summarizer(owner: nn.Module, name: str, pieces: dict[str, Floats]) -> RemovableHandle:
    """The weights are made once more: the forward pass itself is left as it is."""
    assert isinstance(owner, PositionedSummarizer | CameraTokens)

    def hook(module: Summarizer, args: tuple[Tensor, ...], output: Tensor) -> None:
        pieces[name] = _rows(module.weights(args[0]))

    return _after(owner.summarizer, hook)


def _after(module: nn.Module, hook: Callable[..., None]) -> RemovableHandle:
    """`hook` runs after every forward pass of `module`, but not while an engine is being compiled from it."""

    def unless_compiling(module: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        tracing: bool = torch.jit.is_tracing()  # type: ignore[no-untyped-call]
        if not (tracing or torch.compiler.is_compiling()):
            hook(module, args, output)

    return module.register_forward_hook(unless_compiling)


def _rows(weights: Tensor) -> Floats:
    """(1, P, K), sums over P are one -> (K, P)."""
    if len(weights) != 1:
        raise UserError(
            f"attention is recorded for one tick of one robot, but the policy was given {len(weights)} at once; "
            "leave record_attention, or step with B = T = 1 as a PolicyRunner does"
        )
    rows: Floats = weights[0].T.detach().float().cpu().numpy()
    return rows
