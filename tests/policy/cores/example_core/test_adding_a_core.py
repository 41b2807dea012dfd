"""A new core is one file and one line: the file `running_mean.py`, and `LINE` in the registry.

The test puts the file's folder on the path of the package `ttm.policy.cores`, and runs the registry's
source with that line. Everything else is found by the name.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ttm.policy.cores
from ttm.datasets import EpisodeWriter
from ttm.policy import (
    ActionPart,
    CameraSpec,
    Policy,
    PolicyConfig,
    PolicyRunner,
    PolicySpec,
    TemporalCore,
    load_checkpoint,
    save_checkpoint,
)
from ttm.policy.cores import registry
from ttm.policy.cores.registry import core_name, sized_like, with_options

NAME = "running-mean"
LINE = (
    '"running-mean": CoreEntry("ttm.policy.cores.running_mean:RunningMeanConfig", "mean so far"),'
)

ADD_FILE_AND_LINE = f"""
from pathlib import Path
import ttm.policy.cores
from ttm.policy.cores import registry
ttm.policy.cores.__path__.append({str(Path(__file__).parent)!r})
first = '    "lstm": CoreEntry('
source = Path(registry.__file__).read_text(encoding="utf-8")
assert source.count(first) == 1
exec(source.replace(first, '    ' + {LINE!r} + chr(10) + first), vars(registry))
"""


@pytest.fixture
def _added() -> Iterator[None]:
    path, names = list(ttm.policy.cores.__path__), dict(vars(registry))
    exec(ADD_FILE_AND_LINE, {})
    yield
    ttm.policy.cores.__path__[:] = path
    vars(registry).update(names)


@pytest.fixture
def running_mean(_added: None, config: PolicyConfig) -> PolicyConfig:
    """A small configuration with the new core, made by its name and by options."""
    core = with_options(sized_like(NAME, config.core), ["mlp_size=16"])
    return replace(config, core=core)


def test_the_registry_lists_it(running_mean: PolicyConfig) -> None:
    assert NAME in registry.NAMES
    assert f"{NAME}: mean so far" in registry.core_descriptions()
    assert core_name(running_mean.core) == NAME


@torch.no_grad()
def test_forward_equals_steps(running_mean: PolicyConfig) -> None:
    core = running_mean.core.build(16, 5)
    tokens, starts = torch.randn(2, 6, 5, 16), torch.zeros(2, 6, dtype=torch.bool)
    starts[1, 4] = True
    outputs, state = core(tokens, None, starts)
    expected, expected_state = TemporalCore.forward(core, tokens, None, starts)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(state, expected_state)
    mean = core.read_all(tokens)[0].mean(dim=0)
    torch.testing.assert_close(state["mean"][0], mean)
    assert state["ticks"].tolist() == [6, 2]


def test_a_policy_with_it_is_saved_loaded_and_run(
    running_mean: PolicyConfig, spec: PolicySpec, tmp_path: Path
) -> None:
    policy = Policy(spec, running_mean)
    save_checkpoint(tmp_path / "mean.safetensors", policy, {})
    loaded, _ = load_checkpoint(tmp_path / "mean.safetensors")
    assert loaded.config == running_mean
    actions = []
    for same in (policy, loaded):
        runner = PolicyRunner(same)  # by the default engine
        runner.reset("do it", embedding=np.ones(384, np.float32) / 384**0.5)
        actions += [runner.step(observation(spec, tick)).values for tick in range(3)]
    assert np.array_equal(actions[:3], actions[3:])


def observation(spec: PolicySpec, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    frames = {
        camera.name: rng.integers(0, 256, (camera.height, camera.width, 3), dtype=np.uint8)
        for camera in spec.cameras
    }
    return frames | {
        vector.name: rng.normal(size=vector.size).astype(np.float32)
        for vector in spec.proprioception
    }


SMALL = PolicySpec(
    robot="small",
    cameras=(CameraSpec("head", 16, 16),),
    proprioception=(),
    actions=(ActionPart("arm", 2, "m", low=-1.0, high=1.0),),
    rate_hz=5.0,
)


def test_ttm_train_knows_it(tmp_path: Path) -> None:
    """In a process of its own, as names become options when the command's modules are imported."""
    for seed in range(3):
        with EpisodeWriter(tmp_path / f"episode_{seed}.hdf5", SMALL) as writer:
            for tick in range(4):
                writer.append(
                    observation(SMALL, 10 * seed + tick),
                    np.full(2, tick / 5),  # an arm that rests all the time cannot be learned
                    timestamp_s=tick / 5,
                )
            embedding = np.ones(384, np.float32) / 384**0.5
            split = "valid" if seed == 2 else "train"
            writer.finish(instruction="do it", seed=seed, embedding=embedding, split=split)
    words = ["train", "--data", str(tmp_path), "--out", str(tmp_path / "run"), "--core", NAME]
    words += ["--core-options", "mlp_size=16", "--steps", "2", "--window", "3", "--threads", "1"]
    words += ["--batch-size", "2", "--validations", "1"]
    script = f"{ADD_FILE_AND_LINE}\nimport sys\nfrom ttm.training.cli import main\n"
    script += f"sys.exit(main({words!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"core: {NAME}" in " ".join(done.stderr.split()), done.stderr
