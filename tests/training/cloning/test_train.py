from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ttm.policy import PolicyRunner, UserError, load_checkpoint
from ttm.training.run_log import step_checkpoints
from ttm.training.train import TrainCommand

Make = Callable[..., TrainCommand]


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(path)[0].state_dict()


def equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_training_leaves_checkpoints_that_run_and_errors_beside_baselines(
    command: Make, spec: object
) -> None:
    training = command()
    assert training.run() == 0
    result = json.loads((training.out / "result.json").read_text())
    assert result["finished"] is True
    assert result["step"] == 2
    for split, ticks in (("validation", 10), ("training", 20)):
        for who in ("policy", "policy_without_previous_action", "mean_action", "previous_action"):
            assert result[split][who]["ticks"] == ticks
            assert result[split][who]["parts"].keys() == {"arm", "gripper"}
    assert result["training"]["mean_action"]["normalized"] == pytest.approx(1.0)
    assert result["best"]["validation_error"] == result["validation"]["policy"]["normalized"]
    runner = PolicyRunner.from_checkpoint(
        training.out / "best.safetensors", spec=spec, engine="torch"
    )  # type: ignore[arg-type]
    runner.reset("do 0")  # a known instruction: no language model
    seen = {name: np.zeros((16, 16, 3), np.uint8) for name in ("head", "wrist")}
    assert np.isfinite(runner.step({**seen, "joints": np.zeros(2, np.float32)}).values).all()


def test_a_training_has_a_thread_for_each_core_that_it_may_use(
    command: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 2, 5})
    assert command(threads=0, steps=1).run() == 0
    assert torch.get_num_threads() == 3


def test_tensorboard_shows_losses_speed_errors_and_images(
    command: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ttm.training.trainer.LOG_EVERY", 1)
    training = command()
    training.run()
    events = EventAccumulator(str(training.out / "tensorboard"))
    events.Reload()
    shown = set(events.Tags()["scalars"])
    assert {
        "train/arm",
        "train/gripper",
        "train/loss",
        "train/learning_rate",
        "train/gradient_norm",
    } <= shown
    assert {
        "throughput/steps_per_s",
        "validation/normalized/policy",
        "validation/arm/mean_action",
    } <= shown
    assert set(events.Tags()["images"]) == {"augmented/head", "augmented/wrist"}


def test_training_lowers_the_error(command: Make) -> None:
    training = command(steps=40, batch_size=4, augment=False, average_decay=0.5)
    training.run()
    result = json.loads((training.out / "result.json").read_text())
    assert result["training"]["policy"]["normalized"] < 0.95


FROZEN = {"window": "episode", "freeze_vision": True}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": "episode"},
        {"window": 16, "memory": "carry"},
        FROZEN,
        {**FROZEN, "recall_weight": 2.0},
        {**FROZEN, "window": 3, "memory": "carry", "recall_weight": 2.0},
    ],
    ids=["plain", "episode", "carry", "frozen", "recall", "recall-carry"],
)
def test_resumed_equals_unbroken(
    command: Make,
    interrupted: Callable[[TrainCommand, int], None],
    uneven: Path,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, object],
) -> None:
    monkeypatch.setattr("ttm.policy.cpu_training.FEWEST_PRODUCTS", 1)  # as in larger trainings
    options = {**options, "data": (str(uneven),), "steps": 5}
    if "freeze_vision" in options:
        options["init"] = trained
    unbroken, broken = command(**options, out=tmp_path / "unbroken"), command(**options)
    unbroken.run()
    interrupted(broken, 2)
    assert json.loads((broken.out / "result.json").read_text())["finished"] is False
    assert replace(broken, resume=True).run() == 0
    result = json.loads((broken.out / "result.json").read_text())
    assert (result["step"], result["finished"]) == (5, True)
    assert equal(*(weights(each.out / "last.safetensors") for each in (unbroken, broken)))


def test_minutes_end_a_training_after_one_step_at_least(command: Make) -> None:
    training = command(steps=None, minutes=1e-9)
    assert training.run() == 0
    assert json.loads((training.out / "result.json").read_text())["step"] == 1


def test_fine_tuning_starts_from_the_checkpoint_and_keeps_its_normalisation(
    command: Make, trained: Path, tmp_path: Path, episodes: Path
) -> None:
    one_file = (str(next(episodes.glob("episode_0.hdf5"))),)
    tuned = command(
        data=one_file, init=trained, steps=1, learning_rate=1e-9, out=tmp_path / "tuned"
    )
    tuned.run()
    before, after = weights(trained), weights(tuned.out / "last.safetensors")
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    fresh = command(
        data=one_file, init=trained, steps=1, new_statistics=True, out=tmp_path / "fresh"
    )
    fresh.run()
    mean = "normalizer.actions.mean"
    assert torch.equal(before[mean], after[mean])
    assert not torch.equal(before[mean], weights(fresh.out / "last.safetensors")[mean])


