"""What a Token Turing Machine read and wrote at one tick, down to the cells of the camera image.

The summarisers of the machine (Ryoo et al. 2022, eq. 1 and 3) are weighted sums, so their weights
say where every token that was read, and every token that was written, came from. Weights count tokens
and not their values: a memory token that is still zero contributes nothing, whatever its weight.

    with record_attention(policy) as record:
        runner.step(observation)
    record.latest.shares("read")     # {"memory": 0.41, "head": 0.32, ...}
    record.latest.image_map("head")  # (h, w), which parts of the head camera's image were read
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ttm.policy.cores.ttm import TokenTuringMachine
from ttm.policy.cores.ttm_variants import TokenAddEraseWrite
from ttm.policy.errors import UserError
from ttm.policy.policy import Policy

Floats = npt.NDArray[np.float32]
Which = Literal["read", "write"]

MEMORY, OUTPUTS = "memory", "outputs"
"""The names of the two sources of tokens that are not inputs: the memory before, and the processed tokens."""


@dataclass(frozen=True, eq=False)
class MemoryAttention:
    """Where the r tokens read at a tick, and the m memory tokens written after it, came from."""

    memory_size: int
    """m."""
    read: Floats
    """(r, m + N): the weights of each token that was read on [memory ‖ inputs]; rows sum to one."""
    write: Floats | None
    """(m, m + N + r): the weights of each new memory token on [memory ‖ inputs ‖ outputs].

    Rows sum to one. Gates count by their mean over the channels. A write that does not see the outputs
    has no columns for them. Erase-and-add is no weighted sum, and has None.
    """
    slots: Floats | None
    """(T, m), for erase-and-add alone: the slots to which each of its T vectors went; rows sum to one."""
    sources: Mapping[str, slice]
    """The sources of the N inputs; see `Policy.token_sources`."""
    camera_weights: Mapping[str, Floats]
    """Camera -> (h, w, K): the weights of its K tokens on the cells of the feature map, of sum one each."""
    gates: Floats | None = None
    """(1,), with a sight memory alone: 1 where it was open, else 0."""
    looks: Floats | None = None
    """(1 + J, P), likewise: the weights of the P cells for what is written, and where each slot is found."""

    def shares(self, which: Which) -> dict[str, float]:
        """Return "memory", `sources` and, if written, "outputs" -> shares, of sum one."""
        mean = (self.read if which == "read" else self._written).mean(axis=0)
        inputs = mean[self.memory_size :]
        shares = {MEMORY: float(mean[: self.memory_size].sum())}
        shares |= {name: float(inputs[where].sum()) for name, where in self.sources.items()}
        after = max(where.stop for where in self.sources.values())
        return shares | ({OUTPUTS: float(inputs[after:].sum())} if len(inputs) > after else {})

    def image_map(self, camera: str, which: Which = "read") -> Floats:
        """Return how much of each cell of a camera's feature map was read or written, (h, w).

        They sum to the camera's share. For the place of a cell in the image see `cell_centres`.
        """
        if camera not in self.camera_weights:
            known = ", ".join(self.camera_weights)
            raise UserError(f"there is no map of '{camera}'; this policy has the cameras: {known}")
        inputs = (self.read if which == "read" else self._written)[:, self.memory_size :]
        tokens = inputs[:, self.sources[camera]].mean(axis=0)  # (K,)
        return self.camera_weights[camera] @ tokens

    @property
    def _written(self) -> Floats:
        if self.write is None:
            raise UserError("erase-and-add has no write attention; see `slots` and `read`")
        return self.write


def cell_centres(pixels: int, cells: int) -> npt.NDArray[np.float64]:
    """Return the centres of the receptive fields of the cells along one axis of `pixels`, (cells,).

    The unit is pixels from the edge. EfficientNet pads as TensorFlow does: a stride of two on an even
    size pads at the end alone, which moves all later layers by half a step.
    """
    size, stride, shift = pixels, 1, 0
    while size > cells:
        shift += stride * (size % 2 == 0)
        size, stride = -(-size // 2), 2 * stride
    return np.arange(cells, dtype=np.float64) * stride + shift + 0.5


class AttentionRecord:
    """The attention of the newest tick that `record_attention` has seen. It does not grow."""

    def __init__(self) -> None:
        self._latest: MemoryAttention | None = None

    @property
    def latest(self) -> MemoryAttention:
        """The attention of the newest tick. Raises `UserError` if there was none."""
        if self._latest is None:
            why = "no attention was recorded: the policy took no tick, or runs as a compiled copy"
            raise UserError(f'{why}; give PolicyRunner(policy, engine="torch") on a CPU')
        return self._latest


def has_token_memory(policy: Policy) -> bool:
    """Return whether the core of the policy is a Token Turing Machine, which can be looked into."""
    return isinstance(policy.core, TokenTuringMachine)


@contextmanager
def record_attention(policy: Policy) -> Iterator[AttentionRecord]:
    """Record every tick that `policy` takes within the `with` statement, by forward hooks.

    Only ticks of one robot can be recorded: `policy.step` with B = T = 1, as a `PolicyRunner` with
    engine="torch" on a CPU calls it. The other engines run a compiled copy, which has no hooks. Raises
    `UserError` if the core of the policy is not a Token Turing Machine.
    """
    core = policy.core
    if not isinstance(core, TokenTuringMachine):
        raise UserError(
            f"the core is a {type(core).__name__}, which has no token memory to look into; take a "
            "checkpoint whose core is a Token Turing Machine"
        )
    record = AttentionRecord()
    with ExitStack() as stack:
        for module, hook in _hooks(policy, core, record):
            stack.callback(_after(module, hook).remove)
        yield record


def _hooks(
    policy: Policy, core: TokenTuringMachine, record: AttentionRecord
) -> list[tuple[nn.Module, Callable[..., None]]]:
    """Return hooks that gather the pieces in the order of a tick: cameras, read, write, all together.

    They compute the weights a second time, so that the forward pass itself stays unchanged.
    """
    pieces: dict[str, Any] = {"write": None, "slots": None}
    cameras: dict[str, Floats] = {}
    sources = policy.token_sources
    sight = policy.sight
    looks: list[Tensor] = []

    def finish(unit: nn.Module, args: tuple[Tensor, ...]) -> None:
        known: dict[str, Any] = {"memory_size": args[0].shape[1], "sources": sources}
        if sight:
            pieces["gates"] = sight.opens(looks[0][0]).float().detach().cpu().numpy()
            pieces["looks"] = torch.cat(looks, dim=1)[0].softmax(dim=-1).detach().cpu().numpy()
            looks.clear()
        record._latest = MemoryAttention(**known, camera_weights=dict(cameras), **pieces)

    def seen_by(name: str) -> Callable[..., None]:
        def weigh(camera: Any, args: tuple[Tensor, ...]) -> None:
            features = args[0]
            cameras[name] = _rows(camera.weights(features)).T.reshape(*features.shape[-2:], -1)

        return weigh

    def read(module: Any, args: tuple[Tensor, ...]) -> None:
        pieces["read"] = _rows(module.weights(*args))

    def written(module: Any, args: tuple[Tensor, ...]) -> None:
        if isinstance(module, TokenAddEraseWrite):
            pieces["slots"] = _rows(module.weights(args[0]))
        else:
            pieces["write"] = _rows(module.weights(*args))

    seeing = zip((c.name for c in policy.spec.cameras), policy.camera_tokens, strict=True)
    hooks: list[tuple[nn.Module, Callable[..., None]]] = [(x, seen_by(name)) for name, x in seeing]
    if sight:
        hooks.append((sight.look, lambda _, args: looks.append(args[0])))
    return [*hooks, (core.unit.read, read), (core.unit.write, written), (core.unit, finish)]


def _after(module: nn.Module, hook: Callable[..., None]) -> RemovableHandle:
    """Run `hook` after every forward pass of `module`, except while an engine is compiled from it."""

    def unless_compiling(module: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        tracing: bool = torch.jit.is_tracing()  # type: ignore[no-untyped-call]
        if not (tracing or torch.compiler.is_compiling()):
            hook(module, args)

    return module.register_forward_hook(unless_compiling)


def _rows(weights: Tensor) -> Floats:
    """Return weights of shape (1, P, K), which sum to one over P, as an array (K, P)."""
    if len(weights) != 1:
        raise UserError(f"attention is of one robot (B = T = 1), not of {len(weights)} at once")
    return weights[0].T.detach().float().cpu().numpy()
