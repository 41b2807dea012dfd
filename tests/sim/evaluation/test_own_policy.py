"""Policies of other makers in the evaluator: the same front doors as for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ttm.policy import PolicySpec, UserError
from ttm.sim import evaluate
from ttm.sim.actors import untrained_policy
from ttm.sim.condition import SAME_STATE, Condition
from ttm.sim.evaluation import EvaluateCommand, evaluate_conditions
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.results import load_evaluation

ENV = "memory_point_env:test/MemoryPoint-v0"
HERE = "test_own_policy_actors"


class SideActor:
    """Goes to the side of the colour that it saw, and to the left if it saw none."""

    def __init__(self, spec: PolicySpec | None = None) -> None:
        self.episodes = 0

    def reset(self, instruction: str) -> None:
        self.side, self.episodes = -1.0, self.episodes + 1

    def act(self, observation: Mapping[str, np.ndarray]) -> list[float]:
        red, _, blue = map(int, observation["above"][0, 0])
        if red != blue:
            self.side = -1.0 if red > blue else 1.0
        return [0.1 * self.side, 0.0]


class RememberingActor(SideActor):
    def snapshot(self) -> dict[str, np.ndarray]:
        return {"side": np.array(self.side)}

    def restore(self, snapshot: Mapping[str, np.ndarray]) -> None:
        self.side = float(snapshot["side"])


@pytest.fixture
def by_name(points: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The actors' module can be imported in worker processes, too."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / f"{HERE}.py").write_text(Path(__file__).read_text())
    monkeypatch.syspath_prepend(str(folder))


def test_an_object_a_name_and_several_workers_give_the_same_result(by_name: None) -> None:
    given = {"env": ENV, "episodes": 6, "videos": 0}
    actor = RememberingActor()
    own = evaluate(tasks="recall", actor=actor, **given)
    assert own.tasks["recall"].success.rate == 1.0
    assert own.checkpoint == "RememberingActor"
    assert actor.episodes == 6
    name = f"{HERE}:RememberingActor"
    alone = evaluate(tasks="recall", actor=name, **given)
    shared = evaluate(tasks="recall", actor=name, workers=2, **given)
    assert alone == shared == replace(own, checkpoint=name)


def test_it_gets_a_report_videos_and_a_paired_test(
    by_name: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = {"task": "recall", "env": ENV, "episodes": 4, "workers": 1}
    first, second = tmp_path / "first", tmp_path / "second"
    assert EvaluateCommand(out=first, actor=f"{HERE}:SideActor", **common).run() == 0
    command = EvaluateCommand(out=second, checkpoint="none", against=first, **common)
    assert command.run() == 0
    assert load_evaluation(first).checkpoint == f"{HERE}:SideActor"
    assert "recall" in capsys.readouterr().out
    assert (first / "report.html").is_file()
    assert list((first / "videos").rglob("*.mp4"))
    # Nothing is lost, and another policy does not write over it.
    assert EvaluateCommand(out=first, actor=f"{HERE}:SideActor", **common).run() == 0
    with pytest.raises(UserError):
        EvaluateCommand(out=first, actor=f"{HERE}:RememberingActor", **common).run()


def test_probes_find_its_memory(points: ModuleType) -> None:
    conditions = {
        Condition(3, probe, donor=SAME_STATE): None for probe in ("live", "erase", "swap")
    }
    live, erased, swapped = (
        each.tasks["recall"]
        for each in evaluate_conditions(
            "shipped", "recall", conditions, actor=RememberingActor(), env=ENV, episodes=8, videos=0
        )
    )
    assert live.choices is not None
    assert live.choices.rate == 1.0
    lefts = [outcome.choice.made for outcome in erased.outcomes if outcome.choice]
    assert lefts == ["red"] * 8
    assert swapped.donor_choices is not None
    assert swapped.donor_choices.rate == 1.0


def test_what_does_not_fit_is_found_before_any_episode(points: ModuleType) -> None:
    actor = SideActor()
    for condition in (Condition(3, "erase"), Condition(execution="receding:2")):
        with pytest.raises(UserError):
            evaluate(tasks="recall", actor=actor, condition=condition, env=ENV, episodes=1)
    for wrong in ({"checkpoint": "none"}, {"env": "ttm/Kitchen-v0", "tasks": "nothing"}):
        with pytest.raises(UserError):
            evaluate(**{"tasks": "recall", "actor": actor, "env": ENV, "episodes": 1, **wrong})
    assert actor.episodes == 0


@pytest.mark.usefixtures("points")
def test_the_example_in_plain_pytorch_remembers_and_can_be_probed() -> None:
    given = {"actor": "own_policy:OwnPolicy", "env": ENV, "episodes": 2, "videos": 0}
    conditions = {Condition(3, probe): None for probe in ("live", "zero")}
    live, zeroed = evaluate_conditions("shipped", "recall", conditions, **given)
    again = evaluate(tasks="recall", condition=Condition(3), **given)
    assert live == again
    assert zeroed.tasks["recall"].episodes == 2


def test_untrained_network_is_always_the_same() -> None:
    first, second = untrained_policy(SPEC), untrained_policy(SPEC)
    assert first.spec == SPEC
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all((a == b).all() for a, b in pairs)
