"""The picture of a memory: replayed from what was seen, with heat and marks in the right places."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from ttm.policy import (
    PRESETS,
    ActionPart,
    CameraSpec,
    Policy,
    PolicyRunner,
    PolicySpec,
    ProprioceptionSpec,
    UserError,
)
from ttm.policy.cores.baselines import LstmConfig
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.policy.memory_attention import Which, cell_centres
from ttm.sim.memory_picture import (
    GAP,
    GO,
    MemoryTrace,
    SeenEpisode,
    draw_strip,
    heat_over,
    trace_memory,
)

TICKS = 7
SPEC = PolicySpec(
    robot="small",
    cameras=(CameraSpec("head", 16, 16),),
    proprioception=(ProprioceptionSpec("joints", ("shoulder (rad)",)),),
    actions=(ActionPart("arm", 1, "m"),),
    rate_hz=5.0,
)


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.manual_seed(0)
    return Policy(SPEC, PRESETS["tiny"])


@pytest.fixture(scope="module")
def seen() -> SeenEpisode:
    rng = np.random.default_rng(0)
    observations = {
        "head": rng.integers(0, 256, (TICKS, 16, 16, 3), dtype=np.uint8),
        "joints": rng.normal(size=(TICKS, 1)).astype(np.float32),
    }
    embedding = rng.normal(size=384).astype(np.float32)
    moments = {GAP: 2, GO: 5}
    return SeenEpisode("an episode", "do it", observations, embedding, moments)


@pytest.fixture(scope="module")
def trace(policy: Policy, seen: SeenEpisode) -> MemoryTrace:
    return trace_memory(policy, seen)


def test_the_replay_is_what_the_policy_did(
    policy: Policy, seen: SeenEpisode, trace: MemoryTrace
) -> None:
    runner = PolicyRunner(policy, engine="torch")
    runner.reset("do it", embedding=seen.embedding)
    for tick in range(TICKS):
        runner.step({name: values[tick] for name, values in seen.observations.items()})
        np.testing.assert_array_equal(trace.norms[tick], runner.memory_norms)
    assert trace.num_ticks == TICKS


def test_the_replay_knows_what_the_robot_did(
    policy: Policy, seen: SeenEpisode, trace: MemoryTrace
) -> None:
    executed = np.full((TICKS, policy.spec.action_size), 0.5, np.float32)
    told = trace_memory(policy, replace(seen, executed=executed))
    runner = PolicyRunner(policy, engine="torch")
    runner.reset("do it", embedding=seen.embedding)
    for tick in range(TICKS):
        runner.step({name: values[tick] for name, values in seen.observations.items()})
        np.testing.assert_array_equal(told.norms[tick], runner.memory_norms)
        runner.executed(executed[tick])
    assert not np.array_equal(told.norms[1:], trace.norms[1:])


def vertical_lines(figure: Figure) -> list[list[float]]:
    """Where each chart over time has solid vertical lines."""
    charts = [axes for axes in figure.axes if axes.get_title(loc="left")]
    solid = [[line for line in axes.lines if line.get_linestyle() == "-"] for axes in charts]
    places = [[np.unique(line.get_xdata()) for line in lines] for lines in solid]
    return [[float(x[0]) for x in each if len(x) == 1] for each in places]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_what_happened_is_marked_in_all_charts(trace: MemoryTrace) -> None:
    figure = draw_strip(trace, columns=4)
    assert vertical_lines(figure) == [[1.5, 4.5]] * 3
    assert words(figure)[:3] == ["cue", "gap", "go"]
    assert {"tick 1", "tick 5"} <= {text.get_text() for text in figure.texts}
    plain = replace(trace, seen=replace(trace.seen, moments={}))
    assert vertical_lines(draw_strip(plain, columns=4)) == [[]] * 3
    assert "cue" not in words(draw_strip(plain, columns=4))


def test_the_picture_is_of_one_size_and_names_its_policy(trace: MemoryTrace) -> None:
    figure = draw_strip(trace)
    assert (figure.get_size_inches() * figure.dpi).round().tolist() == [1200, 600]
    assert any("an episode" in text.get_text() for text in figure.texts)


def test_commands_differ_from_when_the_memory_is_erased(
    policy: Policy, seen: SeenEpisode, trace: MemoryTrace
) -> None:
    (change,) = (trace.changes[name] for name in trace.changes)
    assert trace.erased == 5
    assert (change[:5] == 0).all()
    assert (change[5:] > 0).all()
    without = replace(seen, moments={})
    assert trace_memory(policy, without).erased == TICKS // 2


def test_a_ring_shows_which_slot_is_visited(seen: SeenEpisode) -> None:
    core = TokenTuringConfig(memory_size=3, process_size=2, num_layers=1, write="ring")
    config = replace(PRESETS["tiny"], core=core)
    trace = trace_memory(Policy(SPEC, config), seen)
    assert trace.written.argmax(axis=1).tolist() == [tick % 3 for tick in range(TICKS)]
    assert ((trace.written > 1e-6).sum(axis=1) == 1).all()


def test_a_sight_memory_shows_gates_and_places(seen: SeenEpisode) -> None:
    torch.manual_seed(0)
    config = replace(PRESETS["tiny"], sight_tokens=2)
    policy = Policy(SPEC, config).eval()
    assert policy.sight is not None
    policy.sight.scale.fill_(1.0)
    policy.sight.select.bias.data.fill_(99.0)  # always open
    trace = trace_memory(policy, seen)
    assert trace.gates is not None
    assert trace.gates.tolist() == [[1.0]] * TICKS
    for tick in trace.attention:
        assert tick.looks is not None
        assert len(tick.looks) == 3, "what is written, and where two slots are found"
        np.testing.assert_allclose(tick.looks.sum(axis=-1), 1, rtol=1e-5)
    figure = draw_strip(trace, columns=3)
    assert "When the sight memory is open" in [axes.get_title(loc="left") for axes in figure.axes]
    images = [axes for axes in figure.axes if axes.images and not axes.get_title(loc="left")]
    marked = [axes for axes in images if axes.lines]
    assert len(marked) == 3, "each image shows a square and a ring"


@pytest.mark.parametrize("which", ["read", "write"])
def test_heat_lies_where_the_cell_looks(which: Which) -> None:
    frame, shares = np.full((64, 64, 3), 100, np.uint8), np.zeros((8, 8), np.float32)
    shares[2, 5] = 0.1
    shown = heat_over(frame, shares, 0.1, which, (192, 192))
    assert shown.shape == (192, 192, 3)
    cold = shown[0, 0]
    assert (cold == 90).all(), "a little darker where nothing was read"
    heat = np.abs(shown.astype(int) - cold).sum(axis=2)
    row, column = np.argwhere(heat == heat.max()).mean(axis=0) / 3
    assert (row, column) == pytest.approx((cell_centres(64, 8)[2], cell_centres(64, 8)[5]), abs=0.7)


def test_other_cores_cannot_be_looked_into(seen: SeenEpisode) -> None:
    config = replace(PRESETS["tiny"], core=LstmConfig())
    with pytest.raises(UserError, match="LstmCore, which has no token memory"):
        trace_memory(Policy(SPEC, config), seen)
