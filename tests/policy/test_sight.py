"""The sight memory: its recurrence, what it keeps and finds, and the policy around it."""

from __future__ import annotations

import math
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
from ttm.policy.config import SIGHT_CELLS
from ttm.policy.inputs import FeatureMaps
from ttm.policy.policy import cells_of
from ttm.policy.sight import (
    EMBEDDING,
    EVENTS,
    LOG_WEIGHT,
    MEAN,
    SOURCES,
    STORED,
    ContentMemory,
    SightMemory,
)

WIDTH, SELECTORS = 24, 3


@pytest.fixture
def sight() -> SightMemory:
    return SightMemory(WIDTH, SELECTORS)


def scenes(count: int) -> Tensor:
    return torch.rand(count, 3, SIGHT_CELLS, SIGHT_CELLS)


def frame(*patches: tuple[tuple[float, float, float], int, int]) -> Tensor:
    """Return a grey frame, with patches of 2 x 2 cells: colour, row, column."""
    made = torch.full((3, SIGHT_CELLS, SIGHT_CELLS), 0.4)
    for colour, row, column in patches:
        made[:, row : row + 2, column : column + 2] = torch.tensor(colour)[:, None, None]
    return made


def test_ticks_at_once_equal_ticks_one_by_one(sight: SightMemory) -> None:
    colours, index = scenes(4), torch.randint(0, 4, (2, 7))
    starts = torch.zeros(2, 7, dtype=torch.bool)
    starts[:, 0] = starts[1, 4] = True
    state = {name: value + 0.3 for name, value in sight.initial_state(2).items()}
    with torch.no_grad():
        tokens, last = sight(colours, index, state, starts)
        for tick in range(7):
            now = slice(tick, tick + 1)
            one, state = sight(colours, index[:, now], state, starts[:, now])
            assert_same_but_rounding(one, tokens[:, now])
    for name, value in last.items():
        assert_same_but_rounding(value, state[name])
    assert tokens.shape == (2, 7, sum(sight.group_sizes), WIDTH)


def test_how_often_something_was_seen_can_be_told(sight: SightMemory) -> None:
    """A scene that is seen again leaves its mean as it is. The amount grows by the logarithm of 3."""
    with torch.no_grad():
        index = torch.zeros(1, 3, dtype=torch.int64)
        tokens, _ = sight(scenes(1), index, sight.initial_state(1), None)
        _, seen, _ = (tokens[0, 2] - tokens[0, 0]).view(len(SOURCES), SELECTORS, WIDTH)
        of_amount = sight.tokens[1].weight[:, -1] * math.log(3)
    torch.testing.assert_close(seen, of_amount.expand_as(seen), rtol=0, atol=1e-5)
    assert of_amount.abs().max() > 0


def test_what_was_seen_is_the_mean_over_all_cells_of_all_ticks(sight: SightMemory) -> None:
    """With equal logits it is the plain mean, however long ago the first tick was."""
    torch.nn.init.zeros_(sight.select.weight)
    torch.nn.init.zeros_(sight.select.bias)
    colours = scenes(50)
    with torch.no_grad():
        _, state = sight(colours, torch.arange(50)[None], sight.initial_state(1), None)
        flat = (colours.flatten(2).transpose(1, 2) - 0.5) * 4
        mean = (sight.colour(flat) + sight.shade(flat)).mean(dim=(0, 1))
    torch.testing.assert_close(state[MEAN][0, 0, :EMBEDDING], mean)
    torch.testing.assert_close(
        state[LOG_WEIGHT][0], torch.full((SELECTORS,), 50.0 * SIGHT_CELLS**2).log()
    )


def test_a_remembered_colour_is_found_before_anything_is_learned() -> None:
    """In most draws of the weights: the red patch is found wherever it stands, not the blue one."""
    red, blue = (0.9, 0.1, 0.1), (0.1, 0.1, 0.9)
    shown, found = frame((red, 2, 8))[None], 0
    for seed in range(10):
        torch.manual_seed(seed)
        sight = SightMemory(WIDTH, 1)
        places = [(4, 2), (10, 13), (14, 6)]
        for row, column in places:
            scene = frame((red, row, column), (blue, column, row))[None]
            with torch.no_grad():
                flat = (shown[:, :, 2, 8] - 0.5) * 4
                seen = torch.zeros(1, 1, EMBEDDING + 32)
                seen[..., :EMBEDDING] = sight.colour(flat) + sight.shade(flat)
                cells = (scene.flatten(2).transpose(1, 2) - 0.5) * 4
                here = sight.colour(cells) + sight.shade(cells)
                where = sight._found(seen, here, here.mean(dim=1), torch.tensor([0]))[
                    0, 0, EMBEDDING:
                ]
                nearest = int((sight.positions - where).square().sum(dim=1).argmin())
            at = divmod(nearest, SIGHT_CELLS)
            found += abs(at[0] - row) <= 1 and abs(at[1] - column) <= 1
    assert found >= 24  # of 30


def test_the_gradient_of_the_last_tick_reaches_the_first(sight: SightMemory) -> None:
    colours = scenes(200).requires_grad_()
    tokens, _ = sight(colours, torch.arange(200)[None], sight.initial_state(1), None)
    tokens[0, -1].sum().backward()
    assert colours.grad is not None
    of_ticks = colours.grad.flatten(1).norm(dim=1)
    assert of_ticks[0] > 0.1 * of_ticks[-2]


CHANNELS, CELLS = 5, 4
COLOURS = torch.eye(CHANNELS) * 6 - 1
"""What a patch shows, (CHANNELS, CHANNELS); channel 0 marks what the memory of `content` keeps."""


