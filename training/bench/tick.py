"""Run the parts of `ttm bench tick` that the options name, and report their figures."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.config import EngineName, Precision, PresetName
from ttm.policy.cores import registry
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.hourglass import HourglassConfig, parse_hierarchy
from ttm.policy.cores.registry import sized_like
from ttm.policy.cores.tlb import TemporalLatentBottleneckConfig
from ttm.policy.cores.transformers import CausalTransformer
from ttm.policy.cores.ttm import TokenTuringConfig, TokenTuringMachineUnit
from ttm.policy.engines import CoreTickModule, cpu_threads
from ttm.policy.errors import options, require_at_least
from ttm.policy.openvino_engine import CompiledModule, supported_precisions
from ttm.policy.policy import Policy
from ttm.policy.presets import PRESETS
from ttm.policy.runner import PolicyRunner
from ttm.policy.spec import ActionPart, CameraSpec, Observation, PolicySpec, ProprioceptionSpec
from ttm.sim.shipped import default_checkpoint
from ttm.training.bench.common import BLOCK, Report, interleaved, median_ms, repeated, rows_table
from ttm.training.bench.processes import resident_mb
from ttm.training.console import compact_table

# The options of `ttm bench tick`.

Timed = Literal["tiny", "base", "paper", "shipped"]
"""A preset, with random weights, or the policy that ships with the project."""
Part = Literal["unit", "flat", "whole", "cores"]


@dataclass(frozen=True)
class TickOptions:
    """What is timed, and how often."""

    parts: tuple[Part, ...] = ("unit", "flat", "whole", "cores")
    """What is timed."""
    threads: int = 2
    """CPU threads."""
    blocks: int = 30
    """Blocks of 10 calls for each contender that is timed in turns; the first two of a block do not count."""
    flat_ticks: int = 10_000
    """Ticks of the long episode of the unit and of the whole policy."""
    growing_ticks: int = 400
    """Ticks of the Transformer without a window. Its cache grows by 0.5 MB a tick, and its time with it."""
    period_ticks: int = 1024
    """Ticks of the episode in which tlb and hourglass are timed by themselves."""
    presets: tuple[Timed, ...] = ("tiny", "base", "paper", "shipped")
    """Presets of which a whole tick is timed, and the policy that ships."""
    whole_ticks: int = 300
    """Whole ticks with each precision of OpenVINO."""
    torch_ticks: int = 50
    """Whole ticks with the torch engine, for comparison."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` for a count that is too small."""
        require_at_least(1, options(self, "threads", "blocks", "whole_ticks", "torch_ticks"))
        # Four blocks of 10 ticks: both ends of an episode take turns in blocks.
        require_at_least(40, options(self, "flat_ticks", "growing_ticks", "period_ticks"))


# `ttm bench tick`: time a control tick, against plain PyTorch and over a long episode.


