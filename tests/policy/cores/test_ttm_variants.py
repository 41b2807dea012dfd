"""The variants of the Token Turing Machine against their definitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rounding import assert_same_but_rounding
from torch import Tensor
from torch.nn import functional as F

from ttm.policy import TemporalCore, UserError
from ttm.policy.cores.registry import core_from_dict, core_to_dict
from ttm.policy.cores.ttm import (
    Summarizer,
    TokenLearner,
    TokenTuringConfig,
    TokenTuringMachine,
    TokenTuringMachineUnit,
)
from ttm.policy.cores.ttm_variants import (
    AttendingRead,
    ConcatenationWrite,
    GatedWrite,
    PoolingSummarizer,
    QuerySummarizer,
    RingWrite,
    TokenAddEraseWrite,
    TokenLearnerMHA,
    chrono_bias,
)
from ttm.policy.engines import CoreTickModule
from ttm.policy.openvino_engine import CompiledModule

WIDTH, K = 16, 3
SUMMARIZERS: dict[str, Callable[[], Summarizer]] = {
    "mlp": lambda: TokenLearner(WIDTH, K, bottleneck=8),
    "mha": lambda: TokenLearnerMHA(WIDTH, K),
    "query": lambda: QuerySummarizer(WIDTH, K),
    "pooling": lambda: PoolingSummarizer(WIDTH, K),
}


@pytest.fixture(params=SUMMARIZERS)
def summarizer(request: pytest.FixtureRequest) -> Summarizer:
    """Return a summariser with parameters of order 1, so that its weights are far from uniform."""
    made = SUMMARIZERS[request.param]()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter))
    return made.double()


def tokens(batch: int = 2, count: int = 7) -> torch.Tensor:
    return torch.randn(batch, count, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize(("batch", "count"), [(1, 7), (3, 7), (2, 2)])
def test_weights_sum_to_one_over_the_tokens(summarizer: Summarizer, batch: int, count: int) -> None:
    weights = summarizer.weights(tokens(batch, count))
    assert weights.shape == (batch, count, K)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(batch, K, dtype=torch.float64))
    assert summarizer(tokens(batch, count)).shape == (batch, K, WIDTH)


@pytest.mark.parametrize("name", ["mlp", "query", "pooling"])
def test_summary_is_the_weighted_mean(name: str) -> None:
    summarizer, x = SUMMARIZERS[name]().double(), tokens()
    torch.testing.assert_close(summarizer(x), summarizer.weights(x).transpose(1, 2) @ x)
    same = x[:, :1].expand(-1, 7, -1)
    torch.testing.assert_close(summarizer(same), same[:, :K])


def test_mlp_weights_follow_equations_1_and_3() -> None:
    summarizer, x = TokenLearner(WIDTH, K, bottleneck=8).double(), tokens()
    normed = F.layer_norm(x, (WIDTH,), eps=1e-6)
    hidden = F.gelu(normed @ summarizer.mlp.hidden.weight.T, approximate="tanh")
    expected = (hidden @ summarizer.mlp.out.weight.T).softmax(dim=1)  # biases are zero at the start
    torch.testing.assert_close(summarizer.weights(x), expected)


def test_query_weights_follow_equation_2() -> None:
    summarizer, x = QuerySummarizer(WIDTH, K).double(), tokens()
    with torch.no_grad():
        summarizer.queries.normal_()
    queries, values = summarizer.queries.detach().numpy(), x.numpy()
    for b in range(2):
        for k in range(K):
            logits = np.array([queries[k] @ value for value in values[b]]) / np.sqrt(WIDTH)
            weights = np.exp(logits) / np.exp(logits).sum()
            np.testing.assert_allclose(summarizer.weights(x)[b, :, k].detach(), weights, rtol=1e-12)
            np.testing.assert_allclose(
                summarizer(x)[b, k].detach(), weights @ values[b], rtol=1e-10
            )


def test_pooling_takes_means_of_neighbours() -> None:
    x = tokens(count=6)
    torch.testing.assert_close(PoolingSummarizer(WIDTH, 3)(x), x.unflatten(1, (3, 2)).mean(dim=2))


def test_pooling_with_more_groups_than_tokens_repeats_tokens() -> None:
    x, pool = tokens(count=2), PoolingSummarizer(WIDTH, 4)
    torch.testing.assert_close(pool(x), x[:, [0, 0, 1, 1]])
    torch.testing.assert_close(pool.weights(x).transpose(1, 2) @ x, x[:, [0, 0, 1, 1]])


def test_pooling_has_nothing_to_learn() -> None:
    assert not list(PoolingSummarizer(WIDTH, 3).parameters())


def test_attention_weights_are_those_that_the_values_get() -> None:
    """With one head and identity maps for values and outputs, the summary is the weighted mean."""
    summarizer, x = TokenLearnerMHA(WIDTH, K, num_heads=1).double(), tokens()
    with torch.no_grad():
        summarizer.queries.normal_()
        summarizer.key_value.weight[WIDTH:] = torch.eye(WIDTH)
        summarizer.out.weight.copy_(torch.eye(WIDTH))
    torch.testing.assert_close(summarizer(x), summarizer.weights(x).transpose(1, 2) @ x)


def test_attention_starts_as_flax_does() -> None:
    """lecun_normal: variance 1 / inputs, cut off at two deviations of the uncut normal."""
    summarizer = TokenLearnerMHA(128, K)
    for layer in (summarizer.query, summarizer.key_value, summarizer.out):
        assert abs(layer.weight.std().item() * 128**0.5 - 1) < 0.03
        assert layer.weight.abs().max() <= 2 / 0.8796 / 128**0.5 + 1e-6
        assert not layer.bias.any()


def test_attention_needs_a_width_that_its_heads_divide() -> None:
    with pytest.raises(UserError, match="8 heads, which do not divide the width 12"):
        TokenLearnerMHA(12, K)


# Erase-and-add: its formula and its known flaw. Concatenation: a bounded history.


D, M, R, N = 8, 5, 3, 4
MEMORY = TokenTuringConfig(memory_size=M, process_size=R)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_erase_add_follows_its_formula() -> None:
    write = TokenAddEraseWrite(D, N, MEMORY).double()
    memory, outputs = normal(2, M, D), normal(2, R, D)
    weights, erase, add = write.weights(memory), write.erase(outputs), write.add(outputs)
    assert weights.shape == (2, M, 8)
    assert erase.shape == add.shape == (2, 8, D)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(2, 8, dtype=torch.float64))
    expected = torch.empty_like(memory)
    for b in range(2):
        for i in range(M):
            kept, added = (torch.ones(D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64))
            for t in range(8):
                kept = kept * (1 - weights[b, i, t] * erase[b, t])
                added = added + (1 - weights[b, i, t] * add[b, t]) / 8
            expected[b, i] = memory[b, i] * kept + added
    torch.testing.assert_close(write(memory, normal(2, N, D), outputs), expected)


def test_erase_add_keeps_slots_identical_from_zero_memory() -> None:
    """This is why a configuration of it with a memory of zeros is refused."""
    write, memory = (
        TokenAddEraseWrite(D, N, MEMORY).double(),
        torch.zeros(1, M, D, dtype=torch.float64),
    )
    for _ in range(5):
        memory = write(memory, normal(1, N, D), normal(1, R, D))
        assert memory.any()
        assert_same_but_rounding(memory, memory[:, :1].expand_as(memory))


def test_a_start_that_differs_breaks_the_tie() -> None:
    write, start = TokenAddEraseWrite(D, N, MEMORY).double(), 0.02 * normal(1, M, D)
    start.requires_grad_()
    memory = start
    for _ in range(5):
        memory = write(memory, normal(1, N, D), normal(1, R, D))
    spread = (memory - memory.mean(dim=1, keepdim=True)).abs().amax(dim=2)
    assert (spread > 1e-3).all()
    memory.square().sum().backward()
    assert start.grad is not None
    assert start.grad.abs().sum() > 0


def test_concatenation_keeps_the_newest() -> None:
    write, memory = ConcatenationWrite(D, N, MEMORY), torch.zeros(2, M, D)
    history = memory
    for _ in range(4):
        outputs = torch.randn(2, R, D)
        memory = write(memory, torch.randn(2, N, D), outputs)
        history = torch.cat([history, outputs], dim=1)
        assert torch.equal(memory, history[:, -M:])


def test_concatenation_of_more_than_fits() -> None:
    outputs = torch.randn(2, M + 2, D)
    assert torch.equal(
        ConcatenationWrite(D, N, MEMORY)(torch.randn(2, M, D), outputs, outputs), outputs[:, 2:]
    )


# The gated write: its formula, its time scales at the start, and what it keeps.


GATED = TokenTuringConfig(
    memory_size=M, process_size=R, num_layers=1, num_heads=2, mlp_size=16, write="gated"
)


def gated(config: TokenTuringConfig = GATED) -> GatedWrite:
    write = TokenTuringMachineUnit(D, N, config).write.double()
    assert isinstance(write, GatedWrite)
    return write


def groups(batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    sizes = (M, N, R)
    m, i, o = (torch.randn(batch, size, D, dtype=torch.float64) for size in sizes)
    return m, i, o


@torch.no_grad()
def test_gated_write_follows_its_formula() -> None:
    write, (memory, inputs, outputs) = gated(), groups()
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
    bias = gated(replace(GATED, gate_max_ticks=50)).gate_bias
    assert (bias.detach().exp() + 1)[:, 0].tolist() == pytest.approx([2, 14, 26, 38, 50], rel=1e-5)


@torch.no_grad()
def test_the_slowest_slot_keeps_a_first_tick_that_the_published_write_loses() -> None:
    """What remains of the first memory after 30 ticks, as a portion of the change made to it."""

    def remains(config: TokenTuringConfig) -> float:
        torch.manual_seed(0)
        unit = TokenTuringMachineUnit(D, N, config).double()
        start, ticks = groups(1)[0], [groups(1)[1] for _ in range(30)]
        ends = []
        for memory in (start, start + torch.randn_like(start) * 0.1):
            for inputs in ticks:
                memory, _ = unit(memory, inputs)
            ends.append(memory)
        return float((ends[1] - ends[0]).norm())

    assert remains(GATED) > 0.05
    assert remains(GATED) > 20 * remains(replace(GATED, write="summarize"))


@torch.no_grad()
def test_slots_that_start_at_zero_part_from_the_first_tick() -> None:
    for position in (True, False):
        unit = TokenTuringMachineUnit(D, N, replace(GATED, positional_embedding=position)).double()
        memory, _ = unit(torch.zeros(1, M, D, dtype=torch.float64), groups(1)[1])
        distances = torch.cdist(memory[0], memory[0]) + torch.eye(M)
        assert (distances > 1e-4).all()


@torch.no_grad()
def test_weights_sum_to_one_and_their_memory_part_is_that_of_gates_and_candidate() -> None:
    write, given = gated(), groups()
    weights = write.weights(*given)
    assert weights.shape == (2, M + N + R, M)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(2, M, dtype=torch.float64))
    write.gate.weight.zero_()
    write.gate_bias.fill_(40)  # keeps everything
    torch.testing.assert_close(write(*given), given[0])
    torch.testing.assert_close(
        write.weights(*given)[:, :M], torch.eye(M, dtype=torch.float64).expand(2, -1, -1)
    )


def test_under_autocast_the_gated_memory_keeps_its_precision() -> None:
    write = gated().float()
    with torch.autocast("cpu", torch.bfloat16):
        made = write(*(part.float() for part in groups()))
    assert made.dtype == torch.float32


def test_time_scales_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="gate_max_ticks is 1; give 2 or more"):
        replace(GATED, gate_max_ticks=1)


# The write that visits one slot a tick: its formula, its time scales, what it keeps and for how long.


RING = TokenTuringConfig(
    memory_size=M, process_size=R, num_layers=1, num_heads=2, mlp_size=16, write="ring"
)


def ring(config: TokenTuringConfig = RING) -> RingWrite:
    write = TokenTuringMachineUnit(D, N, config).write.double()
    assert isinstance(write, RingWrite)
    return write


@torch.no_grad()
def test_ring_write_follows_its_formula() -> None:
    write, (memory, inputs, outputs) = ring(), groups()
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
    keeps = ring(replace(RING, gate_max_ticks=longest)).gate_bias.detach().sigmoid()
    visits = 1 / (1 - keeps)
    assert visits.shape == (1, D)
    assert_same_but_rounding(visits[0], torch.linspace(*scales, D))


@torch.no_grad()
def test_a_kept_memory_comes_round_after_m_ticks() -> None:
    write, (memory, inputs, outputs) = ring(), groups()
    write.gate_bias.fill_(60)
    turned = memory
    for tick in range(1, M + 1):
        turned = write(turned, inputs, outputs)
        torch.testing.assert_close(turned, memory.roll(-tick, dims=1))


@torch.no_grad()
def test_ticks_go_to_slots_of_their_own_unmixed() -> None:
    """With open gates the memory holds the candidates of the last m ticks, oldest first."""
    write = ring(replace(RING, write_outputs=False))
    write.gate_bias.fill_(-60)
    memory, ticks = groups(1)[0], [groups(1)[1] for _ in range(M)]
    expected = [write.candidate(memory[:, k : k + 1], ticks[k]) for k in range(M)]
    for inputs in ticks:
        memory = write(memory, inputs)
    torch.testing.assert_close(memory, torch.cat(expected, dim=1))


@torch.no_grad()
def test_weights_are_those_by_which_the_tokens_are_mixed() -> None:
    """With gates that are equal in all channels, and without P_write, the new memory is their sum."""
    write, given = ring(replace(RING, positional_embedding=False)), groups()
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
        seen = torch.randn(4, 60, N, D, requires_grad=True)
        memory = config.build(D, N)(seen)[1]["memory"]
        (gradient,) = torch.autograd.grad((memory * torch.randn_like(memory)).sum(), seen)
        return float(gradient[:, 0].norm())

    assert reach("ring") > 2 * reach("gated")
    assert reach("ring") > 1000 * reach("summarize")


@pytest.mark.parametrize("ticks", [1, M, 2 * M + 3])
@torch.no_grad()
def test_ticks_at_once_give_what_single_ticks_give(ticks: int) -> None:
    write, memory = ring(replace(RING, write_outputs=False)), groups()[0]
    seen = torch.randn(2, ticks, N, D, dtype=torch.float64)
    memories, last = write.over_ticks(memory, seen)
    assert memories.shape == (2, ticks, M, D)
    for tick in range(ticks):
        torch.testing.assert_close(memories[:, tick], memory)
        memory = write(memory, seen[:, tick])
    torch.testing.assert_close(last, memory)


@pytest.mark.parametrize("starts", [(), (0,), (0, 3), (7,)])
@torch.no_grad()
def test_a_machine_starts_episodes_where_it_is_told(starts: tuple[int, ...]) -> None:
    """In the first element of the batch only, in a window of 9 ticks that goes on from a state."""
    config = TokenTuringConfig(memory_size=M, process_size=R, mlp_size=16, write="ring")
    core = replace(config, write_outputs=False).build(D, N).double()
    state, seen = {"memory": groups()[0]}, torch.randn(2, 9, N, D, dtype=torch.float64)
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[0, list(starts)] = True
    outputs, last = core(seen, state, mask)
    singly, end = TemporalCore.forward(core, seen, state, mask)
    torch.testing.assert_close(outputs, singly)
    torch.testing.assert_close(last["memory"], end["memory"])


def test_a_memory_of_one_slot_is_a_gated_write() -> None:
    config = replace(RING, memory_size=1)
    given = (groups()[0][:, :1], *groups()[1:])
    write = ring(config)
    torch.testing.assert_close(write(*given), super(RingWrite, write).forward(*given))
    assert write.weights(*given).shape == (2, 1 + N + R, 1)


def test_under_autocast_the_memory_keeps_its_precision() -> None:
    write = ring().float()
    with torch.autocast("cpu", torch.bfloat16):
        made = write(*(part.float() for part in groups()))
    assert made.dtype == torch.float32


# Options of the `ttm` core that are not of the paper: reads, what Process and the write see, engines.


CONFIG = TokenTuringConfig(
    memory_size=4, process_size=3, num_layers=1, num_heads=2, mlp_size=16, bottleneck=8
)
SEEN = 5
VARIANTS: dict[str, dict[str, Any]] = {
    "gated": {"write": "gated"},
    "ring": {"write": "ring"},
    "ring of inputs": {"read": "attend", "write": "ring", "write_outputs": False},
    "attend": {"read": "attend"},
    "attend, no positions": {"read": "attend", "write": "gated", "positional_embedding": False},
    "memory processed": {"process_memory": True},
    "memory mixed": {"process_memory": True, "processor": "mixer", "write": "gated"},
    "write of inputs": {"read": "attend", "write": "gated", "write_outputs": False},
}


def machine(**changes: Any) -> TokenTuringMachine:
    return replace(CONFIG, **changes).build(D, SEEN)


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_openvino_gives_what_pytorch_gives(name: str) -> None:
    core = machine(**VARIANTS[name]).eval()
    for parameter in core.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    state = core.initial_state(1)
    compiled = CompiledModule(
        CoreTickModule(core, list(state)), [torch.zeros(1, SEEN, D), state["memory"]]
    )
    memory = state["memory"]
    for _ in range(6):
        tokens = torch.randn(1, SEEN, D)
        outputs, state = core.step(tokens, state)
        made, memory = compiled(tokens, memory)
        assert_same_but_rounding(made, outputs)
        assert_same_but_rounding(memory, state["memory"])


def test_checkpoints_from_before_these_options_are_the_published_machine() -> None:
    data = core_to_dict(CONFIG)
    new = ("read", "process_memory", "write_outputs", "gate_max_ticks")
    old = {name: value for name, value in data.items() if name not in new}
    assert core_from_dict(old) == CONFIG
    assert core_from_dict({**data, "keep_portion": 0.9}) == CONFIG, "of a write that is gone"
    assert (CONFIG.read, CONFIG.process_memory, CONFIG.write_outputs) == ("summarize", False, True)


def read_weights(core: TokenTuringMachine, memory: torch.Tensor, tokens: torch.Tensor) -> Any:
    """Return the weights of the inputs alone, scaled to sum to one."""
    read = core.unit.read
    if isinstance(read, AttendingRead):
        weights = read.weights(memory, tokens)
    else:
        weights = read.summarizer.weights(read.positioned(memory, tokens))
    return weights[:, 4:] / weights[:, 4:].sum(dim=1, keepdim=True)


@torch.no_grad()
def test_what_is_remembered_chooses_what_is_looked_at() -> None:
    """In the published read, the memory does not change the weights of the inputs to each other."""
    tokens = torch.randn(1, SEEN, D)
    one, other = torch.randn(1, 4, D), torch.randn(1, 4, D)
    for read, moves in (("summarize", False), ("attend", True)):
        core = machine(read=read)
        change = read_weights(core, one, tokens) - read_weights(core, other, tokens)
        assert (change.abs().max() > 1e-3) == moves


@torch.no_grad()
def test_recorded_weights_are_those_of_the_attention() -> None:
    """With values that tell the tokens apart, one head's result is the weighted sum of values."""
    core = machine(read="attend", num_heads=1).double()
    read, memory = core.unit.read, torch.randn(1, 4, D, dtype=torch.float64)
    assert isinstance(read, AttendingRead)
    tokens = torch.randn(1, SEEN, D, dtype=torch.float64)
    weights = read.weights(memory, tokens)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(1, 3, dtype=torch.float64))
    block, query = read.block, read.queries + read.recall(memory)
    joined = torch.cat([memory, tokens], dim=1) + read.position
    values = block.keys_values(joined)[1]
    x = query + block.out(weights.transpose(1, 2) @ values)
    torch.testing.assert_close(x + block.mlp(block.mlp_norm(x)), read(memory, tokens))


