"""Attention of the memory, as recorded by hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ttm.policy import (
    Policy,
    PolicyConfig,
    PolicyInputs,
    PolicyRunner,
    PolicySpec,
    TemporalCore,
    UserError,
    record_attention,
)
from ttm.policy.config import VisionConfig
from ttm.policy.cores.core import CoreState
from ttm.policy.cores.ttm import Summarizer
from ttm.policy.memory_attention import MemoryAttention, Which, cell_centres
from ttm.policy.spec import Observation
from ttm.policy.vision import film_efficientnet

Observe = Callable[[int], Observation]
MEMORY, READ, INPUTS = 4, 3, 2 * 2 + 1 + 2
"""m, r and N of the policy in conftest: two tokens for each of two cameras, and three others."""


class LooksAt(Summarizer):
    """A summariser with all its weight on one token."""

    def __init__(self, token: int, num_tokens: int) -> None:
        super().__init__()
        self.token, self.num_tokens = token, num_tokens

    def weights(self, tokens: Tensor) -> Tensor:
        weights = torch.zeros(len(tokens), tokens.shape[1], self.num_tokens)
        weights[:, self.token] = 1
        return weights


class Forgetful(TemporalCore):
    """A core that has no token memory."""

    num_outputs = READ

    def initial_state(self, batch_size: int) -> CoreState:
        return {}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        return tokens[:, :READ], state


@pytest.fixture
def look(observe: Observe, embedding: np.ndarray) -> Callable[[Policy], MemoryAttention]:
    """Return a function that records the attention of the third tick of an episode."""

    def look(policy: Policy) -> MemoryAttention:
        runner = PolicyRunner(policy, engine="torch")
        runner.reset("open the drawer", embedding=embedding)
        with record_attention(policy) as record:
            for tick in range(3):
                runner.step(observe(tick))
        return record.latest

    return look


def with_core(spec: PolicySpec, config: PolicyConfig, **changes: Any) -> Policy:
    return Policy(spec, replace(config, core=replace(config.core, **changes)))


@pytest.mark.parametrize("summarizer", ["mlp", "mha", "query", "pooling"])
def test_weights_are_shares_of_all_sources(
    spec: PolicySpec,
    config: PolicyConfig,
    look: Callable[[Policy], MemoryAttention],
    summarizer: str,
) -> None:
    attention = look(with_core(spec, config, summarizer=summarizer))
    assert attention.read.shape == (READ, MEMORY + INPUTS)
    assert attention.write is not None
    assert attention.write.shape == (MEMORY, MEMORY + INPUTS + READ)
    sources = ["memory", "head", "wrist", "joints.left", "previous action", "instruction"]
    assert list(attention.shares("read")) == sources
    assert list(attention.shares("write")) == [*sources, "outputs"]
    assert attention.write[:, :MEMORY].sum(axis=1).mean() == pytest.approx(
        attention.shares("write")["memory"]
    )
    for rows in (attention.read, attention.write):
        np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-6)
    for which, shares in (("read", attention.shares("read")), ("write", attention.shares("write"))):
        assert sum(shares.values()) == pytest.approx(1)
        for camera in ("head", "wrist"):
            cells = attention.image_map(camera, which)
            assert cells.shape == (4, 4)
            assert cells.dtype == np.float32
            assert cells.sum() == pytest.approx(shares[camera], abs=1e-6)


def test_recorded_weights_are_those_of_the_forward_pass(
    policy: Policy, make_inputs: Callable[[int, int], PolicyInputs]
) -> None:
    """A unit that gets the sums by the recorded weights returns the same memory."""
    inputs, state = make_inputs(1, 1), {"memory": torch.randn(1, MEMORY, 16)}
    with torch.no_grad(), record_attention(policy) as record:
        _, after = policy.step(inputs, state)
        unit, tokens = policy.core.unit, policy.encode(inputs)[:, 0]
        joined = torch.cat([state["memory"], tokens], dim=1) + unit.read.position
        outputs = unit.process(torch.from_numpy(record.latest.read) @ joined)
        joined = torch.cat([state["memory"], tokens, outputs], dim=1) + unit.write.position
        memory = torch.from_numpy(record.latest.write) @ joined
    torch.testing.assert_close(memory, after["memory"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("token", "source"),
    [(0, "memory"), (3, "memory"), (4, "head"), (5, "head"), (6, "wrist"), (8, "joints.left"),
     (9, "previous action"), (10, "instruction"), (11, "outputs")],
)  # fmt: skip
def test_a_summariser_that_looks_at_one_token_gives_its_source_everything(
    policy: Policy, look: Callable[[Policy], MemoryAttention], token: int, source: str
) -> None:
    policy.core.unit.write.summarizer = LooksAt(token, MEMORY)
    attention = look(policy)
    assert attention.shares("write") == {
        name: float(name == source) for name in attention.shares("write")
    }


def test_token_sources_name_the_tokens_of_encode(
    policy: Policy, make_inputs: Callable[[int, int], PolicyInputs]
) -> None:
    """A change of one input changes its tokens alone; the instruction also changes those of cameras."""
    inputs = make_inputs(1, 1)
    inputs.previous_action_valid.fill_(True)
    changed = {
        "head": replace(inputs, images={**inputs.images, "head": 255 - inputs.images["head"]}),
        "wrist": replace(inputs, images={**inputs.images, "wrist": 255 - inputs.images["wrist"]}),
        "joints.left": replace(inputs, proprioception={"joints.left": torch.ones(1, 1, 2)}),
        "previous action": replace(inputs, previous_action=inputs.previous_action + 1),
        "instruction": replace(inputs, language=-inputs.language),
    }
    sources = policy.token_sources
    assert list(sources) == list(changed)
    assert [number for where in sources.values() for number in range(where.start, where.stop)] == [
        *range(7)
    ]
    with torch.no_grad():
        before = policy.encode(inputs)[0, 0]
        for name, other in changed.items():
            moved = (policy.encode(other)[0, 0] - before).abs().amax(dim=1) > 1e-4
            wanted = torch.zeros(INPUTS, dtype=torch.bool)
            for touched in (name, *(("head", "wrist") if name == "instruction" else ())):
                wanted[sources[touched]] = True
            assert torch.equal(moved, wanted), name


@pytest.mark.parametrize("which", ["read", "write"])
def test_image_map_shows_the_cell_that_was_looked_at(
    policy: Policy, look: Callable[[Policy], MemoryAttention], which: Which
) -> None:
    policy.camera_tokens[1].summarizer = LooksAt(1 * 4 + 2, 2)  # row 1, column 2 of the 4 x 4 map
    attention = look(policy)
    shares = attention.shares(which)
    cells = attention.image_map("wrist", which)
    assert cells[1, 2] == pytest.approx(shares["wrist"])
    assert np.count_nonzero(cells) == 1
    assert np.count_nonzero(attention.image_map("head", which)) > 1


def test_cells_look_where_the_network_does() -> None:
    """The centre of the pixels that affect a feature is at `cell_centres`, not in its square's centre."""
    torch.manual_seed(0)
    vision = VisionConfig(width_coefficient=0.5, depth_coefficient=0.5, reduction=8, norm="group")
    network, image = (
        film_efficientnet(vision, 8, (72, 64)),
        torch.rand(1, 3, 72, 64, requires_grad=True),
    )
    features = network(image, torch.zeros(1, 8))
    assert features.shape[-2:] == (9, 8)
    row, column = 4, 4
    energy = torch.zeros(72, 64, dtype=torch.float64)
    for _ in range(8):
        cell = (features[0, :, row, column] * torch.randn(features.shape[1])).sum()
        energy += torch.autograd.grad(cell, image, retain_graph=True)[0][0].square().sum(dim=0)
    rows, columns = (energy.sum(dim=axis) / energy.sum() for axis in (1, 0))
    places = [float((part * (torch.arange(len(part)) + 0.5)).sum()) for part in (rows, columns)]
    expected = [cell_centres(72, 9)[row], cell_centres(64, 8)[column]]
    assert places == pytest.approx(expected, abs=1.75)  # the squares' middles are 3.5 pixels off


