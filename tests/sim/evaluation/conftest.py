"""A policy that remembers: trained within seconds on the memory task of `memory_point_env.py`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from ttm.policy import PRESETS, Policy, PolicyInputs, PolicyRunner, save_checkpoint
from ttm.policy.cores.baselines import LstmConfig
from ttm.sim import actors

SIM_TESTS = Path(__file__).parents[1]
INSTRUCTION = "touch the side of the colour"
GO_TICKS, STEP_M, STEPS = 12, 0.1, 90


@pytest.fixture
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's package is. Worker processes inherit the path."""
    monkeypatch.syspath_prepend(str(SIM_TESTS))


@pytest.fixture
def points(_importable: None) -> ModuleType:
    """The module of the memory task, imported by its name as commands do."""
    return import_module("memory_point_env")


@pytest.fixture
def without_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare policies in this process the conversion to OpenVINO, of which other tests speak."""
    monkeypatch.setattr(actors, "PolicyRunner", partial(PolicyRunner, engine="torch"))


@pytest.fixture(scope="session")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a policy with an LSTM that moves to the side of the colour that was shown."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SIM_TESTS))
        module = import_module("memory_point_env")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = train(module)
    path = tmp_path_factory.mktemp("remembering") / "policy.safetensors"
    save_checkpoint(path, policy, {})
    return path


def train(points: ModuleType) -> Policy:
    """Fit core and head to whole episodes of both colours and all gaps, on features of fixed vision."""
    config = replace(PRESETS["tiny"], width=32, language_size=16, core=LstmConfig(num_layers=1))
    policy = Policy(points.MemoryPointEnv.policy_spec, config)
    policy.known_instructions[INSTRUCTION] = torch.ones(384).div(384**0.5).numpy()
    policy.normalizer.actions.std[0] = STEP_M
    inputs, actions = episodes(points, policy)
    with torch.no_grad():
        tokens = policy.eval().encode(inputs)
    parameters = [*policy.core.parameters(), *policy.action_head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    for _ in range(STEPS):
        outputs, _ = policy.core(tokens)
        losses = policy.loss(policy.action_head(outputs), actions.unsqueeze(2))
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()
    return policy


def episodes(points: ModuleType, policy: Policy) -> tuple[PolicyInputs, Tensor]:
    """The expert's episodes, all as long as the longest; before "go" the point stands still."""
    colours = torch.tensor([*points.COLOURS.values(), points.GREY, points.WHITE], dtype=torch.uint8)
    length = points.CUE_TICKS + points.GAPS[1] + GO_TICKS
    frames, moves = [], []
    for cue, side_m in enumerate(points.SIDES_M.values()):
        for gap in range(points.GAPS[0], points.GAPS[1] + 1):
            waits = points.CUE_TICKS + gap
            frames.append([cue] * points.CUE_TICKS + [2] * gap + [3] * (length - waits))
            moves.append([0.0] * waits + [side_m * STEP_M] * (length - waits))
    move = torch.tensor(moves)  # (B, T)
    before = torch.cat([torch.zeros(len(moves), 1), move[:, :-1]], dim=1)
    inputs = PolicyInputs(
        images={"above": colours[torch.tensor(frames)][..., None, None].expand(-1, -1, -1, 8, 8)},
        proprioception={"position": before.cumsum(dim=1).unsqueeze(-1)},
        previous_action=torch.stack([before, torch.zeros_like(before)], dim=-1),
        previous_action_valid=(torch.arange(length) > 0).expand(len(moves), -1),
        language=torch.from_numpy(policy.known_instructions[INSTRUCTION]).expand(len(moves), -1),
    )
    return inputs, torch.stack([move, torch.zeros_like(move)], dim=-1)
