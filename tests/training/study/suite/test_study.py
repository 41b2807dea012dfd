"""`ttm study suite` from demonstrations to tables: what it makes, resumes, shares and tells."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ttm.policy import UserError, load_checkpoint
from ttm.sim import Evaluation
from ttm.sim.condition import Condition
from ttm.training import train
from ttm.training.frozen_vision import MapStore
from ttm.training.study import seeds
from ttm.training.study import suite as pieces
from ttm.training.study.suite import Cost, RunFolder, StudySuiteCommand, collect_figures
from ttm.training.study.suite_report import OURS, Figures
from ttm.training.trainer import Trainer

Make = Callable[..., StudySuiteCommand]


def files(out: Path) -> dict[str, int]:
    """Return the time at which each file was written."""
    return {
        str(path.relative_to(out)): path.stat().st_mtime_ns
        for path in out.rglob("*")
        if path.is_file() and path.parent != out
    }


def weights(out: Path, variant: str) -> dict[str, torch.Tensor]:
    return load_checkpoint(RunFolder(out / variant / "seed_0").checkpoint)[0].state_dict()


def stop_after(patch: pytest.MonkeyPatch, step: int) -> None:
    """Send Ctrl-C when a training has done so many steps."""
    whole = Trainer._train_step

    def train_step(self: Trainer, *args: Any) -> None:
        whole(self, *args)
        if self.progress.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    patch.setattr(Trainer, "_train_step", train_step)


def choices(figures: Figures) -> list[tuple[object, ...]]:
    return [
        (each.variant, each.seed, each.task, each.gap, each.probe, each.right, each.donor)
        for each in figures.choices
    ]


def test_a_second_command_makes_nothing_and_tells_the_same(
    finished: StudySuiteCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(finished.out)
    told = (finished.out / "figures.json").read_text()
    assert finished.run() == 0
    after = files(finished.out)
    assert after.keys() == before.keys()
    changed = {name for name, time in after.items() if time != before[name]}
    assert {Path(name).name for name in changed} <= {".lock"}
    assert (finished.out / "figures.json").read_text() == told
    printed = capsys.readouterr().out
    for title in (
        "Right choices, all tasks",
        "Paired differences",
        "Right choices by what is done",
    ):
        assert title in printed


def test_interrupted_and_resumed_equals_unbroken(
    finished: StudySuiteCommand, options: Make
) -> None:
    broken = options(gap=(1,), probe=("live",))
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 1)
        assert broken.run() == 130
    assert RunFolder(broken.out / "ours" / "seed_0").training_result is None
    assert broken.run() == 0
    for variant in ("ours", "lstm"):
        one, two = weights(finished.out, variant), weights(broken.out, variant)
        assert one.keys() == two.keys()
        assert [name for name in one if not torch.equal(one[name], two[name])] == []
    unbroken = choices(collect_figures(finished.out))
    assert len(choices(collect_figures(broken.out))) == 2
    assert set(choices(collect_figures(broken.out))) < set(unbroken)


def test_a_table_of_a_paper_is_made_by_the_suite(
    options: Make, seeing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tiny network and task; an interrupted training goes on, and costs what both parts cost."""
    kept = options()
    tiny = {name: getattr(kept, name) for name in ("init", "batch_size", "task", "env", "episodes")}
    monkeypatch.setattr(seeds, "StudySuiteCommand", lambda **given: options(**{**given, **tiny}))
    monkeypatch.setattr(seeds, "checkpoint_path", lambda _: seeing)
    table = seeds.TABLES["ttm-suite"]
    monkeypatch.setitem(seeds.TABLES, "ttm-suite", replace(table, rows=table.rows[1:2]))
    command = seeds.StudySeedsCommand("ttm-suite", kept.data, seeds=(1,), steps=2, out=tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            command.make()
    folder = next(tmp_path.glob("suite/*/seed_1"))
    before = RunFolder(folder).facts["cpu_s"]
    made = command.make()
    figures = collect_figures(tmp_path / "suite")
    (row,), (training,), (chosen,) = made.rows, figures.trainings, figures.choices
    assert row["row"] == training.variant == chosen.variant == table.rows[1].name
    assert (training.seed, training.steps, chosen.gap, chosen.task) == (1, 2, 15, "recall")
    assert row["core"]["mlp_size"] == training.core["mlp_size"]
    (found,) = row["trainings"]
    right = 100 * chosen.right / chosen.episodes
    assert (found["value"], found["each"]) == (right, {"recall": right})
    assert found["parameters"] == training.parameters
    assert found["cpu_hours"] == pytest.approx((training.cpu_minutes or 0) / 60)
    assert RunFolder(folder).facts["cpu_s"] > before > 0
    times = files(tmp_path / "suite")
    assert command.make().rows == made.rows
    assert files(tmp_path / "suite") == times


def test_equal_time_of_the_cpu_gives_each_core_its_steps(
    options: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "ROUNDS", 1)
    part = {"gap": (1,), "probe": ("live",), "minutes": 0.5}
    measured = pieces.measured_costs

    def costs(*given: Any) -> dict[str, Cost]:
        found = measured(*given)
        assert all(each.step_s > 0 for each in found.values())
        assert found["lstm"].of_lstm == 1
        assert {name for name, each in found.items() if each.memory_s} == {OURS} & set(found)
        known = {"lstm": Cost(10, 0, 1), OURS: Cost(12, 6, 1.2), "none": Cost(5, 0, 0.5)}
        return {name: known[name] for name in found}

    monkeypatch.setattr(pieces, "measured_costs", costs)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 1)
        assert options(**part).run() == 130
    (options().out / pieces.COSTS).rename(options().out / "moved")
    assert options(**part, core=(OURS,)).run() == 0  # whatever a step costs now
    (options().out / "moved").rename(options().out / pieces.COSTS)
    monkeypatch.setattr(
        pieces, "measured_costs", lambda *_: {"lstm": Cost(20, 0, 1), "none": Cost(10, 0, 0.5)}
    )
    assert options(**part, core=(OURS, "lstm", "none")).run() == 0
    figures = collect_figures(options().out)
    found = {each.variant: each for each in figures.trainings}
    assert {name: each.steps for name, each in found.items()} == {OURS: 2, "lstm": 3, "none": 6}
    assert found[OURS].cost == {"step_s": 12, "memory_s": 6, "of_lstm": 1.2}
    assert all((each.cpu_minutes or 0) > 0 for each in figures.trainings)
    assert (figures.settings["steps"], figures.settings["minutes"]) == (None, 0.5)
    with pytest.raises(UserError, match="in which no step fits; give more"):
        Cost(10, 25, 1).steps(0.5)


