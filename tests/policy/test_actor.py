"""Policies of other makers behind the interface of the runner."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ttm.policy import (
    ActionPart,
    ActorRunner,
    CameraSpec,
    PolicySpec,
    ProprioceptionSpec,
    UserError,
    load_runner,
)
from ttm.policy.errors import MalformedObservation, MissingObservation
from ttm.policy.snapshot import snapshot_from_bytes, snapshot_to_bytes

SPEC = PolicySpec(
    "cart",
    (CameraSpec("front", 4, 6),),
    (ProprioceptionSpec("speed", ("m/s",)),),
    (ActionPart("push", 1, "N"), ActionPart("horn", 1, "1 on", "binary", low=-1.0, high=1.0)),
    rate_hz=5.0,
)
SEEN = {"front": np.zeros((4, 6, 3), np.uint8), "speed": np.ones(1, np.float32)}


class Counting:
    """Pushes as hard as it has seen frames, and hears what was done."""

    gives: Any = None

    def __init__(self, spec: PolicySpec | None = SPEC) -> None:
        self.resets: list[str] = []
        self.heard: list[float] = []

    def reset(self, instruction: str) -> None:
        self.resets.append(instruction)
        self.count = 0

    def act(self, observation: Any) -> Any:
        self.count += 1
        self.seen = observation
        return [self.count, 0.1] if self.gives is None else self.gives

    def executed(self, action: np.ndarray) -> None:
        self.heard.append(float(action[0]))


class Remembering(Counting):
    def snapshot(self) -> dict[str, np.ndarray]:
        return {"count": np.array(self.count)}

    def restore(self, snapshot: dict[str, np.ndarray]) -> None:
        self.count = int(snapshot["count"])


def test_it_is_reset_when_an_episode_begins_and_at_no_other_time() -> None:
    actor = Counting()
    runner = ActorRunner(actor, SPEC)
    runner.reset("push")
    pushes = [float(runner.step(SEEN).values[0]) for _ in range(50)]
    assert pushes == list(range(1, 51))
    assert actor.resets == ["push"]
    assert runner.tick == 50
    runner.reset("push")
    assert runner.tick == 0
    assert runner.step(SEEN).values[0] == 1


def test_binary_parts_are_decided_half_way_between_their_commands() -> None:
    runner = ActorRunner(Counting(), SPEC)
    runner.reset("push")
    action = runner.step(SEEN)
    assert action.values.tolist() == [1.0, 1.0]
    assert action.probabilities[1] == pytest.approx(0.55)


def test_it_hears_what_the_robot_did() -> None:
    actor = Counting()
    runner = ActorRunner(actor, SPEC)
    runner.reset("push")
    runner.step(SEEN)
    runner.executed([0.25, -1.0])
    assert actor.heard == [0.25]
    assert runner.previous_action.tolist() == [0.25, -1.0]


@pytest.mark.parametrize(
    ("gives", "error"),
    [
        ([1.0], UserError),
        (np.zeros((1, 2)), UserError),
        ("left", UserError),
        (torch.ones(2, requires_grad=True), UserError),
        ([np.nan, 0.0], MalformedObservation),
    ],
)
def test_what_is_no_action_is_refused(gives: Any, error: type[Exception]) -> None:
    actor = Counting()
    actor.gives = gives
    runner = ActorRunner(actor, SPEC)
    runner.reset("push")
    with pytest.raises(error):
        runner.step(SEEN)
    assert runner.tick == 0


def test_it_never_sees_a_bad_observation() -> None:
    actor = Counting()
    runner = ActorRunner(actor, SPEC)
    runner.reset("push")
    with pytest.raises(MissingObservation):
        runner.step({"front": SEEN["front"]})
    with pytest.raises(MalformedObservation):
        runner.step({**SEEN, "speed": np.array([np.inf])})
    assert actor.count == 0


def test_it_sees_larger_frames_at_its_own_size() -> None:
    actor = Counting()
    runner = ActorRunner(actor, SPEC)
    runner.reset("push")
    shape = SEEN["front"].shape
    runner.step({**SEEN, "front": SEEN["front"].repeat(2, axis=0).repeat(3, axis=1)})
    assert actor.seen["front"].shape == shape
    with pytest.raises(MalformedObservation):
        runner.step({**SEEN, "front": SEEN["front"][1:]})


def test_a_respawned_one_goes_on_where_the_first_was() -> None:
    runner, other = (ActorRunner(Remembering(), SPEC) for _ in range(2))
    runner.reset("push")
    for _ in range(3):
        runner.step(SEEN)
    runner.executed([7.0, 1.0])
    other.restore(snapshot_from_bytes(snapshot_to_bytes(runner.snapshot())))
    assert (other.tick, other.instruction) == (3, "push")
    assert other.previous_action[0] == 7.0
    assert other.step(SEEN).values[0] == runner.step(SEEN).values[0] == 4
    ship = ActorRunner(Remembering(), PolicySpec("ship", (), (), SPEC.actions, 5.0))
    with pytest.raises(UserError, match="ship"):
        ship.restore(runner.snapshot())


def test_without_a_snapshot_nothing_is_made_up() -> None:
    runner = ActorRunner(Counting(), SPEC)
    runner.reset("push")
    assert not runner.remembers
    with pytest.raises(UserError):
        runner.snapshot()
    runner.step(SEEN)
    runner.erase_memory()
    assert (runner.tick, runner.step(SEEN).values[0]) == (1, 1.0)


def test_random_numbers_come_again_in_every_episode() -> None:
    class Dicing(Counting):
        def act(self, observation: Any) -> Any:
            return torch.rand(2)

    runner = ActorRunner(Dicing(), SPEC)
    drawn = []
    for _ in range(2):
        runner.reset("push")
        drawn.append([runner.step(SEEN).values[0] for _ in range(3)])
    assert drawn[0] == drawn[1]


def test_its_own_spec_counts_and_has_to_be_that_of_the_robot() -> None:
    actor = Counting()
    with pytest.raises(UserError):
        ActorRunner(actor, None)
    actor.spec = SPEC  # type: ignore[attr-defined]
    assert ActorRunner(actor, None).spec == SPEC
    with pytest.raises(UserError):
        ActorRunner(actor, PolicySpec("ship", (), (), SPEC.actions, 5.0))
    with pytest.raises(UserError):
        ActorRunner(object(), SPEC)  # type: ignore[arg-type]


def test_a_module_of_the_current_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_here.py").write_text(
        "class Still:\n"
        "    def __init__(self, spec): self.size = spec.action_size\n"
        "    def reset(self, instruction): pass\n"
        "    def act(self, observation): return [0.0] * self.size\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    runner = load_runner("made_here:Still", SPEC)
    runner.reset("stand")
    assert runner.step(SEEN).values.tolist() == [0.0, 1.0]
    for missing in ("made_here:Moving", "made_here", "made_nowhere:Still", ""):
        with pytest.raises(UserError):
            load_runner(missing, SPEC)


def make_without_spec() -> Counting:
    return Counting()


def test_make_may_take_no_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "of_this_test", sys.modules[__name__])
    assert isinstance(load_runner("of_this_test:make_without_spec", SPEC), ActorRunner)
