"""When a training ends, which checkpoints it keeps, where it is logged, and the average of its weights."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ttm.policy import UserError, load_checkpoint
from ttm.training import options
from ttm.training.run_log import outcome
from ttm.training.train import TrainCommand
from ttm.training.trainer import Trainer, WeightAverage, calibrate_batch_norm

Make = Callable[..., TrainCommand]


def result_of(training: TrainCommand) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((training.out / "result.json").read_text())
    return found


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The validation errors of the trainings of a test, one after the other."""
    values: list[float] = []

    def evaluate(self: Trainer, name: str) -> dict[str, Any]:
        value = values.pop(0) if name == "validation" else 0.0
        who = ("policy", "policy_without_previous_action", "mean_action", "previous_action")
        return {each: {"normalized": value, "parts": {}} for each in who}

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    return values


def test_early_stopping_counts_validations_in_a_row_also_over_a_resume(
    command: Make,
    errors: list[float],
    interrupted: Callable[[TrainCommand, int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    errors += [3.0, 4.0, 2.0, 2.0, 2.5, 2.5, 0.0]
    training = command(steps=20, validations=20, early_stopping=3)
    interrupted(training, 5)  # after four validations, before the fifth
    assert replace(training, resume=True).run() == 0
    found = result_of(training)
    assert (found["step"], found["finished"], found["stopped_early"]) == (7, True, True)
    assert found["best"] == {"step": 3, "validation_error": 2.0}
    assert "stopped early (lowest error at step 3) after step 7" in capsys.readouterr().err
    assert replace(training, resume=True).run() == 0
    assert result_of(training)["step"] == 7, "it has ended"


def test_without_held_out_episodes_the_newest_weights_are_the_best(
    command: Make, episodes: Path
) -> None:
    training = command(data=(str(episodes / "episode_0.hdf5"),), steps=1)
    training.run()
    longer = {"steps": 2, "resume": True, "resume_anyway": True}
    assert replace(training, **longer).run() == 0  # type: ignore[arg-type]
    assert load_checkpoint(training.out / "best.safetensors")[1]["steps"] == 2


def test_early_stopping_needs_held_out_episodes(command: Make, episodes: Path) -> None:
    alone = (str(episodes / "episode_0.hdf5"),)
    with pytest.raises(UserError, match="--early-stopping needs held-out episodes"):
        command(data=alone, early_stopping=1).run()


def test_the_statistics_of_batch_norm_are_found_once_for_what_is_saved(
    command: Make, interrupted: Callable[[TrainCommand, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    monkeypatch.setattr(Trainer, "calibrate", lambda self: steps.append(self.progress.step))
    training = command(steps=4, validations=2)
    interrupted(training, 3)
    assert steps == [2, 3]
    assert replace(training, resume=True).run() == 0
    assert steps == [2, 3, 4]


def test_checkpoints_of_steps_are_kept_beside_best_and_last(command: Make) -> None:
    training = command(steps=7, save_every=2, keep=2)
    training.run()
    kept = sorted(path.name for path in (training.out / "checkpoints").iterdir())
    assert kept == ["step_00000004.safetensors", "step_00000006.safetensors"]
    assert load_checkpoint(training.out / "checkpoints" / kept[0])[1]["steps"] == 4
    assert (training.out / "best.safetensors").exists()
    replace(training, overwrite=True, keeping=options.KeepingConfig()).run()
    assert not list((training.out / "checkpoints").iterdir())


def test_a_csv_file_holds_what_tensorboard_shows_and_the_terminal_the_time_left(
    command: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ttm.training.trainer.LOG_EVERY", 1)
    monkeypatch.setattr("ttm.training.run_log.LINE_EVERY_S", 0.0)
    training = command(logger=("csv",), steps=4)
    training.run()
    assert re.search(r"^ 75%  step 3  loss .* steps/s  \d.* left$", capsys.readouterr().err, re.M)
    rows = list(csv.DictReader((training.out / "csv/version_0/metrics.csv").open()))
    steps = [int(row["step"]) for row in rows if row["train/loss"]]
    assert steps == [1, 2, 3, 4]
    assert float(rows[0]["train/learning_rate"]) > 0
    assert float(rows[-1]["validation/normalized/policy"]) > 0
    assert not (training.out / "tensorboard").exists()


def test_weights_and_biases_runs_offline(command: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    training = command(steps=1, logger=("wandb",))
    try:
        assert training.run() == 0
    finally:
        wandb.teardown()  # its service would last as long as the tests, and may keep a core busy
    (run,) = (training.out / "wandb").glob("offline-run-*/run-*.wandb")
    assert run.stat().st_size > 0
    assert "WANDB_MODE" not in os.environ


def test_missing_weights_and_biases_is_told(command: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"logger wandb needs .*pip install '.\[wandb\]'"):
        command(logger=("wandb",)).run()


def saved(training: TrainCommand) -> dict[str, bytes]:
    """What a training has saved, by the file's name."""
    files = [*training.out.glob("*.safetensors"), *training.out.glob("resume/*")]
    return {path.name: path.read_bytes() for path in [*files, training.out / "result.json"]}


@pytest.mark.parametrize("log_every", [1, 100])
def test_a_loss_that_is_not_finite_ends_the_training_before_anything_is_written(
    command: Make, monkeypatch: pytest.MonkeyPatch, log_every: int
) -> None:
    monkeypatch.setattr("ttm.training.trainer.LOG_EVERY", log_every)
    training = command(steps=1)
    training.run()
    before = saved(training)
    diverging = command(steps=8, resume=True, resume_anyway=True, learning_rate=1e36)
    with pytest.raises(UserError, match=r"not finite in step \d.*--resume --resume-anyway"):
        diverging.run()
    assert saved(training) == before
    with pytest.raises(UserError, match=r"cannot resume exactly: --steps.*--resume-anyway"):
        command(steps=3, resume=True).run()
    assert command(steps=3, resume=True, resume_anyway=True, learning_rate=1e-4).run() == 0
    assert result_of(training)["step"] == 3
    assert command(steps=3, resume=True, learning_rate=1e-4).run() == 0, "what counts now"


def test_a_validation_error_that_is_not_finite_is_not_written(
    command: Make, errors: list[float]
) -> None:
    errors += [3.0, float("nan")]
    training = command(steps=2, validations=2)
    with pytest.raises(UserError, match="the validation error is nan after step 2"):
        training.run()
    assert load_checkpoint(training.out / "last.safetensors")[1]["steps"] == 1
    assert result_of(training)["best"] == {"step": 1, "validation_error": 3.0}


@pytest.mark.parametrize(
    ("held_out", "known", "best_step", "advice"),
    [
        (0.9, 0.9, 8, "no better than no policy"),
        (0.3, 0.2, 8, "still falling"),
        (0.3, 0.1, 4, "more demonstrations"),
        (0.3, 0.1, 8, "more demonstrations"),  # the last step of a cosine is nearly always the best
        (0.3, 0.2, 4, "ttm collect --policy"),
    ],
)
def test_the_end_says_what_was_reached_and_what_helps_next(
    held_out: float, known: float, best_step: int, advice: str
) -> None:
    simple = {"mean_action": {"normalized": 0.8}, "previous_action": {"normalized": 0.7}}
    found = {
        "step": 8,
        "validation": {"policy": {"normalized": held_out}, **simple},
        "training": {"policy": {"normalized": known}},
    }
    told, command = outcome(found, best_step, Path("runs/mine")).splitlines()
    assert f"held-out episodes {held_out:.3f}, on those trained on {known:.3f}" in told
    assert "previous action 0.700" in told
    assert advice in told
    best = "--checkpoint runs/mine/best.safetensors"
    drive = f"on your robot ttm robot {best} --contract YOURS.yaml"
    assert command == f"next: in simulation ttm evaluate {best} --out runs/mine/evaluation; {drive}"
    assert outcome({"step": 8}, 0, Path("runs/mine")) == command
    short = outcome(found, best_step, Path("runs/mine"), "8 steps are too few").splitlines()[0]
    assert ("8 steps are too few" in short) == ("no better" in advice)


def test_a_training_that_is_too_short_says_so_in_its_first_steps(
    command: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    training = command(steps=5)
    training.run()
    told = capsys.readouterr().err
    assert re.search(
        r"^note: 5 steps of [\d.e-]+ s are too few .* --minutes \d+; quicker", told, re.M
    )
    assert told.index("are too few") < told.index("step 5: validation error")
    replace(training, steps=9, resume=True, resume_anyway=True).run()
    assert "note: 9 steps of" in capsys.readouterr().err
    tuned = replace(training, out=training.out / "tuned", init=training.out / "last.safetensors")
    tuned.run()
    assert "too few" not in capsys.readouterr().err, "it knows a skill already"


def test_the_time_of_a_step_is_without_validations(
    command: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s, whole, evaluate = [0.0], Trainer._train_step, Trainer.evaluate

    def takes(seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            now_s[0] += seconds
            return call(*args)

        return timed

    monkeypatch.setattr("ttm.training.trainer.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(Trainer, "_train_step", takes(2.0, whole))
    monkeypatch.setattr(Trainer, "evaluate", takes(100.0, evaluate))
    command(steps=8, validations=8).run()
    assert "note: 8 steps of 2 s are too few" in capsys.readouterr().err


def test_the_average_follows_at_a_decay_that_warms_up() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = WeightAverage(model, decay=0.5)
    nn.init.ones_(model.weight)
    expected = 0.0
    for updates in range(1, 30):
        average.update()
        expected += (1 - min(0.5, (1 + updates) / (10 + updates))) * (1 - expected)
        assert average.model.weight.item() == pytest.approx(expected)


def test_the_average_is_in_evaluation_mode_and_needs_no_gradient() -> None:
    average = WeightAverage(nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train())
    assert not average.model.training
    assert not any(parameter.requires_grad for parameter in average.model.parameters())


def test_constants_that_are_not_saved_stay_as_they_are() -> None:
    """Limits of unlimited commands are infinite, and infinity minus infinity is NaN."""
    model = nn.Linear(1, 1)
    model.register_buffer("limit", torch.tensor(float("inf")), persistent=False)
    average = WeightAverage(model)
    average.update()
    assert average.model.limit == float("inf")


def test_batch_norm_gets_the_statistics_of_the_batches_it_is_shown() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.9)).eval()
    model[0].running_mean.fill_(50)
    batches = torch.randn(4, 64, 3) * 2 + 5
    calibrate_batch_norm(model, (model(batch) for batch in batches))
    assert torch.allclose(model[0].running_mean, batches.mean(dim=(0, 1)), atol=1e-5)
    assert torch.allclose(model[0].running_var, batches.var(dim=1).mean(dim=0), atol=1e-4)
    assert not model[0].training
    assert model[0].momentum == 0.1


def test_a_model_without_batch_norm_is_shown_nothing() -> None:
    shown = iter([1])
    calibrate_batch_norm(nn.Linear(1, 1), shown)
    assert next(shown) == 1
