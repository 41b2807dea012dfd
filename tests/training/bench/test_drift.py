"""`ttm bench drift`: chains of episodes, runs over them, and their summary."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ttm.datasets import WindowDataset, dataset_statistics
from ttm.policy import PRESETS, Policy, PolicyRunner, UserError, load_checkpoint, save_checkpoint
from ttm.training import cli
from ttm.training.bench.drift import ChainRun, DriftRuns, Stretch, lay_chains, run_chains, summarize
from ttm.training.data import open_all, split
from ttm.training.train import TrainCommand
from ttm.training.validation import ErrorSum, squared_errors


@pytest.fixture(scope="module")
def windows(episodes: Path) -> WindowDataset:
    """Four whole episodes of five ticks."""
    return WindowDataset(split(open_all([str(episodes)]), "train"), 5, pad="none")


@pytest.fixture
def policy(windows: WindowDataset, request: pytest.FixtureRequest) -> Policy:
    """A policy without a sight memory, or with as many selectors as the test says."""
    torch.manual_seed(0)
    sight = getattr(request, "param", 0)
    policy = Policy(windows.spec, replace(PRESETS["tiny"], width=16, sight_tokens=sight))
    policy.normalizer.set_statistics(dataset_statistics(windows.episodes))
    with torch.no_grad():  # Actions away from the mean, so that errors depend on the memory.
        policy.action_head.mlp.out.weight.mul_(100)
    return policy.eval()


def test_chains_have_their_length_and_enter_the_first_episode_anywhere() -> None:
    lengths = [3, 9, 4]
    chains = lay_chains(lengths, 200, 25)
    for chain in chains:
        assert sum(stretch.stop - stretch.first for stretch in chain) == 25
        assert all(stretch.first == 0 for stretch in chain[1:])
        assert all(stretch.stop == lengths[stretch.episode] for stretch in chain[:-1])
    assert {(chain[0].episode, chain[0].first) for chain in chains} == {
        (episode, tick) for episode, length in enumerate(lengths) for tick in range(length)
    }
    assert lay_chains(lengths, 5, 25) == chains[:5]


@pytest.mark.parametrize("policy", [0, 2], indirect=True, ids=["core", "sight"])
@pytest.mark.parametrize("keep", [True, False])
def test_runs_are_those_of_the_runner(policy: Policy, windows: WindowDataset, keep: bool) -> None:
    """The previous action is the demonstrator's, which the runner gets after every tick."""
    chain = [Stretch(2, 0, 5), Stretch(0, 0, 5), Stretch(1, 0, 3)]
    statistics = dataset_statistics(windows.episodes).actions
    runs = run_chains(policy, windows, statistics, [chain])
    runner, norms, errors = PolicyRunner(policy, engine="torch"), [], []
    for number, stretch in enumerate(chain):
        episode = windows.episodes[stretch.episode]
        runner.reset(
            episode.instruction,
            embedding=episode.language_embedding,
            keep_memory=keep and number > 0,
        )
        for tick in range(stretch.stop):
            action = runner.step(episode.observation(tick))
            runner.restore(runner.snapshot() | {"previous_action": episode.actions[tick]})
            norms.append(runner.memory_norms.mean())
            errors.append(
                squared_errors(action.probabilities, episode.actions[tick], statistics.std)
            )
    found = runs.kept if keep else runs.control
    np.testing.assert_allclose(found.norms[0], norms, rtol=1e-4)
    np.testing.assert_allclose(found.errors[0], errors, rtol=1e-3, atol=1e-5)
    assert np.flatnonzero(runs.seams[0]).tolist() == [5, 10]
    assert np.allclose(runs.kept.errors[0, :5], runs.control.errors[0, :5])
    assert not np.allclose(runs.kept.errors[0, 5:], runs.control.errors[0, 5:])


def test_errors_of_ticks_are_those_of_a_training(spec: object) -> None:
    rng = np.random.default_rng(0)
    predicted, actions, scale = (
        rng.normal(size=(7, 3)),
        rng.normal(size=(7, 3)),
        np.array([2.0, 0.0, 0.5]),
    )
    total = ErrorSum(spec, scale)  # type: ignore[arg-type]
    total.add(predicted, actions)
    errors = squared_errors(predicted, actions, scale)
    assert errors.shape == (7,)
    assert np.sqrt(errors.mean()) == pytest.approx(total.result().normalized)


def made_up_runs(growth: float, chains: int = 64, ticks: int = 300) -> DriftRuns:
    """Errors that grow linearly to `growth` times in 300 ticks, and a control whose errors do not grow."""
    rng = np.random.default_rng(1)
    moments = rng.exponential(size=(chains, ticks))  # some situations are harder than others
    age = 1 + (growth - 1) * np.arange(ticks) / 300
    norms = np.broadcast_to(5 * age, moments.shape)
    seams = np.zeros(moments.shape, bool)
    seams[:, 20::20] = True
    kept = ChainRun(norms, moments * age**2 * 1.21 * rng.uniform(0.9, 1.1, moments.shape))
    return DriftRuns(kept, ChainRun(np.full_like(norms, 5), moments), seams)


