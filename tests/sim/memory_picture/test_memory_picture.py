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
from ttm.policy.memory_attention import Which, cell_centres
from ttm.sim.memory_picture import MemoryTrace, SeenEpisode, draw_strip, heat_over, trace_memory

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
    moments = {"hidden": 2, "go": 5}
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
    charts = [axes for axes in figure.axes if axes.get_xlim()[1] > TICKS - 1 and axes.lines]
    solid = [[line for line in axes.lines if line.get_linestyle() == "-"] for axes in charts]
    places = [[np.unique(line.get_xdata()) for line in lines] for lines in solid]
    return [[float(x[0]) for x in each if len(x) == 1] for each in places]


def test_what_happened_is_marked_in_all_charts(trace: MemoryTrace) -> None:
    figure = draw_strip(trace, columns=4)
    assert vertical_lines(figure) == [[1.5, 4.5]] * 4
    named = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert named == ["hidden", "go"]
    plain = replace(trace, seen=replace(trace.seen, moments={}))
    assert vertical_lines(draw_strip(plain, columns=4)) == [[]] * 4


@pytest.mark.parametrize("which", ["read", "write"])
def test_heat_lies_where_the_cell_looks(which: Which) -> None:
    frame, shares = np.full((64, 64, 3), 100, np.uint8), np.zeros((8, 8), np.float32)
    shares[2, 5] = 0.1
    shown = heat_over(frame, shares, 0.1, which, (192, 192))
    assert shown.shape == (192, 192, 3)
    cold = shown[0, 0]
    assert (cold == cold[0]).all(), "grey where nothing was read"
    heat = np.abs(shown.astype(int) - cold).sum(axis=2)
    row, column = np.argwhere(heat == heat.max()).mean(axis=0) / 3
    assert (row, column) == pytest.approx((cell_centres(64, 8)[2], cell_centres(64, 8)[5]), abs=0.7)


def test_other_cores_cannot_be_looked_into(seen: SeenEpisode) -> None:
    config = replace(PRESETS["tiny"], core=LstmConfig())
    with pytest.raises(UserError, match="LstmCore, which has no token memory"):
        trace_memory(Policy(SPEC, config), seen)
