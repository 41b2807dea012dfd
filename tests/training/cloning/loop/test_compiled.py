"""`ttm train --compile`, with a compiler that leaves graphs as they are, since a real one takes minutes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ttm.datasets import EpisodeWriter, open_dataset
from ttm.policy import UserError, load_checkpoint
from ttm.training import trainer as compiled
from ttm.training.train import TrainCommand

Make = Callable[..., TrainCommand]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """The graphs that were made so far, by a compiler that leaves them as they are."""
    made: list[torch.fx.GraphModule] = []

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        made.append(module)
        return module.forward

    torch.compiler.reset()
    monkeypatch.setattr(compiled, "BACKEND", compiler)
    return made


@pytest.fixture
def sightless(episodes: Path, tmp_path: Path) -> Path:
    """The same episodes without their cameras."""
    for number, episode in enumerate(open_dataset(episodes)):
        spec = replace(episode.spec, cameras=())
        with EpisodeWriter(tmp_path / "sightless" / f"{number}.hdf5", spec) as writer:
            for tick, action in enumerate(episode.actions):
                joints = episode.proprioception("joints")[tick]
                writer.append({"joints": joints}, action, timestamp_s=tick / spec.rate_hz)
            writer.finish(instruction="do", embedding=episode.language_embedding, split="train")
    return tmp_path / "sightless"


def weights(training: TrainCommand) -> dict[str, torch.Tensor]:
    return load_checkpoint(training.out / "last.safetensors")[0].state_dict()


def test_a_step_is_one_graph_trains_as_without(
    command: Make,
    sightless: Path,
    graphs: list[torch.fx.GraphModule],
    tmp_path: Path,
) -> None:
    options = {"data": (str(sightless),), "window": 2}
    plain = command(**options)
    whole = command(**options, compile=True, out=tmp_path / "whole")
    plain.run()
    assert not graphs
    whole.run()
    (step,) = graphs
    assert "smooth_l1_loss" in step.code, "all ticks with their losses, and not a part of a step"
    expected, found = weights(plain), weights(whole)
    for name, value in expected.items():
        # Adam makes a part of a step of the rounding of a gradient near 0, which differs between CPUs.
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=3e-5)


def test_whole_episodes_are_not_compiled(command: Make) -> None:
    with pytest.raises(UserError, match="--window episode has many"):
        command(compile=True, window="episode").run()
