"""`ttm bench tick`: the time of a control tick, on a CPU.

OpenVINO is compared with eager PyTorch, for the unit of the Token Turing Machine and for every core; late
ticks of a long episode with early ones; whole ticks, from images to the action, with the project's bars;
and what another process, of `ttm serve`, adds to one.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ttm.policy.actor import load_runner
from ttm.policy.checkpoint import load_checkpoint, save_checkpoint
from ttm.policy.config import EngineName, Precision, PresetName
from ttm.policy.cores import registry
from ttm.policy.cores.registry import sized_like
from ttm.policy.cores.ttm import TokenTuringConfig, TokenTuringMachineUnit
from ttm.policy.engines import CoreTickModule, cpu_threads
from ttm.policy.errors import options, require_at_least
from ttm.policy.extras import require_extra
from ttm.policy.openvino_engine import CompiledModule, supported_precisions
from ttm.policy.policy import PRESETS, Policy
from ttm.policy.runner import PolicyRunner
from ttm.policy.spec import (
    ActionPart,
    CameraSpec,
    PolicySpec,
    ProprioceptionSpec,
    default_checkpoint,
    random_observation,
)
from ttm.training.bench.common import (
    BLOCK,
    BenchCommand,
    Cell,
    Figures,
    Report,
    decimals,
    interleaved,
    median_ms,
    num_parameters,
    repeated,
    resident_mb,
)

Part = Literal["unit", "flat", "whole", "cores", "served"]
Timed = Literal["tiny", "base", "paper", "shipped"]
"""A preset, with random weights, or the policy that ships with the project."""

Tick = Callable[[], object]
Call = Callable[..., Sequence[Tensor]]
"""The tensors that a tick takes -> those that it gives."""

BLOCKS = 30
"""Blocks of 10 calls for each contender that is timed in turns; the first two of a block do not count."""
FLAT_TICKS = 10_000
"""Ticks of the long episode of the unit and of the whole policy."""
WHOLE_TICKS, TORCH_TICKS, SERVED_TICKS = 300, 50, 1000
"""Whole ticks with each precision of OpenVINO, with PyTorch, and of a policy that `ttm serve` runs."""
UNIT_COMPARED_TICKS, COMPARED_TICKS = 50, 20
"""Ticks over which results are compared with PyTorch's, each with its own memory."""

WIDTH, NUM_INPUTS = 512, 48
"""D and N of the paper's robot setting."""
UNIT = TokenTuringConfig(
    memory_size=96,
    process_size=16,
    num_layers=8,
    num_heads=8,
    mlp_size=512,
    positional_embedding=False,
)
MLP_SIZES = (512, 2048)
EAGER = "eager"
BAR_RATIO = {"float32": 0.55, "bfloat16": 0.35}
"""Precision -> the project's bar for the time of a tick of the unit, relative to eager PyTorch."""
BAR_MS: dict[Timed, float] = {"tiny": 10.0, "base": 40.0, "paper": 100.0, "shipped": 10.0}
"""What is timed -> the project's bar for the median tick on two CPU cores."""
BAR_ADDED_MS = 3.0
"""The project's bar for the p99 of what `ttm serve` adds to a tick."""


def made_unit(mlp_size: int) -> TokenTuringMachineUnit:
    """Return the unit with random weights, the same in every call."""
    torch.manual_seed(0)
    return TokenTuringMachineUnit(WIDTH, NUM_INPUTS, replace(UNIT, mlp_size=mlp_size)).eval()


def compiled_unit(unit: TokenTuringMachineUnit, precision: Precision) -> CompiledModule:
    """Return the unit as the OpenVINO engine runs it."""
    example = [torch.zeros(1, UNIT.memory_size, WIDTH), torch.zeros(1, NUM_INPUTS, WIDTH)]
    return CompiledModule(copy.deepcopy(unit), example, precision=precision)


