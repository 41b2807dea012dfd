"""Whole ticks, from images to the action, and the temporal cores by themselves."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ttm.policy.cores.registry import CORES, sized_like
from ttm.policy.network.policy import PRESETS, Policy
from ttm.policy.run.engine import EngineName, Precision
from ttm.policy.run.openvino_engine import CompiledModule, supported_precisions
from ttm.policy.run.runner import PolicyRunner
from ttm.policy.run.tick import CoreTick
from ttm.policy.spec import ActionPart, CameraSpec, Observation, PolicySpec, ProprioceptionSpec
from ttm.training.bench.timing import interleaved, repeated

CAMERAS = {"tiny": 2, "base": 1, "paper": 1}
"""Of the robot that each preset is timed for, which has an arm, a gripper and a base."""
BAR_MS = {"tiny": 10.0, "base": 40.0, "paper": 100.0}
"""Preset -> what the median tick may take on two CPU cores."""
COMPARED_TICKS = 20


@dataclass(frozen=True)
class WholeRow:
    """A preset's tick through `PolicyRunner.step`."""

    preset: str
    image_size: int
    cameras: int
    engine: str
    precision: str
    median_ms: float
    p99_ms: float
    load_s: float
    error: float
    """The largest difference of an action from PyTorch's over 20 ticks; commands lie in [-1, 1]."""


@dataclass(frozen=True)
class CoreRow:
    """One kind of core by itself."""

    kind: str
    parameters: int
    state_values: int
    torch_ms: float
    """Eager."""
    median_ms: float
    """Compiled, in float32."""
    error: float
    """The largest difference of the two over 20 ticks."""


def measure_whole(preset: str, ticks: int, torch_ticks: int) -> list[WholeRow]:
    """Every engine and precision on one preset with random weights."""
    settings: list[tuple[EngineName, Precision, int]] = [("torch", "float32", torch_ticks)]
    settings += [("openvino", precision, ticks) for precision in supported_precisions()]
    policy = preset_policy(preset)
    rows: list[WholeRow] = []
    expected = None
    for engine, precision, count in settings:
        begun = time.perf_counter()
        runner = PolicyRunner(policy, engine=engine, precision=precision)
        load_s = time.perf_counter() - begun
        actions = actions_of(runner)
        expected = actions if expected is None else expected
        times = repeated(tick_loop(runner), count)
        rows.append(
            WholeRow(
                preset=preset,
                image_size=PRESETS[preset].image_size,
                cameras=CAMERAS[preset],
                engine=engine,
                precision=precision,
                median_ms=float(np.median(times)) * 1e3,
                p99_ms=float(np.quantile(times, 0.99)) * 1e3,
                load_s=load_s,
                error=float(np.abs(actions - expected).max()),
            )
        )
    return rows


def preset_policy(preset: str) -> Policy:
    """With random weights, the same every time."""
    size = PRESETS[preset].image_size
    spec = PolicySpec(
        robot="bench",
        cameras=tuple(
            CameraSpec(f"camera {number}", size, size) for number in range(CAMERAS[preset])
        ),
        proprioception=(
            ProprioceptionSpec("joints", tuple(f"joint {number} (rad)" for number in range(7))),
            ProprioceptionSpec("gripper", ("opening",)),
        ),
        actions=(
            ActionPart("arm", 6, "m, rad", low=-1, high=1),
            ActionPart("gripper", 1, "", kind="binary", low=0, high=1),
            ActionPart("base", 2, "m/s, rad/s", low=-1, high=1),
        ),
        rate_hz=5.0,
    )
    torch.manual_seed(0)
    return Policy(spec, PRESETS[preset])


def tick_loop(runner: PolicyRunner) -> Callable[[], object]:
    """A tick of an episode that goes on and on, before the same images."""
    observation = noise(runner.spec, 0)
    begin(runner)
    return lambda: runner.step(observation)


def actions_of(runner: PolicyRunner) -> npt.NDArray[np.float32]:
    """(20, A) of an episode of noise."""
    begin(runner)
    return np.stack(
        [runner.step(noise(runner.spec, tick)).probabilities for tick in range(COMPARED_TICKS)]
    )


def begin(runner: PolicyRunner) -> None:
    """An episode under an instruction whose embedding is made up, so that no language model is loaded."""
    size = runner.policy.config.embedding_size
    runner.reset("bench", embedding=np.full(size, size**-0.5, np.float32))


def noise(spec: PolicySpec, number: int) -> Observation:
    """The observation numbered so."""
    rng = np.random.default_rng(number)
    frames = {
        c.name: rng.integers(0, 256, (c.height, c.width, 3), dtype=np.uint8) for c in spec.cameras
    }
    vectors = {v.name: rng.normal(size=v.size).astype(np.float32) for v in spec.proprioception}
    return {**frames, **vectors}


@torch.inference_mode()
def measure_core(kind: str, blocks: int, preset: str = "tiny") -> CoreRow:
    """One tick of a core at the preset's sizes: eager PyTorch and compiled, by turns."""
    policy = preset_policy(preset)
    config, num_inputs = policy.config, policy.num_tokens
    torch.manual_seed(0)
    core = sized_like(kind, config.core).build(config.width, num_inputs).eval()
    state = core.initial_state(1)
    eager = CoreTick(core, tuple(state))
    tensors = [torch.randn(1, num_inputs, config.width), *state.values()]
    compiled = CompiledModule(copy.deepcopy(eager), tensors)
    times = interleaved(
        {"torch": lambda: eager(*tensors), "ours": lambda: compiled(*tensors)}, blocks
    )
    error, values, others = 0.0, tensors[1:], tensors[1:]
    for _ in range(COMPARED_TICKS):
        tokens = torch.randn_like(tensors[0])
        (expected, *values), (output, *others) = eager(tokens, *values), compiled(tokens, *others)
        error = max(error, float((output - expected).abs().max()))
    return CoreRow(
        kind=kind,
        parameters=sum(parameter.numel() for parameter in core.parameters()),
        state_values=sum(value.numel() for value in state.values()),
        torch_ms=float(np.median(times["torch"])) * 1e3,
        median_ms=float(np.median(times["ours"])) * 1e3,
        error=error,
    )


def measure_cores(blocks: int) -> list[CoreRow]:
    """Every kind of core."""
    return [measure_core(kind, blocks) for kind in CORES]