@pytest.fixture
def content() -> ContentMemory:
    """A memory that opens where a cell has much of channel 0."""
    made = ContentMemory(WIDTH, SELECTORS, CHANNELS, CELLS).eval()
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


def remembered(memory: ContentMemory, *frames: Tensor) -> dict[str, Tensor]:
    maps, state = torch.stack(frames), memory.initial_state(1)
    return memory(maps, torch.arange(len(frames))[None], state, None)[1]


def test_slots_are_written_at_once_as_tick_by_tick(content: ContentMemory) -> None:
    """Whatever opens when, and wherever a window or an episode begins."""
    frames = [scene(), *(scene((colour, colour)) for colour in (1, 2, 3)), scene((1, 9))]
    maps, initial = torch.stack(frames), content.initial_state(2)
    generator = torch.Generator().manual_seed(0)
    events = set()
    for _ in range(10):
        index = torch.randint(0, len(maps), (2, 12), generator=generator)
        starts = torch.rand(2, 12, generator=generator) < 0.1
        with torch.no_grad():
            _, state = content(maps, index.flip(1), initial, None)
            tokens, last = content(maps, index, state, starts)
            for tick in range(12):
                now, reset = slice(tick, tick + 1), starts[:, tick]
                state = {
                    n: torch.where(reset.view(2, *[1] * (v.dim() - 1)), initial[n], v)
                    for n, v in state.items()
                }
                one, state = content(maps, index[:, now], state, None)
                assert_same_but_rounding(one, tokens[:, now])
        for name, value in last.items():
            assert_same_but_rounding(value, state[name])
        events |= set(last[EVENTS].tolist())
    assert len(events) > 4


def test_slots_hold_the_last_things_in_their_order(content: ContentMemory) -> None:
    """However long each is shown, with a pause or without, and the same thing again after a pause."""
    one, two, three, none = scene((1, 3)), scene((2, 3)), scene((3, 3)), scene((4, 3), kept=False)
    last = remembered(content, one, one, two, none, none, three, three, none, three, none)
    assert last[EVENTS].item() == 4
    held = last[STORED][0, :, 1:CHANNELS].argmax(dim=1) + 1
    assert held.tolist() == [3, 3, 2]
    nothing = remembered(content, none, none)
    assert not nothing[STORED].any()
    assert nothing[EVENTS].item() == 0


def test_what_a_slot_holds_stays_to_the_bit(content: ContentMemory) -> None:
    """However many ticks pass in which nothing is kept."""
    shown, hidden = scene((2, 5)), scene((1, 5), kept=False)
    before = remembered(content, shown)
    maps, index = hidden[None], torch.zeros(1, 2000, dtype=torch.int64)
    _, after = content(maps, index, before, None)
    assert torch.equal(after[STORED], before[STORED])
    assert after[EVENTS].item() == 1


def test_a_remembered_thing_is_found_where_it_is_now() -> None:
    """In all draws of the weights: wherever it is, before anything is learned."""
    for seed in range(10):
        torch.manual_seed(seed)
        memory = ContentMemory(WIDTH, 1, CHANNELS, CELLS)
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


def test_one_that_has_not_learned_keeps_nothing(content: ContentMemory) -> None:
    made = ContentMemory(WIDTH, SELECTORS, CHANNELS, CELLS)
    assert made.is_new
    assert not content.is_new
    assert not remembered(made, scene((1, 3)))[STORED].any()


@pytest.fixture(params=["colours", "content"])
def sighted(spec: PolicySpec, config: PolicyConfig, request: pytest.FixtureRequest) -> Policy:
    made = Policy(spec, replace(config, sight_tokens=2, sight=request.param)).eval()
    if isinstance(made.sight, ContentMemory):
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


def test_its_colours_can_be_given_as_well_as_its_frames(
    sighted: Policy, make_inputs: Callable[[int, int], PolicyInputs]
) -> None:
    inputs = make_inputs(2, 3)
    frames = inputs.images[sighted.spec.cameras[0].name].flatten(0, 1)
    assert sighted.sight is not None
    assert sighted.vision is not None
    colours = FeatureMaps(
        cells_of(sighted.sight, sighted.vision, frames), torch.arange(6).view(2, 3)
    )
    with torch.no_grad():
        expected, _ = sighted(inputs)
        torch.testing.assert_close(sighted(replace(inputs, colours=colours))[0], expected)
        other = replace(colours, index=colours.index.flip(1))
        assert not torch.allclose(sighted(replace(inputs, colours=other))[0], expected)


def test_the_number_of_cells_can_be_chosen(
    spec: PolicySpec,
    config: PolicyConfig,
    tmp_path: Path,
    make_inputs: Callable[[int, int], PolicyInputs],
) -> None:
    """It is kept by the checkpoint, and the same weights serve any number."""
    policies = [
        Policy(spec, replace(config, sight_tokens=2, sight_cells=cells)).eval()
        for cells in (SIGHT_CELLS, 5)
    ]
    policies[1].load_state_dict(policies[0].state_dict())
    save_checkpoint(tmp_path / "five.safetensors", policies[1], {})
    read = load_checkpoint(tmp_path / "five.safetensors")[0]
    assert read.config.sight_cells == 5
    inputs = make_inputs(2, 3)
    with torch.no_grad():
        sixteen, five, again = (policy(inputs)[0] for policy in (*policies, read))
    assert torch.equal(five, again)
    assert not torch.allclose(five, sixteen)
    told = [policy.config.to_dict() for policy in policies]
    assert "sight_cells" not in told[0], "versions without this option read such a checkpoint"
    assert told[1]["sight_cells"] == 5


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
