"""The cache of features: equal frames once, and what the network makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ttm.datasets import EpisodeDataset, EpisodeWriter, WindowDataset, open_dataset
from ttm.datasets.reader import EpisodeReader
from ttm.datasets.windows import policy_inputs
from ttm.policy import PRESETS, Policy, PolicySpec, UserError
from ttm.training import data as feature_cache
from ttm.training import frozen_vision as map_store
from ttm.training.data import FeatureCache
from ttm.training.frozen_vision import freeze_vision

SCENES = (0, 0, 1, 1, 1, 0)
"""Which of two frames each tick of an episode shows."""


@pytest.fixture
def episodes(tmp_path: Path, spec: PolicySpec) -> EpisodeDataset:
    """Two episodes of the same frames under different instructions, and one like the first."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (2, 2, 16, 16, 3), dtype=np.uint8)  # camera, scene
    for number, instruction in enumerate((1.0, 2.0, 1.0)):
        with EpisodeWriter(tmp_path / f"{number}.hdf5", spec) as writer:
            for tick, scene in enumerate(SCENES):
                seen = {"head": frames[0, scene], "wrist": frames[1, scene]}
                seen["joints"] = np.full(2, tick, np.float32)
                writer.append(seen, [0, 0, 0], timestamp_s=float(tick))
            embedding = np.eye(384, dtype=np.float32)[int(instruction)]
            writer.finish(instruction=f"{instruction}", embedding=embedding)
    return open_dataset(tmp_path)


@pytest.fixture
def policy(spec: PolicySpec) -> Policy:
    torch.manual_seed(0)
    policy = Policy(spec, PRESETS["tiny"])
    for film in policy.vision.films:  # so that the instruction matters
        torch.nn.init.normal_(film.project.weight, std=0.1)
    return policy


def test_each_distinct_frame_is_computed_once_for_each_instruction(
    policy: Policy, episodes: EpisodeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = FeatureCache(policy, policy.spec.cameras)
    seen: list[int] = []
    policy.vision.register_forward_hook(lambda module, inputs, out: seen.append(len(inputs[0])))
    features = cache.features(episodes)
    assert sum(seen) == 2 * 2 * 2  # cameras, scenes, instructions
    assert features.rows["head"].tolist() == [0, 0, 1, 1, 1, 0, 2, 2, 3, 3, 3, 2, 0, 0, 1, 1, 1, 0]
    assert cache.features(episodes[2:]).rows["wrist"].tolist() == [0, 0, 1, 1, 1, 0]
    assert sum(seen) == 8
    megabytes = sum(store.maps.nbytes for store in features.stores.values()) / 1e6
    monkeypatch.delattr(EpisodeReader, "frames")  # nor is one read twice
    assert cache.features(episodes).rows["head"].tolist() == features.rows["head"].tolist()
    assert "features of 8 distinct frames in" in cache.summary()
    assert f"in {megabytes:.1f} MB" in cache.summary()


def test_the_tokens_are_those_of_the_frames(policy: Policy, episodes: EpisodeDataset) -> None:
    policy.eval()
    batch = WindowDataset(episodes, 6, pad="none").gather([2, 0, 1])
    inputs = policy_inputs(batch)
    features = FeatureCache(policy, policy.spec.cameras).features(episodes)
    cached = features.into(inputs, batch["dataset_tick"])
    assert cached.features is not None
    assert len(cached.features["head"].maps) == 4
    with torch.no_grad():
        expected = policy.encode(inputs)
        torch.testing.assert_close(policy.encode(cached), expected, rtol=0, atol=2e-3)
        some = policy.encode(cached.at_ticks(slice(2, 5)))
    torch.testing.assert_close(some, expected[:, 2:5], rtol=0, atol=2e-3)


def test_many_small_parts_become_few_large_ones_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(map_store, "PARTS", 3)
    store, longest = map_store.MapStore(), 0
    frames = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1)
    for first in range(0, 16, 2):  # each tells of two frames that are known, too
        rows = store.rows(frames[first : first + 4], b"", lambda new: 2.0 * new)
        assert rows.tolist() == list(range(first, first + 4))
        longest = max(longest, len(store._parts))
    assert longest == 4, "two large parts, and two small ones"
    assert store.maps.flatten().tolist() == [2 * row for row in range(18)]
    assert store.rows(frames[16:], b"", lambda new: 2.0 * new).tolist() == [16, 17, 18, 19]
    assert store.maps.flatten().tolist() == [2 * row for row in range(20)]


def test_freezing_excludes_vision_and_its_condition_alone(policy: Policy) -> None:
    freeze_vision(policy)
    frozen = {name.split(".")[0] for name, p in policy.named_parameters() if not p.requires_grad}
    assert frozen == {"vision", "language"}
    assert all(p.requires_grad for p in policy.language_token.parameters())


def test_the_core_learns_words_that_frozen_vision_does_not_tell_apart(
    policy: Policy, episodes: EpisodeDataset
) -> None:
    """A vision that has learned to find objects may have one code for all that can be done with them."""
    torch.nn.init.zeros_(policy.language[1].weight)
    freeze_vision(policy.eval())
    batch = WindowDataset(episodes, 6, pad="none").gather([0, 1])  # the same frames, other words
    inputs, wanted = policy_inputs(batch), torch.tensor([-1.0, 1.0])[:, None, None]
    learning = torch.optim.Adam([p for p in policy.parameters() if p.requires_grad], lr=2e-3)
    for _ in range(30):
        learning.zero_grad()
        (policy(inputs)[0] - wanted).square().mean().backward()
        learning.step()
    assert (policy(inputs)[0] * wanted > 0.5).all()


def test_too_little_memory_is_told(
    policy: Policy, episodes: EpisodeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_cache, "available_memory_bytes", lambda: 1000)
    with pytest.raises(UserError, match=r"exceed .* GiB, the free memory; take fewer"):
        FeatureCache(policy, policy.spec.cameras).features(episodes)


def test_a_feature_beyond_the_range_of_the_cache_is_told(
    policy: Policy, episodes: EpisodeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.nn.init.constant_(policy.vision.films[-1].project.bias, 1e6)
    with pytest.raises(UserError, match=r"keeps features as torch\.float16"):
        FeatureCache(policy, policy.spec.cameras).features(episodes)
    monkeypatch.setattr(map_store, "DTYPE", torch.float32)
    FeatureCache(policy, policy.spec.cameras).features(episodes)


def test_a_sight_memory_sees_the_cells_of_the_frames(
    spec: PolicySpec, episodes: EpisodeDataset
) -> None:
    torch.manual_seed(0)
    policy = Policy(spec, replace(PRESETS["tiny"], sight_tokens=2)).eval()
    features = FeatureCache(policy, policy.spec.cameras).features(episodes)
    windows = WindowDataset(episodes, len(SCENES), pad="none")
    batch = windows.gather([0, 1])
    given = features.into(policy_inputs(batch), batch["dataset_tick"])
    assert given.cells is not None
    assert len(given.cells.maps) == 2  # scenes; the instruction does not count
    with torch.no_grad():
        expected, _ = policy(policy_inputs(batch))
        torch.testing.assert_close(policy(given)[0], expected, rtol=0, atol=2e-3)
        without = FeatureCache(policy, policy.spec.cameras).for_sight(False).features(episodes)
    assert without.cells is None