def test_cell_centres_by_hand() -> None:
    np.testing.assert_array_equal(
        cell_centres(8, 4), [1.5, 3.5, 5.5, 7.5]
    )  # even: padded at the end alone
    np.testing.assert_array_equal(
        cell_centres(7, 4), [0.5, 2.5, 4.5, 6.5]
    )  # odd: padded on both sides
    np.testing.assert_array_equal(cell_centres(8, 2), [3.5, 7.5])
    np.testing.assert_array_equal(cell_centres(5, 5), np.arange(5) + 0.5)


def test_outputs_are_the_same_inside_and_no_hook_stays(
    policy: Policy, observe: Observe, embedding: np.ndarray
) -> None:
    def episode(recorded: bool) -> dict[str, np.ndarray]:
        runner.reset("open the drawer", embedding=embedding)
        with record_attention(policy) if recorded else nothing():
            for tick in range(4):
                action = runner.step(observe(tick))
        return {"action": action.probabilities, **runner.snapshot()}

    @contextmanager
    def nothing() -> Iterator[None]:
        yield

    runner = PolicyRunner(policy, engine="torch")
    inside, outside = episode(True), episode(False)
    assert all(np.array_equal(inside[name], outside[name]) for name in inside)
    with pytest.raises(RuntimeError, match="fell over"), record_attention(policy):
        raise RuntimeError("fell over")
    assert not any(module._forward_hooks for module in policy.modules())


