"""The write that visits one slot a tick: its formula, its time scales, what it keeps and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from rounding import assert_same_but_rounding
from torch import Tensor

from ttm.policy.cores.core import TemporalCore
from ttm.policy.cores.ttm import TokenTuringConfig, UnitConfig, build_unit
from ttm.policy.cores.ttm_variants import RingWrite

WIDTH, M, R, N = 8, 5, 3, 4
CONFIG = UnitConfig(
    memory_size=M, process_size=R, num_layers=1, num_heads=2, mlp_size=16, write="ring"
)


def ring(config: UnitConfig = CONFIG) -> RingWrite:
    write = build_unit(WIDTH, N, config).write.double()
    assert isinstance(write, RingWrite)
    return write


def tokens(batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    sizes = (M, N, R)
    m, i, o = (torch.randn(batch, size, WIDTH, dtype=torch.float64) for size in sizes)
    return m, i, o


@torch.no_grad()
def test_it_follows_its_formula() -> None:
    write, (memory, inputs, outputs) = ring(), tokens()
    oldest = memory[:, :1]
    candidate = write.candidate(oldest, inputs, outputs)
    pair = write.norm(torch.cat([oldest, candidate], dim=2))
    gate = 1 / (1 + torch.exp(-(pair @ write.gate.weight.T + write.gate_bias)))
    made = write(memory, inputs, outputs)
    assert torch.equal(made[:, :-1], memory[:, 1:])
    torch.testing.assert_close(made[:, -1:], gate * oldest + (1 - gate) * candidate)


@pytest.mark.parametrize(("longest", "scales"), [(50, (2, 10)), (100, (2, 20)), (3, (2, 2))])
def test_time_scales_are_spread_over_the_channels(longest: int, scales: tuple[int, int]) -> None:
    """In visits, of which each slot has one in M = 5 ticks."""
    keeps = ring(replace(CONFIG, gate_max_ticks=longest)).gate_bias.detach().sigmoid()
    visits = 1 / (1 - keeps)
    assert visits.shape == (1, WIDTH)
    assert_same_but_rounding(visits[0], torch.linspace(*scales, WIDTH))


@torch.no_grad()
def test_a_kept_memory_comes_round_after_m_ticks() -> None:
    write, (memory, inputs, outputs) = ring(), tokens()
    write.gate_bias.fill_(60)
    turned = memory
    for tick in range(1, M + 1):
        turned = write(turned, inputs, outputs)
        torch.testing.assert_close(turned, memory.roll(-tick, dims=1))


@torch.no_grad()
def test_ticks_go_to_slots_of_their_own_unmixed() -> None:
    """With open gates the memory holds the candidates of the last m ticks, oldest first."""
    write = ring(replace(CONFIG, write_outputs=False))
    write.gate_bias.fill_(-60)
    memory, ticks = tokens(1)[0], [tokens(1)[1] for _ in range(M)]
    expected = [write.candidate(memory[:, k : k + 1], ticks[k]) for k in range(M)]
    for inputs in ticks:
        memory = write(memory, inputs)
    torch.testing.assert_close(memory, torch.cat(expected, dim=1))


@torch.no_grad()
def test_weights_are_those_by_which_the_tokens_are_mixed() -> None:
    """With gates that are equal in all channels, and without P_write, the new memory is their sum."""
    write, given = ring(replace(CONFIG, positional_embedding=False)), tokens()
    write.gate.weight.zero_()
    write.gate_bias.fill_(0.7)
    weights = write.weights(*given)
    assert weights.shape == (2, M + N + R, M)
    torch.testing.assert_close(weights.transpose(1, 2) @ torch.cat(given, dim=1), write(*given))


def test_it_remembers_what_the_gated_write_has_lost() -> None:
    """The gradient of the memory after 60 ticks by the first tick, with fresh weights."""

    def reach(write: str) -> float:
        torch.manual_seed(0)
        config = TokenTuringConfig(memory_size=M, process_size=R, mlp_size=16, write=write)  # type: ignore[arg-type]
        seen = torch.randn(4, 60, N, WIDTH, requires_grad=True)
        memory = config.build(WIDTH, N)(seen)[1]["memory"]
        (gradient,) = torch.autograd.grad((memory * torch.randn_like(memory)).sum(), seen)
        return float(gradient[:, 0].norm())

    assert reach("ring") > 2 * reach("gated")
    assert reach("ring") > 1000 * reach("summarize")


@pytest.mark.parametrize("ticks", [1, M, 2 * M + 3])
@torch.no_grad()
def test_ticks_at_once_give_what_single_ticks_give(ticks: int) -> None:
    write, memory = ring(replace(CONFIG, write_outputs=False)), tokens()[0]
    seen = torch.randn(2, ticks, N, WIDTH, dtype=torch.float64)
    memories, last = write.over_ticks(memory, seen)
    assert memories.shape == (2, ticks, M, WIDTH)
    for tick in range(ticks):
        torch.testing.assert_close(memories[:, tick], memory)
        memory = write(memory, seen[:, tick])
    torch.testing.assert_close(last, memory)


@pytest.mark.parametrize("starts", [(), (0,), (0, 3), (7,)])
@torch.no_grad()
def test_a_machine_starts_episodes_where_it_is_told(starts: tuple[int, ...]) -> None:
    """In the first element of the batch only, in a window of 9 ticks that goes on from a state."""
    config = TokenTuringConfig(memory_size=M, process_size=R, mlp_size=16, write="ring")
    core = replace(config, write_outputs=False).build(WIDTH, N).double()
    state, seen = {"memory": tokens()[0]}, torch.randn(2, 9, N, WIDTH, dtype=torch.float64)
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[0, list(starts)] = True
    outputs, last = core(seen, state, mask)
    singly, end = TemporalCore.forward(core, seen, state, mask)
    torch.testing.assert_close(outputs, singly)
    torch.testing.assert_close(last["memory"], end["memory"])


def test_a_memory_of_one_slot_is_a_gated_write() -> None:
    config = replace(CONFIG, memory_size=1)
    given = (tokens()[0][:, :1], *tokens()[1:])
    write = ring(config)
    torch.testing.assert_close(write(*given), super(RingWrite, write).forward(*given))
    assert write.weights(*given).shape == (2, 1 + N + R, 1)


def test_under_autocast_the_memory_keeps_its_precision() -> None:
    write = ring().float()
    with torch.autocast("cpu", torch.bfloat16):
        made = write(*(part.float() for part in tokens()))
    assert made.dtype == torch.float32
