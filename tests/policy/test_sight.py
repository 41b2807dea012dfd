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
    assert tokens.shape == (2, 7, sight.num_tokens, WIDTH)


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


CHANNELS, CONDITION = 5, 7


@pytest.fixture
def content() -> ContentMemory:
    made = ContentMemory(WIDTH, SELECTORS, CHANNELS, CONDITION, cells=4).eval()
    with torch.no_grad():
        made.keep.sub_(2.0)  # so that gates are half open
    return made


def test_slots_are_written_at_once_as_tick_by_tick(content: ContentMemory) -> None:
    maps, index = torch.randn(4, CHANNELS, 4, 4), torch.randint(0, 4, (2, 7))
    starts = torch.zeros(2, 7, dtype=torch.bool)
    starts[:, 0] = starts[1, 4] = True
    code = torch.randn(2, CONDITION)
    state = {name: value + 0.3 for name, value in content.initial_state(2).items()}
    with torch.no_grad():
        tokens, last = content(maps, index, state, starts, code)
        for tick in range(7):
            now = slice(tick, tick + 1)
            if starts[:, tick].any():
                empty = content.initial_state(2)
                reset = starts[:, tick]
                state = {
                    n: torch.where(reset.view(2, *[1] * (v.dim() - 1)), empty[n], v)
                    for n, v in state.items()
                }
            one, state = content(maps, index[:, now], state, None, code)
            assert_same_but_rounding(one, tokens[:, now])
    for name, value in last.items():
        assert_same_but_rounding(value, state[name])


def test_a_frame_that_lasts_is_one_that_repeats(content: ContentMemory) -> None:
    maps, code = torch.randn(3, CHANNELS, 4, 4), torch.randn(1, CONDITION)
    with torch.no_grad():
        index = torch.tensor([[0, 1, 1, 1, 1, 2]])
        _, every = content(maps, index, content.initial_state(1), None, code)
        lasting = torch.tensor([[1.0, 4.0, 1.0]])
        _, once = content(
            maps, torch.arange(3)[None], content.initial_state(1), None, code, lasting
        )
    assert_same_but_rounding(once[STORED], every[STORED])


def test_closed_slots_keep_what_they_hold_to_the_bit(content: ContentMemory) -> None:
    """However many ticks pass: a gate that is nearly shut is shut."""
    with torch.no_grad():
        content.keep.add_(12.0)
        state = {name: torch.randn_like(value) for name, value in content.initial_state(1).items()}
        index, code = torch.randint(0, 4, (1, 2000)), torch.randn(1, CONDITION)
        _, last = content(torch.randn(4, CHANNELS, 4, 4), index, state, None, code)
    assert torch.equal(last[STORED], state[STORED])


def test_a_slot_that_is_shut_can_learn_to_open(content: ContentMemory) -> None:
    with torch.no_grad():
        content.keep.add_(6.0)
    index, code = torch.arange(4)[None], torch.randn(1, CONDITION)
    maps, state = torch.randn(4, CHANNELS, 4, 4), content.initial_state(1)
    _, last = content(maps, index, state, None, code)
    assert not last[STORED].any()
    last[STORED].sum().backward()
    assert content.keep.grad is not None
    assert content.keep.grad.all()


@pytest.fixture(params=["colours", "content"])
def sighted(spec: PolicySpec, config: PolicyConfig, request: pytest.FixtureRequest) -> Policy:
    return Policy(spec, replace(config, sight_tokens=2, sight=request.param)).eval()


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
    assert [name for name, p in parameters if p.grad is None or not p.grad.any()] == []


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
    assert norms[-2:].all()
    runner.restore(before)
    assert not runner.memory_norms[-2:].any()


def test_a_spec_without_cameras_is_refused(spec: PolicySpec, config: PolicyConfig) -> None:
    with pytest.raises(UserError, match="needs a camera"):
        Policy(replace(spec, cameras=()), replace(config, sight_tokens=2))
