"""`ttm bench tick`: the time of a control tick, on a CPU.

The unit of the Token Turing Machine is compared with a plain restatement of the paper in PyTorch, of
the same weights; late ticks of a long episode with early ones; whole ticks, from images to the action,
with the project's bars; and OpenVINO with PyTorch for every core.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.config import EngineName, Precision, PresetName
from ttm.policy.cores import registry
from ttm.policy.cores.baselines import CausalTransformer
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.hourglass import HourglassConfig, parse_hierarchy
from ttm.policy.cores.registry import sized_like
from ttm.policy.cores.tlb import TemporalLatentBottleneckConfig
from ttm.policy.cores.ttm import TokenTuringConfig, TokenTuringMachineUnit
from ttm.policy.engines import CoreTickModule, cpu_threads
from ttm.policy.errors import options, require_at_least
from ttm.policy.openvino_engine import CompiledModule, supported_precisions
from ttm.policy.policy import PRESETS, Policy
from ttm.policy.runner import PolicyRunner
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec
from ttm.sim.shipped import default_checkpoint
from ttm.training.bench.common import (
    BLOCK,
    Figures,
    Report,
    decimals,
    interleaved,
    median_ms,
    num_parameters,
    random_observation,
    repeated,
    resident_mb,
)

Part = Literal["unit", "flat", "whole", "cores"]
Timed = Literal["tiny", "base", "paper", "shipped"]
"""A preset, with random weights, or the policy that ships with the project."""

Tick = Callable[[], object]
Call = Callable[..., Sequence[Tensor]]
"""The tensors that a tick takes -> those that it gives."""

BLOCKS = 30
"""Blocks of 10 calls for each contender that is timed in turns; the first two of a block do not count."""
FLAT_TICKS = 10_000
"""Ticks of the long episode of the unit and of the whole policy."""
GROWING_TICKS = 400
"""Ticks of the Transformer without a window. Its cache grows by 0.5 MB a tick, and its time with it."""
PERIOD_TICKS = 1024
"""Ticks of the episode in which tlb and hourglass are timed by themselves."""
WHOLE_TICKS, TORCH_TICKS = 300, 50
"""Whole ticks with each precision of OpenVINO, and with PyTorch."""
UNIT_COMPARED_TICKS, COMPARED_TICKS = 50, 20
"""Ticks over which results are compared with PyTorch's, each with its own memory."""

# The paper's robot setting
WIDTH, NUM_INPUTS = 512, 48
"""D and N."""
UNIT = TokenTuringConfig(
    memory_size=96,
    process_size=16,
    num_layers=8,
    num_heads=8,
    mlp_size=512,
    positional_embedding=False,
)
MLP_SIZES = (512, 2048)
EAGER = "plain eager"
BAR_RATIO = {"float32": 0.55, "bfloat16": 0.35}
"""Precision -> the project's bar for the time of a tick of the unit, relative to plain PyTorch."""
BAR_MS: dict[Timed, float] = {"tiny": 10.0, "base": 40.0, "paper": 100.0, "shipped": 10.0}
"""What is timed -> the project's bar for the median tick on two CPU cores."""
NUM_CAMERAS = {"tiny": 2, "base": 1, "paper": 1}
"""Preset -> number of cameras of the robot that it is timed for."""

PERIODIC_WIDTH = 128
LATENTS = TemporalLatentBottleneckConfig(process_size=1, num_latents=10, chunk_size=10)
HOURGLASS = HourglassConfig(process_size=1)
PERIODIC: dict[str, tuple[CoreConfig, int, int]] = {
    "tlb": (LATENTS, LATENTS.chunk_size, LATENTS.chunk_size - 1),
    "hourglass": (HOURGLASS, parse_hierarchy(HOURGLASS.hierarchy).period, 0),
}
"""Core -> configuration, period, and the phase of the ticks at which its state takes something new."""

INTRODUCTION = """\
{threads} CPU threads. Medians of single ticks at batch 1; error: the largest difference of an output
from PyTorch's.
"""
PERIOD_NOTES = f"""\
  early, late   medians of the ticks of the first and of the last quarter, timed in turns.
  k-th          the ticks at which the state takes something new: for tlb, the latents at the end
                of a chunk of {LATENTS.chunk_size} ticks; for hourglass, the coarse elements at
                every {PERIODIC["hourglass"][1]}th tick. Both cores compute these at every tick,
                so that all ticks take equally long.
A reference implementation of the TLB took 0.6 ms a tick, and 0.73 ms at the end of a chunk, at this
width on one core. That was measured elsewhere.
"""


