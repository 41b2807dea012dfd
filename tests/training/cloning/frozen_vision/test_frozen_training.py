"""`ttm train --freeze-vision`: the same training as with a vision that does not learn."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ttm.policy import (
    PRESETS,
    Policy,
    PolicyRunner,
    PolicySpec,
    UserError,
    load_checkpoint,
    save_checkpoint,
)
from ttm.policy.config import VisionConfig
from ttm.training import train as assembly
from ttm.training.train import TrainCommand
from ttm.training.trainer import Trainer

Make = Callable[..., TrainCommand]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(out / "last.safetensors")[0].state_dict()


def losses_of(training: TrainCommand, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Run a training; return the loss of each step."""
    found, optimize = [], Trainer.backpropagate

    def kept(self: Trainer, batch: object) -> dict[str, torch.Tensor]:
        scalars = optimize(self, batch)  # type: ignore[arg-type]
        found.append(float(scalars["loss"].detach()))
        return scalars

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "backpropagate", kept)
        assert training.run() == 0
    return found


@pytest.mark.parametrize("window", ["episode", 3])
def test_losses_equal_those_of_a_vision_that_does_not_learn(
    command: Make,
    uneven: Path,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    window: object,
) -> None:
    same = {"init": trained, "data": (str(uneven),), "window": window, "augment": False, "steps": 6}
    frozen = losses_of(command(**same, freeze_vision=True), monkeypatch)
    make = assembly._policy

    def policy(*args: object) -> Policy:
        made = make(*args)  # type: ignore[arg-type]
        made.vision.requires_grad_(False)
        made.language.requires_grad_(False)
        return made

    monkeypatch.setattr(assembly, "_policy", policy)
    expected = losses_of(command(**same, out=tmp_path / "expected"), monkeypatch)
    assert frozen == pytest.approx(expected, rel=1e-3)
    assert len(set(expected)) == 6
    monkeypatch.setattr("ttm.training.frozen_vision.DTYPE", torch.float32)
    exact = command(**same, freeze_vision=True, out=tmp_path / "exact")
    assert losses_of(exact, monkeypatch) == pytest.approx(expected, rel=1e-5)


def test_the_checkpoint_is_an_ordinary_one_with_the_same_vision(
    command: Make, trained: Path, spec: PolicySpec, capsys: pytest.CaptureFixture[str]
) -> None:
    training = command(init=trained, freeze_vision=True, window="episode", learning_rate=0.01)
    assert training.run() == 0
    assert "vision is frozen: features of 60 distinct frames" in capsys.readouterr().err
    before, after = load_checkpoint(trained)[0].state_dict(), weights(training.out)
    assert before.keys() == after.keys()
    same = {name for name, value in before.items() if torch.equal(value, after[name])}
    frozen = {name for name in before if name.startswith(("vision.", "language."))}
    assert frozen <= same
    assert not any(name.startswith(("camera_tokens.0.project", "core.")) for name in same)
    result = json.loads((training.out / "result.json").read_text())
    assert np.isfinite(result["validation"]["policy"]["normalized"])
    runner = PolicyRunner.from_checkpoint(
        training.out / "best.safetensors", spec=spec, engine="torch"
    )
    runner.reset("do 0")
    seen = {name: np.zeros((16, 16, 3), np.uint8) for name in ("head", "wrist")}
    assert np.isfinite(runner.step({**seen, "joints": np.zeros(2, np.float32)}).values).all()


def test_validation_errors_are_those_of_the_frames(
    command: Make, trained: Path, tmp_path: Path
) -> None:
    same = {"init": trained, "steps": 1, "learning_rate": 1e-12}
    found = []
    for freeze in (True, False):
        training = command(**same, freeze_vision=freeze, out=tmp_path / f"{freeze}")
        training.run()
        result = json.loads((training.out / "result.json").read_text())
        found.append(result["validation"]["policy"]["normalized"])
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_frozen_batch_norm_keeps_its_statistics(
    command: Make, spec: PolicySpec, tmp_path: Path
) -> None:
    vision = VisionConfig(width_coefficient=0.25, depth_coefficient=0.5, reduction=8, norm="batch")
    policy = Policy(spec, replace(PRESETS["tiny"], width=16, vision=vision))
    for name, value in policy.state_dict().items():
        if name.endswith("running_mean"):
            value.add_(0.1)
    save_checkpoint(tmp_path / "first.safetensors", policy, {})
    training = command(init=tmp_path / "first.safetensors", freeze_vision=True)
    assert training.run() == 0
    found = weights(training.out)
    of_vision = [name for name in found if name.startswith("vision.")]
    assert any(name.endswith("running_mean") for name in of_vision)
    assert all(torch.equal(found[name], policy.state_dict()[name]) for name in of_vision)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"freeze_vision": True}, "--freeze-vision keeps the vision of a checkpoint; name one"),
        ({"recall_weight": 2.0}, "give --freeze-vision too, or leave it out"),
        ({"recall_weight": -1.0}, "recall-weight is -1.0"),
        ({"weigh_changes": 0.0}, "weigh-changes is 0.0"),
        ({"weigh_policy": -1.0}, "weigh-policy is -1.0"),
    ],
)
def test_options_that_do_not_fit_are_told(
    command: Make, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        command(**options).run()