@dataclass(frozen=True)
class BenchTickCommand(TickOptions):
    """Time a control tick on this machine's CPU. Takes some minutes; run it while nothing else runs.

    unit: the unit of the Token Turing Machine at the paper's robot setting, against a plain eager
    PyTorch version with the same weights. flat: the unit and a whole policy over 10,000 ticks, beside
    a causal Transformer without a window, whose cost grows; then ticks of tlb and hourglass by age
    and phase, on one thread. whole: from images to the action, for every preset. cores: every
    temporal core.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()

        run_bench(self)
        return 0


# Whether every k-th tick, at which the state of some cores changes more, takes longer than the others.
#
# The Temporal Latent Bottleneck changes its latents at the end of a chunk, and Hourglass gets a new
# coarse element at every k-th tick. Both compute these at every tick and take them when they are due,
# so that all ticks should take equally long, late ones included.

WIDTH = 128
LATENTS = TemporalLatentBottleneckConfig(process_size=1, num_latents=10, chunk_size=10)
HOURGLASS = HourglassConfig(process_size=1)

CoreCall = Callable[..., Sequence[Tensor]]
"""Tokens and state -> outputs and state."""


@dataclass(frozen=True)
class Periodic:
    """A core, and which of its ticks may differ."""

    config: CoreConfig
    period: int
    turn: int
    """The ticks t with t mod `period` equal to this may differ."""


PERIODIC: Mapping[str, Periodic] = MappingProxyType(
    {
        "tlb": Periodic(LATENTS, LATENTS.chunk_size, LATENTS.chunk_size - 1),
        "hourglass": Periodic(HOURGLASS, parse_hierarchy(HOURGLASS.hierarchy).period, 0),
    }
)


@dataclass(frozen=True)
class PeriodRow:
    """One core, run in one way on one thread. All times are medians."""

    what: str
    how: str
    ticks: int
    """Length of the episode. Early ticks are those of its first quarter, late ticks those of its last."""
    early_ms: float
    late_ms: float
    turn_ms: float
    """The ticks at which the state takes something new: the end of a chunk, or a new coarse element."""
    other_ms: float
    """All other ticks."""


def measure_periods(ticks: int) -> list[PeriodRow]:
    """Time both cores with PyTorch and with OpenVINO on one thread. ticks: length of the episode."""
    with cpu_threads(1):
        return [row for what in PERIODIC for row in _measure(what, ticks)]


@torch.inference_mode()
def _measure(what: str, ticks: int) -> list[PeriodRow]:
    torch.manual_seed(0)
    periodic = PERIODIC[what]
    core = periodic.config.build(WIDTH, num_inputs=1).eval()
    state = core.initial_state(1)
    eager = CoreTickModule(core, tuple(state))
    example = [torch.randn(1, 1, WIDTH), *state.values()]
    calls: dict[str, CoreCall] = {
        "PyTorch": eager,
        "OpenVINO": CompiledModule(copy.deepcopy(eager), example, threads=1),
    }
    return [_row(what, how, call, example, ticks) for how, call in calls.items()]


def _row(what: str, how: str, call: CoreCall, example: Sequence[Tensor], ticks: int) -> PeriodRow:
    """Time an old and a young episode in turns, then the old one alone by the phase of its ticks."""
    periodic, quarter = PERIODIC[what], ticks // 4
    old, young = _loop(call, example), _loop(call, example)
    repeated(old, ticks - quarter)
    times = interleaved({"early": young, "late": old}, quarter // BLOCK)
    taken = ticks - quarter + quarter // BLOCK * BLOCK
    repeated(old, -taken % periodic.period)  # to the start of a period
    whole_periods = ticks // periodic.period * periodic.period
    by_phase = repeated(old, whole_periods).reshape(-1, periodic.period)
    return PeriodRow(
        what=what,
        how=how,
        ticks=ticks,
        early_ms=median_ms(times["early"]),
        late_ms=median_ms(times["late"]),
        turn_ms=median_ms(by_phase[:, periodic.turn]),
        other_ms=median_ms(np.delete(by_phase, periodic.turn, axis=1)),
    )


def _loop(call: CoreCall, example: Sequence[Tensor]) -> Callable[[], object]:
    """Return a tick that continues from the state of the tick before."""
    tokens, *values = example

    def tick() -> None:
        nonlocal values
        _, *values = call(tokens, *values)

    return tick


# The unit of the Token Turing Machine in plain PyTorch, as the baseline of the timing.
#
# It is written from the paper, and it is as fast as plain PyTorch allows: query, key and value share
# one matrix product, and attention uses PyTorch's fused kernel.

EPS = 1e-6


class PlainSummarizer(nn.Module):
    """Sums of the tokens, weighted by the softmax of an MLP of each token."""

    def __init__(self, width: int, bottleneck: int, num_tokens: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.hidden = nn.Linear(width, bottleneck)
        self.out = nn.Linear(bottleneck, num_tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, P, D) -> (B, K, D)."""
        weights = self.out(F.gelu(self.hidden(self.norm(tokens)), approximate="tanh")).softmax(
            dim=1
        )
        return weights.transpose(1, 2) @ tokens


