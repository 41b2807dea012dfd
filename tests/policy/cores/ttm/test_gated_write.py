"""The gated write: its formula, its time scales at the start, and what it keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ttm.policy.cores.ttm import UnitConfig, build_unit
from ttm.policy.cores.ttm_variants import GatedWrite, chrono_bias
from ttm.policy.errors import UserError

WIDTH, M, R, N = 8, 5, 3, 4
CONFIG = UnitConfig(
    memory_size=M, process_size=R, num_layers=1, num_heads=2, mlp_size=16, write="gated"
)


def gated(config: UnitConfig = CONFIG) -> GatedWrite:
    write = build_unit(WIDTH, N, config).write.double()
    assert isinstance(write, GatedWrite)
    return write


def tokens(batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    sizes = (M, N, R)
    m, i, o = (torch.randn(batch, size, WIDTH, dtype=torch.float64) for size in sizes)
    return m, i, o


@torch.no_grad()
def test_it_follows_its_formula() -> None:
    write, (memory, inputs, outputs) = gated(), tokens()
    candidate = write.candidate(memory, inputs, outputs)
    pair = write.norm(torch.cat([memory, candidate], dim=2))
    gate = 1 / (1 + torch.exp(-(pair @ write.gate.weight.T + write.gate_bias)))
    torch.testing.assert_close(
        write(memory, inputs, outputs), gate * memory + (1 - gate) * candidate
    )


def test_time_scales_are_spread_from_two_ticks_to_the_longest() -> None:
    keeps = chrono_bias(4, 100).sigmoid().flatten()
    scales = 1 / (1 - keeps)
    assert scales.tolist() == pytest.approx([2, 2 + 98 / 3, 2 + 196 / 3, 100], rel=1e-4)
    bias = gated(replace(CONFIG, gate_max_ticks=50)).gate_bias
    assert (bias.detach().exp() + 1)[:, 0].tolist() == pytest.approx([2, 14, 26, 38, 50], rel=1e-5)


@torch.no_grad()
def test_the_slowest_slot_keeps_a_first_tick_that_the_published_write_loses() -> None:
    """What remains of the first memory after 30 ticks, as a portion of the change made to it."""

    def remains(config: UnitConfig) -> float:
        torch.manual_seed(0)
        unit = build_unit(WIDTH, N, config).double()
        start, ticks = tokens(1)[0], [tokens(1)[1] for _ in range(30)]
        ends = []
        for memory in (start, start + torch.randn_like(start) * 0.1):
            for inputs in ticks:
                memory, _ = unit(memory, inputs)
            ends.append(memory)
        return float((ends[1] - ends[0]).norm())

    assert remains(CONFIG) > 0.05
    assert remains(CONFIG) > 20 * remains(replace(CONFIG, write="summarize"))


@torch.no_grad()
def test_slots_that_start_at_zero_part_from_the_first_tick() -> None:
    for position in (True, False):
        unit = build_unit(WIDTH, N, replace(CONFIG, positional_embedding=position)).double()
        memory, _ = unit(torch.zeros(1, M, WIDTH, dtype=torch.float64), tokens(1)[1])
        distances = torch.cdist(memory[0], memory[0]) + torch.eye(M)
        assert (distances > 1e-4).all()


@torch.no_grad()
def test_weights_sum_to_one_and_their_memory_part_is_that_of_gates_and_candidate() -> None:
    write, given = gated(), tokens()
    weights = write.weights(*given)
    assert weights.shape == (2, M + N + R, M)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(2, M, dtype=torch.float64))
    write.gate.weight.zero_()
    write.gate_bias.fill_(40)  # keeps everything
    torch.testing.assert_close(write(*given), given[0])
    torch.testing.assert_close(
        write.weights(*given)[:, :M], torch.eye(M, dtype=torch.float64).expand(2, -1, -1)
    )


def test_under_autocast_the_memory_keeps_its_precision() -> None:
    write = gated().float()
    with torch.autocast("cpu", torch.bfloat16):
        made = write(*(part.float() for part in tokens()))
    assert made.dtype == torch.float32


def test_time_scales_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="gate_max_ticks is 1; give 2 or more"):
        replace(CONFIG, gate_max_ticks=1)
