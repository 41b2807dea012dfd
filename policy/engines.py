"""Engines, which run one tick of the network, by PyTorch or by OpenVINO.

A tick is a module of plain tensors in a fixed order, which compilers and exporters need.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.config import EngineName, Precision
from ttm.policy.cores.core import CoreState, TemporalCore
from ttm.policy.errors import UserError, require_choice
from ttm.policy.inputs import PolicyInputs
from ttm.policy.policy import Policy
from ttm.policy.spec import Array, PolicySpec

WARM_UP_TICKS = 4
"""The first ticks allocate memory and choose kernels. CUDA graphs are recorded in the second."""
LARGEST_ERROR: Mapping[Precision, float] = {"float32": 1e-3, "bfloat16": 0.2}
"""Relative errors of OpenVINO that are far beyond those of rounding."""
Step = Callable[..., Sequence[Tensor]]
"""A tick whose tensors are laid out by `TickLayout`."""


@dataclass(frozen=True)
class TickLayout:
    """The order of the tensors of a tick, as `flatten` has it."""

    spec: PolicySpec
    state_names: tuple[str, ...]
    takes_delay: bool = False

    @classmethod
    def of(cls, policy: Policy, state: CoreState) -> TickLayout:
        return cls(policy.spec, tuple(state), policy.delay_code is not None)

    def flatten(self, inputs: PolicyInputs, state: CoreState) -> list[Tensor]:
        """Return views of the tensors, with B = T = 1. Images are (1, 1, H, W, 3), as from cameras."""
        assert inputs.proprioception_valid is None, "a tick hides no proprioception"
        return [
            *(inputs.images[camera.name].permute(0, 1, 3, 4, 2) for camera in self.spec.cameras),
            *(inputs.proprioception[vector.name] for vector in self.spec.proprioception),
            inputs.previous_action,
            inputs.previous_action_valid,
            inputs.language,
            *([inputs.known_delay_s] if self.takes_delay else []),
            *(state[name] for name in self.state_names),
        ]

    def unflatten(self, tensors: Sequence[Tensor]) -> tuple[PolicyInputs, CoreState]:
        """Return the arguments of `flatten`."""
        rest = iter(tensors)
        inputs = PolicyInputs(
            images={camera.name: next(rest).permute(0, 1, 4, 2, 3) for camera in self.spec.cameras},
            proprioception={vector.name: next(rest) for vector in self.spec.proprioception},
            previous_action=next(rest),
            previous_action_valid=next(rest),
            language=next(rest),
            delay_s=next(rest) if self.takes_delay else None,
        )
        return inputs, self.state(rest)

    def state(self, values: Iterable[Tensor]) -> CoreState:
        return dict(zip(self.state_names, values, strict=True))


class TickModule(nn.Module):
    """`Policy.step` with the tensors of a `TickLayout`."""

    def __init__(self, policy: Policy, layout: TickLayout) -> None:
        super().__init__()
        self.policy, self.layout = policy, layout

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the raw prediction, (1, 1, K * F), and the new state in the order of the layout."""
        raw, state = self.policy.step(*self.layout.unflatten(tensors))
        return raw, *(state[name] for name in self.layout.state_names)


