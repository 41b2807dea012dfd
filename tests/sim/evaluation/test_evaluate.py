"""`ttm evaluate` in the kitchen: the scripted expert and an untrained network, a few initial states."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import imageio
import numpy as np
import pytest

from ttm.policy import UserError, save_checkpoint
from ttm.sim import KitchenEnv, evaluate, load_evaluation
from ttm.sim.actors import untrained_policy
from ttm.sim.evaluation import EvaluateCommand
from ttm.sim.kitchen.spec import SPEC


@pytest.fixture(scope="module", autouse=True)
def _small_films() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KitchenEnv, "render_px", 120)
        yield


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an evaluation of the expert."""
    folder = tmp_path_factory.mktemp("expert")
    command = EvaluateCommand(out=folder, checkpoint="expert", episodes=3, workers=1)
    assert command.run() == 0
    return folder


def test_result_holds_every_initial_state(expert: Path) -> None:
    result = json.loads((expert / "result.json").read_text())
    assert set(result["tasks"]) == {"pick", "open_drawer"}
    for task in result["tasks"].values():
        assert task["episodes"] == 3
        assert task["successes"] == sum(outcome["success"] for outcome in task["outcomes"])
        assert task["rate"] == task["successes"] / 3
        low, high = task["interval"]
        assert 0 <= low <= task["rate"] <= high <= 1
        assert [outcome["seed"] for outcome in task["outcomes"]] == [0, 1, 2]
        assert all(
            set(o) == {"seed", "instruction", "success", "ticks", "terminate_tick"}
            for o in task["outcomes"]
        )


def test_a_folder_with_another_result_is_refused(expert: Path, tmp_path: Path) -> None:
    before = (expert / "result.json").read_bytes()
    same = {"out": expert, "checkpoint": "expert", "workers": 1}
    for change in (
        {"checkpoint": "none"},
        {"first_seed": 1},
        {"max_ticks": 2},
        {"task": "pick"},
        {},
    ):
        command = EvaluateCommand(**{**same, "episodes": 2 if not change else 3, **change})  # type: ignore[arg-type]
        with pytest.raises(UserError, match="another evaluation, of expert on pick, open_drawer"):
            command.run()
    assert (expert / "result.json").read_bytes() == before
    (tmp_path / "result.json").write_text('{"step": 1}')  # of a training
    with pytest.raises(UserError, match="something else; give another --out"):
        EvaluateCommand(out=tmp_path, checkpoint="expert", episodes=1, workers=1).run()


def test_the_same_evaluation_may_be_made_again_and_shows_no_video_of_the_first(
    tmp_path: Path,
) -> None:
    command = EvaluateCommand(
        out=tmp_path, checkpoint="expert", task="pick", episodes=1, workers=1, max_ticks=1, videos=1
    )
    command.run()
    assert "<video" in (tmp_path / "report.html").read_text()
    replace(command, episodes=2, videos=0).run()
    assert len(load_evaluation(tmp_path).tasks["pick"].outcomes) == 2
    assert not list((tmp_path / "videos").iterdir())
    assert "<video" not in (tmp_path / "report.html").read_text()


def test_expert_succeeds(expert: Path) -> None:
    evaluation = load_evaluation(expert)
    assert {name: result.successes for name, result in evaluation.tasks.items()} == {
        "pick": 3,
        "open_drawer": 3,
    }


def test_videos_show_the_whole_episode(expert: Path) -> None:
    outcome = load_evaluation(expert).tasks["pick"].outcomes[0]
    with imageio.get_reader(expert / "videos" / "pick_0000.mp4") as reader:
        frames = reader.count_frames()
        assert reader.get_meta_data()["fps"] == 15
    assert frames >= 3 * (
        outcome.ticks + 1
    )  # each tick is shown thrice, and the last one for longer
    assert not list((expert / "videos").glob(".*"))


def test_page_stands_alone(expert: Path) -> None:
    page = (expert / "report.html").read_text()
    assert page.count("data:video/mp4;base64,") == 2
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert "pick up the" in page


def test_any_number_of_workers_gives_the_same_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They tell once that the policy was not trained on an instruction."""
    policy, checkpoint = untrained_policy(SPEC), str(tmp_path / "policy.safetensors")
    policy.known_instructions = {"open the top drawer": np.zeros(384, np.float32)}
    save_checkpoint(checkpoint, policy, {})
    evaluations = []
    for workers in (1, 2):
        options = {"tasks": ["open_drawer"], "episodes": 2, "max_ticks": 4, "workers": workers}
        evaluations.append(evaluate(checkpoint, **options))
        told = capsys.readouterr().out
        assert told.count("the policy was not trained on the instruction 'open the") == 1
        assert "it does not know 2" in told
    one, two = evaluations
    assert one.to_json() == two.to_json()
    assert [outcome.ticks for outcome in one.tasks["open_drawer"].outcomes] == [4] * 2


def test_an_initial_state_does_not_depend_on_those_before_it(expert: Path) -> None:
    alone = evaluate("expert", ["pick"], episodes=1, first_seed=2)
    assert alone.tasks["pick"].outcomes[0] == load_evaluation(expert).tasks["pick"].outcomes[2]


def test_paired_comparison(
    expert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = EvaluateCommand(
        out=tmp_path,
        checkpoint="expert",
        task="pick",
        episodes=2,
        workers=1,
        videos=0,
        max_ticks=2,
        against=expert,
    )
    assert command.run() == 0
    assert "McNemar" in capsys.readouterr().out
    assert "compared in pairs" in (tmp_path / "report.html").read_text()
