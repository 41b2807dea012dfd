"""`--vary` of the commands: what its texts ask for, and what results and recorded episodes say of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from ttm.policy import UserError
from ttm.sim.collect import CollectCommand
from ttm.sim.compare import read_entries
from ttm.sim.condition import KITCHEN, Condition, conditions_of
from ttm.sim.environment import EnvFacts, inspect_env
from ttm.sim.evaluation import EvaluateCommand, evaluate
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.results import Evaluation, PairedTest, TaskResult, compare, load_evaluation
from ttm.sim.rollout import Outcome

FACTS = EnvFacts(
    "my:Env-v0", SPEC, {"pick": ("pick",)}, True, variations=("camera", "light", "words")
)


@pytest.mark.parametrize(
    ("texts", "variants"),
    [
        ((), [""]),
        (("0", "camera=0"), [""]),
        (("light=2", "camera=1"), ["camera=1 light=2"]),
        (("1", "light=3"), ["camera=1 light=3"]),
        (("1", "words=1"), ["camera=1 light=1 words=1"]),
        (("each=2",), ["", "camera=2", "light=2", "words=2"]),
        (("light=1", "each=2"), ["light=1", "camera=2 light=1", "light=2", "light=1 words=2"]),
    ],
)
def test_texts_stand_for_variations(texts: tuple[str, ...], variants: list[str]) -> None:
    assert FACTS.variants(texts) == variants


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sound=1", "sound.*camera, light, words, each"),
        ("camera=4", "level is '4'; give one of 0, 1, 2, 3"),
        ("camera", "level is 'camera'"),
        ("camera=", "level is ''"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        FACTS.variants((text,))


@pytest.mark.usefixtures("points")
def test_an_environment_without_variations_refuses_the_option(tmp_path: Path) -> None:
    for command in (EvaluateCommand, CollectCommand):
        with pytest.raises(UserError, match=r"--vary 1: .*MemoryPoint.* has no member variations"):
            command(tmp_path, env="memory_point_env:test/MemoryPoint-v0", vary=("1",)).run()


def test_conditions_name_what_varies() -> None:
    plain, varied = conditions_of((), ("live",), "hidden", 0.5, variants=["", "camera=1 light=2"])
    assert plain == Condition()
    assert varied.levels == {"camera": 1, "light": 2}
    assert varied.series == "live, camera=1 light=2"
    everything = Condition(vary=inspect_env(KITCHEN).variant(["2"]))
    assert everything.series == "live, 13 variations at level 2"
    assert varied.folder == "live_camera=1_light=2"
    assert varied.to_dict() == {"vary": "camera=1 light=2"}


def test_each_dimension_is_evaluated_beside_the_plain_condition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = inspect_env(KITCHEN).variations
    command = EvaluateCommand(
        tmp_path,
        "expert",
        task="pick",
        episodes=1,
        workers=1,
        videos=0,
        max_ticks=1,
        vary=("each=2",),
    )
    assert command.run() == 0
    folders = {"live", *(f"live_{name}=2" for name in names)}
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == folders
    printed, page = capsys.readouterr().out, (tmp_path / "report.html").read_text()
    for name in names:
        assert load_evaluation(tmp_path / f"live_{name}=2").condition == Condition(vary=f"{name}=2")
        assert f"live, {name}=2" in printed
        assert f"live, {name}=2" in page
        assert f"pick: success, live, {name}=2: 0 % of 1" in page, (
            "the chart of all rates, in words"
        )
    assert ">+0 % (-65 % to +65 %)<" in page
    assert printed.count("+0% (-65% to +65%)") == len(names)
    assert read_entries(tmp_path)[0].evaluation.condition.vary == ""
    with pytest.raises(UserError, match="another evaluation"):
        replace(command, out=tmp_path / "live_hue=2", vary=("hue=1",)).run()


def test_the_change_of_a_rate_is_that_of_the_shared_states() -> None:
    test = PairedTest(5, 4, 1, 10, 0.4)
    assert test.difference == pytest.approx(-0.15)
    assert test.interval == pytest.approx((-0.3470, 0.0743), abs=1e-4), "Agresti and Min (2005)"
    assert str(test) == "-15% (-35% to +7%)"
    assert PairedTest(9, 0, 0, 0, 1.0).interval[1] == -PairedTest(9, 0, 0, 0, 1.0).interval[0]


def test_paraphrased_episodes_are_compared_with_the_plain_ones() -> None:
    """Other episodes of another instruction are not: the task has changed."""

    def evaluation(instruction: str, vary: str, success: bool) -> Evaluation:
        outcomes = (Outcome("pick", 0, instruction, success, 10, None),)
        tasks = {"pick": TaskResult("pick", outcomes)}
        return Evaluation("none", None, 0, None, tasks, condition=Condition(vary=vary))

    plain = evaluation("pick up the can", "", True)
    worded = evaluation("grab the can", "light=1 words=1", False)
    assert compare(plain, worded)["pick"].only_first == 1
    assert compare(plain, evaluation("grab the can", "light=1", False)) == {}


def test_a_policy_gets_paraphrases_and_demonstrations_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are embedded before any worker starts."""
    embedded = list[str]()

    def embed(text: str, *_: str) -> np.ndarray:
        embedded.append(text)
        return np.full(384, 0.05, np.float32)

    monkeypatch.setattr("ttm.sim.evaluation.embed_instruction", embed)
    condition = Condition(vary="words=1")
    found = evaluate("none", "pick", condition=condition, episodes=2, max_ticks=1)
    for outcome in found.tasks["pick"].outcomes:
        assert outcome.instruction.startswith(("grab the", "lift the"))
        assert outcome.instruction in embedded
    assert len(embedded) == len(set(embedded)) == 15
    with pytest.raises(UserError, match="--vary words: paraphrases are kept for ttm evaluate"):
        CollectCommand(tmp_path, "pick", vary=("1", "words=1")).run()


def test_recorded_episodes_say_what_varied_and_that_a_held_robot_stood_still(
    tmp_path: Path,
) -> None:
    command = CollectCommand(
        tmp_path, "pick", episodes=1, workers=1, first_seed=1_000_003, vary=("pause=1", "light=2")
    )
    assert command.run() == 0
    with h5py.File(next(tmp_path.glob("*.hdf5"))) as file:
        demo = file["data/demo_0"]
        assert demo.attrs["variation"] == "light=2 pause=1"
        executed, labels = demo["executed_actions"][()], demo["actions"][()]
    differs = np.flatnonzero((executed != labels).any(axis=1))
    assert len(differs) > 0
    assert (np.diff(differs) == 1).all(), "one pause"
    gripper = SPEC.action_slices["gripper"]
    assert not np.delete(executed[differs], gripper, axis=1).any()


def test_each_is_for_evaluations(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="each is for ttm evaluate"):
        CollectCommand(tmp_path, "pick", vary=("each=1",)).run()