class PlainBlock(nn.Module):
    """A pre-norm Transformer block."""

    def __init__(self, width: int, num_heads: int, mlp_size: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width, eps=EPS)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width, eps=EPS)
        self.mlp_hidden = nn.Linear(width, mlp_size)
        self.mlp_out = nn.Linear(mlp_size, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, R, D) -> (B, R, D)."""
        batch, tokens, width = x.shape
        query, key, value = (
            part.view(batch, tokens, self.num_heads, -1).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp_out(F.gelu(self.mlp_hidden(self.mlp_norm(x)), approximate="tanh"))


class PlainProcessor(nn.Module):
    """A Transformer encoder with a positional embedding."""

    def __init__(self, width: int, config: TokenTuringConfig) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, config.process_size, width))
        self.blocks = nn.Sequential(
            *(
                PlainBlock(width, config.num_heads, config.mlp_size)
                for _ in range(config.num_layers)
            )
        )
        self.norm = nn.LayerNorm(width, eps=EPS)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, R, D) -> (B, R, D)."""
        out: Tensor = self.norm(self.blocks(tokens + self.position))
        return out


class PlainUnit(nn.Module):
    """Read, process, write, without outer positional embeddings."""

    def __init__(self, width: int, config: TokenTuringConfig) -> None:
        super().__init__()
        self.read = PlainSummarizer(width, config.bottleneck, config.process_size)
        self.process = PlainProcessor(width, config)
        self.write = PlainSummarizer(width, config.bottleneck, config.memory_size)

    @torch.no_grad()
    def copy_weights(self, unit: TokenTuringMachineUnit) -> None:
        """Copy the weights of the project's unit, whose parameters come in the same order."""
        for mine, theirs in zip(self.parameters(), unit.parameters(), strict=True):
            assert mine.shape == theirs.shape
            mine.copy_(theirs)

    def forward(self, memory: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """memory: (B, m, D), inputs: (B, N, D) -> new memory (B, m, D), outputs (B, r, D)."""
        outputs = self.process(self.read(torch.cat([memory, inputs], dim=1)))
        return self.write(torch.cat([memory, inputs, outputs], dim=1)), outputs


# A policy of one preset with random weights, and a made-up robot and episode to run it on.

CAMERAS = {"tiny": 2, "base": 1, "paper": 1}
"""Preset -> number of cameras of the robot that it is timed for."""


def preset_policy(preset: PresetName) -> Policy:
    """Return a policy with random weights, which are the same in every call.

    Its robot has an arm, a gripper and a base.
    """
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
    """Return a tick of an episode without end that always sees the same observation."""
    observation = random_observation(runner.spec, 0)
    begin_episode(runner)
    return lambda: runner.step(observation)


def begin_episode(runner: PolicyRunner) -> None:
    """Reset the runner with a made-up embedding of the instruction, so that no language model is loaded."""
    size = runner.policy.config.embedding_size
    runner.reset("bench", embedding=np.full(size, size**-0.5, np.float32))


def random_observation(spec: PolicySpec, seed: int) -> Observation:
    """Return an observation of random values, the same for the same seed."""
    rng = np.random.default_rng(seed)
    frames = {
        c.name: rng.integers(0, 256, (c.height, c.width, 3), dtype=np.uint8) for c in spec.cameras
    }
    vectors = {v.name: rng.normal(size=v.size).astype(np.float32) for v in spec.proprioception}
    return {**frames, **vectors}


# The time of a tick of every temporal core by itself.

COMPARED_TICKS = 20


@dataclass(frozen=True)
class CoreRow:
    """One kind of core by itself."""

    kind: str
    parameters: int
    state_values: int
    torch_ms: float
    """Median of eager PyTorch."""
    median_ms: float
    """Median of OpenVINO in float32."""
    error: float
    """The largest difference of the two over 20 ticks."""


def measure_cores(blocks: int) -> list[CoreRow]:
    """Measure every kind of core. blocks: see `interleaved`."""
    return [measure_core(kind, blocks) for kind in registry.CORES]


@torch.inference_mode()
def measure_core(kind: str, blocks: int, preset: PresetName = "tiny") -> CoreRow:
    """Time one tick of a core at the preset's sizes, eager PyTorch and OpenVINO in turns."""
    policy = preset_policy(preset)
    config, num_inputs = policy.config, policy.num_tokens
    torch.manual_seed(0)
    core = sized_like(kind, config.core).build(config.width, num_inputs).eval()
    state = core.initial_state(1)
    eager = CoreTickModule(core, tuple(state))
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
        torch_ms=median_ms(times["torch"]),
        median_ms=median_ms(times["ours"]),
        error=error,
    )


