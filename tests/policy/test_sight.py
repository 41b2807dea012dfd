"""The sight memory: its recurrence, what it keeps and finds, and the policy around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rounding import assert_same_but_rounding
from torch import Tensor

from ttm.policy import (
    Policy,
    PolicyConfig,
    PolicyInputs,
    PolicyRunner,
    PolicySpec,
    UserError,
    load_checkpoint,
    save_checkpoint,
)
from ttm.policy.inputs import FeatureMaps
from ttm.policy.sight import EVENTS, SOURCES, STORED, SightMemory

WIDTH, SLOTS = 24, 3
CHANNELS, CELLS = 5, 4
COLOURS = torch.eye(CHANNELS) * 6 - 1
"""What a patch shows, (CHANNELS, CHANNELS); channel 0 marks what the memory keeps."""


@pytest.fixture
def memory() -> SightMemory:
    """A memory that opens where a cell has much of channel 0."""
    made = SightMemory(WIDTH, SLOTS, CHANNELS, CELLS).eval()
    with torch.no_grad():
        made.scale.fill_(1.0)
        for each in made.selector():
            each.zero_()
        made.of_cell.weight[0, 0] = made.select.weight[0, 0] = 3.0
        made.of_cell.bias.fill_(-9.0)
        made.select.bias.fill_(-1.0)
    return made


def scene(*patches: tuple[int, int], kept: bool = True) -> Tensor:
    """Return a frame, (CHANNELS, CELLS, CELLS), with colours in cells, and perhaps marks to keep them."""
    made = torch.zeros(CHANNELS, CELLS**2)
    for colour, cell in patches:
        made[:, cell] = COLOURS[colour]
        made[0, cell] = 6.0 * kept
    return made.view(CHANNELS, CELLS, CELLS)


def remembered(memory: SightMemory, *frames: Tensor) -> dict[str, Tensor]:
    maps, state = torch.stack(frames), memory.initial_state(1)
    return memory(maps, torch.arange(len(frames))[None], state, None)[1]


def test_slots_are_written_at_once_as_tick_by_tick(memory: SightMemory) -> None:
    """Whatever opens when, and wherever a window or an episode begins."""
    frames = [scene(), *(scene((colour, colour)) for colour in (1, 2, 3)), scene((1, 9))]
    maps, initial = torch.stack(frames), memory.initial_state(2)
    generator = torch.Generator().manual_seed(0)
    events = set()
    for _ in range(10):
        index = torch.randint(0, len(maps), (2, 12), generator=generator)
        starts = torch.rand(2, 12, generator=generator) < 0.1
        with torch.no_grad():
            _, state = memory(maps, index.flip(1), initial, None)
            tokens, last = memory(maps, index, state, starts)
            for tick in range(12):
                now, reset = slice(tick, tick + 1), starts[:, tick]
                state = {
                    n: torch.where(reset.view(2, *[1] * (v.dim() - 1)), initial[n], v)
                    for n, v in state.items()
                }
                one, state = memory(maps, index[:, now], state, None)
                assert_same_but_rounding(one, tokens[:, now])
        for name, value in last.items():
            assert_same_but_rounding(value, state[name])
        events |= set(last[EVENTS].tolist())
    assert len(events) > 4


def test_slots_hold_the_last_things_in_their_order(memory: SightMemory) -> None:
    """However long each is shown, with a pause or without, and the same thing again after a pause."""
    one, two, three, none = scene((1, 3)), scene((2, 3)), scene((3, 3)), scene((4, 3), kept=False)
    last = remembered(memory, one, one, two, none, none, three, three, none, three, none)
    assert last[EVENTS].item() == 4
    held = last[STORED][0, :, 1:CHANNELS].argmax(dim=1) + 1
    assert held.tolist() == [3, 3, 2]
    nothing = remembered(memory, none, none)
    assert not nothing[STORED].any()
    assert nothing[EVENTS].item() == 0


def test_what_a_slot_holds_stays_to_the_bit(memory: SightMemory) -> None:
    """However many ticks pass in which nothing is kept."""
    shown, hidden = scene((2, 5)), scene((1, 5), kept=False)
    before = remembered(memory, shown)
    maps, index = hidden[None], torch.zeros(1, 2000, dtype=torch.int64)
    _, after = memory(maps, index, before, None)
    assert torch.equal(after[STORED], before[STORED])
    assert after[EVENTS].item() == 1


def test_a_remembered_thing_is_found_where_it_is_now() -> None:
    """In all draws of the weights: wherever it is, before anything is learned."""
    for seed in range(10):
        torch.manual_seed(seed)
        memory = SightMemory(WIDTH, 1, CHANNELS, CELLS)
        memory.scale.fill_(1.0)
        memory.select.bias.data.fill_(99.0)  # always open
        looks: list[Tensor] = []
        memory.look.register_forward_hook(lambda _, args, out, looks=looks: looks.append(out))
        _, state = memory(
            scene((2, 3), kept=False)[None], torch.zeros(1, 1).long(), memory.initial_state(1), None
        )
        state[STORED][0, 0, :CHANNELS] = COLOURS[2]
        memory.select.bias.data.fill_(-99.0)
        for cell in (0, 7, 14):
            now = scene((2, cell), (3, 15 - cell), kept=False)
            memory(now[None], torch.zeros(1, 1).long(), state, None)
            assert int(looks[-1][0, 0].argmax()) == cell


def test_one_that_has_not_learned_keeps_nothing(memory: SightMemory) -> None:
    made = SightMemory(WIDTH, SLOTS, CHANNELS, CELLS)
    assert made.is_new
    assert not memory.is_new
    assert not remembered(made, scene((1, 3)))[STORED].any()


@pytest.fixture
def sighted(spec: PolicySpec, config: PolicyConfig) -> Policy:
    made = Policy(spec, replace(config, sight_tokens=2)).eval()
    assert made.sight is not None
    made.sight.scale.fill_(3.0)
    made.sight.select.bias.data.fill_(99.0)  # always open
    return made


def test_a_policy_with_sight_runs_ticks_and_windows_alike(
    sighted: Policy, make_inputs: Callable[[int, int], PolicyInputs]
) -> None:
    inputs = make_inputs(2, 5)
    with torch.no_grad():
        raw, last = sighted(inputs)
        state = sighted.initial_state(2)
        for tick in range(5):
            one, state = sighted.step(inputs.at_ticks(slice(tick, tick + 1)), state)
            torch.testing.assert_close(one[:, 0], raw[:, tick], rtol=0, atol=1e-5)
    assert set(last) == set(state) == set(sighted.initial_state(1))


def test_what_it_sees_can_be_given_as_well_as_its_frames(
    sighted: Policy, make_inputs: Callable[[int, int], PolicyInputs]
) -> None:
    inputs = make_inputs(2, 3)
    frames = inputs.images[sighted.spec.cameras[0].name].flatten(0, 1)
    cells = FeatureMaps(sighted.cells_of(frames), torch.arange(6).view(2, 3))
    with torch.no_grad():
        expected, _ = sighted(inputs)
        torch.testing.assert_close(sighted(replace(inputs, cells=cells))[0], expected)
        other = replace(cells, index=cells.index.flip(1))
        assert not torch.allclose(sighted(replace(inputs, cells=other))[0], expected)


def test_every_parameter_of_it_learns(
    sighted: Policy, make_inputs: Callable[[int, int], PolicyInputs]
) -> None:
    raw, _ = sighted.train()(make_inputs(4, 3))
    torch.stack(list(sighted.loss(raw, torch.rand(4, 3, 1, 4)).values())).sum().backward()
    parameters = sighted.sight.named_parameters()  # type: ignore[union-attr]
    learns = [(name, p) for name, p in parameters if p.requires_grad]  # what to keep learns apart
    assert [name for name, p in learns if p.grad is None or not p.grad.any()] == []


def test_its_tokens_have_names(sighted: Policy) -> None:
    sources = sighted.token_sources
    assert list(sources)[-3:] == list(SOURCES)
    assert sources[SOURCES[-1]].stop == sighted.num_tokens


def test_a_checkpoint_keeps_it_and_a_runner_carries_it(
    sighted: Policy, tmp_path: Path, observe: Callable[[int], dict[str, Tensor]]
) -> None:
    sighted.known_instructions["go"] = torch.ones(sighted.config.embedding_size).numpy()
    save_checkpoint(tmp_path / "p.safetensors", sighted, {})
    loaded, _ = load_checkpoint(tmp_path / "p.safetensors")
    assert loaded.config == sighted.config
    runner = PolicyRunner(loaded, engine="torch")
    runner.reset("go")
    before = runner.snapshot()
    runner.step(observe(0))  # type: ignore[arg-type]
    norms = runner.memory_norms
    assert norms[-2:].any()
    runner.restore(before)
    assert not runner.memory_norms[-2:].any()


def test_a_spec_without_cameras_is_refused(spec: PolicySpec, config: PolicyConfig) -> None:
    with pytest.raises(UserError, match="needs a camera"):
        Policy(replace(spec, cameras=()), replace(config, sight_tokens=2))