def test_fine_tuning_takes_the_checkpoints_cameras(command: Make, tmp_path: Path) -> None:
    first = command(cameras=("wrist",), steps=1)
    first.run()
    assert command(init=first.out / "last.safetensors", steps=1, out=tmp_path / "tuned").run() == 0


@pytest.mark.parametrize(("given", "side"), [(8, 8), (24, 16)])
def test_images_can_be_reduced_and_are_never_enlarged(command: Make, given: int, side: int) -> None:
    training = command(image_size=given, steps=1)
    training.run()
    cameras = load_checkpoint(training.out / "last.safetensors")[0].spec.cameras
    assert {(camera.height, camera.width) for camera in cameras} == {(side, side)}


def test_larger_frames_are_reduced_to_the_presets_size_and_fine_tuning_takes_the_checkpoints(
    command: Make, tmp_path: Path, large_frames: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = (str(large_frames),)
    first = command(data=data, steps=1)
    first.run()
    printed = " ".join(capsys.readouterr().err.split())
    assert "frames are reduced (head 96x72 to 64x64), as evaluations" in printed
    checkpoint = first.out / "last.safetensors"
    tuned = command(data=data, init=checkpoint, steps=1, out=tmp_path / "tuned")
    tuned.run()
    for path in (checkpoint, tuned.out / "last.safetensors"):
        sizes = {
            camera.name: (camera.height, camera.width)
            for camera in load_checkpoint(path)[0].spec.cameras
        }
        assert sizes == {"head": (64, 64), "wrist": (16, 16)}
    with pytest.raises(UserError, match=r"head 64x64, .* has head 16x16, .* or larger"):
        command(init=checkpoint, out=tmp_path / "small").run()


MISTAKES: list[tuple[dict[str, object], str]] = [
    ({"cameras": ("back",)}, "camera 'back' is not in this data; it has: head, wrist"),
    ({"data": ("missing.hdf5",)}, "missing.hdf5 does not exist"),
    ({"init": Path("missing.safetensors")}, "missing.safetensors: no such checkpoint"),
    ({"filter": "best"}, "no mask 'best'; it has: train, valid"),
    ({"resume": True}, "no training to resume"),
    ({"batch_size": 0}, "--batch-size is 0"),
    ({"previous_action_dropout": 2.0}, "previous-action-dropout is 2.0"),
    ({"resume": True, "overwrite": True}, "give one of them"),
]


@pytest.mark.parametrize(("changes", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_told_in_one_line(
    command: Make, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as raised:
        command(**changes).run()
    assert message in str(raised.value)


def test_the_papers_inputs_are_one_camera_and_the_previous_action(
    command: Make, tmp_path: Path
) -> None:
    """Fine-tuning takes the inputs of the checkpoint without being told."""
    first = command(cameras=("head",), proprioception=("none",), out=tmp_path / "paper")
    assert first.run() == 0
    assert command(init=first.out / "last.safetensors").run() == 0
    for out in (first.out, tmp_path / "run"):
        policy = load_checkpoint(out / "last.safetensors")[0]
        assert list(policy.token_sources) == ["head", "previous action", "instruction"]
    with pytest.raises(UserError, match=r"made for proprioception none, but .* has"):
        command(
            init=first.out / "last.safetensors", proprioception=("joints",), out=tmp_path / "other"
        ).run()


def test_a_checkpoint_of_another_robot_is_refused(
    command: Make, trained: Path, other_robot: Path
) -> None:
    tuned = command(init=trained, data=(str(other_robot),))
    with pytest.raises(
        UserError, match=r"last.safetensors was made for robot small, but .* has other"
    ):
        tuned.run()


def test_a_finished_training_is_neither_overwritten_nor_resumed_as_another(
    command: Make, other_robot: Path
) -> None:
    command(steps=1).run()
    with pytest.raises(UserError, match="holds a training; go on with it by --resume"):
        command(steps=1).run()
    with pytest.raises(UserError, match=r"--window \(3 then, 2 now\)"):
        command(steps=1, resume=True, window=2).run()
    with pytest.raises(UserError, match=r"robot small, but .* has other"):
        command(steps=1, resume=True, data=(str(other_robot),)).run()
    assert command(steps=1, overwrite=True).run() == 0


def wait_for_line(process: subprocess.Popen[str], text: str) -> Sequence[str]:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError("".join(lines))


def test_ctrl_c_saves_and_leaves(command: Make, tmp_path: Path) -> None:
    training = command()
    (tmp_path / "often.yaml").write_text("save-every: 1")
    arguments = ["train", "--data", *training.data, "--out", str(training.out), "--minutes", "10"]
    arguments += ["--window", "2", "--batch-size", "2", "--threads", "1"]
    arguments += ["--config", str(tmp_path / "often.yaml")]
    script = "import sys; from ttm.training.cli import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for_line(process, "episodes")
        while not step_checkpoints(training.out):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 130
    assert (training.out / "last.safetensors").exists()
    assert (training.out / "resume" / "state.safetensors").exists()
    assert json.loads((training.out / "result.json").read_text())["finished"] is False