def test_a_drift_is_found_and_its_size() -> None:
    still, drifting = summarize(made_up_runs(1.0), 20), summarize(made_up_runs(2.0), 20)
    assert still.verdict == "holds"
    assert still.drift.value == pytest.approx(1.0, abs=0.03)
    assert still.cost.value == pytest.approx(1.1, abs=0.02)
    assert drifting.verdict == "drifts"
    expected = np.sqrt(
        np.mean((1 + np.arange(200, 300) / 300) ** 2) / np.mean((1 + np.arange(20, 40) / 300) ** 2)
    )
    assert drifting.drift.value == pytest.approx(expected, abs=0.05)
    assert drifting.norm_growth.value == pytest.approx(expected, abs=0.02)
    assert drifting.drift.low < drifting.drift.value < drifting.drift.high
    assert [(found["first"], found["stop"]) for found in still.kept][-1] == (280, 300)
    assert "holds: error of the last 100 ticks 1.0" in still.in_words()


def test_a_memory_that_grows_drifts_even_if_the_error_does_not() -> None:
    """As for erase-and-add after a short training: actions are lost before the first compared ticks."""
    runs = made_up_runs(1.0)
    norms = runs.kept.norms * np.exp(np.arange(300) / 20)
    grown = runs._replace(kept=runs.kept._replace(norms=norms))
    assert summarize(grown, 20).drift.high < 1.1
    assert summarize(grown, 20).verdict == "drifts"


def test_what_is_no_number_drifts_and_is_none_in_json() -> None:
    runs = made_up_runs(1.0)
    errors = runs.kept.errors.copy()
    errors[:, 250:] = np.nan
    lost = summarize(runs._replace(kept=runs.kept._replace(errors=errors)), 20)
    assert lost.verdict == "drifts"
    assert lost.to_json()["drift"] == {"value": None, "low": None, "high": None}
    json.dumps(lost.to_json(), allow_nan=False)


def test_too_few_chains_decide_nothing() -> None:
    assert (
        summarize(made_up_runs(1.0, chains=1), 20).drift.low
        == summarize(made_up_runs(1.0, chains=1), 20).drift.high
    )
    few = made_up_runs(1.0, chains=3)
    # Other moments than the control's
    noisy = few._replace(kept=few.kept._replace(errors=few.kept.errors[::-1]))
    assert summarize(noisy, 20).verdict.startswith("undecided")


def test_chains_that_are_too_short_are_told() -> None:
    with pytest.raises(UserError, match=r"of 100 ticks, 80 are left .* give 140 --ticks or more"):
        summarize(made_up_runs(1.0, ticks=100), 20)


def test_the_command_compares_checkpoints(
    policy: Policy, episodes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(tmp_path / f"{name}.safetensors") for name in ("one", "two")]
    for path in paths:
        save_checkpoint(path, policy, {})
    options = ["--ticks", "130", "--chains", "2", "--json", str(tmp_path / "drift.json")]
    assert (
        cli.main(["bench", "drift", "--data", str(episodes), "--checkpoint", *paths, *options]) == 0
    )
    printed = " ".join(capsys.readouterr().out.split())
    for text in ("120 to 129", *paths, "error of the last 100 ticks"):
        assert text in printed
    one, two = json.loads((tmp_path / "drift.json").read_text())["checkpoints"].values()
    assert one == two
    assert len(one["kept"]) == 7


def test_mistakes_of_the_command_are_told(
    command: Callable[..., TrainCommand], episodes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "drift", "--data", str(episodes), "--chains", "0"]) == 2
    assert "--chains is 0" in capsys.readouterr().err
    assert (
        cli.main(["bench", "drift", "--data", str(episodes), "--checkpoint", "missing.safetensors"])
        == 2
    )
    assert "missing.safetensors: no such checkpoint" in capsys.readouterr().err


def test_the_checkpoints_camera_sizes_are_taken(large_frames: Path, tmp_path: Path) -> None:
    spec = open_all([str(large_frames)])[0].spec
    small = replace(
        spec, cameras=tuple(replace(camera, height=16, width=16) for camera in spec.cameras)
    )
    save_checkpoint(
        tmp_path / "a.safetensors", Policy(small, replace(PRESETS["tiny"], width=16)), {}
    )
    assert load_checkpoint(tmp_path / "a.safetensors")[0].spec == small
    options = ["--ticks", "130", "--chains", "2"]
    given = ["--data", str(large_frames), "--checkpoint", str(tmp_path / "a.safetensors")]
    assert cli.main(["bench", "drift", *given, *options]) == 0