# The time of the unit of the Token Turing Machine, at the paper's robot setting, against plain PyTorch.

UNIT_WIDTH, NUM_INPUTS = 512, 48
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
UNIT_COMPARED_TICKS = 50
EAGER = "plain eager"
BAR_RATIO = {"float32": 0.55, "bfloat16": 0.35}
"""Precision -> the project's bar for the time of a tick, relative to plain eager PyTorch."""

UnitCall = Callable[[Tensor, Tensor], Sequence[Tensor]]
"""Memory (1, m, D) and inputs (1, N, D) -> new memory and outputs."""


@dataclass(frozen=True)
class UnitRow:
    """One way to run the unit."""

    mlp_size: int
    how: str
    median_ms: float
    ratio: float
    """The median over that of plain eager PyTorch."""
    error: float
    """The largest difference of an output from plain eager's over 50 ticks; each carries its own memory."""
    load_s: float


def measure_units(blocks: int) -> list[UnitRow]:
    """Measure the unit with each size of the MLPs. blocks: see `interleaved`."""
    return [row for size in MLP_SIZES for row in measure_unit(size, blocks)]


@torch.inference_mode()
def measure_unit(mlp_size: int, blocks: int) -> list[UnitRow]:
    """Time plain eager PyTorch, and the compiled unit in every precision, in turns in one run."""
    unit, config = unit_of(mlp_size)
    plain = PlainUnit(UNIT_WIDTH, config).eval()
    plain.copy_weights(unit)
    calls: dict[str, UnitCall] = {EAGER: plain}
    load_s = {EAGER: 0.0}
    for precision in supported_precisions():
        begun = time.perf_counter()
        calls[precision] = compiled_unit(unit, precision)
        load_s[precision] = time.perf_counter() - begun
    memory, inputs = (
        torch.randn(1, config.memory_size, UNIT_WIDTH),
        torch.randn(1, NUM_INPUTS, UNIT_WIDTH),
    )
    times = interleaved({how: partial(call, memory, inputs) for how, call in calls.items()}, blocks)
    medians = {how: median_ms(taken) for how, taken in times.items()}
    expected = unit_outputs(plain)
    return [
        UnitRow(
            mlp_size=mlp_size,
            how=how,
            median_ms=medians[how],
            ratio=medians[how] / medians[EAGER],
            error=float((unit_outputs(call) - expected).abs().max()),
            load_s=load_s[how],
        )
        for how, call in calls.items()
    ]


def unit_of(mlp_size: int) -> tuple[TokenTuringMachineUnit, TokenTuringConfig]:
    """Return the unit, with the same random weights in every call, and its configuration."""
    config = replace(UNIT, mlp_size=mlp_size)
    torch.manual_seed(0)
    return TokenTuringMachineUnit(UNIT_WIDTH, NUM_INPUTS, config).eval(), config


def compiled_unit(unit: TokenTuringMachineUnit, precision: Precision) -> CompiledModule:
    """Return `unit` as the OpenVINO engine runs it."""
    example = [torch.zeros(1, UNIT.memory_size, UNIT_WIDTH), torch.zeros(1, NUM_INPUTS, UNIT_WIDTH)]
    return CompiledModule(copy.deepcopy(unit), example, precision=precision)


