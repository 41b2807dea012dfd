"""Options of the `ttm` core that are not of the paper: reads, what Process and the write see, engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from rounding import assert_same_but_rounding

from ttm.policy.cores.core import TemporalCore
from ttm.policy.cores.registry import core_from_dict, core_to_dict
from ttm.policy.cores.ttm import TokenTuringConfig, TokenTuringMachine
from ttm.policy.cores.ttm_variants import AttendingRead
from ttm.policy.errors import UserError
from ttm.policy.openvino_engine import CompiledModule
from ttm.policy.tick_module import CoreTickModule

CONFIG = TokenTuringConfig(
    memory_size=4, process_size=3, num_layers=1, num_heads=2, mlp_size=16, bottleneck=8
)
WIDTH, N = 8, 5
VARIANTS: dict[str, dict[str, Any]] = {
    "gated": {"write": "gated"},
    "keep": {"write": "keep"},
    "ring": {"write": "ring"},
    "ring of inputs": {"read": "attend", "write": "ring", "write_outputs": False},
    "attend": {"read": "attend"},
    "attend, no positions": {"read": "attend", "write": "gated", "positional_embedding": False},
    "memory processed": {"process_memory": True},
    "memory mixed": {"process_memory": True, "processor": "mixer", "write": "gated"},
    "write of inputs": {"read": "attend", "write": "gated", "write_outputs": False},
}


def machine(**changes: Any) -> TokenTuringMachine:
    return replace(CONFIG, **changes).build(WIDTH, N)


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_openvino_gives_what_pytorch_gives(name: str) -> None:
    core = machine(**VARIANTS[name]).eval()
    for parameter in core.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    state = core.initial_state(1)
    compiled = CompiledModule(
        CoreTickModule(core, list(state)), [torch.zeros(1, N, WIDTH), state["memory"]]
    )
    memory = state["memory"]
    for _ in range(6):
        tokens = torch.randn(1, N, WIDTH)
        outputs, state = core.step(tokens, state)
        made, memory = compiled(tokens, memory)
        assert_same_but_rounding(made, outputs)
        assert_same_but_rounding(memory, state["memory"])


def test_checkpoints_from_before_these_options_are_the_published_machine() -> None:
    data = core_to_dict(CONFIG)
    new = ("read", "process_memory", "write_outputs", "gate_max_ticks", "keep_portion")
    old = {name: value for name, value in data.items() if name not in new}
    assert core_from_dict(old) == CONFIG
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
    tokens = torch.randn(1, N, WIDTH)
    one, other = torch.randn(1, 4, WIDTH), torch.randn(1, 4, WIDTH)
    for read, moves in (("summarize", False), ("attend", True)):
        core = machine(read=read)
        change = read_weights(core, one, tokens) - read_weights(core, other, tokens)
        assert (change.abs().max() > 1e-3) == moves


@torch.no_grad()
def test_recorded_weights_are_those_of_the_attention() -> None:
    """With values that tell the tokens apart, one head's result is the weighted sum of values."""
    core = machine(read="attend", num_heads=1).double()
    read, memory = core.unit.read, torch.randn(1, 4, WIDTH, dtype=torch.float64)
    assert isinstance(read, AttendingRead)
    tokens = torch.randn(1, N, WIDTH, dtype=torch.float64)
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
    memory, tokens = torch.randn(2, 4, WIDTH), torch.randn(2, N, WIDTH)
    outputs, _ = core.step(tokens, {"memory": memory})
    ((given, processed),) = seen
    assert torch.equal(given[:, 3:], memory)
    assert torch.equal(outputs, processed)
    core.unit.process.num_outputs = None  # all r + m tokens
    torch.testing.assert_close(core.unit.process(given)[:, :3], processed)


def test_a_write_of_the_inputs_alone_does_not_see_the_outputs() -> None:
    core = machine(write="gated", write_outputs=False)
    tokens = torch.randn(2, 6, N, WIDTH)
    _, state = core(tokens)
    with torch.no_grad():
        for parameter in core.unit.process.parameters():
            parameter.add_(1)
    assert torch.equal(core(tokens)[1]["memory"], state["memory"])
    assert not torch.equal(
        TemporalCore.forward(machine(write="gated"), tokens)[1]["memory"], state["memory"]
    )


@torch.no_grad()
def test_slots_of_the_keeping_write_start_by_keeping_the_portion_asked_for() -> None:
    torch.manual_seed(0)
    for portion in (0.5, 0.9, 0.98):
        write = machine(write="keep", keep_portion=portion).unit.write
        groups = [torch.randn(200, size, WIDTH) for size in (4, N, 3)]
        weights = write.summarizer.weights(write.positioned(*groups))  # (B, P, m)
        kept = weights.diagonal(dim1=1, dim2=2).mean()
        assert float(kept) == pytest.approx(portion, abs=0.12)
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(200, 4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep_portion": 1.0}, "keep_portion is 1; give a number above 0 and below 1"),
        ({"keep_portion": float("nan")}, "keep_portion is nan"),
        ({"write": "keep", "summarizer": "pooling"}, "give summarizer=mlp or query"),
        (
            {"write": "concatenate", "write_outputs": False},
            "give write=summarize, gated, keep or ring",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(CONFIG, **changes)


def test_gradients_reach_back_where_those_of_the_published_write_vanish() -> None:
    """By 45 ticks, with fresh weights."""

    def reach(**changes: Any) -> float:
        torch.manual_seed(0)
        core, tokens = machine(**changes), torch.randn(4, 46, N, WIDTH, requires_grad=True)
        last = core(tokens)[0][:, -1]
        (gradient,) = torch.autograd.grad((last * torch.randn_like(last)).sum(), tokens)
        return float(gradient[:, 0].norm())

    published = reach()
    assert reach(write="gated") > 10 * published
    assert reach(write="keep") > 10 * published
