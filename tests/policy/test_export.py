"""Exported policies: the runner's actions, from files that need neither this project nor PyTorch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

from ttm.policy import (
    ActionPart,
    CoreConfig,
    Policy,
    PolicyConfig,
    PolicyRunner,
    PolicySpec,
    ProprioceptionSpec,
    TemporalCore,
    UserError,
    save_checkpoint,
)
from ttm.policy.cores.core import CoreState
from ttm.policy.cores.registry import sized_like
from ttm.policy.execution import NEWEST
from ttm.policy.export import LARGEST_DIFFERENCE, export_policy
from ttm.policy.spec import Observation, random_observation
from ttm.training.cli import main

pytest.importorskip("onnxscript")
exported = pytest.importorskip("ttm.policy.exported", exc_type=ImportError)

TICKS = 30
INSTRUCTION = "open the top drawer"
Folders = dict[str, tuple[Path, PolicyRunner]]
DELAY = {"ttm": {"delay_s": 0.3}}
"""Core -> what `step` is given beside the observation."""
POSE = ("x (m)", "y (m)", "z (m)", "qx", "qy", "qz", "qw")


@pytest.fixture(scope="module")
def made() -> Folders:
    """Keep the folders, since each takes some seconds to write."""
    return {}


@pytest.fixture(params=("ttm", "lstm", "transformer"))
def core(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def export(
    core: str,
    spec: PolicySpec,
    config: PolicyConfig,
    embedding: np.ndarray,
    made: Folders,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, PolicyRunner]:
    """Return a folder, and a runner of the same policy, which differ in more than their cores."""
    if core not in made:
        config, execution = replace(config, core=sized_like(core, config.core)), NEWEST
        if core == "ttm":
            config = replace(config, sight_tokens=2, longest_delay_s=0.5)
        elif core == "lstm":
            config, execution = replace(config, chunk=4), "receding:3"
        else:  # with parts that are predicted in another form than the robot's
            spec = replace(
                spec,
                cameras=spec.cameras[:1],
                proprioception=(ProprioceptionSpec("tip", POSE),),
                actions=(*spec.actions, ActionPart("pose", 7, ""), ActionPart("move", 3, "m/tick")),
            )
            relative, absolute = ("pose:pose-xyzw=tip:pose-xyzw",), ("move=tip[0:3]",)
            config = replace(config, chunk=4, relative=relative, absolute=absolute)
            execution = "ensemble:0.1"
        policy = Policy(spec, config).eval()
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        policy.known_instructions[INSTRUCTION] = embedding
        folder = tmp_path_factory.mktemp(core)
        assert export_policy(policy, folder, execution=execution, ticks=3) <= LARGEST_DIFFERENCE
        made[core] = folder, PolicyRunner(policy, engine="torch", execution=execution)
    return made[core]


def episode(spec: PolicySpec, ticks: int = TICKS) -> list[Observation]:
    rng = np.random.default_rng(1)
    return [random_observation(spec, rng) for _ in range(ticks)]


def test_the_policy_that_ships_can_be_exported(tmp_path: Path) -> None:
    policy = PolicyRunner.from_checkpoint("shipped", engine="torch").policy
    assert export_policy(policy, tmp_path, ticks=3) <= LARGEST_DIFFERENCE


def test_the_actions_are_those_of_the_runner(export: tuple[Path, PolicyRunner], core: str) -> None:
    """Each has its own memory, and commands what it decided itself."""
    folder, runner = export
    policy, more = exported.ExportedPolicy(folder), DELAY.get(core, {})
    for _ in range(2):  # a reset forgets the first episode
        runner.reset(INSTRUCTION)
        policy.reset(policy.known[INSTRUCTION])
        for observation in episode(runner.spec):
            wanted = runner.step(observation, **more)
            action = policy.step(observation, **more)
            np.testing.assert_allclose(action, wanted.values, atol=1e-4)
            np.testing.assert_allclose(
                policy.results["probabilities"], wanted.probabilities, atol=1e-4
            )
    assert policy.state["tick"] == TICKS


@pytest.mark.parametrize("core", ["transformer"])
def test_the_state_is_a_snapshot_of_the_runner(export: tuple[Path, PolicyRunner]) -> None:
    """A robot can go on with the files where the runner stopped, also in the midst of a chunk."""
    folder, runner = export
    policy = exported.ExportedPolicy(folder)
    runner.reset(INSTRUCTION)
    policy.reset(policy.known[INSTRUCTION])
    first, *rest = episode(runner.spec, 6)
    runner.step(first)
    policy.state = {name: runner.snapshot()[name] for name in policy.state}
    for observation in rest:
        wanted = runner.step(observation).values
        np.testing.assert_allclose(policy.step(observation), wanted, atol=1e-4)


def test_leapps_own_runtime_takes_the_folder(export: tuple[Path, PolicyRunner], core: str) -> None:
    leapp = pytest.importorskip("leapp")
    folder, runner = export
    policy, more = leapp.InferenceManager(str(folder / "policy.yaml")), DELAY.get(core, {})
    runner.reset(INSTRUCTION)
    language = exported.ExportedPolicy(folder).known[INSTRUCTION]
    for observation in episode(runner.spec, 5):
        seen = {f"policy/observation.{name}": value for name, value in observation.items()}
        seen |= {
            "policy/language": language,
            **{f"policy/{n}": np.float32(x) for n, x in more.items()},
        }
        results = policy({name: torch.from_numpy(np.array(value)) for name, value in seen.items()})
        wanted = runner.step(observation, **more).values
        np.testing.assert_allclose(results["policy/action"], wanted, atol=1e-4)


@pytest.mark.parametrize("core", ["lstm"])
def test_nothing_is_kept_of_a_tick_that_is_not_finite(export: tuple[Path, PolicyRunner]) -> None:
    folder, runner = export
    policy = exported.ExportedPolicy(folder)
    policy.reset(policy.known[INSTRUCTION])
    first, second = episode(runner.spec, 2)
    policy.step(first)
    before = dict(policy.state)
    with pytest.raises(ValueError, match="not finite"):
        policy.step({**second, "joints.left": np.array([np.nan, 0], np.float32)})
    assert np.isnan(policy.results["action"]).all(), "limits hide NaN"
    assert policy.state == before


@pytest.mark.parametrize("core", ["lstm"])
def test_the_contract_is_written_beside(export: tuple[Path, PolicyRunner]) -> None:
    folder, runner = export
    contract = yaml.safe_load((folder / "policy.yaml").read_text())["contract"]
    assert contract["rate_hz"] == runner.spec.rate_hz
    assert contract["cameras"][0] == {"name": "head", "height": 32, "width": 32}
    assert contract["execution"] == "receding:3"


@pytest.mark.parametrize("core", ["lstm"])
def test_the_example_needs_numpy_and_onnx_runtime_alone(export: tuple[Path, PolicyRunner]) -> None:
    script = export[0] / "run_policy.py"
    assert len(script.read_text().splitlines()) <= 60
    without = (
        "import sys, runpy; sys.modules |= dict.fromkeys(('torch', 'ttm', 'yaml', 'safetensors'))"
    )
    run = f"{without}; sys.argv = ['', {str(export[0])!r}]; runpy.run_path({str(script)!r}, None, '__main__')"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[") == 10


@pytest.fixture
def small(spec: PolicySpec, config: PolicyConfig) -> Policy:
    """Return a policy without cameras, which is written faster."""
    return Policy(replace(spec, cameras=()), config).eval()


def test_the_command_writes_the_files(
    small: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_checkpoint(tmp_path / "best.safetensors", small, {})
    options = ["--checkpoint", str(tmp_path / "best.safetensors"), "--ticks", "3"]
    assert main(["export", *options, "--out", str(tmp_path / "new" / "exported")]) == 0
    assert "in 3 ticks" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "new" / "exported").iterdir()}
    assert names == {
        "policy.onnx",
        "policy.yaml",
        "initial.safetensors",
        "instructions.safetensors",
        "run_policy.py",
    }


def test_files_that_differ_from_the_runner_are_not_written(
    small: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = PolicyRunner.step

    def other(self: PolicyRunner, observation: Observation) -> object:
        action = step(self, observation)
        action.probabilities[0] += 2e-4
        return action

    monkeypatch.setattr(PolicyRunner, "step", other)
    with pytest.raises(UserError, match=r"differs from PyTorch by 0\.0002 within 2 ticks"):
        export_policy(small, tmp_path / "exported", ticks=2)
    assert not (tmp_path / "exported").exists()


@dataclass(frozen=True)
class DecidingConfig(CoreConfig):
    def build(self, width: int, num_inputs: int) -> Deciding:
        return Deciding(width)


class Deciding(TemporalCore):
    """A core whose Python code looks at values, which no graph can."""

    num_outputs = 1

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)

    def initial_state(self, batch_size: int) -> CoreState:
        return {"seen": torch.zeros(batch_size, 1)}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        outputs = self.mix(tokens[:, :1])
        return (outputs if float(tokens.sum()) > 0 else -outputs), {"seen": state["seen"] + 1}


def test_a_core_that_no_graph_expresses_is_refused(
    spec: PolicySpec, config: PolicyConfig, tmp_path: Path
) -> None:
    policy = Policy(replace(spec, cameras=()), replace(config, core=DecidingConfig())).eval()
    with pytest.raises(
        UserError, match=r"^ONNX cannot express this policy \(.+\); drive the robot"
    ):
        export_policy(policy, tmp_path, ticks=1)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named_with_its_extra(
    small: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ttm.policy.export.NEEDED", ("no_such_onnx", "onnxruntime"))
    with pytest.raises(UserError, match=r'needs no_such_onnx; run: pip install ".*\[export\]"'):
        export_policy(small, tmp_path)
