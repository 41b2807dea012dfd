from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ttm.policy import Policy, UserError, load_checkpoint, save_checkpoint
from ttm.training.distributed import ENDED, launched
from ttm.training.losses import TrainingBatch
from ttm.training.options import OptimizerConfig
from ttm.training.train import TrainCommand
from ttm.training.trainer import Trainer

Make = Callable[..., TrainCommand]
Start = Callable[[TrainCommand], tuple[list[int | None], list[str]]]

ROUNDING = {"optimizer": OptimizerConfig(epsilon=1e-6)}
"""AdamW moves a weight whose gradient is 0 but for rounding, such as a bias before a softmax, at
random. A larger epsilon holds it still."""


def state(training: TrainCommand) -> dict[str, torch.Tensor]:
    """Return weights, averages, optimiser and memory, as they are resumed."""
    return load_file(training.out / "resume" / "state.safetensors")


def errors_of(training: TrainCommand) -> dict[str, float]:
    """Return the errors of the policy and of the baselines on held-out episodes."""
    result = json.loads((training.out / "result.json").read_text())
    return {who: errors["normalized"] for who, errors in result["validation"].items()}


def furthest(one: TrainCommand, two: TrainCommand) -> float:
    """Return the largest difference between two states, as a portion of values above 1 in its tensor.

    A memory that is carried from step to step has such values, and rounding that grows with the steps.
    """
    first, second = ({n: x.double() for n, x in state(each).items()} for each in (one, two))
    assert first.keys() == second.keys()
    away = {name: (value - second[name]).abs().max() for name, value in first.items()}
    return max(float(away[name] / first[name].abs().max().clamp(min=1)) for name in away)


@pytest.fixture
def with_batch_norm(command: Make, tmp_path: Path) -> Path:
    """A checkpoint whose vision has BatchNorm, as those of the larger presets have."""
    first = command(steps=1, out=tmp_path / "first", cameras=("wrist",))
    first.run()
    trained = load_checkpoint(first.out / "last.safetensors")[0]
    torch.manual_seed(0)
    vision = replace(trained.config.vision, norm="batch")
    policy = Policy(trained.spec, replace(trained.config, vision=vision))
    policy.normalizer.load_state_dict(trained.normalizer.state_dict())
    save_checkpoint(tmp_path / "norm.safetensors", policy, {})
    return tmp_path / "norm.safetensors"


def test_two_processes_train_what_one_does(
    command: Make, with_batch_norm: Path, uneven: Path, tmp_path: Path
) -> None:
    """Started as a user does it: Fabric starts the second one. Their shares of 5 windows differ."""
    options = {"data": (str(uneven),), "steps": 8, "batch_size": 5, **ROUNDING}
    options |= {"init": with_batch_norm, "cameras": ("wrist",)}
    one, two = command(**options, out=tmp_path / "one"), command(**options, out=tmp_path / "two")
    assert one.run() == 0
    arguments = ["--config", str(one.out / "run.yaml"), "--out", str(two.out), "--devices", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "ttm.training.cli", "train", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "on cpu and 1 more" in done.stderr
    assert done.stderr.count("finished after step 8") == 1
    assert furthest(one, two) < 1e-5
    assert errors_of(two) == pytest.approx(errors_of(one), rel=1e-5)


FROZEN = {"window": "episode", "freeze_vision": True, "recall_weight": 2.0}


@pytest.mark.parametrize("options", [{"memory": "carry"}, FROZEN], ids=["carry", "frozen-recall"])
def test_shares_and_parts_of_a_batch_add_up_to_it(
    command: Make,
    with_batch_norm: Path,
    uneven: Path,
    tmp_path: Path,
    in_two_processes: Start,
    options: dict[str, Any],
) -> None:
    given = {"data": (str(uneven),), "batch_size": 5, "steps": 4, **ROUNDING, **options}
    if options is FROZEN:
        given |= {"init": with_batch_norm, "cameras": ("wrist",)}
    one = command(**given, out=tmp_path / "one")
    one.run()
    two = command(**given, accumulate=2, out=tmp_path / "two")
    assert in_two_processes(two) == ([0, 0], [])
    assert furthest(one, two) < 1e-5


def test_the_trainer_is_gone_before_the_processes_part(
    command: Make, uneven: Path, in_two_processes: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise about one training in ten would never end, each thread waiting for another."""
    parted = torch.distributed.destroy_process_group

    def part() -> None:
        kept = (Trainer, torch.nn.parallel.DistributedDataParallel)
        if any(isinstance(each, kept) for each in gc.get_objects()):
            raise UserError("the trainer is kept")
        parted()

    monkeypatch.setattr(torch.distributed, "destroy_process_group", part)
    training = command(data=(str(uneven),), steps=2, batch_size=5)
    assert in_two_processes(training) == ([0, 0], [])


def test_after_the_loss_of_a_process_a_resume_equals_an_unbroken_training(
    command: Make,
    uneven: Path,
    tmp_path: Path,
    in_two_processes: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"data": (str(uneven),), "steps": 4, "batch_size": 5, "memory": "carry"}
    unbroken = command(**options, save_every=2, out=tmp_path / "unbroken")
    assert in_two_processes(unbroken) == ([0, 0], [])
    broken, step = replace(unbroken, out=tmp_path / "broken"), Trainer.backpropagate

    def lost(self: Trainer, batch: TrainingBatch) -> dict[str, torch.Tensor]:
        if self.progress.step == 3 and not self.processes.first:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "backpropagate", lost)
        codes, told = in_two_processes(broken)
    assert codes == [2, -signal.SIGKILL]
    assert told == ["process 1 of 2 stops: " + ENDED]
    assert in_two_processes(replace(broken, resume=True)) == ([0, 0], [])
    assert furthest(unbroken, broken) == 0


def test_a_mistake_is_told_once(command: Make, in_two_processes: Start, tmp_path: Path) -> None:
    wrong = command(data=(str(tmp_path / "missing.hdf5"),))
    codes, told = in_two_processes(wrong)
    assert (codes, len(told)) == ([2, 0], 1)
    assert "missing.hdf5 does not exist" in told[0]


def test_a_batch_must_have_a_window_for_each_part(command: Make) -> None:
    with pytest.raises(UserError, match=r"--batch-size is 2, .* give at least 6"):
        command(devices=2, accumulate=3).run()


def test_nothing_waits_for_machines_that_nobody_has_started(
    command: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UserError, match="nodes is 2, but nothing has started the training on each"):
        command(nodes=2).run()


def test_under_a_launcher_all_of_its_processes_train(
    command: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_slurm = {"SLURM_NTASKS": "16", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "train"}
    for name, value in of_slurm.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    with pytest.raises(UserError, match=r"--devices is 4, but .* processes for 8; leave it out"):
        command(devices=4, batch_size=16).run()
    monkeypatch.delenv("SLURM_STEP_ID")
    assert command(steps=1).run() == 0, (
        "a job's script has all tasks in its environment, and is one"
    )


def test_on_a_login_node_nobody_is_told_to_use_srun(
    command: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert launched(command()).world_size == 1
    assert not [each for each in recwarn if "srun" in str(each.message)]