NORM = partial(nn.LayerNorm, eps=1e-6)


def mlp(width: int, hidden_size: int, out_size: int) -> nn.Sequential:
    """Return layer norm, dense, gelu, dense."""
    layers = nn.Linear(width, hidden_size), nn.GELU("tanh"), nn.Linear(hidden_size, out_size)
    return nn.Sequential(NORM(width), *layers)


class PlainSummarizer(nn.Module):
    """Sums of the tokens, weighted by the softmax of an MLP of each token."""

    def __init__(self, width: int, bottleneck: int, num_tokens: int) -> None:
        super().__init__()
        self.mlp = mlp(width, bottleneck, num_tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, P, D) -> (B, K, D)."""
        return self.mlp(tokens).softmax(dim=1).transpose(1, 2) @ tokens


class PlainBlock(nn.Module):
    """A pre-norm Transformer block."""

    def __init__(self, width: int, config: TokenTuringConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = nn.Sequential(NORM(width), nn.Linear(width, 3 * width))
        self.attention_out = nn.Linear(width, width)
        self.mlp = mlp(width, config.mlp_size, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, R, D) -> (B, R, D)."""
        heads = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads)  # (B, heads, R, D / heads)
        x = x + self.attention_out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class PlainUnit(nn.Module):
    """The unit in plain PyTorch, as fast as that allows.

    The parameters come in the order of `TokenTuringMachineUnit`'s.
    """

    def __init__(self, width: int, config: TokenTuringConfig) -> None:
        super().__init__()
        self.read = PlainSummarizer(width, config.bottleneck, config.process_size)
        self.position = nn.ParameterList([torch.zeros(1, config.process_size, width)])
        blocks = (PlainBlock(width, config) for _ in range(config.num_layers))
        self.process = nn.Sequential(*blocks, NORM(width))
        self.write = PlainSummarizer(width, config.bottleneck, config.memory_size)

    @torch.no_grad()
    def copy_weights(self, unit: TokenTuringMachineUnit) -> None:
        """Copy the weights of the project's unit."""
        for mine, theirs in zip(self.parameters(), unit.parameters(), strict=True):
            assert mine.shape == theirs.shape
            mine.copy_(theirs)

    def forward(self, memory: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """memory: (B, m, D), inputs: (B, N, D) -> new memory (B, m, D), outputs (B, r, D)."""
        outputs = self.process(self.read(torch.cat([memory, inputs], dim=1)) + self.position[0])
        return self.write(torch.cat([memory, inputs, outputs], dim=1)), outputs


class UnitTicks:
    """The unit with random weights, the same in every instance, in plain PyTorch and as OpenVINO runs it."""

    def __init__(self, mlp_size: int) -> None:
        torch.manual_seed(0)
        config = replace(UNIT, mlp_size=mlp_size)
        self._unit = TokenTuringMachineUnit(WIDTH, NUM_INPUTS, config).eval()
        self.plain = PlainUnit(WIDTH, config).eval()
        self.plain.copy_weights(self._unit)

    def compiled(self, precision: Precision) -> CompiledModule:
        """Return the unit as the OpenVINO engine runs it."""
        example = [torch.zeros(1, UNIT.memory_size, WIDTH), torch.zeros(1, NUM_INPUTS, WIDTH)]
        return CompiledModule(copy.deepcopy(self._unit), example, precision=precision)


@torch.inference_mode()
def measure_unit(mlp_size: int) -> list[Figures]:
    """Time plain eager PyTorch, and the compiled unit in every precision, in turns."""
    ticks = UnitTicks(mlp_size)
    calls: dict[str, Call] = {EAGER: ticks.plain}
    load_s = {EAGER: 0.0}
    for precision in supported_precisions():
        begun = time.perf_counter()
        calls[precision] = ticks.compiled(precision)
        load_s[precision] = time.perf_counter() - begun
    memory, inputs = torch.randn(1, UNIT.memory_size, WIDTH), torch.randn(1, NUM_INPUTS, WIDTH)
    times = interleaved({how: partial(call, memory, inputs) for how, call in calls.items()}, BLOCKS)
    expected = unit_outputs(ticks.plain)
    return [
        {
            "mlp_size": mlp_size,
            "how": how,
            "median_ms": median_ms(times[how]),
            "ratio": median_ms(times[how]) / median_ms(times[EAGER]),
            "error": float((unit_outputs(call) - expected).abs().max()),
            "load_s": load_s[how],
        }
        for how, call in calls.items()
    ]


def unit_outputs(call: Call) -> Tensor:
    """Return the outputs (50, r, D) of an episode of random inputs, from an empty memory."""
    generator = torch.Generator().manual_seed(1)
    memory, outputs = torch.zeros(1, UNIT.memory_size, WIDTH), []
    for _ in range(UNIT_COMPARED_TICKS):
        memory, output = call(memory, torch.randn(1, NUM_INPUTS, WIDTH, generator=generator))
        outputs.append(output)
    return torch.cat(outputs)


# Late ticks of a long episode against early ones


@torch.inference_mode()
def measure_flat(what: str, begin: Callable[[], Tick], ticks: int) -> Figures:
    """Time the second and the last hundredth of an episode: of 10,000 ticks, 100 to 200 and 9,900 to 10,000.

    begin: starts an episode and returns the function that runs one tick. A second episode begins
    when the first is near its end, and the two take turns.
    """
    part = max(ticks // 100, BLOCK)
    old = begin()
    repeated(old, 2 * part)
    early_mb = resident_mb()
    repeated(old, ticks - 3 * part)
    late_mb = resident_mb()
    young = begin()
    repeated(young, part)
    times = interleaved({"early": young, "late": old}, part // BLOCK)
    return {
        "what": what,
        "early": (part, 2 * part),
        "late": (ticks - part, ticks),
        "early_ms": median_ms(times["early"]),
        "late_ms": median_ms(times["late"]),
        "early_mb": early_mb,
        "late_mb": late_mb,
    }


def unit_loop() -> Tick:
    """Return a tick of the unit that continues from the memory of the tick before."""
    call = UnitTicks(UNIT.mlp_size).compiled("float32")
    inputs, memory = torch.randn(1, NUM_INPUTS, WIDTH), torch.zeros(1, UNIT.memory_size, WIDTH)
    return state_loop(lambda inputs, memory: call(memory, inputs)[::-1], [inputs, memory])


def growing_loop() -> Tick:
    """Return a tick of a causal Transformer, of the unit's sizes, that keeps every key and value."""
    core = sized_like("transformer", UNIT).build(WIDTH, NUM_INPUTS).eval()
    assert isinstance(core, CausalTransformer)
    return state_loop(core.extend, [torch.randn(1, 1, NUM_INPUTS, WIDTH), core.empty_cache(1)])


def state_loop(call: Callable[..., Sequence[Any]], example: Sequence[Any]) -> Tick:
    """Return a tick that continues from the state of the tick before.

    call: inputs and state -> outputs and state. example: its arguments at the first tick.
    """
    inputs, *state = example

    def tick() -> None:
        nonlocal state
        _, *state = call(inputs, *state)

    return tick


# Cores by themselves


@torch.inference_mode()
def measure_period(what: str, ticks: int) -> list[Figures]:
    """Time a core of `PERIODIC` with PyTorch and with OpenVINO on one thread."""
    with cpu_threads(1):
        eager, compiled, example = core_ticks(PERIODIC[what][0], PERIODIC_WIDTH, 1, threads=1)
        return [
            {"what": what, "how": how, "ticks": ticks, **by_phase(what, call, example, ticks)}
            for how, call in (("PyTorch", eager), ("OpenVINO", compiled))
        ]


def by_phase(what: str, call: Call, example: Sequence[Tensor], ticks: int) -> Figures:
    """Time an old and a young episode in turns, then the old one alone by the phase of its ticks.

    Early ticks are those of the first quarter of the episode, late ones those of the last.
    """
    _, period, turn = PERIODIC[what]
    quarter = ticks // 4
    old, young = state_loop(call, example), state_loop(call, example)
    repeated(old, ticks - quarter)
    times = interleaved({"early": young, "late": old}, quarter // BLOCK)
    taken = ticks - quarter + quarter // BLOCK * BLOCK
    repeated(old, -taken % period)  # to the start of a period
    phases = repeated(old, ticks // period * period).reshape(-1, period)
    return {
        "early_ms": median_ms(times["early"]),
        "late_ms": median_ms(times["late"]),
        "turn_ms": median_ms(phases[:, turn]),
        "other_ms": median_ms(np.delete(phases, turn, axis=1)),
    }


@torch.inference_mode()
def measure_core(kind: str) -> Figures:
    """Time one tick of a core at the sizes of the tiny preset, eager PyTorch and OpenVINO in turns."""
    policy = preset_policy("tiny")
    core = sized_like(kind, policy.config.core)
    eager, compiled, tensors = core_ticks(core, policy.config.width, policy.num_tokens)
    calls = {"torch": partial(eager, *tensors), "ours": partial(compiled, *tensors)}
    times = interleaved(calls, BLOCKS)
    error, values, others = 0.0, tensors[1:], tensors[1:]
    for _ in range(COMPARED_TICKS):
        tokens = torch.randn_like(tensors[0])
        (expected, *values), (output, *others) = eager(tokens, *values), compiled(tokens, *others)
        error = max(error, float((output - expected).abs().max()))
    return {
        "kind": kind,
        "parameters": num_parameters(eager),
        "state_values": sum(value.numel() for value in tensors[1:]),
        "torch_ms": median_ms(times["torch"]),
        "median_ms": median_ms(times["ours"]),
        "error": error,
    }


def core_ticks(
    config: CoreConfig, width: int, num_inputs: int, threads: int | None = None
) -> tuple[CoreTickModule, CompiledModule, list[Tensor]]:
    """Return a core's tick, the same compiled, and an example of its tensors: tokens and initial state."""
    torch.manual_seed(0)
    core = config.build(width, num_inputs).eval()
    state = core.initial_state(1)
    eager, example = CoreTickModule(core, tuple(state)), [torch.randn(1, num_inputs, width)]
    example += state.values()
    return eager, CompiledModule(copy.deepcopy(eager), example, threads=threads), example


# A whole tick, from images to the action


def measure_whole(preset: Timed) -> list[Figures]:
    """Time `PolicyRunner.step` with PyTorch, then with each precision of OpenVINO."""
    policy = (
        load_checkpoint(default_checkpoint())[0] if preset == "shipped" else preset_policy(preset)
    )
    settings: list[tuple[EngineName, Precision, int]] = [("torch", "float32", TORCH_TICKS)]
    settings += [("openvino", precision, WHOLE_TICKS) for precision in supported_precisions()]
    rows: list[Figures] = []
    expected = None
    for engine, precision, count in settings:
        begun = time.perf_counter()
        runner = PolicyRunner(policy, engine=engine, precision=precision)
        load_s = time.perf_counter() - begun
        actions = first_actions(runner)
        expected = actions if expected is None else expected
        times = repeated(policy_loop(runner), count)
        rows.append(
            {
                "preset": preset,
                "image_size": policy.spec.cameras[0].height,
                "cameras": len(policy.spec.cameras),
                "engine": engine,
                "precision": precision,
                "median_ms": median_ms(times),
                "p99_ms": float(np.quantile(times, 0.99)) * 1e3,
                "load_s": load_s,
                "error": float(np.abs(actions - expected).max()),
            }
        )
    return rows


def preset_policy(preset: PresetName) -> Policy:
    """Return a policy with random weights, the same in every call, of a robot with arm, gripper and base."""
    size = PRESETS[preset].image_size
    spec = PolicySpec(
        robot="bench",
        cameras=tuple(CameraSpec(f"camera {n}", size, size) for n in range(NUM_CAMERAS[preset])),
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


def policy_loop(runner: PolicyRunner) -> Tick:
    """Return a tick of an episode without end that always sees the same observation."""
    begin_episode(runner)
    return partial(runner.step, random_observation(runner.spec, np.random.default_rng(0)))


def first_actions(runner: PolicyRunner) -> npt.NDArray[np.float32]:
    """Return the actions (20, A) of an episode of random observations."""
    begin_episode(runner)
    generators = map(np.random.default_rng, range(COMPARED_TICKS))
    seen = (random_observation(runner.spec, rng) for rng in generators)
    return np.stack([runner.step(observation).probabilities for observation in seen])


def begin_episode(runner: PolicyRunner) -> None:
    """Reset the runner with a made-up embedding of the instruction, so that no language model is loaded."""
    size = runner.policy.config.embedding_size
    runner.reset("bench", embedding=np.full(size, size**-0.5, np.float32))


@dataclass(frozen=True)
class BenchTickCommand:
    """Time a control tick on this machine's CPU. Takes some minutes; run it while nothing else runs.

    unit: the unit of the Token Turing Machine at the paper's robot setting, against a plain eager
    PyTorch version with the same weights. flat: the unit and a whole policy over 10,000 ticks, beside
    a causal Transformer without a window, whose cost grows; then ticks of tlb and hourglass by age
    and phase, on one thread. whole: from images to the action, for every preset. cores: every
    temporal core.
    """

    parts: tuple[Part, ...] = ("unit", "flat", "whole", "cores")
    """What is timed."""
    presets: tuple[Timed, ...] = ("tiny", "base", "paper", "shipped")
    """Presets of which a whole tick is timed, and the policy that ships."""
    threads: int = 2
    """CPU threads."""
    json: Path | None = None
    """Also write all figures to this file."""

    def run(self) -> int:
        """Time the parts one after the other, print their tables, and write the figures."""
        require_at_least(1, options(self, "threads"))
        report = Report(self.json, threads=self.threads)
        measured: dict[Part, Callable[[Report], None]] = {
            "unit": report_unit,
            "flat": report_flat,
            "whole": partial(report_whole, self.presets),
            "cores": report_cores,
        }
        with cpu_threads(self.threads):
            report.text(INTRODUCTION.format(threads=self.threads))
            for part in self.parts:
                measured[part](report)
        report.write()
        return 0


def report_unit(report: Report) -> None:
    """Measure and print the unit with each size of the MLPs."""
    report.rows(
        "unit",
        f"A tick of the unit: width {WIDTH}, m = {UNIT.memory_size}, r = {UNIT.process_size}, "
        f"n = {NUM_INPUTS}, {UNIT.num_layers} layers, batch 1",
        {
            "MLP": "{mlp_size}",
            "run as": "{how}",
            "median": "{median_ms:.2f} ms",
            "of plain eager": "{ratio:.2f}",
            "bar": lambda row: f"<= {BAR_RATIO[row['how']]}" if row["how"] in BAR_RATIO else "",
            "error": "{error:.1e}",
            "load": "{load_s:.1f} s",
        },
        [row for size in MLP_SIZES for row in measure_unit(size)],
    )


def report_flat(report: Report) -> None:
    """Measure and print long episodes, and the ticks of tlb and hourglass by age and phase."""

    def tiny() -> Tick:
        return policy_loop(PolicyRunner(preset_policy("tiny")))

    report.rows(
        "flat",
        "Late ticks of a long episode, and as many early ones",
        {
            "what": "{what}",
            "late ticks": "{late[0]:,} to {late[1]:,}",
            "early": "{early_ms:.2f} ms",
            "late": "{late_ms:.2f} ms",
            "ratio": lambda row: f"{row['late_ms'] / row['early_ms']:.3f}",
            "MB": lambda row: f"{decimals(row['early_mb'], 0)} to {decimals(row['late_mb'], 0)}",
        },
        [
            measure_flat("unit of the TTM", unit_loop, FLAT_TICKS),
            measure_flat("whole policy, preset tiny", tiny, FLAT_TICKS),
            measure_flat("Transformer without a window", growing_loop, GROWING_TICKS),
        ],
    )
    report.rows(
        "periods",
        f"Ticks of {PERIOD_TICKS:,} by age and by phase: width {PERIODIC_WIDTH}, one token, one "
        "thread; ms",
        {
            "core": "{what}",
            "run as": "{how}",
            "early": "{early_ms:.3f}",
            "late": "{late_ms:.3f}",
            "late\n/ early": lambda row: f"{row['late_ms'] / row['early_ms']:.3f}",
            "others": "{other_ms:.3f}",
            "k-th": "{turn_ms:.3f}",
            "k-th\n/ others": lambda row: f"{row['turn_ms'] / row['other_ms']:.3f}",
        },
        [row for what in PERIODIC for row in measure_period(what, PERIOD_TICKS)],
        PERIOD_NOTES,
    )


def report_whole(presets: Sequence[Timed], report: Report) -> None:
    """Measure and print ticks from images to the action."""
    report.rows(
        "whole",
        "A whole tick: images in, action out (PolicyRunner.step); ms, load in s",
        {
            "preset, images": "{preset}, {cameras} x {image_size}x{image_size}",
            "run as": "{engine} {precision}",
            "median": "{median_ms:.1f}",
            "p99": "{p99_ms:.1f}",
            "bar": lambda row: "" if row["engine"] == "torch" else f"< {BAR_MS[row['preset']]:g}",
            "error": "{error:.1e}",
            "load": "{load_s:.1f}",
        },
        [row for preset in presets for row in measure_whole(preset)],
    )


def report_cores(report: Report) -> None:
    """Measure and print every core by itself."""
    report.rows(
        "cores",
        "A tick of each temporal core by itself, at the sizes of the tiny preset",
        {
            "core": "{kind}",
            "parameters": "{parameters:,}",
            "state": "{state_values:,}",
            "PyTorch": "{torch_ms:.2f} ms",
            "OpenVINO": "{median_ms:.2f} ms",
            "ratio": lambda row: f"{row['median_ms'] / row['torch_ms']:.2f}",
            "error": "{error:.1e}",
        },
        [measure_core(kind) for kind in registry.CORES],
    )