class CoreTickModule(nn.Module):
    """`TemporalCore.step` with the tensors of the state in a fixed order."""

    def __init__(self, core: TemporalCore, state_names: Sequence[str]) -> None:
        super().__init__()
        self.core, self.state_names = core, tuple(state_names)

    def forward(self, tokens: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        outputs, state = self.core.step(tokens, dict(zip(self.state_names, values, strict=True)))
        return outputs, *(state[name] for name in self.state_names)


def example_tick(policy: Policy) -> tuple[PolicyInputs, CoreState]:
    """Return the inputs of a first tick with black images, and the state, on the policy's device."""
    spec, byte = policy.spec, torch.uint8
    inputs = PolicyInputs(
        {c.name: torch.zeros(1, 1, 3, c.height, c.width, dtype=byte) for c in spec.cameras},
        {v.name: torch.zeros(1, 1, v.size) for v in spec.proprioception},
        previous_action=torch.zeros(1, 1, spec.action_size),
        previous_action_valid=torch.zeros(1, 1, dtype=torch.bool),
        language=torch.zeros(1, policy.config.embedding_size),
        delay_s=None if policy.delay_code is None else torch.zeros(1, 1),
    )
    with torch.no_grad():
        state = policy.initial_state(1)
    return inputs.to(next(policy.parameters()).device), state


def random_tick(policy: Policy, seed: int) -> PolicyInputs:
    """Return random inputs of one tick, determined by `seed`, for a policy on the CPU."""
    generator = torch.Generator().manual_seed(seed)

    def noise(like: Tensor) -> Tensor:
        if like.dtype == torch.bool:
            return torch.ones_like(like)
        if like.dtype == torch.uint8:
            return torch.randint(0, 256, like.shape, dtype=torch.uint8, generator=generator)
        return torch.randn(like.shape, generator=generator)

    inputs = example_tick(policy)[0].each_tensor(noise)
    return replace(inputs, language=F.normalize(inputs.language))


class Engine(ABC):
    """Runs ticks of one robot (B = T = 1). It is warmed up when it is constructed.

    An engine holds no memory: the state is passed in and returned. Every engine gives bit-identical results
    for identical inputs; the results of different engines differ by rounding. A policy must be in evaluation
    mode, on its device.
    """

    name: str

    @abstractmethod
    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        """Run one tick. Returns the result of `Policy.decode_chunk`, (1, K, A), and the new state.

        inputs and state: on the device that the engine was made for, with all proprioception valid.
        They are not changed, and later calls do not change what was returned.
        """

    def _warm_up(self, policy: Policy) -> None:
        for _ in range(WARM_UP_TICKS):
            self.step(*example_tick(policy))


class TorchEngine(Engine):
    """The policy itself. It is the reference, and the only engine whose modules can have hooks."""

    name = "torch"

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._warm_up(policy)

    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        with torch.inference_mode():
            raw, state = self._policy.step(inputs, state)
            return self._policy.decode_chunk(raw, inputs.proprioception)[:, 0], state


class CompiledTorchEngine(Engine):
    """The policy compiled by `torch.compile`.

    On a GPU it uses CUDA graphs, which launch a whole tick at once. On a CPU it needs a C++ compiler.
    """

    name = "torch"

    def __init__(self, policy: Policy) -> None:
        self._layout = TickLayout.of(policy, example_tick(policy)[1])
        tick = TickModule(policy, self._layout)

        def decoded_tick(*tensors: Tensor) -> tuple[Tensor, ...]:
            raw, *values = tick(*tensors)
            measured = self._layout.unflatten(tensors)[0].proprioception
            return policy.decode_chunk(raw, measured)[:, 0], *values

        self._tick = torch.compile(decoded_tick, mode="reduce-overhead", dynamic=False)
        self._warm_up(policy)

    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        with torch.no_grad():  # a mixture with inference tensors would be compiled again
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            outputs = self._tick(*self._layout.flatten(inputs, state))
            # The next tick overwrites the tensors that the graph returned.
            actions, *values = (value.clone() for value in outputs)
        return actions, self._layout.state(values)


class OpenVinoEngine(Engine):
    """A copy of the policy as compiled by OpenVINO. Later changes of the policy have no effect on it."""

    name = "openvino"

    def __init__(self, policy: Policy, *, precision: Precision = "float32") -> None:
        # Imported here because OpenVINO may be missing, and takes time and memory.
        from ttm.policy.openvino_engine import CompiledModule, trace

        inputs, state = example_tick(policy)
        self._decode = policy.decode_chunk
        self._layout = TickLayout.of(policy, state)
        example = self._layout.flatten(inputs, state)
        tick = TickModule(copy.deepcopy(policy), self._layout).eval()
        traced = trace(tick, example)
        self._model = CompiledModule(traced, example, precision=precision)
        require_agreement(self._model, traced, policy, self._layout, precision)
        self._warm_up(policy)

    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        raw, *values = self._model(*self._layout.flatten(inputs, state))
        # PyTorch decodes: OpenVINO's clamp turns NaN, which must not become a command, into a limit,
        # and bfloat16 would round the limits.
        with torch.inference_mode():
            actions = self._decode(raw, inputs.proprioception)[:, 0]
        return actions, self._layout.state(values)


def require_agreement(
    made: Step, reference: Step, policy: Policy, layout: TickLayout, precision: Precision
) -> None:
    """Run two ticks of noise through both, and raise `UserError` if their results differ.

    `reference` is the traced network that OpenVINO was given, run by PyTorch.
    """
    made_state = state = example_tick(policy)[1]
    for seed in range(2):
        inputs = random_tick(policy, seed)
        made_action, *made_values = made(*layout.flatten(inputs, made_state))
        with torch.inference_mode(), torch.jit.optimized_execution(False):  # that takes longer
            action, *values = reference(*layout.flatten(inputs, state))
        made_state, state = layout.state(made_values), layout.state(values)
    errors = {"action": _relative_error(made_action, action)}
    errors |= {name: _relative_error(made_state[name], value) for name, value in state.items()}
    worst = max(errors, key=lambda name: errors[name])
    if not errors[worst] <= LARGEST_ERROR[precision]:
        raise UserError(
            f"OpenVINO computes another {worst} than PyTorch ({precision}, relative error "
            f"{errors[worst]:.2g}); give engine torch"
        )


def _relative_error(made: Tensor, wanted: Tensor) -> float:
    """Return the root mean square of the difference, divided by that of `wanted`."""
    made, wanted = made.detach().double(), wanted.detach().double()
    if not wanted.isfinite().all():
        return 0.0  # the runner refuses the NaN of such a network at its first tick
    size = wanted.square().mean().sqrt().clamp_min(1e-6)
    return float((made - wanted).square().mean().sqrt() / size)


def make_engine(
    policy: Policy,
    device: torch.device,
    engine: EngineName = "auto",
    precision: Precision = "float32",
) -> Engine:
    """Return an engine for a policy that is on `device`, in evaluation mode.

    "auto" is OpenVINO on a CPU and PyTorch elsewhere. bfloat16 halves the bytes of weights, whose
    reading takes most of a tick. Raises `UserError` for values that do not go together.
    """
    require_choice("engine", engine, get_args(EngineName))
    require_choice("precision", precision, get_args(Precision))
    if engine == "openvino" and device.type != "cpu":
        raise UserError(f"engine openvino needs a CPU, and device is '{device}'; give engine torch")
    if engine == "openvino" or (engine == "auto" and device.type == "cpu"):
        return OpenVinoEngine(policy, precision=precision)
    if precision != "float32":
        raise UserError(f"engine torch has no precision '{precision}'; give float32, or openvino")
    return CompiledTorchEngine(policy) if device.type == "cuda" else TorchEngine(policy)


def to_numpy(values: Tensor) -> Array:
    return values.detach().cpu().numpy().copy()


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Let PyTorch use `count` threads within the context. Other numbers of threads round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