def unit_outputs(call: UnitCall) -> Tensor:
    """Return the outputs (50, r, D) of an episode of random inputs, from an empty memory."""
    generator = torch.Generator().manual_seed(1)
    memory, outputs = torch.zeros(1, UNIT.memory_size, UNIT_WIDTH), []
    for _ in range(UNIT_COMPARED_TICKS):
        memory, output = call(memory, torch.randn(1, NUM_INPUTS, UNIT_WIDTH, generator=generator))
        outputs.append(output)
    return torch.cat(outputs)


# Whether late ticks of a long episode take as long as early ones.


@dataclass(frozen=True)
class FlatRow:
    """One thing that ran for a long time."""

    what: str
    early: tuple[int, int]
    """The first tick, and the end (exclusive)."""
    late: tuple[int, int]
    early_ms: float
    """Median of the ticks `early`."""
    late_ms: float
    early_mb: float | None
    """Resident memory of the process after the ticks `early`; None where it is unknown."""
    late_mb: float | None


def measure_flat(ticks: int, growing_ticks: int) -> list[FlatRow]:
    """Measure the unit and a whole policy over `ticks` ticks, and a growing cache over `growing_ticks`."""
    return [
        run_long("unit of the TTM", unit_loop, ticks),
        run_long("whole policy, preset tiny", whole_loop, ticks),
        run_long("Transformer without a window", growing_loop, growing_ticks),
    ]


@torch.inference_mode()
def run_long(what: str, begin: Callable[[], Callable[[], object]], ticks: int) -> FlatRow:
    """Time the second and the last hundredth of an episode: of 10,000 ticks, 100 to 200 and 9,900 to 10,000.

    begin: starts an episode and returns the function that runs one tick. A second episode begins
    when the first is near its end, and the two take turns: a machine that becomes slower in the
    meantime does so for both.
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
    return FlatRow(
        what=what,
        early=(part, 2 * part),
        late=(ticks - part, ticks),
        early_ms=median_ms(times["early"]),
        late_ms=median_ms(times["late"]),
        early_mb=early_mb,
        late_mb=late_mb,
    )


def unit_loop() -> Callable[[], object]:
    """Return a tick of the unit that continues from the memory of the tick before."""
    unit, config = unit_of(UNIT.mlp_size)
    call, inputs = compiled_unit(unit, "float32"), torch.randn(1, NUM_INPUTS, UNIT_WIDTH)
    memory = torch.zeros(1, config.memory_size, UNIT_WIDTH)

    def tick() -> None:
        nonlocal memory
        memory, _ = call(memory, inputs)

    return tick


def whole_loop() -> Callable[[], object]:
    """Return a tick of the whole policy of the preset `tiny`."""
    return tick_loop(PolicyRunner(preset_policy("tiny")))


def growing_loop() -> Callable[[], object]:
    """Return a tick of a causal Transformer in PyTorch that keeps every key and value.

    It has the sizes of the unit.
    """
    core = sized_like("transformer", UNIT).build(UNIT_WIDTH, NUM_INPUTS).eval()
    assert isinstance(core, CausalTransformer)
    cache, inputs = core.empty_cache(1), torch.randn(1, 1, NUM_INPUTS, UNIT_WIDTH)

    def tick() -> None:
        nonlocal cache
        _, cache = core.extend(inputs, cache)

    return tick


# The time of a whole tick, from images to the action, for every preset and for the shipped policy.

BAR_MS: dict[Timed, float] = {"tiny": 10.0, "base": 40.0, "paper": 100.0, "shipped": 10.0}
"""What is timed -> the project's bar for the median tick on two CPU cores."""


@dataclass(frozen=True)
class WholeRow:
    """A tick of one policy through `PolicyRunner.step`."""

    preset: Timed
    image_size: int
    cameras: int
    engine: str
    precision: str
    median_ms: float
    p99_ms: float
    load_s: float
    error: float
    """The largest difference of an action from PyTorch's over 20 ticks; commands lie in [-1, 1]."""


