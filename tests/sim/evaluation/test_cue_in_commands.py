"""A policy without memory that carries the cue through its own commands, while the robot is held."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from ttm.policy import Policy, PolicyConfig, PolicyInputs, PolicyRunner
from ttm.policy.cores.baselines import LstmConfig
from ttm.policy.cores.core import CoreState
from ttm.policy.cores.registry import sized_like
from ttm.policy.engines import Engine
from ttm.sim import make_env
from ttm.sim.actors import PolicyActor
from ttm.sim.condition import Condition, ProbeName
from ttm.sim.environment import Env, spec_of
from ttm.sim.probes import PROBES, Trial
from ttm.sim.rollout import Choice, run_episode

STEP_M = 0.1
SEEDS = range(6)
TEXT = "touch the side of the colour"


class CueInCommands(Engine):
    """Commands to go to the colour that it sees, or to where the previous action went, or to the left."""

    name = "torch"

    def step(self, inputs: PolicyInputs, state: CoreState) -> tuple[Tensor, CoreState]:
        """See `Engine.step`. The state is neither read nor written."""
        red, _, blue = inputs.images["above"][0, 0, :, 0, 0].tolist()
        seen = float(np.sign(blue - red))
        before = float(inputs.previous_action[0, 0, 0].sign()) or -1.0
        return torch.tensor([[[STEP_M * (seen or before), 0.0]]]), state


class Silent(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Does not say what was executed, as environments may."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        *result, info = self.env.step(action)
        del info["executed_action"]
        return (*result, info)  # type: ignore[return-value]


@pytest.fixture
def env(points: ModuleType) -> Env:
    return make_env("test/MemoryPoint-v0")


def choices(env: Env, probe: ProbeName) -> list[Choice]:
    spec = spec_of(env)
    core = sized_like("none", LstmConfig())
    runner = PolicyRunner(
        Policy(spec, PolicyConfig(width=32, language_size=16, core=core)), engine="torch"
    )
    runner.engine = CueInCommands()
    actor = PolicyActor(runner, {TEXT: np.ones(384, np.float32)})
    made = []
    for seed in SEEDS:
        acting = PROBES[probe](Trial(env, actor, "recall", seed, Condition(4, probe)))
        outcome = run_episode(
            env, actor, spec=spec, task="recall", seed=seed, gap=4,
            on_tick=lambda _, info, acting=acting: acting.before_tick(info["tick"], info["go"]),
        )  # fmt: skip
        assert outcome.choice is not None
        made.append(outcome.choice)
    return made


@pytest.mark.parametrize("probe", ["live", "erase", "swap"])
def test_commands_that_had_no_effect_carry_no_cue(env: Env, probe: ProbeName) -> None:
    found = choices(env, probe)
    assert {choice.right_choice for choice in found} == {"red", "blue"}
    assert {choice.made for choice in found} == {"red"}


def test_an_environment_that_does_not_say_it_leaks(env: Env) -> None:
    """The same policy passes the cue on if it is told its own commands: the test above can fail."""
    assert all(choice.is_right for choice in choices(Silent(env), "erase"))
