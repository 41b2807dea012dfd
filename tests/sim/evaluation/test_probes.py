"""When each probe changes the memory, and to what: with an actor whose memory counts its ticks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest

from ttm.policy import UserError
from ttm.sim import make_env
from ttm.sim.condition import SAME_STATE, Condition, ProbeName
from ttm.sim.environment import Env, spec_of
from ttm.sim.probes import MOST_DONORS, PROBES, Memory, Noise, Probe, Trial, begin, find_donor
from ttm.sim.rollout import delayed, run_episode

GAP = 3
GO = 2 + GAP
"""The tick at which the point may move: the cue is shown for two ticks."""


class Counter:
    """Stands still. Its memory holds the reds and blues that it saw since it was empty."""

    def __init__(self) -> None:
        self.instructions: list[str] = []

    def reset(self, instruction: str) -> None:
        self.instructions.append(instruction)
        self._seen = np.zeros((1, 3))
        self.before: list[list[float]] = []

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        """Note the memory before this tick, then count what is seen: red, blue, and anything else."""
        self.before.append(self._seen[0].tolist())
        red, _, blue = observation["above"][0, 0].tolist()
        self._seen = self._seen + np.eye(3)[2 if red == blue else int(blue > red)]
        return np.zeros(2, np.float32)

    def executed(self, action: np.ndarray) -> None:
        self.did = action

    def memory(self) -> dict[str, np.ndarray]:
        return {"state.seen": self._seen.copy()}

    def set_memory(self, memory: Memory) -> None:
        self._seen = np.array(memory["state.seen"])


@pytest.fixture
def env(points: ModuleType) -> Env:
    return make_env("test/MemoryPoint-v0")


def trial(env: Env, probe: ProbeName, seed: int = 0, gap: int | None = GAP) -> Trial:
    return Trial(env, Counter(), "recall", seed, Condition(gap, probe, noise=0.5))


def memories(env: Env, probe: ProbeName) -> tuple[list[list[float]], Probe, Counter]:
    """Run initial state 0, whose cue is red, and return the memory before every tick."""
    ours = trial(env, probe)
    acting, actor = PROBES[probe](ours), ours.actor
    assert isinstance(actor, Counter)
    run_episode(
        env, actor, spec=spec_of(env), task="recall", seed=0, max_ticks=GO + 2, gap=GAP,
        on_tick=lambda _, info: acting.before_tick(info["tick"], info["go"]),
    )  # fmt: skip
    return actor.before, acting, actor


LIVE = [[0, 0, 0], [1, 0, 0], [2, 0, 0], [2, 0, 1], [2, 0, 2], [2, 0, 3], [2, 0, 4]]


def test_without_a_probe_the_memory_counts_everything(env: Env) -> None:
    assert memories(env, "live")[0] == LIVE


def test_zero_starts_every_tick_from_the_initial_memory(env: Env) -> None:
    assert memories(env, "zero")[0] == [[0, 0, 0]] * (GO + 2)


def test_erase_empties_the_memory_once_at_go(env: Env) -> None:
    assert memories(env, "erase")[0] == [*LIVE[:GO], [0, 0, 0], [0, 0, 1]]


def test_freeze_writes_nothing_in_the_gap(env: Env) -> None:
    """The cue is in the memory; the ticks between it and "go" are not, and those after it are."""
    assert memories(env, "freeze")[0] == [[0, 0, 0], [1, 0, 0], *[[2, 0, 0]] * 4, [2, 0, 1]]


def test_swap_takes_the_memory_of_the_next_state_of_another_cue(env: Env) -> None:
    before, probe, actor = memories(env, "swap")
    assert before == [*LIVE[:GO], [0, 2, 3], [0, 2, 4]]
    assert probe.donor is not None
    assert probe.donor.choice == "blue"
    cues = []
    for seed in range(probe.donor.seed + 1):
        _, info = env.reset(seed=seed, options={"task": "recall"})
        cues.append(info["right_choice"])
    assert cues == ["red"] * probe.donor.seed + ["blue"]
    assert len(actor.instructions) == 2, "the donor's episode, then this one"


def test_swap_takes_the_memory_of_the_same_state_under_another_cue(env: Env) -> None:
    """Of initial state 0 with a blue cue; the next state that asks for blue by itself is another."""
    ours = trial(env, "swap")
    ours = replace(ours, condition=replace(ours.condition, donor=SAME_STATE))
    probe = PROBES["swap"](ours)
    assert probe.donor is not None
    assert (probe.donor.seed, probe.donor.choice) == (0, "blue")
    assert isinstance(ours.actor, Counter)
    assert ours.actor.before == [[0, 0, 0], [0, 1, 0], [0, 2, 0], [0, 2, 1], [0, 2, 2]]
    _, info = begin(ours, 0, GAP)
    assert info["right_choice"] == "red", "the episode itself keeps its cue"


@pytest.mark.parametrize("choices", [(), ("red", "blue")])
def test_an_environment_that_cannot_set_its_cue_says_so(
    env: Env, choices: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells no choices, or it does not know the option and asks for what it always asks."""
    info = {"right_choice": "red", "gap": 1, "choices": choices}
    monkeypatch.setattr(type(env.unwrapped), "_info", lambda self: info)
    ours = replace(trial(env, "swap"), condition=Condition(GAP, "swap", donor=SAME_STATE))
    with pytest.raises(UserError, match=r"another cue in the same initial .* --donor other-state"):
        find_donor(ours)