@torch.no_grad()
def test_process_sees_all_memory_tokens_and_gives_r() -> None:
    core = machine(process_memory=True)
    core.unit.read.summarizer.mlp.out.bias.zero_()
    seen = []
    core.unit.process.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    memory, tokens = torch.randn(2, 4, D), torch.randn(2, SEEN, D)
    outputs, _ = core.step(tokens, {"memory": memory})
    ((given, processed),) = seen
    assert torch.equal(given[:, 3:], memory)
    assert torch.equal(outputs, processed)
    core.unit.process.num_outputs = None  # all r + m tokens
    torch.testing.assert_close(core.unit.process(given)[:, :3], processed)


def test_a_write_of_the_inputs_alone_does_not_see_the_outputs() -> None:
    core = machine(write="gated", write_outputs=False)
    tokens = torch.randn(2, 6, SEEN, D)
    _, state = core(tokens)
    with torch.no_grad():
        for parameter in core.unit.process.parameters():
            parameter.add_(1)
    assert torch.equal(core(tokens)[1]["memory"], state["memory"])
    assert not torch.equal(
        TemporalCore.forward(machine(write="gated"), tokens)[1]["memory"], state["memory"]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"write": "concatenate", "write_outputs": False}, "needs write_outputs=true")],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(CONFIG, **changes)


def test_gradients_reach_back_where_those_of_the_published_write_vanish() -> None:
    """By 45 ticks, with fresh weights."""

    def reach(**changes: Any) -> float:
        torch.manual_seed(0)
        core, tokens = machine(**changes), torch.randn(4, 46, SEEN, D, requires_grad=True)
        last = core(tokens)[0][:, -1]
        (gradient,) = torch.autograd.grad((last * torch.randn_like(last)).sum(), tokens)
        return float(gradient[:, 0].norm())

    published = reach()
    assert reach(write="gated") > 10 * published
