"""`ttm study figure6`: equal terms, the two settings of inputs, resumption, and what it tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from ttm.policy import UserError, load_checkpoint
from ttm.training.study import suite as pieces
from ttm.training.study.figure6 import (
    NOT_SHARED,
    ROWS,
    Figure6Report,
    Figure6Runner,
    StudyFigure6Command,
)
from ttm.training.study.suite import RunFolder, collect_figures
from ttm.training.study.suite_report import read_figures
from ttm.training.train import assembled
from ttm.training.trainer import Trainer

ENV = "memory_point_env:test/MemoryPoint-v0"
TINY = "batch-size: 2\naverage-decay: 0.5\n"
Make = Callable[..., StudyFigure6Command]


def tiny(folder: Path, demonstrations: Path, **changes: Any) -> StudyFigure6Command:
    """Return the options of a study of trainings of two steps, with `folder` for its files."""
    (folder / "tiny.yaml").write_text(TINY)
    standard: dict[str, Any] = {
        "data": (str(demonstrations),),
        "steps": 2,
        "config": folder / "tiny.yaml",
        "vary": (),
        "episodes": 2,
        "task": ("touch", "recall"),
        "env": ENV,
        "camera": "above",
        "out": folder / "figure6",
    }
    return StudyFigure6Command(**{**standard, **changes})


@pytest.fixture
def options(demonstrations: Path, tmp_path: Path) -> Make:
    return lambda **changes: tiny(tmp_path, demonstrations, **changes)


@pytest.fixture
def trainers(options: Make, tmp_path: Path) -> dict[str, Trainer]:
    """Row -> its trainer before the first step, with all inputs."""
    wanted = options(inputs=("all",))
    quiet, folder = Console(quiet=True), RunFolder(tmp_path / "new")
    rows = wanted.variants
    return {row.name: assembled(wanted.train_options(folder, row, 0), quiet) for row in rows}


def test_all_rows_train_on_equal_terms(options: Make, trainers: dict[str, Trainer]) -> None:
    assert list(trainers) == list(ROWS)
    plain = [trainer.options.plain() for trainer in trainers.values()]
    for found in plain:
        assert {n: v for n, v in found.items() if n not in NOT_SHARED} == {
            n: v for n, v in plain[0].items() if n not in NOT_SHARED
        }
    batches = [next(iter(trainer.source.batches(0))) for trainer in trainers.values()]
    for batch in batches:
        assert torch.equal(batch.inputs.language, batches[0].inputs.language)
        assert torch.equal(batch.inputs.images["above"], batches[0].inputs.images["above"])
        assert torch.equal(batch.inputs.previous_action, batches[0].inputs.previous_action)
    first = {name: trainer.policy.state_dict() for name, trainer in trainers.items()}
    seen = [name for name in first["ours"] if name.startswith(("vision.", "language."))]
    for name in ("bc-efficientnet", "ours-emptied", "ttm"):
        assert all(torch.equal(first[name][key], first["ours"][key]) for key in seen), name
    assert first["ours"].keys() == first["ours-emptied"].keys()
    assert all(torch.equal(first["ours"][n], v) for n, v in first["ours-emptied"].items())
    assert not set(seen) <= first["bc-resnet"].keys()


def test_weights_of_vision_are_the_same_for_every_efficientnet(
    options: Make, seeing: Path, tmp_path: Path
) -> None:
    wanted = options(inputs=("head",), vision_weights=(str(seeing), "none"))
    theirs = load_checkpoint(seeing)[0].state_dict()
    for row in wanted.variants:
        training = wanted.train_options(RunFolder(tmp_path / "new"), row, 0)
        made = assembled(training, Console(quiet=True)).policy.state_dict()
        same = {n for n, v in theirs.items() if n in made and torch.equal(made[n], v)}
        assert bool([n for n in same if n.startswith("vision.blocks")]) == (row.name != "bc-resnet")


def test_rows_that_see_alike_share_the_features_of_frozen_vision(
    options: Make, seeing: Path, tmp_path: Path
) -> None:
    (tmp_path / "frozen.yaml").write_text(TINY + "freeze-vision: true\n")
    weights = {"config": tmp_path / "frozen.yaml", "vision_weights": (str(seeing), str(seeing))}
    wanted = options(row=("bc-efficientnet", "ours"), inputs=("head",), episodes=1, **weights)
    runner = Figure6Runner(wanted)
    assert runner.make_all() == 0
    first, second = (runner._features(row) for row in wanted.variants)
    assert first is second is not None
    kept = load_checkpoint(seeing)[0].state_dict()
    trained = RunFolder(wanted.out / "ours_head" / "seed_0").checkpoint
    made = load_checkpoint(trained)[0].state_dict()
    seen = [name for name in kept if name.startswith("vision.")]
    assert seen
    assert all(torch.equal(kept[name], made[name]) for name in seen)
    changing = options(vision_weights=(str(seeing), "none"))
    assert Figure6Runner(changing)._features(changing.variants[1]) is None


def test_ours_emptied_is_ours_whose_memory_is_reset_at_every_tick(
    trainers: dict[str, Trainer],
) -> None:
    ours, emptied = trainers["ours"].policy, trainers["ours-emptied"].policy
    emptied.load_state_dict(ours.state_dict())
    core, other = ours.core.eval(), emptied.core.eval()
    tokens = torch.randn(2, 5, ours.num_tokens, ours.config.width)
    with torch.no_grad():
        trained = other(tokens)[0]  # as in training
        reset = core(tokens, None, torch.ones(2, 5, dtype=torch.bool))[0]
        state = other.initial_state(2)
        steps = []
        for tick in tokens.unbind(1):  # as in evaluations
            output, state = other.step(tick, state)
            steps.append(output)
        kept = core(tokens)[0]
    assert torch.allclose(trained, reset, atol=1e-5)
    assert torch.allclose(trained, torch.stack(steps, dim=1), atol=1e-5)
    assert torch.allclose(trained[:, 0], kept[:, 0], atol=1e-5)
    assert not torch.allclose(trained[:, 1:], kept[:, 1:], atol=1e-3)


def test_a_study_evaluates_its_rows_on_the_same_states(
    options: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "bc-resnet", "ours-emptied", "ours", "ttm"  # bc-efficientnet is run above
    wanted = options(row=rows, plot=tmp_path / "figure6.svg")
    assert wanted.run() == 0
    figures = collect_figures(wanted.out)
    names = {f"{row}, {inputs}" for row in rows for inputs in ("head", "all")}
    assert {each.variant for each in figures.trainings} == names
    found = {(e.variant, e.task, e.first_seed, e.episodes) for e in figures.choices}
    assert found == {(name, task, 0, 2) for name in names for task in ("touch", "recall")}
    for name, vectors in (("ours_head", ()), ("ours_all", ("position",))):
        spec = load_checkpoint(RunFolder(wanted.out / name / "seed_0").checkpoint)[0].spec
        assert tuple(vector.name for vector in spec.proprioception) == vectors
    first = capsys.readouterr().out
    for text in ("Success in %, head", "Paired differences in points, all", "bc-resnet"):
        assert text in first
    svg = wanted.plot.read_text() if wanted.plot else ""
    assert "all groups, head, ours-emptied: " in svg
    assert "touch, all, ttm: " in svg

    changed = {path: path.stat().st_mtime_ns for path in wanted.out.rglob("*.safetensors")}
    assert wanted.run() == 0
    printed = capsys.readouterr().out
    assert all(path.stat().st_mtime_ns == time for path, time in changed.items())
    with pytest.raises(UserError, match=r"--steps is 3, but .* was made with 2"):
        replace(wanted, steps=3).run()
    with pytest.raises(UserError, match=r"--vision-weights is .'shipped'.* made with .'none"):
        replace(wanted, vision_weights=("shipped", "none")).run()
    assert replace(wanted, figures=wanted.out / "figures.json", out=tmp_path / "no").run() == 0
    assert capsys.readouterr().out == printed
    tables = Figure6Report(read_figures(wanted.out / "figures.json")).tables()
    assert len(tables) == 2 * 3 + 1


class Killed(BaseException):
    """Ends a training or an evaluation where it stands."""


def test_a_kill_at_any_moment_loses_no_training(
    options: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demonstrations: Path
) -> None:
    part: dict[str, Any] = {"row": ("ours",), "inputs": ("head",), "task": ("touch",)}
    whole, broken = options(**part, out=tmp_path / "whole"), options(**part)
    assert whole.run() == 0
    step, evaluate = Trainer._train_step, pieces.evaluate_conditions
    done: list[int] = []
    killed: list[bool] = []

    def train_step(self: Trainer, *args: Any) -> None:
        step(self, *args)
        done.append(self.progress.step)
        if len(done) == 1:
            raise Killed

    def evaluated(*args: Any, **named: Any) -> Any:
        made = evaluate(*args, **named)
        if not killed:
            killed.append(True)
            raise Killed
        return made

    monkeypatch.setattr(Trainer, "_train_step", train_step)
    monkeypatch.setattr(pieces, "evaluate_conditions", evaluated)
    folder = RunFolder(broken.out / "ours_head" / "seed_0")
    with pytest.raises(Killed):
        broken.run()
    assert folder.training_result is None
    with pytest.raises(UserError, match="no finished training"):
        replace(broken, data=()).run()
    with pytest.raises(Killed):
        broken.run()
    assert folder.training_result is not None
    trained = len(done)
    assert broken.run() == 0
    assert len(done) == trained
    one, two = (
        load_checkpoint(RunFolder(each.out / "ours_head" / "seed_0").checkpoint)[0].state_dict()
        for each in (whole, broken)
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert collect_figures(whole.out).choices == collect_figures(broken.out).choices


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": ()}, "--row"),
        ({"steps": 0}, "--steps is 0"),
        ({"plot": Path("a.pdf")}, "--plot is a.pdf"),
        ({"vary": ("1",)}, "has no member variations"),
        ({"task": ("dance",)}, "task is 'dance'"),
        ({"camera": "front"}, "camera 'front' is not in this data; it has: above"),
        ({"data": ()}, "holds no finished training"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(
    options: Make, changes: dict[str, Any], message: str
) -> None:
    wanted = options(**changes)
    with pytest.raises(UserError, match=message):
        wanted.run()
    assert not list(wanted.out.rglob("*.safetensors"))
