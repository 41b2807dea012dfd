"""`ttm train --dry-run` says what a training would do, and writes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from rich.console import Console

from ttm.training import train as dry_run
from ttm.training.options import Budget
from ttm.training.train import TrainCommand, assembled
from ttm.training.trainer import Trainer

Make = Callable[..., TrainCommand]


def test_what_is_trained_on_what_and_how_long_is_told(
    command: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    training = command(steps=1000, validations=3, dry_run=True)
    assert training.run() == 0
    told = capsys.readouterr().err
    for words in (
        "obs used: head (camera 16x16), wrist",
        "4 episodes (20 ticks) to train on, 2 held out",
        "sizes of the core, ttm: memory_size=",
        "a validation: about",
        "; 3 of them",
        "the whole training: about 1,000 steps in",
        "note: 1000 steps of",
    ):
        assert words in told
    assert re.search(r"^vision: [\d,]+ parameters$", told, re.M)
    assert re.search(r"^a step: [\d.e-]+ s .* 2 windows of 3 ticks", told, re.M)
    assert re.search(r"^peak memory: \d+\.\d\d GiB", told, re.M)
    assert not training.out.exists()


@pytest.fixture
def trainer(command: Make, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """A trainer whose steps take 2 s and whose validations take 30 s."""
    monkeypatch.setattr(dry_run, "_step_times", lambda trainer: [9.0, 2.0, 2.0, 3.0])
    monkeypatch.setattr(dry_run, "_validation_time", lambda trainer: 30.0)
    return assembled(command(steps=100, validations=4), Console(quiet=True))


@pytest.mark.parametrize(
    ("budget", "steps", "seconds"),
    [
        (Budget(steps=100), 100, 2 * 100 + 4 * 30),
        (Budget(minutes=10), (600 - 120) / 2, 600),
        (Budget(steps=50, minutes=10), 50, 2 * 50 + 4 * 30),
        (Budget(minutes=1), 0, 120),
    ],
)
def test_the_length_follows_from_steps_or_minutes(
    trainer: Trainer, budget: Budget, steps: int, seconds: float
) -> None:
    trainer.budget = budget
    assert dry_run.estimate(trainer)[2:] == (steps, seconds)
