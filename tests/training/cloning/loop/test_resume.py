from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ttm.policy import UserError
from ttm.training.options import OptimizerConfig
from ttm.training.resume import TrainingProgress, load_resume, read_header, save_resume
from ttm.training.trainer import WeightAverage, build_optimizer, set_learning_rate

ADAMW, MUON = OptimizerConfig(), OptimizerConfig(kind="muon")


def network() -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 16)
    net = nn.Sequential(*inner, nn.Linear(16, 2))
    return net.to(memory_format=torch.channels_last)


class Training:
    def __init__(self, optimizer: OptimizerConfig = ADAMW) -> None:
        self.net = network()
        self.average = WeightAverage(self.net)
        self.models = {"trained": self.net, "average": self.average.model}
        self.optimizer = build_optimizer(self.net, 0.1, optimizer)

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last):
            torch.manual_seed(step)
            set_learning_rate(self.optimizer, 0.01 * (step + 1))
            self.optimizer.zero_grad()
            self.net(torch.randn(5, 3, 4, 4)).square().mean().backward()
            self.optimizer.step()
            self.average.update()


@pytest.mark.parametrize("optimizer", [ADAMW, MUON])
def test_a_resumed_training_equals_an_unbroken_one(
    tmp_path: Path, optimizer: OptimizerConfig
) -> None:
    unbroken, first, second = (Training(optimizer) for _ in range(3))
    unbroken.steps(0, 5)
    first.steps(0, 2)
    progress = TrainingProgress(step=2, elapsed_s=3.5, validations=1, best_error=0.25, best_step=1)
    save_resume(tmp_path / "state.safetensors", progress, {}, first.models, first.optimizer)
    loaded = load_resume(tmp_path / "state.safetensors", second.models, second.optimizer)
    second.average.updates = loaded.step
    second.steps(loaded.step, 5)
    assert loaded == progress
    for mine, theirs in (
        (second.net, unbroken.net),
        (second.average.model, unbroken.average.model),
    ):
        expected = theirs.state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in mine.state_dict().items())


def test_saving_leaves_one_file(tmp_path: Path) -> None:
    training = Training()
    for _ in range(2):
        save_resume(
            tmp_path / "state.safetensors",
            TrainingProgress(),
            {},
            training.models,
            training.optimizer,
        )
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]


def test_what_cannot_be_resumed_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no training to resume"):
        read_header(tmp_path / "state.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\x00")
    with pytest.raises(UserError, match="not a training's state"):
        read_header(tmp_path / "cut.safetensors")
    save_file({}, tmp_path / "old.safetensors", {"ttm_resume": "1"})  # its policy had fewer weights
    with pytest.raises(UserError, match=r"state of format 1, not 2; .*--overwrite"):
        read_header(tmp_path / "old.safetensors")


def test_only_matrices_and_kernels_decay() -> None:
    decaying, others = build_optimizer(network(), weight_decay=0.1).param_groups
    assert sorted(parameter.dim() for parameter in decaying["params"]) == [2, 2, 4]
    assert decaying["weight_decay"] == 0.1
    assert all(parameter.dim() == 1 for parameter in others["params"])
    assert others["weight_decay"] == 0


def test_muon_moves_wide_matrices_alone_and_in_all_directions_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(MUON)
    of_muon, *of_adamw = training.optimizer.param_groups
    assert [tuple(parameter.shape) for parameter in of_muon["params"]] == [(16, 16)]
    assert sum(len(group["params"]) for group in of_adamw) == len([*training.net.parameters()]) - 1
    (matrix,) = of_muon["params"]
    before = matrix.detach().clone()
    training.steps(0, 1)
    moved, gradient = (
        torch.linalg.svdvals(each.detach())
        for each in (matrix - before * (1 - 0.01 * 0.1), matrix.grad)
    )
    assert gradient[1] < 0.25 * gradient[0]
    assert moved[1] > 0.5 * moved[0]
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(UserError, match=r"optimizer\.kind is muon: it needs torch 2\.9"):
        build_optimizer(network(), 0.1, MUON)
