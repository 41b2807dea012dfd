"""`ttm study peers`: equal CPU time, what is made once, and the peers' own trainers if installed."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ttm.datasets.formats.table import FORMATS, ConvertOptions, load
from ttm.policy import UserError
from ttm.sim.collect import CollectCommand
from ttm.sim.environment import inspect_env
from ttm.training.study import peers
from ttm.training.study.peers import (
    LEARNERS,
    InstructedActor,
    Learner,
    Row,
    StudyPeersCommand,
    lerobot,
    run_limited,
)

ENV = "memory_point_env:test/MemoryPoint-v0"
START_S, STEP_S = 10.0, 0.5
Make = Callable[..., StudyPeersCommand]


@pytest.fixture(scope="session")
def touching(tmp_path_factory: pytest.TempPathFactory, demonstrations: Path) -> Path:
    """Demonstrations of a task with two instructions."""
    folder = tmp_path_factory.mktemp("touching")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[3] / "sim"))
        CollectCommand(folder, task="touch", env=ENV, episodes=6, workers=1).run()
    return folder


@pytest.fixture
def command(demonstrations: Path, touching: Path, tmp_path: Path) -> Make:
    """Return a maker of the options of a tiny study."""
    standard: dict[str, Any] = {
        "data": (str(demonstrations), str(touching)),
        "task": ("touch", "recall"),
        "policy": ("ours", "act"),
        "demonstrations": 4,
        "minutes": 1.0,
        "episodes": 3,
        "env": ENV,
        "out": tmp_path / "peers",
    }
    return lambda **changes: StudyPeersCommand(**{**standard, **changes})


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, seeing: Path) -> list[Sequence[str]]:
    """Replace trainings by ones of a known cost, all of ours, and return the list of their commands."""
    commands: list[Sequence[str]] = []

    def run(arguments: Sequence[str], out: Path, limit_s: float) -> tuple[float, int]:
        commands.append(arguments)
        out.mkdir(parents=True)
        shutil.copy(seeing, out / "last.safetensors")
        steps = int(arguments[arguments.index("--steps") + 1])
        return min(START_S + STEP_S * steps, limit_s), 0

    monkeypatch.setattr(peers, "run_limited", run)
    monkeypatch.setitem(LEARNERS, "act", LEARNERS["ours"])
    return commands


def rows(out: Path) -> list[Row]:
    return [Row(**each) for each in json.loads((out / "figures.json").read_text())["rows"]]


def test_each_policy_gets_the_steps_that_fit_and_is_made_once(
    command: Make, trained: list[Sequence[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    study = command()
    assert study.run() == 0
    found = rows(study.out)
    assert {(row.policy, row.task) for row in found} == {
        (policy, task) for policy in study.policy for task in study.task
    }
    fitting = int((peers.MARGIN * 60 - START_S) / STEP_S)
    assert {row.steps for row in found} == {fitting - fitting % peers.SAVES}
    assert {row.step_s for row in found} == {STEP_S}
    assert all(row.parameters > 1000 and row.longest_tick_ms >= row.tick_ms > 0 for row in found)
    windows = [("--window" in each, str(each[each.index("--data") + 1])) for each in trained]
    assert {(whole, Path(data).parent.name) for whole, data in windows} == {
        (False, "touch"),
        (True, "recall"),
    }
    printed = capsys.readouterr().out
    for text in ("recall, choice", "Paired differences", "CPU s/step", "What differs"):
        assert text in printed
    done = len(trained)
    assert command(policy=("ours",), seeds=(0,)).run() == 0
    assert len(trained) == done
    with pytest.raises(UserError, match="--minutes"):
        command(minutes=2.0).run()


def test_a_training_that_is_cut_begins_anew(
    command: Make, trained: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, whole = command(task=("touch",), policy=("ours",)), peers.run_limited

    def cut(arguments: Sequence[str], out: Path, limit_s: float) -> tuple[float, int]:
        spent = whole(arguments, out, limit_s)
        if limit_s < float("inf"):
            raise KeyboardInterrupt
        return spent

    monkeypatch.setattr(peers, "run_limited", cut)
    with pytest.raises(KeyboardInterrupt):
        study.run()
    assert not list(study.out.rglob("run.json"))
    monkeypatch.setattr(peers, "run_limited", whole)
    assert study.run() == 0
    assert len(rows(study.out)) == 1


@pytest.mark.parametrize("code", [-signal.SIGXCPU, -signal.SIGKILL, 1])
def test_a_training_may_end_at_the_limit_but_not_by_an_error(
    command: Make, trained: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    study, whole = command(task=("touch",), policy=("ours",)), peers.run_limited

    def ended(arguments: Sequence[str], out: Path, limit_s: float) -> tuple[float, int]:
        spent = whole(arguments, out, limit_s)
        return spent if limit_s == float("inf") else (limit_s, code)

    monkeypatch.setattr(peers, "run_limited", ended)
    if code != -signal.SIGXCPU:
        with pytest.raises(UserError, match=r"failed; see .*training\.log"):
            study.run()
        return
    assert study.run() == 0
    assert rows(study.out)[0].ended_early


def test_the_kernel_ends_a_process_whose_cpu_time_is_up(tmp_path: Path) -> None:
    out = tmp_path / "training"
    spent_s, code = run_limited(["-c", "print('begun', flush=True)\nwhile True: pass"], out, 0.5)
    assert code == -signal.SIGXCPU
    assert spent_s > 0.5  # the kernel counts whole seconds, and by its clock's ticks
    assert out.with_suffix(".log").read_text() == "begun\n"


def test_a_missing_package_and_too_few_demonstrations_are_named(
    command: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="--demonstrations"):
        command(demonstrations=50, policy=("ours",)).run()
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install robomimic"):
        command(policy=("bc-rnn-gmm",)).run()


def test_a_peer_sees_the_instruction_and_acts_in_its_own_range(command: Make) -> None:
    study = command(task=("touch",), policy=("bc-rnn-gmm",))
    lesson = study._lesson(inspect_env(ENV), "touch")
    assert lesson.told.proprioception[-1].name == "instruction"
    assert lesson.vector("touch the red side").sum() == 1
    assert not lesson.vector("of another task").any()
    with h5py.File(lesson.place("robomimic")) as file:
        demos = list(file["data"].values())
        actions = np.concatenate([demo["actions"][:] for demo in demos])
        for demo in demos:
            wanted = lesson.vector(demo.attrs["language_instruction"])
            assert (demo["obs/instruction"][:] == wanted).all()
    assert actions.min() == -1
    assert actions.max() == 1

    class Still:
        def reset(self, instruction: str) -> None: ...
        def act(self, observation: Any) -> np.ndarray:
            return -observation["instruction"][:1].repeat(2)

    actor = InstructedActor(lesson.place("robomimic"), lesson)  # a file, as robomimic's checkpoints
    actor.peer = Still()
    actor.reset(lesson.instructions[0])
    low = lesson.centre - lesson.half
    np.testing.assert_allclose(actor.act({}), low, rtol=1e-5)


@pytest.mark.parametrize("form", ["lerobot", "robomimic"])
def test_a_single_instruction_is_not_told(command: Make, form: str) -> None:
    learner = next(name for name, each in LEARNERS.items() if each.form == form)
    lesson = command(policy=(learner,))._lesson(inspect_env(ENV), "recall")
    assert len(lesson.instructions) == 1
    assert lesson.told == lesson.robot
    back = load(form, f"{FORMATS[form].reader}:read_source")
    source = back(lesson.place(form), ConvertOptions())
    sizes = {sum(each.shape[1] for each in one.vectors.values()) for one in source.recordings()}
    assert sizes == {sum(vector.size for vector in lesson.robot.proprioception)}


SMALL = {"dim_model": 16, "n_heads": 2, "dim_feedforward": 16, "latent_dim": 4}
CHUNKS = {"chunk_size": 3, "n_action_steps": 3}


@pytest.mark.parametrize("name", ["act", "bc-rnn-gmm"])
def test_a_peer_is_trained_by_its_own_project(
    command: Make, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(LEARNERS[name].form)
    small = lerobot("act", pretrained_backbone_weights=None, **CHUNKS, **SMALL)
    monkeypatch.setitem(peers.LEARNERS, "act", LEARNERS["act"]._replace(command=small))
    monkeypatch.setattr(peers, "PILOT", 0.0)
    learner: Learner = peers.LEARNERS[name]
    train = learner.command

    def two_steps(lesson: Any, out: Path, steps: int, seed: int) -> list[str]:
        return train(lesson, out, peers.SAVES, seed)

    monkeypatch.setitem(peers.LEARNERS, name, learner._replace(command=two_steps))
    study = command(task=("touch",), policy=(name,), minutes=30.0)
    assert study.run() == 0
    (row,) = rows(study.out)
    assert row.parameters > 1000
    assert row.cpu_s > 0