@torch.inference_mode()
def measure_unit(mlp_size: int) -> list[Figures]:
    """Time eager PyTorch, and the compiled unit in every precision, in turns."""
    unit = made_unit(mlp_size)
    calls: dict[str, Call] = {EAGER: unit}
    load_s = {EAGER: 0.0}
    for precision in supported_precisions():
        begun = time.perf_counter()
        calls[precision] = compiled_unit(unit, precision)
        load_s[precision] = time.perf_counter() - begun
    memory, inputs = torch.randn(1, UNIT.memory_size, WIDTH), torch.randn(1, NUM_INPUTS, WIDTH)
    times = interleaved({how: partial(call, memory, inputs) for how, call in calls.items()}, BLOCKS)
    expected = unit_outputs(unit)
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


@torch.inference_mode()
def measure_flat(what: str, begin: Callable[[], Tick]) -> Figures:
    """Time the second and the last hundredth of an episode: of 10,000 ticks, 100 to 200 and 9,900 to 10,000.

    begin: starts an episode and returns the function that runs one tick. A second episode begins
    when the first is near its end, and the two take turns.
    """
    ticks, part = FLAT_TICKS, max(FLAT_TICKS // 100, BLOCK)
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
    call = compiled_unit(made_unit(UNIT.mlp_size), "float32")
    inputs, memory = torch.randn(1, NUM_INPUTS, WIDTH), torch.zeros(1, UNIT.memory_size, WIDTH)

    def tick() -> None:
        nonlocal memory
        memory, _ = call(memory, inputs)

    return tick


@torch.inference_mode()
def measure_core(kind: str) -> Figures:
    """Time one tick of a core at the sizes of the tiny preset, eager PyTorch and OpenVINO in turns."""
    policy = preset_policy("tiny")
    width, num_inputs = policy.config.width, policy.num_tokens
    torch.manual_seed(0)
    core = sized_like(kind, policy.config.core).build(width, num_inputs).eval()
    state = core.initial_state(1)
    tensors = [torch.randn(1, num_inputs, width), *state.values()]
    eager = CoreTickModule(core, tuple(state))
    compiled = CompiledModule(copy.deepcopy(eager), tensors)
    calls = {"torch": partial(eager, *tensors), "ours": partial(compiled, *tensors)}
    times = interleaved(calls, BLOCKS)
    error, values, others = 0.0, tensors[1:], tensors[1:]
    for _ in range(COMPARED_TICKS):
        tokens = torch.randn_like(tensors[0])
        (expected, *values), (output, *others) = eager(tokens, *values), compiled(tokens, *others)
        error = max(error, float((output - expected).abs().max()))
    return {
        "kind": kind,
        "parameters": num_parameters(core),
        "state_values": sum(value.numel() for value in state.values()),
        "torch_ms": median_ms(times["torch"]),
        "median_ms": median_ms(times["ours"]),
        "error": error,
    }


def measure_whole(what: Timed) -> list[Figures]:
    """Time `PolicyRunner.step` with PyTorch, then with each precision of OpenVINO."""
    policy = load_checkpoint(default_checkpoint())[0] if what == "shipped" else preset_policy(what)
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
                "preset": what,
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


def measure_served() -> list[Figures]:
    """Time ticks over the loopback, with and without what the policy itself takes in the other process."""
    require_extra("serve", "the part served")
    policy = preset_policy("tiny")
    size = policy.config.embedding_size
    policy.known_instructions = {"bench": np.full(size, size**-0.5, np.float32)}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.safetensors"
        save_checkpoint(path, policy, {})
        words = ["-m", "ttm.training.cli", "serve", "--port", "0", "--checkpoint", str(path)]
        command = [sys.executable, *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                runner: Any = load_runner(process.stdout.readline().split()[-1], policy.spec)
                runner.reset("bench")
                seen = random_observation(policy.spec, np.random.default_rng(0))
                tick = partial(runner.step, seen)
                timed = [(*repeated(tick, 1), runner.infer_ms) for _ in range(SERVED_TICKS)]
            finally:
                process.terminate()
    whole, own = (np.array(timed[SERVED_TICKS // 50 :]) * (1e3, 1)).T
    kinds = {"round trip": whole, "the policy": own, "added": whole - own}
    return [
        {"what": what, "median_ms": np.median(ms), "p99_ms": np.quantile(ms, 0.99)}
        for what, ms in kinds.items()
    ]


def preset_policy(preset: PresetName) -> Policy:
    """Return a policy with random weights, the same in every call, of a robot with arm, gripper and base."""
    size, cameras = PRESETS[preset].image_size, 2 if preset == "tiny" else 1
    spec = PolicySpec(
        robot="bench",
        cameras=tuple(CameraSpec(f"camera {n}", size, size) for n in range(cameras)),
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
class BenchTickCommand(BenchCommand):
    """Time a control tick on this machine's CPU. Takes some minutes; run it while nothing else runs.

    unit: the unit of the Token Turing Machine at the paper's robot setting, compiled and in
    eager PyTorch. flat: the unit and a whole policy over 10,000 ticks. whole: from images to the
    action, for every preset. cores: every temporal core. served: what ttm serve adds to a tick.
    """

    parts: tuple[Part, ...] = ("unit", "flat", "whole", "cores")
    """What is timed."""
    presets: tuple[Timed, ...] = ("tiny", "base", "paper", "shipped")
    """Presets of which a whole tick is timed, and the policy that ships."""
    threads: int = 2
    """CPU threads."""

    def measure(self, report: Report) -> None:
        """Time the parts one after the other."""
        require_at_least(1, options(self, "threads"))
        report.figures["threads"] = self.threads
        report.text(
            f"{self.threads} CPU threads. Medians of single ticks at batch 1; error: the largest "
            "difference of an output\nfrom PyTorch's.\n"
        )
        with cpu_threads(self.threads):
            for part in self.parts:
                title, columns, measured = TABLES[part]
                report.rows(part, title, columns, measured(self.presets))


def measure_long(presets: Sequence[Timed]) -> list[Figures]:
    """Time long episodes."""

    def tiny() -> Tick:
        return policy_loop(PolicyRunner(preset_policy("tiny")))

    return [
        measure_flat("unit of the TTM", unit_loop),
        measure_flat("whole policy, preset tiny", tiny),
    ]


TABLES: dict[Part, tuple[str, dict[str, Cell], Callable[[Sequence[Timed]], list[Figures]]]] = {
    "unit": (
        f"A tick of the unit: width {WIDTH}, m = {UNIT.memory_size}, r = {UNIT.process_size}, "
        f"n = {NUM_INPUTS}, {UNIT.num_layers} layers, batch 1",
        {
            "MLP": "{mlp_size}",
            "run as": "{how}",
            "median": "{median_ms:.2f} ms",
            "of eager": "{ratio:.2f}",
            "bar": lambda row: f"<= {BAR_RATIO[row['how']]}" if row["how"] in BAR_RATIO else "",
            "error": "{error:.1e}",
            "load": "{load_s:.1f} s",
        },
        lambda _: [row for size in MLP_SIZES for row in measure_unit(size)],
    ),
    "flat": (
        "Late ticks of a long episode, and as many early ones",
        {
            "what": "{what}",
            "late ticks": "{late[0]:,} to {late[1]:,}",
            "early": "{early_ms:.2f} ms",
            "late": "{late_ms:.2f} ms",
            "ratio": lambda row: f"{row['late_ms'] / row['early_ms']:.3f}",
            "MB": lambda row: f"{decimals(row['early_mb'], 0)} to {decimals(row['late_mb'], 0)}",
        },
        measure_long,
    ),
    "whole": (
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
        lambda presets: [row for preset in presets for row in measure_whole(preset)],
    ),
    "cores": (
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
        lambda _: [measure_core(kind) for kind in registry.CORES],
    ),
    "served": (
        "A tick of the tiny preset in a process of ttm serve, over the loopback",
        {
            "time of": "{what}",
            "median": "{median_ms:.2f} ms",
            "p99": "{p99_ms:.2f} ms",
            "bar": lambda row: f"<= {BAR_ADDED_MS:g}" if row["what"] == "added" else "",
        },
        lambda _: measure_served(),
    ),
}
"""Part -> title and columns of its table, and what measures its rows."""