def test_concatenation_moves_tokens(
    spec: PolicySpec, config: PolicyConfig, look: Callable[[Policy], MemoryAttention]
) -> None:
    attention = look(with_core(spec, config, write="concatenate"))
    expected = np.zeros((MEMORY, MEMORY + INPUTS + READ), np.float32)
    expected[[0, 1, 2, 3], [3, 11, 12, 13]] = (
        1  # the newest of the old memory, and the three outputs
    )
    np.testing.assert_array_equal(attention.write, expected)
    assert attention.shares("write")["outputs"] == 0.75


@pytest.mark.parametrize(
    "changes",
    [
        {"write": "gated"},
        {"write": "ring"},
        {"write": "gated", "read": "attend"},
        {"process_memory": True},
    ],
)
def test_options_beyond_the_paper_are_recorded(
    spec: PolicySpec,
    config: PolicyConfig,
    look: Callable[[Policy], MemoryAttention],
    changes: dict[str, Any],
) -> None:
    attention = look(with_core(spec, config, **changes))
    assert attention.write is not None
    assert attention.write.shape == (MEMORY, MEMORY + INPUTS + READ)
    assert attention.read.shape == (READ, MEMORY + INPUTS)
    for rows in (attention.read, attention.write):
        np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-6)
    assert (attention.write[:, :MEMORY].sum(axis=1).mean() > 0.6) == (
        "write" in changes
    )  # these start by keeping


def test_a_write_of_the_inputs_alone_has_no_share_of_the_outputs(
    spec: PolicySpec, config: PolicyConfig, look: Callable[[Policy], MemoryAttention]
) -> None:
    attention = look(with_core(spec, config, write="gated", write_outputs=False))
    assert "outputs" not in attention.shares("write")
    assert sum(attention.shares("write").values()) == pytest.approx(1)
    assert attention.image_map("head", "write").shape == (4, 4)


def test_erase_and_add_has_slots_and_no_write_attention(
    spec: PolicySpec, config: PolicyConfig, look: Callable[[Policy], MemoryAttention]
) -> None:
    attention = look(with_core(spec, config, write="erase_add", initial_memory="learned"))
    assert attention.write is None
    assert attention.slots is not None
    assert attention.slots.shape[1] == MEMORY
    np.testing.assert_allclose(attention.slots.sum(axis=1), 1, atol=1e-6)
    assert attention.shares("read")["memory"] > 0
    for ask in (lambda: attention.shares("write"), lambda: attention.image_map("head", "write")):
        with pytest.raises(UserError, match="erase-and-add"):
            ask()


def test_a_core_without_token_memory(policy: Policy) -> None:
    policy.core = Forgetful()
    with (
        pytest.raises(UserError, match=r"Forgetful.*Token Turing Machine"),
        record_attention(policy),
    ):
        pass


@pytest.mark.parametrize("made_inside", [False, True])
def test_a_compiled_copy_is_not_seen(
    policy: Policy, observe: Observe, embedding: np.ndarray, made_inside: bool
) -> None:
    """Compilation of the copy runs the modules of the policy, which must not be recorded as a tick."""
    runner = PolicyRunner(policy, engine="torch" if made_inside else "openvino")
    with record_attention(policy) as record:
        runner = PolicyRunner(policy, engine="openvino") if made_inside else runner
        runner.reset("open the drawer", embedding=embedding)
        runner.step(observe(0))
        with pytest.raises(UserError, match='engine="torch"'):
            _ = record.latest


def test_only_one_robot_at_a_time(
    policy: Policy, make_inputs: Callable[[int, int], PolicyInputs]
) -> None:
    with record_attention(policy), pytest.raises(UserError, match="one robot"):
        policy.step(make_inputs(2, 1), policy.initial_state(2))


def test_unknown_camera(policy: Policy, look: Callable[[Policy], MemoryAttention]) -> None:
    with pytest.raises(UserError, match=r"ceiling.*head, wrist"):
        look(policy).image_map("ceiling")
