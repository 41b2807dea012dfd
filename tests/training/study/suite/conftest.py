"""The study on the memory task of `tests/sim/memory_point_env.py`, which takes milliseconds a tick."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from ttm.policy import Policy, PolicyConfig, PolicyRunner, save_checkpoint
from ttm.policy.config import VisionConfig
from ttm.policy.cores.baselines import LstmConfig
from ttm.sim import actors
from ttm.sim.collect import CollectCommand
from ttm.sim.environment import inspect_env
from ttm.training.study.suite import StudySuiteCommand

SIM_TESTS = Path(__file__).parents[3] / "sim"
ENV = "memory_point_env:test/MemoryPoint-v0"
DEMONSTRATIONS = 6


def prepare(patch: pytest.MonkeyPatch) -> None:
    """Make `ENV` importable, as a user's package is, and spare policies the conversion to OpenVINO."""
    patch.syspath_prepend(str(SIM_TESTS))
    patch.setattr(actors, "PolicyRunner", partial(PolicyRunner, engine="torch"))


@pytest.fixture(autouse=True)
def _prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch)


@pytest.fixture(scope="session")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demonstrations")
    with pytest.MonkeyPatch.context() as patch:
        prepare(patch)
        CollectCommand(
            folder, task="recall", env=ENV, episodes=DEMONSTRATIONS, workers=1, gap=2
        ).run()
    return folder


@pytest.fixture(scope="session")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a vision, narrow and untrained."""
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        prepare(patch)
        torch.manual_seed(0)
        vision = VisionConfig(width_coefficient=0.5, reduction=8, norm="group")
        core = LstmConfig(num_layers=1)
        config = PolicyConfig(width=64, language_size=16, vision=vision, core=core)
        policy = Policy(inspect_env(ENV).spec, config)
    path = tmp_path_factory.mktemp("seeing") / "seeing.safetensors"
    save_checkpoint(path, policy, {})
    return path


def tiny_study(**changes: object) -> StudySuiteCommand:
    """Return the options of a study of two trainings of two steps."""
    standard: dict[str, object] = {
        "core": ("ours", "lstm"),
        "seeds": (0,),
        "steps": 2,
        "batch_size": 2,
        "task": ("recall",),
        "env": ENV,
        "gap": (1, 3),
        "probe": ("live", "swap"),
        "episodes": 2,
    }
    return StudySuiteCommand(**{**standard, **changes})  # type: ignore[arg-type]


@pytest.fixture
def options(demonstrations: Path, seeing: Path, tmp_path: Path) -> Callable[..., StudySuiteCommand]:
    """Return a maker of the options of a tiny study, which takes those to change."""
    given = {"data": (str(demonstrations),), "init": seeing, "out": tmp_path / "suite"}
    return lambda **changes: tiny_study(**{**given, **changes})


@pytest.fixture(scope="session")
def finished(
    demonstrations: Path, seeing: Path, tmp_path_factory: pytest.TempPathFactory
) -> StudySuiteCommand:
    """The options of a tiny study whose trainings and evaluations have been made; leave it as it is."""
    out = tmp_path_factory.mktemp("finished") / "suite"
    made = tiny_study(data=(str(demonstrations),), init=seeing, out=out)
    with pytest.MonkeyPatch.context() as patch:
        prepare(patch)
        assert made.run() == 0
    return made
