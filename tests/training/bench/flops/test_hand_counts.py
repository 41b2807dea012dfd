"""The counts by hand are exact: they equal those of PyTorch's counter, and those of XLA."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product
from typing import Any

import pytest

from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.registry import CORES, config_class, sized_like
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.training.bench import flops_counts as layers
from ttm.training.bench.common import counted_step
from ttm.training.bench.flops import FEW, MANY, MIXER, UNIT, WIDTH
from ttm.training.bench.flops_counts import COUNTS, step_by_hand

SMALL = TokenTuringConfig(
    memory_size=5,
    process_size=3,
    num_layers=2,
    num_heads=4,
    mlp_size=48,
    bottleneck=7,
    token_mixing_size=11,
    initial_memory="learned",
)

COUNTED = [kind for kind in CORES if config_class(kind) in COUNTS]
"""The cores with a count by hand. A new core may have none."""

XLA_GFLOPS = {
    "transformer, few": (UNIT, FEW, 0.227922),
    "mixer, few": (MIXER, FEW, 0.089578056),
    "transformer": (UNIT, MANY, 0.844820736),
    "mixer": (MIXER, MANY, 0.706476672),
    "mlp": (replace(UNIT, processor="mlp"), MANY, 0.691878528),
    "mha": (replace(UNIT, summarizer="mha"), MANY, 8.54918912),
    "erase_add": (replace(UNIT, write="erase_add", initial_memory="learned"), MANY, 0.42663808),
}
"""Half of what `cost_analysis()` of jax 0.10.2 gives for the lowered step of the same modules in Flax."""


@pytest.mark.parametrize(
    ("summarizer", "processor", "write"),
    [
        *product(
            ("mlp", "mha", "query", "pooling"),
            ("transformer", "mixer", "mlp"),
            ("summarize", "erase_add", "concatenate"),
        )
    ],
)
def test_hand_count_of_every_variant_is_exact(summarizer: str, processor: str, write: str) -> None:
    config = replace(SMALL, summarizer=summarizer, processor=processor, write=write)
    assert_exact(config, width=32, num_inputs=6)


@pytest.mark.parametrize(
    "changes",
    [
        {"write": "gated"},
        {"write": "ring"},
        {"read": "attend", "write": "ring", "write_outputs": False},
        {"read": "attend"},
        {"read": "attend", "summarizer": "mha", "positional_embedding": False},
        {"process_memory": True},
        {"process_memory": True, "processor": "mixer", "write": "gated", "write_outputs": False},
    ],
    ids=str,
)
def test_hand_count_of_options_beyond_the_paper_is_exact(changes: dict[str, Any]) -> None:
    assert_exact(replace(SMALL, **changes), width=32, num_inputs=6)


@pytest.mark.parametrize("kind", COUNTED)
def test_hand_count_of_every_core_is_exact(kind: str) -> None:
    assert_exact(sized_like(kind, SMALL), width=32, num_inputs=6)


def test_every_entry_of_the_table_is_a_core() -> None:
    assert len(COUNTED) == len(COUNTS) >= 8


@pytest.mark.parametrize("name", XLA_GFLOPS)
def test_elementwise_work_is_counted_as_xla_counts_it(name: str) -> None:
    config, num_inputs, gflops = XLA_GFLOPS[name]
    step = step_by_hand(config, WIDTH, num_inputs)
    assert step is not None
    assert step.whole.total / 1e9 == pytest.approx(gflops, rel=1e-3)


def test_operations_add_up() -> None:
    one = layers.mlp(tokens=3, in_size=4, hidden_size=5, out_size=2)
    assert asdict(one) == {
        "matrix": 3 * 4 * 5 + 3 * 5 * 2,
        "norms": 0,
        "activations": 8 * 3 * 5,
        "softmaxes": 0,
        "additions": 3 * 5 + 3 * 2,
    }
    assert (one + one) == one * 2
    assert one.total == 90 + (120 + 21) / 2


def test_pooled_runs_overlap_where_they_do_not_divide() -> None:
    assert layers.pooled_summary(tokens=6, summaries=3, width=1).additions == 6 + 3
    assert layers.pooled_summary(tokens=5, summaries=3, width=1).additions == 2 + 3 + 2 + 3


def assert_exact(config: CoreConfig, width: int, num_inputs: int) -> None:
    step = step_by_hand(config, width, num_inputs)
    assert step is not None
    assert step.whole.matrix == counted_step(config, width, num_inputs).multiply_adds
