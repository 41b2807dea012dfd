"""Whether late ticks of a long episode take as long as early ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ttm.policy.cores.causal_transformer import CausalTransformer
from ttm.policy.cores.configs import sized_like
from ttm.policy.run.runner import PolicyRunner
from ttm.training.bench.resident_memory import resident_mb
from ttm.training.bench.tick.preset_policy import preset_policy, tick_loop
from ttm.training.bench.tick.unit import NUM_INPUTS, UNIT, WIDTH, compiled_unit, unit_of
from ttm.training.bench.timing import BLOCK, interleaved, median_ms, repeated


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
    call, inputs = compiled_unit(unit, "float32"), torch.randn(1, NUM_INPUTS, WIDTH)
    memory = torch.zeros(1, config.memory_size, WIDTH)

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
    core = sized_like("transformer", UNIT).build(WIDTH, NUM_INPUTS).eval()
    assert isinstance(core, CausalTransformer)
    cache, inputs = core.empty_cache(1), torch.randn(1, 1, NUM_INPUTS, WIDTH)

    def tick() -> None:
        nonlocal cache
        _, cache = core.extend(inputs, cache)

    return tick
