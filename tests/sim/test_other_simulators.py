"""Another simulator than the kitchen, `point_env.py`, is evaluated and collected from by its name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from ttm.datasets import open_dataset
from ttm.policy import CameraSpec, PolicySpec, UserError, save_checkpoint
from ttm.sim import evaluate, load_evaluation, make_env
from ttm.sim.actors import make_actor, untrained_policy
from ttm.sim.collect import CollectCommand
from ttm.sim.environment import inspect_env, same_environment, spec_of, tasks_of
from ttm.sim.evaluation import EvaluateCommand
from ttm.sim.kitchen.spec import SPEC as KITCHEN_SPEC
from ttm.sim.rollout import run_episode

POINT = "point_env:test/Point-v0"
POINT_TEXTS = ("touch the red side", "touch the blue side")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's package is. Worker processes inherit the path."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def test_the_protocol_is_reached_through_wrappers() -> None:
    env = make_env(POINT)
    assert isinstance(env, gymnasium.wrappers.TimeLimit)
    assert spec_of(env).robot == "point"
    assert tasks_of(env) == {"touch": ("touch the red side", "touch the blue side")}
    env.close()


def test_the_expert_is_evaluated_by_command(tmp_path: Path) -> None:
    command = EvaluateCommand(
        out=tmp_path, checkpoint="expert", env=POINT, episodes=6, workers=1, videos=1
    )
    assert command.run() == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["environment"] == POINT
    assert result["tasks"]["touch"]["successes"] == 6
    assert len({outcome["instruction"] for outcome in result["tasks"]["touch"]["outcomes"]}) == 2
    assert (tmp_path / "videos" / "touch_0000.mp4").is_file()
    assert POINT in (tmp_path / "report.html").read_text()


def test_an_untrained_policy_is_evaluated() -> None:
    found = evaluate("none", "touch", env=POINT, episodes=4, workers=1)
    assert (found.checkpoint, found.sha256) == ("none", None)
    assert all(outcome.ticks <= 30 for outcome in found.tasks["touch"].outcomes)


def test_episodes_are_collected_alike_with_one_and_two_workers(tmp_path: Path) -> None:
    for workers in (1, 2):
        out = tmp_path / str(workers)
        assert CollectCommand(out=out, env=POINT, episodes=3, workers=workers).run() == 0
    one, two = open_dataset(tmp_path / "1"), open_dataset(tmp_path / "2")
    assert len(one) == len(two) == 3
    for ours, theirs in zip(one, two, strict=True):
        assert ours.spec == inspect_env(POINT).spec
        assert ours.success
        assert ours.instruction.startswith("touch the ")
        assert np.array_equal(ours.actions, theirs.actions)
        assert np.array_equal(ours.frames("above", 0, 5), theirs.frames("above", 0, 5))
        assert np.diff(ours.timestamps) == pytest.approx(0.1)


def test_a_checkpoint_is_checked_against_the_environments_own_spec(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "kitchen.safetensors")
    save_checkpoint(checkpoint, untrained_policy(KITCHEN_SPEC), {})
    with pytest.raises(UserError, match=r"fetch_kitchen.*point"):
        evaluate(checkpoint, "touch", env=POINT, episodes=1)
    with pytest.raises(UserError, match=r"fetch_kitchen.*point"):
        CollectCommand(
            out=tmp_path / "out", env=POINT, episodes=1, workers=1, policy=Path(checkpoint)
        ).run()


def test_the_policy_that_ships_is_not_taken_for_another_robot(tmp_path: Path) -> None:
    """It is what a command without --checkpoint takes."""
    with pytest.raises(
        UserError, match=r"ships is for .*fetch_kitchen, not for point.*--checkpoint"
    ):
        EvaluateCommand(out=tmp_path / "out", env=POINT, episodes=1, workers=1).run()
    assert not (tmp_path / "out").exists()


def policy_of_size(path: Path, height: int, width: int) -> str:
    """Save a random policy for the point whose camera has this size; return the checkpoint."""
    spec = replace(inspect_env(POINT).spec, cameras=(CameraSpec("above", height, width),))
    policy = untrained_policy(spec)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    policy.known_instructions |= {text: np.ones(384, np.float32) for text in POINT_TEXTS}
    save_checkpoint(path, policy, {})
    return str(path)


@pytest.mark.parametrize("size", [(16, 16), (4, 16), (16, 8)])
def test_frames_smaller_than_in_training_name_the_option(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    checkpoint = policy_of_size(tmp_path / "large.safetensors", *size)
    with pytest.raises(
        UserError, match=rf"above {size[1]}x{size[0]}, but .* above 8x8; .*--image-size 8$"
    ):
        evaluate(checkpoint, "touch", env=POINT, episodes=1)


class Reduced(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The point's environment with a camera of 4x4 pixels."""

    @property
    def policy_spec(self) -> PolicySpec:
        return replace(spec_of(self.env), cameras=(CameraSpec("above", 4, 4),))

    def observation(self, observation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        cells = observation["above"].reshape(4, 2, 4, 2, 3).mean(axis=(1, 3))
        return {**observation, "above": np.floor(cells + 0.5).astype(np.uint8)}


def test_larger_frames_are_reduced_for_a_policy_and_nobody_else(tmp_path: Path) -> None:
    """Its actions are those in an environment of its own size; records and videos are as they were."""
    checkpoint = policy_of_size(tmp_path / "small.safetensors", 4, 4)

    def commands(env: Any) -> tuple[list[np.ndarray], set[tuple[int, ...]]]:
        actor, done, sizes = make_actor(checkpoint, env, {}), [], set()
        act = actor.act
        actor.act = lambda seen: done.append(act(seen)) or done[-1]  # type: ignore[method-assign,func-returns-value]
        run_episode(
            env, actor, spec=spec_of(env), task="touch", seed=3, max_ticks=6,
            on_tick=lambda seen, _: sizes.add(seen["above"].shape),
        )  # fmt: skip
        return done, sizes

    ours, sizes = commands(make_env(POINT))
    theirs, reduced = commands(Reduced(make_env(POINT)))
    assert (sizes, reduced) == ({(8, 8, 3)}, {(4, 4, 3)})
    assert len({tuple(action) for action in ours}) > 1
    assert np.array_equal(ours, theirs)

    EvaluateCommand(
        out=tmp_path / "out", checkpoint=checkpoint, env=POINT, episodes=1, workers=1, videos=1
    ).run()
    assert (tmp_path / "out" / "videos" / "touch_0000.mp4").is_file()
    CollectCommand(
        out=tmp_path / "demos", env=POINT, episodes=1, workers=1, policy=Path(checkpoint)
    ).run()
    assert open_dataset(tmp_path / "demos")[0].frames("above").shape[1:] == (8, 8, 3)


def test_evaluations_of_two_environments_are_not_paired(tmp_path: Path) -> None:
    evaluate("expert", env=POINT, episodes=1).save(tmp_path / "point")
    command = EvaluateCommand(out=tmp_path / "out", against=tmp_path / "point", episodes=1)
    with pytest.raises(UserError, match=r"only evaluations of the same environment"):
        command.run()
    assert load_evaluation(tmp_path / "point").environment == POINT


def test_an_unknown_task_is_an_error_that_lists_the_environments_own(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="task is 'pick'; give one of touch, all"):
        EvaluateCommand(out=tmp_path, env=POINT, task="pick").run()


@pytest.mark.parametrize("name", ["test/Nowhere-v0", "no_such_module:Env-v0", "not an id"])
def test_an_unknown_environment_is_an_error(name: str) -> None:
    with pytest.raises(UserError, match="give a Gymnasium ID"):
        make_env(name)


def test_an_environment_without_spec_is_an_error() -> None:
    with pytest.raises(UserError, match=r"has no policy_spec; see ttm.sim.PolicyEnv"):
        make_env("CartPole-v1")


def test_without_an_expert_nothing_is_demonstrated(tmp_path: Path) -> None:
    gymnasium.register("test/NoExpert-v0", entry_point=make_point_without_expert)
    try:
        with pytest.raises(UserError, match="no expert"):
            evaluate("expert", env="test/NoExpert-v0", episodes=1)
        with pytest.raises(UserError, match="no expert"):
            CollectCommand(out=tmp_path / "out", env="test/NoExpert-v0", workers=1).run()
        assert not (tmp_path / "out").exists()
    finally:
        del gymnasium.registry["test/NoExpert-v0"]


def make_point_without_expert(**options: Any) -> gymnasium.Env[Any, Any]:
    from point_env import PointEnv

    class WithoutExpert(PointEnv):
        expert = property()

    return WithoutExpert(**options)


def test_a_name_with_and_without_its_module_means_the_same() -> None:
    assert same_environment(POINT, "test/Point-v0")
    assert not same_environment("ttm/Kitchen-v0", "test/Point-v0")
