"""LeRobot's own data set class reads what we write, and we read what it writes (where it is installed)."""

from __future__ import annotations

import numpy as np
import pytest

from ttm.datasets import open_dataset

lerobot_dataset = pytest.importorskip("lerobot.datasets.lerobot_dataset")
LeRobotDataset = lerobot_dataset.LeRobotDataset


def test_its_class_opens_ours(demos, convert):
    target, _ = convert(demos, "lerobot", "lerobot", video_codec="none")
    loaded = LeRobotDataset("ours/demos", root=target, delta_timestamps={"action": [0, 0.2]})
    assert (len(loaded), loaded.num_episodes, loaded.fps) == (10, 2, 5)
    item = loaded[7]  # tick 1 of the second episode
    np.testing.assert_array_equal(item["action"].numpy(), demos[1].actions[1:3])
    np.testing.assert_array_equal(
        item["observation.state"].numpy(), demos[1].proprioception("joints")[1]
    )
    np.testing.assert_allclose(
        item["observation.images.head"].numpy().transpose(1, 2, 0) * 255,
        demos[1].frames("head", 1, 2)[0],
        atol=1e-3,
    )
    assert item["task"] == "wave"
    actions = np.concatenate([episode.actions for episode in demos])
    np.testing.assert_allclose(loaded.meta.stats["action"]["mean"], actions.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(loaded.meta.stats["action"]["std"], actions.std(axis=0), atol=1e-6)


@pytest.mark.parametrize("video", [False, True])
def test_what_its_writer_writes_is_read(tmp_path, convert, video):
    kind = {"dtype": "video" if video else "image", "names": ["height", "width", "channels"]}
    features = {
        "observation.images.top": {**kind, "shape": (64, 96, 3)},
        "observation.state": {"dtype": "float32", "shape": (2,), "names": ["pan", "lift"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["pan", "gripper"]},
    }
    written = LeRobotDataset.create(
        "theirs/x", fps=10, root=tmp_path / "theirs", features=features, robot_type="so100",
        use_videos=video,
    )  # fmt: skip
    actions = np.random.default_rng(0).normal(size=(2, 6, 2)).astype(np.float32)
    actions[..., 1] = actions[..., 1] > 0
    for episode in range(2):
        for tick in range(6):
            frame = np.full((64, 96, 3), 20 + 20 * tick + 100 * episode, np.uint8)
            written.add_frame(
                {
                    "observation.images.top": frame,
                    "observation.state": actions[episode, tick],
                    "action": actions[episode, tick],
                    "task": f"task {episode}",
                }
            )
        written.save_episode()
    written.finalize()
    back, _ = convert(tmp_path / "theirs", "back")
    found = open_dataset(back)
    assert found.spec.rate_hz == 10
    for episode in range(2):
        np.testing.assert_array_equal(found[episode].actions, actions[episode])
        assert found[episode].instruction == f"task {episode}"
        levels = found[episode].frames("top").mean(axis=(1, 2, 3))
        expected = 20 + 20 * np.arange(6) + 100 * episode
        np.testing.assert_allclose(levels, expected, atol=3 if video else 0)