def test_memories_of_a_seed_learn_what_to_keep_once(
    options: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = {"gap": (1,), "probe": ("live",), "episodes": 1}
    row = "lstm sight_tokens=6"
    assert options(**part, core=(row,)).run() == 0
    own = weights(options().out, "lstm_sight_tokens=6")
    learn, learned = train._learn_memory, list[float]()
    monkeypatch.setattr(
        train, "_learn_memory", lambda *given: learned.append(learn(*given)) or learned[-1]
    )
    wanted = replace(options(**part, core=(OURS, row)), out=options().out / "both")
    assert wanted.run() == 0
    assert len(learned) == 1
    shared = weights(wanted.out, "lstm_sight_tokens=6")
    assert [name for name, value in own.items() if not torch.equal(value, shared[name])] == []
    with pytest.raises(UserError, match="have different settings"):
        replace(wanted, core=("none sight_tokens=6",), learning_rate=1e-2).run()
    assert len(learned) == 2  # what others learned may be of other demonstrations


def test_ctrl_c_in_an_evaluation_loses_that_one_alone(
    options: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = options(core=("lstm",), probe=("live",))
    begun: list[Condition] = []
    original = pieces.evaluate_conditions

    def evaluate(*arguments: Any, **named: Any) -> list[Evaluation]:
        begun.extend(arguments[2])
        if len(begun) == 2:
            raise KeyboardInterrupt
        return original(*arguments, **named)

    monkeypatch.setattr(pieces, "evaluate_conditions", evaluate)
    with pytest.raises(KeyboardInterrupt):
        wanted.run()
    assert wanted.run() == 0
    assert [condition.gap for condition in begun] == [1, 3, 3]


def test_a_part_is_made_alone_and_others_are_added(
    options: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert options(core=("none",), gap=(1,), probe=("live",)).run() == 0
    trained: list[str] = []
    original = pieces.train

    def train(wanted: Any, *rest: Any) -> int:
        trained.append(wanted.out.parts[-3])
        return original(wanted, *rest)

    monkeypatch.setattr(pieces, "train", train)
    assert options(core=("none", "lstm"), gap=(1,), probe=("live",)).run() == 0
    assert trained == ["lstm"]
    found = {(each.variant, each.gap) for each in collect_figures(options().out).choices}
    assert found == {("none", 1), ("lstm", 1)}


def test_features_are_computed_once_for_all_trainings(
    options: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    original = MapStore.rows

    def rows(self: MapStore, *arguments: Any) -> torch.Tensor:
        before = len(self)
        found = original(self, *arguments)
        seen.append(len(self) - before)
        return found

    monkeypatch.setattr(MapStore, "rows", rows)
    monkeypatch.setattr(RunFolder, "evaluation", lambda *_, **__: None)
    assert options().run() == 0
    half = len(seen) // 2
    assert sum(seen[:half]) > 0
    assert sum(seen[half:]) == 0


def test_a_folder_in_which_another_process_works_is_left_alone(options: Make) -> None:
    wanted = options(gap=(1,), probe=("live",))
    taken = RunFolder(wanted.out / "ours" / "seed_0")
    with taken.claimed() as mine:
        assert mine
        assert wanted.run() == 0
    assert not taken.facts_file.exists()
    assert {each.variant for each in collect_figures(wanted.out).trainings} == {"lstm"}


def test_what_was_made_with_other_options_is_not_mixed_in(
    finished: StudySuiteCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"--steps is 3, but .*ours/seed_0 was made with 2"):
        replace(finished, steps=3).run()
    monkeypatch.setattr(pieces, "OURS_OPTIONS", ("write=gated",))
    with pytest.raises(UserError, match=r"ours/seed_0 holds a core of other sizes or options"):
        finished.run()


def test_a_mistake_before_the_first_training_can_be_corrected(
    options: Make, demonstrations: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="missing does not exist"):
        options(data=(str(tmp_path / "missing"),), core=("lstm",)).run()
    assert options(data=(str(demonstrations),), core=("lstm",), episodes=1, gap=(1,)).run() == 0


def test_an_evaluation_of_other_states_is_made_anew(options: Make) -> None:
    part = {"core": ("lstm",), "gap": (1,), "probe": ("live",)}
    assert options(**part).run() == 0
    assert options(**part, episodes=3).run() == 0
    assert [each.episodes for each in collect_figures(options().out).choices] == [3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": ()}, "holds no finished training; name demonstrations to learn from with --data"),
        ({"core": ("gru",)}, "--core is 'gru'; give one of ours, ttm"),
        ({"core": ("lstm num_layers",)}, "option num_layers is ''"),
        ({"core": ("ours mlp_size=99",)}, "more than 2 % apart"),
        ({"core": ("ours write=never",)}, "write is 'never'"),
        ({"seeds": (-1,)}, "--seeds is -1"),
        ({"plot": Path("a.pdf")}, "--plot is a.pdf"),
        ({"task": ("touch",)}, "needs a memory task"),
        ({"task": ("dance",)}, "task is 'dance'"),
        ({"init": Path("no.safetensors")}, "no.safetensors: no such checkpoint"),
        ({"figures": Path("no.json")}, "no.json: no figures of this study"),
    ],
)
def test_mistakes_are_told_in_one_line_before_anything_is_made(
    options: Make, changes: dict[str, Any], message: str
) -> None:
    wanted = options(**changes)
    with pytest.raises(UserError, match=r"^[^\n]*$") as raised:
        wanted.run()
    assert message in str(raised.value)
    assert not wanted.out.exists()


@pytest.mark.parametrize("text", ["[]", "{", '{"variant": "ours"}'])
@pytest.mark.parametrize("name", ["run.json", "training/result.json"])
def test_a_damaged_folder_is_told_in_one_line(tmp_path: Path, name: str, text: str) -> None:
    folder = RunFolder(tmp_path / "ours" / "seed_0")
    folder.training.mkdir(parents=True)
    (folder.training / "result.json").write_text('{"finished": true}')
    (folder.path / "run.json").write_text("{}")
    (folder.path / name).write_text(text)
    with pytest.raises(UserError, match=r"\.json is damaged .*; delete its folder"):
        StudySuiteCommand(out=tmp_path).run()


@pytest.mark.parametrize("text", ["[]", "{}", '{"settings": {}, "trainings": [], "choices": []}'])
def test_a_file_without_figures_is_told_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "figures.json"
    path.write_text(text)
    with pytest.raises(UserError, match="no figures of this study"):
        StudySuiteCommand(figures=path).run()
