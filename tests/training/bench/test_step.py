"""`ttm bench step`: figures of every part, LSTMs of as many weights. No test depends on time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ttm.policy import PRESETS, ActionPart, Policy, PolicySpec, UserError, save_checkpoint
from ttm.training.bench import step
from ttm.training.bench.step import (
    OURS,
    BenchStepCommand,
    equal_lstm,
    made_up_action,
    parsed,
    timed_step,
    trainer_of,
)
from ttm.training.data import FeatureCache
from ttm.training.sequence_model import TOLERANCE

PARTS = {"batch", "cameras", "inputs", "core", "head", "recall", "weights"}


@pytest.fixture
def policy(spec: PolicySpec) -> Policy:
    torch.manual_seed(0)
    return Policy(spec, PRESETS["tiny"])


@pytest.fixture
def quick(policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BenchStepCommand:
    """Steps of two made-up episodes of a robot with small cameras."""
    init = tmp_path / "init.safetensors"
    save_checkpoint(init, policy, {})
    for name, value in {"EPISODES": 4, "TICKS": (3, 4), "BATCH_SIZE": 2}.items():
        monkeypatch.setattr(step, name, value)
    return BenchStepCommand(cores=("ttm",), init=init, threads=(1,), rounds=1)


def test_a_core_and_its_lstm_are_timed_on_made_up_episodes(
    quick: BenchStepCommand,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    path, threads = tmp_path / "new" / "step.json", torch.get_num_threads()
    assert replace(quick, json=path, threads=(1, 2)).run() == 0
    assert torch.get_num_threads() == threads
    printed = capsys.readouterr().out
    assert "3 episodes of 3 to 4 ticks" in printed
    for text in (
        "on 1 CPU thread\n",
        "on 2 CPU threads\n",
        "camera tokens",
    ):
        assert text in printed
    rows = json.loads(path.read_text())["steps"]
    assert [(row["core"].split()[0], row["threads"]) for row in rows] == [
        ("ttm", 1),
        ("lstm", 1),
        ("ttm", 2),
        ("lstm", 2),
    ]
    for row in rows:
        assert set(row["parts"]) == PARTS
        assert row["step"]["processor"] > 0
        assert set(row["parts"]["core"]) == {"forward", "backward"}
    assert rows[1]["processor_ratio"] == rows[1]["wall_ratio"] == 1
    assert rows[0]["lstm"] == rows[1]["core"]
    products = [row["multiply_adds"] for row in rows]
    assert rows[0]["multiply_adds_ratio"] == products[0] / products[1] > 1


def test_recorded_episodes_without_a_recall_loss(
    quick: BenchStepCommand,
    uneven: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step, "RECALL_WEIGHT", 0)
    path = tmp_path / "step.json"
    replace(quick, data=(str(uneven),), json=path).run()
    printed = capsys.readouterr().out
    assert "6 episodes of 3 to" in printed
    assert "recall loss 0" in printed
    rows = json.loads(path.read_text())["steps"]
    assert all(set(row["parts"]) == PARTS - {"recall"} for row in rows)


def test_made_up_actions_are_commands_of_the_robot() -> None:
    inf = float("inf")
    limits = [(-1.0, 1.0), (2.0, 5.0), (-inf, -3.0), (4.0, inf), (-inf, inf)]
    spec = PolicySpec(
        robot="odd",
        cameras=(),
        proprioception=(),
        actions=(
            *(ActionPart(f"{low} to {high}", 1, "m", low=low, high=high) for low, high in limits),
            ActionPart("hands", 2, "1", "binary", -1.0, 1.0),
            ActionPart("stop", 1, "1", "binary"),
        ),
        rate_hz=5.0,
    )
    rng = np.random.default_rng(0)
    actions = np.array([made_up_action(spec, rng) for _ in range(50)])
    assert np.isfinite(actions).all()
    low, high = spec.action_limits
    assert ((actions >= low) & (actions <= high)).all()
    assert {*actions[:, 5]} == {*actions[:, 6]} == {-1, 1}
    assert {*actions[:, 7]} == {0, 1}


def test_a_robot_without_cameras_has_no_vision_to_freeze(
    quick: BenchStepCommand, spec: PolicySpec
) -> None:
    blind = Policy(replace(spec, cameras=()), PRESETS["tiny"])
    save_checkpoint(quick.init, blind, {})
    with pytest.raises(UserError, match="camera"):
        quick.run()


class Slow(torch.autograd.Function):
    """Passes a tensor on while the clock runs on, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Callable[[float], None], seconds: float) -> Tensor:
        ctx.run, ctx.seconds = run, seconds
        run(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.run(10 * ctx.seconds)
        return gradient.clone(), None, None


def test_time_counts_for_the_part_that_takes_it(
    quick: BenchStepCommand, policy: Policy, uneven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every module takes a time of its own under a clock that only these modules move."""
    features = FeatureCache(policy, policy.spec.cameras)
    trainer = trainer_of(parsed("ttm", policy), quick.init, (str(uneven),), features)
    clock = 0.0

    def run(seconds: float) -> None:
        nonlocal clock
        clock += seconds

    def slow(module: nn.Module, seconds: float) -> None:
        whole = module.forward

        def forward(*args: Any, **options: Any) -> Any:
            out = whole(*args, **options)
            if isinstance(out, tuple):
                return Slow.apply(out[0], run, seconds), *out[1:]
            return Slow.apply(out, run, seconds)

        monkeypatch.setattr(module, "forward", forward)

    assert trainer.recall is not None
    for module, seconds in (
        (trainer.policy.camera_tokens[0], 1.0),
        (trainer.policy.camera_tokens[1], 1.0),
        (trainer.policy.action_token, 3.0),
        (trainer.policy.core, 4.0),
        (trainer.policy.action_head, 5.0),
        (trainer.recall.mlp, 6.0),
    ):
        slow(module, seconds)
    monkeypatch.setattr(step, "clocks", lambda: np.array([clock, clock]))
    (batch,) = trainer.source.sample(1)
    taken = timed_step(trainer, lambda: (run(7.0), batch)[1])
    known = {key: wall for key, (_, wall) in taken.items() if wall}
    assert known == {
        ("batch", "forward"): 7,
        ("cameras", "forward"): 2,
        ("cameras", "backward"): 20,
        ("inputs", "forward"): 3,
        ("inputs", "backward"): 30,
        ("core", "forward"): 4,
        ("core", "backward"): 40,
        ("head", "forward"): 5,
        ("head", "backward"): 50,
        ("recall", "forward"): 6,
        ("recall", "backward"): 60,
    }


def test_a_sight_memory_is_trained_and_counted(
    quick: BenchStepCommand, policy: Policy, uneven: Path
) -> None:
    with_it = parsed("ttm num_layers=1 sight_tokens=2", policy)
    features = FeatureCache(policy, policy.spec.cameras)
    trained = trainer_of(with_it, quick.init, (str(uneven),), features).policy
    parts = (trained.core, trained.sight)
    assert with_it.parameters == sum(p.numel() for part in parts for p in part.parameters())
    assert with_it.label == "ttm num_layers=1 sight_tokens=2"


@pytest.mark.parametrize(
    "core", [OURS, "ttm", "ttm sight_tokens=2", "tlb", "lstm num_layers=3", "hourglass"]
)
def test_the_lstm_has_as_many_weights(core: str, policy: Policy) -> None:
    found = parsed(core, policy)
    lstm = equal_lstm(found, policy)
    made = Policy(policy.spec, replace(policy.config)).core if core == "ttm" else None
    if made is not None:
        assert found.parameters == sum(parameter.numel() for parameter in made.parameters())
    assert lstm.name == "lstm"
    assert abs(lstm.parameters / found.parameters - 1) <= TOLERANCE


def test_the_lstm_has_as_many_outputs(policy: Policy) -> None:
    found = parsed("ttm process_size=3", policy)
    assert "process_size=3" in equal_lstm(found, policy).options


def test_cores_and_options_that_cannot_be_are_refused(
    quick: BenchStepCommand, policy: Policy
) -> None:
    small = parsed("ttm num_layers=0 bottleneck=1", policy)
    with pytest.raises(
        UserError,
        match="even with bottleneck=1, more than",
    ):
        equal_lstm(small, policy)
    with pytest.raises(UserError, match="there is no core ''"):
        parsed("", policy)
    with pytest.raises(UserError, match="--threads is 0"):
        replace(quick, threads=(0,)).run()
    with pytest.raises(UserError, match="--cores is empty"):
        replace(quick, cores=()).run()
