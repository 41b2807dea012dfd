"""`ttm show memory`: the files it writes, what the pictures show, and its error messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import imageio
import numpy as np
import pytest
import torch
from PIL import Image

from ttm.datasets import open_dataset
from ttm.policy import (
    CameraSpec,
    Policy,
    PolicyConfig,
    PolicyRunner,
    PolicySpec,
    UserError,
    save_checkpoint,
)
from ttm.policy.config import ActionHeadConfig, VisionConfig
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.sim.memory_picture import MemoryTrace, draw_strip, source_colours
from ttm.training.cli import parse
from ttm.training.show_memory import (
    ShowCommand,
    draw_frames,
    find_episode,
    held_moments,
    trace_episode,
)

CORE = TokenTuringConfig(
    memory_size=4, process_size=3, num_layers=1, num_heads=2, mlp_size=16, bottleneck=8
)
TICKS = 5


def small_policy(spec: PolicySpec, **core: Any) -> Policy:
    torch.manual_seed(0)
    config = PolicyConfig(
        width=16,
        tokens_per_camera=2,
        language_size=8,
        vision=VisionConfig(
            width_coefficient=0.25, depth_coefficient=0.5, reduction=8, norm="group"
        ),
        core=replace(CORE, **core),
        head=ActionHeadConfig(hidden_size=16),
    )
    return Policy(spec, config).eval()


@pytest.fixture
def trace(spec: PolicySpec, episodes: Path) -> Callable[..., MemoryTrace]:
    """Return a maker of traces of the first episode, which takes changes to the core."""
    return lambda **core: trace_episode(
        small_policy(spec, **core), open_dataset(episodes)[0], "an episode"
    )


@pytest.fixture
def checkpoint(spec: PolicySpec, tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "small.safetensors", small_policy(spec), {})
    return tmp_path / "small.safetensors"


def test_command_writes_picture_and_video(
    episodes: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "pictures"
    words = [
        "show",
        "memory",
        "--checkpoint",
        checkpoint,
        "--episode",
        f"{episodes}:2",
        "--out",
        out,
    ]
    assert parse([str(word) for word in words]).run() == 0
    said = capsys.readouterr().out
    assert "episode_2_demo_0.mp4" in said
    assert sorted(path.name for path in out.iterdir()) == [
        "episode_2_demo_0.mp4",
        "episode_2_demo_0.png",
    ]
    with Image.open(out / "episode_2_demo_0.png") as picture:
        assert picture.size == (1200, 600)
    with imageio.get_reader(out / "episode_2_demo_0.mp4") as video:
        assert video.get_meta_data()["codec"] == "h264"
        assert (
            video.count_frames() >= 3 * TICKS
        )  # each tick is shown three times, the last one longer


def test_trace_is_what_a_runner_does(spec: PolicySpec, episodes: Path) -> None:
    policy, episode = small_policy(spec), open_dataset(episodes)[0]
    trace = trace_episode(policy, episode, "")
    runner = PolicyRunner(policy, engine="torch")
    runner.reset(episode.instruction, embedding=episode.language_embedding)
    for tick in range(TICKS):
        runner.step(episode.observation(tick))
        runner.executed(episode.executed_actions[tick])
        np.testing.assert_array_equal(trace.norms[tick], runner.memory_norms)
    np.testing.assert_array_equal(trace.frames["head"], episode.frames("head"))
    for which in ("read", "write"):
        total = np.sum(list(trace.shares[which].values()), axis=0)
        np.testing.assert_allclose(total, np.ones(TICKS), atol=1e-5)
    assert list(trace.shares["read"]) == [
        "memory", "head", "wrist", "proprioception", "previous action", "instruction",
    ]  # fmt: skip
    np.testing.assert_allclose(trace.slots.mean(axis=1), trace.shares["write"]["memory"], atol=1e-6)
    np.testing.assert_allclose(
        trace.maps["read"]["wrist"].sum(axis=(1, 2)), trace.shares["read"]["wrist"], atol=1e-6
    )


def test_the_sight_memory_is_one_of_the_sources(spec: PolicySpec, episodes: Path) -> None:
    sighted = replace(small_policy(spec).config, sight_tokens=2)
    trace = trace_episode(Policy(spec, sighted).eval(), open_dataset(episodes)[0], "an episode")
    for which in ("read", "write"):
        shares = trace.shares[which]
        np.testing.assert_allclose(sum(shares.values()), np.ones(TICKS), atol=1e-5)
        assert shares["sight memory"].min() > 0
        assert shares.keys() <= source_colours(trace).keys()


def test_pictures_with_erase_and_add_leave_writing_out(trace: Callable[..., MemoryTrace]) -> None:
    whole, read_only = trace(), trace(write="erase_add", initial_memory="learned")
    assert read_only.directions == ("read",)
    assert read_only.slots.shape == (TICKS, 4)
    titles = [axes.get_title(loc="left") for axes in draw_strip(read_only).axes]
    assert "Read, by source" in titles
    assert whole.directions == ("read", "write")
    frames = list(draw_frames(read_only))
    assert len(frames) == TICKS
    assert frames[0].shape[0] % 2 == frames[0].shape[1] % 2 == 0, "H.264 wants even sizes"
    assert not np.array_equal(frames[0], frames[-1])


def test_an_episode_of_one_tick(spec: PolicySpec, trace: Callable[..., MemoryTrace]) -> None:
    whole = trace()
    changes = {name: values[:1] for name, values in whole.changes.items()}
    first = replace(whole, attention=whole.attention[:1], norms=whole.norms[:1], changes=changes)
    assert draw_strip(first).get_figwidth() == 12
    assert len(list(draw_frames(first))) == 1


def test_frames_of_another_size_are_resized(large_frames: Path, spec: PolicySpec) -> None:
    policy = small_policy(spec)
    episode = find_episode(str(large_frames), policy.spec, "mine")
    assert episode.frames("head").shape[1:3] == (72, 96)
    assert trace_episode(policy, episode, "").frames["head"].shape == (TICKS, 16, 16, 3)
    wide = replace(spec, cameras=(CameraSpec("head", 16, 97), spec.cameras[1]))
    with pytest.raises(UserError, match=r"mine was made for .*head 97x16.* has head 96x72"):
        find_episode(str(large_frames), wide, "mine")


def test_cameras_that_the_policy_does_not_know_are_left_out(
    episodes: Path, spec: PolicySpec
) -> None:
    policy = small_policy(replace(spec, cameras=spec.cameras[1:]))
    episode = find_episode(str(episodes), policy.spec, "mine")
    assert list(trace_episode(policy, episode, "").frames) == ["wrist"]


def test_which_episode(episodes: Path, spec: PolicySpec) -> None:
    assert find_episode(str(episodes), spec, "mine").instruction == "do 0"
    assert find_episode(f"{episodes}:3", spec, "mine").instruction == "do 3"
    file = episodes / "episode_4.hdf5"
    assert find_episode(f"{file}:demo_0", spec, "mine").instruction == "do 4"
    with pytest.raises(UserError, match="6 episodes and none of number 6"):
        find_episode(f"{episodes}:6", spec, "mine")
    with pytest.raises(UserError, match=r"6 episodes of the name 'demo_0'.*number"):
        find_episode(f"{episodes}:demo_0", spec, "mine")
    with pytest.raises(UserError, match=r"no episodes of the name 'demo_9'.*demo_0"):
        find_episode(f"{file}:demo_9", spec, "mine")
    with pytest.raises(UserError, match="nowhere does not exist"):
        find_episode("nowhere:1", spec, "mine")


def test_another_robot(other_robot: Path, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"small\.safetensors was made for robot small, but .* has other"
    ):
        ShowCommand("memory", str(other_robot), str(checkpoint), tmp_path / "out").run()
    assert not (tmp_path / "out").exists()


def test_data_of_others_without_the_cameras(spec: PolicySpec) -> None:
    bridge = Path(__file__).parents[4] / "shared" / "data" / "bridge_v2_jpeg.hdf5"
    if not bridge.is_file():
        pytest.skip("no BridgeData here")
    with pytest.raises(UserError, match=r"was made for robot small, but .* has bridge_v2_widowx"):
        find_episode(f"{bridge}:demo_3", spec, "mine")


def test_cue_gap_and_go_are_found_where_the_robot_was_held(spec: PolicySpec) -> None:
    vectors = {each.name: np.zeros((9, each.size), np.float32) for each in spec.proprioception}
    frames = {each.name: np.zeros((9, 16, 16, 3), np.uint8) for each in spec.cameras}
    frames["head"][:3] = 200  # the cue
    for vector in vectors.values():
        vector[7:] = 1  # the first tick after it might act
    assert held_moments(frames | vectors, spec) == {"gap": 3, "go": 6}
    for vector in vectors.values():
        vector[1:] = 1
    assert held_moments(frames | vectors, spec) == {}


def test_impossible_options() -> None:
    with pytest.raises(UserError, match="--columns is 0"):
        ShowCommand("memory", "anything", columns=0).run()
