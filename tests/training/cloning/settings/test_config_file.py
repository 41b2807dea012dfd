"""`ttm train --config`, and the run.yaml that every training writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ttm.policy import UserError
from ttm.training.cli import main, parse
from ttm.training.options import AugmentationConfig, OptimizerConfig
from ttm.training.train import TrainCommand

FILE = """
data: [a.hdf5, b.hdf5]
out: runs/one
learning-rate: 1e-4   # a text to YAML 1.1
window: episode
augment: false
cameras: []
minutes: null
batch_size: 32
augmentation: {shift: 0.1}
optimizer:
  betas: [0.8, 0.95]
  epsilon: 1e-6
"""


def parsed(path: Path, *words: str) -> TrainCommand:
    command = parse(["train", "--config", str(path), *words])
    assert isinstance(command, TrainCommand)
    return command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(FILE)
    return path


def test_a_file_gives_options_and_the_command_line_counts_more(file: Path) -> None:
    found = parsed(file, "--augment", "--data", "c.hdf5", "--seed", "3")
    assert found.data == ("c.hdf5",)
    assert found.out == Path("runs/one")
    assert found.optimization.learning_rate == 1e-4
    assert (found.window, found.batch_size, found.minutes, found.seed) == ("episode", 32, None, 3)
    assert found.augment
    assert not parsed(file).augment
    assert found.augmentation == AugmentationConfig(shift=0.1)
    assert found.optimizer == OptimizerConfig(betas=(0.8, 0.95), epsilon=1e-6)


def test_run_yaml_holds_all_options_of_the_training(
    command: Callable[..., TrainCommand], episodes: Path, tmp_path: Path
) -> None:
    training = command(
        steps=1,
        learning_rate=3e-4,
        cameras=("wrist",),
        average_decay=0.9,
        augmentation=AugmentationConfig(hue_rad=0.0),
        logger=("csv", "tensorboard"),
        save_every=1,
    )
    assert training.run() == 0
    again = parsed(training.out / "run.yaml", "--out", str(tmp_path / "again"))
    assert again.by_name() == {**training.by_name(), "out": tmp_path / "again"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch-sise: 3", "did you mean batch-size"),
        ("augmentation: {shifts: 1}", "there is no option 'augmentation.shifts'"),
        ("data: {a: {b: 1}}", "data has no value that the option takes"),
        ("window: many", "window has no value that the option takes: many"),
        ("augment: 3", "augment has no value that the option takes: 3"),
        ("- data", "holds no options"),
        ("data: [", "cannot be read: while parsing"),
    ],
)
def test_mistakes_in_the_file_are_told_in_one_line(
    file: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert main(["train", "--config", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(file) in line
    assert message in line


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--config .*none\.yaml cannot be read"):
        parsed(tmp_path / "none.yaml")