def measure_presets(presets: Iterable[Timed], ticks: int, torch_ticks: int) -> list[WholeRow]:
    """Measure each preset: `torch_ticks` ticks with PyTorch, then `ticks` with each precision of OpenVINO."""
    return [row for preset in presets for row in measure_whole(preset, ticks, torch_ticks)]


def measure_whole(preset: Timed, ticks: int, torch_ticks: int) -> list[WholeRow]:
    """Measure every engine and precision on one preset with random weights, or on the shipped policy."""
    settings: list[tuple[EngineName, Precision, int]] = [("torch", "float32", torch_ticks)]
    settings += [("openvino", precision, ticks) for precision in supported_precisions()]
    policy = timed_policy(preset)
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
                image_size=policy.spec.cameras[0].height,
                cameras=len(policy.spec.cameras),
                engine=engine,
                precision=precision,
                median_ms=median_ms(times),
                p99_ms=float(np.quantile(times, 0.99)) * 1e3,
                load_s=load_s,
                error=float(np.abs(actions - expected).max()),
            )
        )
    return rows


def timed_policy(name: Timed) -> Policy:
    """Return the policy that is shipped, or one of a preset with random weights."""
    if name == "shipped":
        return load_checkpoint(default_checkpoint())[0]
    return preset_policy(name)


def actions_of(runner: PolicyRunner) -> npt.NDArray[np.float32]:
    """Return the actions (20, A) of an episode of random observations."""
    begin_episode(runner)
    observations = (random_observation(runner.spec, seed) for seed in range(COMPARED_TICKS))
    return np.stack([runner.step(observation).probabilities for observation in observations])


# The tables that `ttm bench tick` prints.

PERIOD_NOTES = f"""\
  early, late   medians of the ticks of the first and of the last quarter, timed in turns.
  k-th          the ticks at which the state takes something new: for tlb, the latents at the end
                of a chunk of {LATENTS.chunk_size} ticks; for hourglass, the coarse elements at
                every {PERIODIC["hourglass"].period}th tick. Both cores compute these at every tick,
                so that all ticks take equally long.
A reference implementation of the TLB took 0.6 ms a tick, and 0.73 ms at the end of a chunk, at this
width on one core. That was measured elsewhere.
"""


def unit_table(rows: Sequence[UnitRow]) -> Table:
    """Return the table of the compiled unit beside plain eager PyTorch."""
    return rows_table(
        f"A tick of the unit: width {UNIT_WIDTH}, m = {UNIT.memory_size}, r = {UNIT.process_size}, "
        f"n = {NUM_INPUTS}, {UNIT.num_layers} layers, batch 1",
        {
            "MLP": lambda row: str(row.mlp_size),
            "run as": lambda row: row.how,
            "median": lambda row: f"{row.median_ms:.2f} ms",
            "of plain eager": lambda row: f"{row.ratio:.2f}",
            "bar": lambda row: f"<= {BAR_RATIO[row.how]}" if row.how in BAR_RATIO else "",
            "error": lambda row: "" if row.how == EAGER else f"{row.error:.1e}",
            "load": lambda row: "" if row.how == EAGER else f"{row.load_s:.1f} s",
        },
        rows,
    )


def flat_table(rows: Sequence[FlatRow]) -> Table:
    """Return the table of early and late ticks of long episodes, two lines for each row."""
    table = compact_table("Ticks of a long episode", ("what", "ticks", "median", "ratio", "memory"))
    for row in rows:
        early = (_span(row.early), f"{row.early_ms:.2f} ms", "", _megabytes(row.early_mb))
        ratio = f"{row.late_ms / row.early_ms:.3f}"
        late = (_span(row.late), f"{row.late_ms:.2f} ms", ratio, _megabytes(row.late_mb))
        table.add_row(row.what, *early)
        table.add_row("", *late)
    return table


