"""The demonstrations of the study, seen once by the vision of a trained policy.

The vision stays as it is in all trainings, so its tokens are computed once and stand in for the
camera frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ttm.datasets.episode_dataset import EpisodeDataset
from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.statistics import dataset_statistics
from ttm.datasets.windows.recent_frames import RecentFrames
from ttm.datasets.windows.window_dataset import WindowDataset, resized_spec
from ttm.policy.network.policy import Policy
from ttm.training.common.recorded.episodes import open_all, split
from ttm.training.common.recorded.window_inputs import policy_inputs

LONG_EPISODE = (100, 300)
"""Range of ticks from which the length of a long episode is drawn."""


class LongEpisode:
    """Several recorded episodes of one instruction, joined to one.

    It has the members of `EpisodeReader` that training windows need.
    """

    def __init__(self, parts: Sequence[EpisodeReader]) -> None:
        self.parts = parts
        first = parts[0]
        self.path, self.name, self.instruction = first.path, first.name, first.instruction
        self.language_embedding = first.language_embedding
        self.language_model = first.language_model
        self.num_samples = sum(part.num_samples for part in parts)

    @property
    def actions(self) -> np.ndarray:
        """(T, A), as in `EpisodeReader`."""
        return np.concatenate([part.actions for part in self.parts])

    @property
    def executed_actions(self) -> np.ndarray:
        """(T, A), as in `EpisodeReader`."""
        return np.concatenate([part.executed_actions for part in self.parts])

    def proprioception(self, name: str) -> np.ndarray:
        """Return (T, K), as `EpisodeReader` does."""
        return np.concatenate([part.proprioception(name) for part in self.parts])


class CameraTokens:
    """Stands in for a `FrameStore` and gives the tokens of a camera's frames instead of the frames.

    K tokens of width D come as a frame of one row, K columns and D channels.
    """

    def __init__(self, tokens: Mapping[str, Tensor]) -> None:
        """tokens: camera -> (ticks, K, D)."""
        self.tokens = tokens

    def gather(self, rows: Tensor, recent: RecentFrames | None = None) -> dict[str, Tensor]:
        """rows: (B, T) -> camera -> (B, T, 1, K, D). All tokens are in memory, without `recent`."""
        return {name: values[rows].unsqueeze(2) for name, values in self.tokens.items()}


class TokenPolicy(Policy):
    """A policy that takes the tokens of `CameraTokens` as its camera frames."""

    def _camera_tokens(self, images: Mapping[str, Tensor], code: Tensor) -> list[Tensor]:
        """images: camera -> (B, T, D, 1, K) -> (B, T, K, D) for each camera."""
        return [images[camera.name].squeeze(3).transpose(2, 3) for camera in self.spec.cameras]


class Material:
    """All demonstrations, as tokens."""

    def __init__(self, data: Sequence[str], policy: Policy) -> None:
        opened = open_all(data, like=policy.spec)
        sizes = {camera.name: (camera.height, camera.width) for camera in policy.spec.cameras}
        policy.spec.require_compatible(
            resized_spec(opened[0].spec, sizes), ours="the checkpoint", theirs=opened[0].source
        )
        parts = {name: split(opened, name) for name in ("train", "valid")}
        self.statistics = dataset_statistics(parts["train"]).actions
        self._tokens = {
            id(episode): tokens
            for part in parts.values()
            for episode, tokens in see(policy, part, sizes)
        }
        rng = np.random.default_rng(0)
        self.training = {"short": parts["train"], "long": lengthen(parts["train"], rng)}
        self.held_out = parts["valid"]

    def windows(self, episodes: EpisodeDataset, window: int, pad: Any) -> WindowDataset:
        """Return training windows that hold tokens instead of frames."""
        windows = WindowDataset(episodes, window, pad=pad, cache="none")
        parts = [part for episode in episodes for part in getattr(episode, "parts", [episode])]
        cameras = self._tokens[id(parts[0])]
        windows.frames = CameraTokens(  # type: ignore[assignment]
            {name: torch.cat([self._tokens[id(part)][name] for part in parts]) for name in cameras}
        )
        return windows


@torch.no_grad()
def see(
    policy: Policy, episodes: EpisodeDataset, resize_to: Mapping[str, tuple[int, int]]
) -> list[tuple[EpisodeReader, dict[str, Tensor]]]:
    """Return each episode with camera -> (ticks, K, D), the tokens that the core gets."""
    longest = max(episode.num_samples for episode in episodes)
    windows = WindowDataset(episodes, longest, pad="none", resize_to=resize_to)
    seen = []
    for number, episode in enumerate(episodes):
        tokens = policy.encode(policy_inputs(windows.gather([number])))[0, : episode.num_samples]
        sources = {camera.name: policy.token_sources[camera.name] for camera in policy.spec.cameras}
        seen.append((episode, {name: tokens[:, where].clone() for name, where in sources.items()}))
    return seen


def lengthen(episodes: EpisodeDataset, rng: np.random.Generator) -> EpisodeDataset:
    """Join the episodes of each instruction to long ones, each episode in exactly one of them.

    Lengths are drawn from `LONG_EPISODE`; the last long episode of an instruction gets what is
    left.
    """
    made: list[Any] = []
    for instruction in dict.fromkeys(episode.instruction for episode in episodes):
        same = [episode for episode in episodes if episode.instruction == instruction]
        parts: list[EpisodeReader] = []
        wanted = rng.integers(*LONG_EPISODE)
        for number in rng.permutation(len(same)).tolist():
            parts.append(same[number])
            if sum(part.num_samples for part in parts) >= wanted or len(parts) == len(same):
                made.append(LongEpisode(parts))
                parts, wanted = [], rng.integers(*LONG_EPISODE)
        made += [LongEpisode(parts)] if parts else []
    return EpisodeDataset(made, episodes.spec, source=episodes.source)