def test_the_donor_asks_for_something_that_this_state_has(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = env.unwrapped
    asked = {0: "red", 1: "jar", 2: "red", 3: "blue"}
    monkeypatch.setattr(
        type(point),
        "_info",
        lambda self: {"gap": 1, "right_choice": asked[self.seed], "choices": ("red", "blue")},
    )
    reset = type(point).reset

    def numbered(self: Any, *, seed: int | None = None, options: dict[str, Any]) -> Any:
        self.seed = seed
        return reset(self, seed=seed, options=options)

    monkeypatch.setattr(type(point), "reset", numbered)
    donor = find_donor(trial(env, "swap"))
    assert (donor.seed, donor.choice) == (3, "blue")


def test_the_donor_waits_as_long_where_the_gap_was_drawn(env: Env) -> None:
    _, info = env.reset(seed=0, options={"task": "recall"})
    assert find_donor(trial(env, "swap", gap=None)).gap == info["gap"]


def test_a_task_of_one_cue_has_no_donor(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    point = env.unwrapped
    monkeypatch.setattr(type(point), "_info", lambda self: {"right_choice": "red", "gap": 1})
    with pytest.raises(
        UserError, match=f"the {MOST_DONORS} initial states after 0 all ask for 'red'"
    ):
        find_donor(trial(env, "swap"))


def test_an_episode_that_ends_before_go_is_an_error(env: Env) -> None:
    with pytest.raises(UserError, match=r"ended after 30 ticks, before the robot could act"):
        PROBES["freeze"](trial(env, "freeze", gap=100))


def test_an_own_way_that_does_not_lead_to_go_is_no_error(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of a robot that may move before go, and got stuck, is that of its last tick."""
    point, info = type(env.unwrapped), type(env.unwrapped)._info
    monkeypatch.setattr(point, "_info", lambda self: info(self) | {"held": False})
    given = trial(env, "swap", gap=100)
    assert find_donor(given).memory(given).keys() == given.actor.memory().keys()
    assert given.env.unwrapped.tick == 30


def test_a_run_before_the_episode_is_cut_off_as_the_episode_is(env: Env) -> None:
    ours = replace(trial(env, "freeze", gap=5000), max_ticks=3)
    with pytest.raises(UserError, match=r"after 3 ticks.*shorter --gap, or more --max-ticks"):
        PROBES["freeze"](ours)


@pytest.mark.parametrize("probe", ["freeze", "swap"])
def test_a_run_before_the_episode_is_delayed_as_the_episode_is(env: Env, probe: ProbeName) -> None:
    class Noted(gymnasium.Wrapper[Any, Any, Any, Any]):
        def __init__(self) -> None:
            super().__init__(env)
            self.steps_m: list[float] = []

        def step(self, action: np.ndarray) -> Any:
            self.steps_m.append(float(action[0]))
            return self.env.step(action)

    class Walker(Counter):
        def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
            return super().act(observation) + np.float32(0.1)

    noted, late = Noted(), Condition(GAP, probe, delay_s=0.2)  # two ticks
    PROBES[probe](Trial(noted, Walker(), "recall", 0, late))
    assert noted.steps_m == pytest.approx([0, 0, *[0.1] * (GO - 2)])


@pytest.mark.parametrize(("probe", "late_ticks"), [("live", 2), ("erase", 0), ("swap", 0)])
def test_what_was_decided_before_go_is_not_carried_out_with_another_memory(
    env: Env, probe: ProbeName, late_ticks: int
) -> None:
    class Leader(Counter):
        """Moves while it remembers a red cue, and holds something."""

        def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
            super().act(observation)
            return np.array([0.1 * (self.before[-1][0] > 0), 0], np.float32)

    ours = Trial(env, Leader(), "recall", 0, Condition(GAP, probe, delay_s=0.2))
    late = delayed(ours.actor, env, 0.2)  # two ticks
    acting, carried_out = PROBES[probe](replace(ours, late=late)), list[float]()
    run_episode(
        env, late, spec=spec_of(env), task="recall", seed=0, max_ticks=GO + 3, gap=GAP,
        on_tick=lambda _, info: (
            carried_out.append(float(late._done[0])),  # type: ignore[attr-defined]
            acting.before_tick(info["tick"], info["go"]),
        ),
    )  # fmt: skip
    assert sum(step > 0 for step in carried_out[GO + 1 : GO + 3]) == late_ticks


def test_noise_is_a_share_of_each_tokens_norm(env: Env) -> None:
    """Zeros stay zeros, whole numbers and vectors without tokens are no memory to disturb."""
    tokens = np.concatenate([np.zeros((1, 4096)), np.full((1, 4096), 3.0)]).astype(np.float32)
    ours = trial(env, "noise")
    actor = Holder({"tokens": tokens, "tick": np.array(3), "valid": np.ones(5, np.float32)})
    disturbed = []
    for seed in (0, 0, 1):
        probe = Noise(Trial(env, actor, "recall", seed, ours.condition))
        actor.set_memory({"tokens": tokens, "tick": np.array(3), "valid": np.ones(5, np.float32)})
        probe.before_tick(0, False)
        disturbed.append(actor.memory())
    first, again, other = (each["tokens"] for each in disturbed)
    assert first.dtype == np.float32
    assert np.array_equal(first[0], tokens[0])
    share = np.linalg.norm(first[1] - tokens[1]) / np.linalg.norm(tokens[1])
    assert share == pytest.approx(0.5, rel=0.05)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert disturbed[0]["tick"] == 3
    assert np.array_equal(disturbed[0]["valid"], np.ones(5))


class Holder(Counter):
    """Holds any memory."""

    def __init__(self, memory: Memory):
        self._memory = dict(memory)

    def memory(self) -> dict[str, np.ndarray]:
        return dict(self._memory)

    def set_memory(self, memory: Memory) -> None:
        self._memory = dict(memory)