def period_table(rows: Sequence[PeriodRow]) -> Table:
    """Return the table of ticks by age, and by whether the state takes something new."""
    return rows_table(
        f"Ticks of {rows[0].ticks:,} by age and by phase: width {WIDTH}, one token, one thread; ms",
        {
            "core": lambda row: row.what,
            "run as": lambda row: row.how,
            "early": lambda row: f"{row.early_ms:.3f}",
            "late": lambda row: f"{row.late_ms:.3f}",
            "late\n/ early": lambda row: f"{row.late_ms / row.early_ms:.3f}",
            "others": lambda row: f"{row.other_ms:.3f}",
            "k-th": lambda row: f"{row.turn_ms:.3f}",
            "k-th\n/ others": lambda row: f"{row.turn_ms / row.other_ms:.3f}",
        },
        rows,
    )


def whole_table(rows: Sequence[WholeRow]) -> Table:
    """Return the table of ticks from images to the action."""
    return rows_table(
        "A whole tick: images in, action out (PolicyRunner.step); ms, load in s",
        {
            "preset, images": lambda row: (
                f"{row.preset}, {row.cameras} x {row.image_size}x{row.image_size}"
            ),
            "run as": lambda row: f"{row.engine} {row.precision}",
            "median": lambda row: f"{row.median_ms:.1f}",
            "p99": lambda row: f"{row.p99_ms:.1f}",
            "bar": lambda row: f"< {BAR_MS[row.preset]:g}" if _compared(row) else "",
            "error": lambda row: f"{row.error:.1e}" if _compared(row) else "",
            "load": lambda row: f"{row.load_s:.1f}",
        },
        rows,
    )


def core_table(rows: Sequence[CoreRow]) -> Table:
    """Return the table of every core by itself."""
    return rows_table(
        "A tick of each temporal core by itself, at the sizes of the tiny preset",
        {
            "core": lambda row: row.kind,
            "parameters": lambda row: f"{row.parameters:,}",
            "state": lambda row: f"{row.state_values:,}",
            "PyTorch": lambda row: f"{row.torch_ms:.2f} ms",
            "OpenVINO": lambda row: f"{row.median_ms:.2f} ms",
            "ratio": lambda row: f"{row.median_ms / row.torch_ms:.2f}",
            "error": lambda row: f"{row.error:.1e}",
        },
        rows,
    )


def _compared(row: WholeRow) -> bool:
    """Whether the row is compared with PyTorch, which has no bar and no error of its own."""
    return row.engine != "torch"


def _span(ticks: tuple[int, int]) -> str:
    return f"{ticks[0]:,} to {ticks[1]:,}"


def _megabytes(value: float | None) -> str:
    return "—" if value is None else f"{value:.0f} MB"


INTRODUCTION = """\
{threads} CPU threads. Medians of single ticks at batch 1; error: the largest difference of an output
from PyTorch's.
"""

PARTS: Mapping[
    Part, tuple[Callable[[TickOptions], list[Any]], Callable[[Sequence[Any]], Table]]
] = MappingProxyType(
    {
        "unit": (lambda o: measure_units(o.blocks), unit_table),
        "flat": (lambda o: measure_flat(o.flat_ticks, o.growing_ticks), flat_table),
        "whole": (lambda o: measure_presets(o.presets, o.whole_ticks, o.torch_ticks), whole_table),
        "cores": (lambda o: measure_cores(o.blocks), core_table),
    }
)
"""Part -> a function that measures its rows, and one that shows them."""


def run_bench(options: TickOptions) -> None:
    """Time the parts one after the other, print a table for each, and write the figures."""
    report = Report(options.json, threads=options.threads)
    with cpu_threads(options.threads):
        report.text(INTRODUCTION.format(threads=options.threads))
        for part in options.parts:
            measure, show = PARTS[part]
            rows = measure(options)
            report.table(show(rows))
            report.figures[part] = [asdict(row) for row in rows]
        if "flat" in options.parts:
            periods = measure_periods(options.period_ticks)
            report.table(period_table(periods), PERIOD_NOTES)
            report.figures["periods"] = [asdict(row) for row in periods]
    report.write()
