"""The activities of kitchen episodes: what the robot is doing at each tick of a stream of several skills.

The labels follow from the recorded motion, and a core has to tell them from the frames alone. It is the
counterpart of the detection of activities in Charades (Ryoo et al. 2022, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ttm.datasets.console import track
from ttm.datasets.dataset import EpisodeDataset
from ttm.datasets.reader import EpisodeReader
from ttm.datasets.windows import resized_frames
from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.cores.core import CoreConfig
from ttm.policy.errors import UserError
from ttm.policy.vision import CameraTokens

Arrays = npt.NDArray[Any]
PHASES = ("wait", "close", "open", "lift", "pull", "carry", "drive", "reach")
AGAIN = "again"
"""The activity of a skill that the stream has shown before: it asks for a memory of minutes."""
GRIPPER_STEP, HELD_BELOW = 0.05, 0.9  # of the opening, 0 to 1: a change in a tick, and "closed"
BASE_SPEED, PULL_SPEED, HAND_STEP = 0.1, 0.05, 0.008  # m/s or rad/s, m/s, m in a tick
FEWEST_TICKS = 50
"""Activities with fewer ticks to train on, or with less than a tenth of them held out, are no classes."""
FRAMES_AT_ONCE = 64


def phases_of(opening: Arrays, hand: Arrays, base: Arrays) -> Arrays:
    """Return what the robot is doing at each tick, (T,) int64 into `PHASES`, from how it has just moved.

    opening: of the gripper, (T,), 0 to 1. hand: its position, (T, 3), m. base: its forward speed and yaw
    rate, (T, 2). With the hand closed a motion upwards is "lift", one of the base backwards "pull", and
    any other "carry"; with an open hand "drive" is a motion of the base and "reach" one of the arm alone.
    """
    change = np.diff(opening, prepend=opening[:1])
    moved = np.diff(hand, axis=0, prepend=hand[:1])
    held, moves = opening < HELD_BELOW, np.linalg.norm(moved, axis=1) > HAND_STEP
    drives = (np.abs(base) > BASE_SPEED).any(axis=1)
    found = {
        "close": change < -GRIPPER_STEP,
        "open": change > GRIPPER_STEP,
        "lift": held & (moved[:, 2] > HAND_STEP),
        "pull": held & (base[:, 0] < -PULL_SPEED),
        "carry": held & (drives | moves),
        "drive": drives,
        "reach": moves,
    }
    return np.select(list(found.values()), [PHASES.index(name) for name in found], default=0)


def measured_phases(episode: EpisodeReader) -> Arrays:
    """Return `phases_of` a recorded episode. Raises `UserError` if the robot is not that of the kitchen."""
    try:
        joints = next(p for p in episode.spec.proprioception if p.name == "joint_positions")
        place = next(i for i, n in enumerate(joints.labels) if n.startswith("gripper opening"))
        hand, base = map(episode.proprioception, ("ee_pose", "base_velocity"))
    except (StopIteration, UserError, KeyError) as error:
        raise UserError(
            f"{episode.path} lacks joint_positions with a gripper opening, ee_pose or base_velocity; give "
            "episodes of the simulated kitchen: ttm collect --task pick --out FOLDER"
        ) from error
    return phases_of(episode.proprioception(joints.name)[:, place], hand[:, :3], base)


class Episodes(NamedTuple):
    """Recorded episodes one after another. The names are those of the tensors in the file of the cache."""

    maps: Tensor  # (ticks, cameras, C, h, w) float16, of frozen vision
    phase: Tensor  # (ticks,) int64
    skill: Tensor  # (episodes,) int64, into the sorted names of the tasks
    length: Tensor  # (episodes,) int64
    held_out: Tensor  # (episodes,) bool

    @property
    def first(self) -> Tensor:
        """The first tick of each episode."""
        return self.length.cumsum(0) - self.length


@torch.no_grad()
def seen_episodes(training: EpisodeDataset, validation: EpisodeDataset, init: Path) -> Episodes:
    """Let the vision of the checkpoint `init` see all frames, without an instruction."""
    policy = load_checkpoint(init)[0].eval()
    assert policy.vision is not None, "open_all has required the checkpoint's cameras"
    code = policy.instruction_code(torch.zeros(1, policy.config.embedding_size))
    every, maps = [*training, *validation], []
    for episode in track(every, "computing features"):
        of_cameras = []
        for camera in policy.spec.cameras:
            seen = resized_frames(episode.frames(camera.name), camera)
            frames = torch.from_numpy(seen).permute(0, 3, 1, 2)
            parts = [policy.vision(part, code).half() for part in frames.split(FRAMES_AT_ONCE)]
            of_cameras.append(torch.cat(parts).contiguous())
        maps.append(torch.stack(of_cameras, dim=1))
    skills = sorted({episode.task for episode in every})
    return Episodes(
        torch.cat(maps),
        torch.cat([torch.from_numpy(measured_phases(episode)) for episode in every]),
        torch.tensor([skills.index(episode.task) for episode in every]),
        torch.tensor([episode.num_samples for episode in every]),
        torch.tensor([i >= len(training) for i in range(len(every))]),
    )


class Streams:
    """Streams of several episodes one after another, and the activities at each of their ticks.

    An activity is a phase of a skill, such as pick: lift, or a skill that the stream has shown before.
    """

    def __init__(self, episodes: Episodes, skills: Sequence[str], ticks: int) -> None:
        """skills: the names, by their numbers. Raises `UserError` if there are too few episodes."""
        self.episodes, self.ticks, count = episodes, ticks, len(PHASES)
        self._by_skill = [
            {held_out: self._of(skill, held_out) for held_out in (False, True)}
            for skill in range(len(skills))
        ]
        if len(skills) < 2 or not all(len(e) for of in self._by_skill for e in of.values()):
            raise UserError(
                "--data has not two skills with an episode to train on and one held out (every tenth) "
                f"each, but: {', '.join(skills)}; collect more"
            )
        self._joint = (
            torch.repeat_interleave(episodes.skill, episodes.length) * count + episodes.phase
        )
        trained = torch.repeat_interleave(~episodes.held_out, episodes.length)
        names = [f"{skill}: {phase}" for skill in skills for phase in PHASES]
        seen = [
            torch.bincount(self._joint[part], minlength=len(names)) for part in (trained, ~trained)
        ]
        kept = ((seen[0] >= FEWEST_TICKS) & (10 * seen[1] >= FEWEST_TICKS)).nonzero()[:, 0]
        self.names = [names[i] for i in kept] + [f"{skill} {AGAIN}" for skill in skills]
        self._kept, self._num_skills = kept, len(skills)

    def _of(self, skill: int, held_out: bool) -> Tensor:
        mine = (self.episodes.skill == skill) & (self.episodes.held_out == held_out)
        return mine.nonzero()[:, 0]

    def draw(self, count: int, held_out: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw `count` (B) streams: their ticks in `episodes`, (B, T) int64, and activities, (B, T, K)."""
        ticks, again = zip(*(self._one(held_out, generator) for _ in range(count)), strict=True)
        chosen = torch.stack(ticks)
        phase = self._joint[chosen].unsqueeze(-1) == self._kept
        return chosen, torch.cat([phase, torch.stack(again)], dim=2).float()

    def _one(self, held_out: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        def draw(high: int) -> int:
            return int(torch.randint(high, (), generator=generator))

        ticks, again, seen = list[Tensor](), list[Tensor](), set[int]()
        while sum(map(len, ticks)) < self.ticks:
            skill = draw(self._num_skills)
            among = self._by_skill[skill][held_out]
            episode = int(among[draw(len(among))])
            length = int(self.episodes.length[episode])
            ticks.append(int(self.episodes.first[episode]) + torch.arange(length))
            flag = torch.zeros(length, self._num_skills, dtype=torch.bool)
            flag[:, skill] = skill in seen
            again.append(flag)
            seen.add(skill)
        return torch.cat(ticks)[: self.ticks], torch.cat(again)[: self.ticks]


class ActivityModel(nn.Module):
    """Tokens of each camera's map, a core, and a linear layer on its mean output.

    What is outside the core has weights that depend on the seed alone.
    """

    def __init__(
        self, config: CoreConfig, maps: torch.Size, width: int, tokens: int, classes: int
    ) -> None:
        """maps: cameras, C, h, w. tokens: of a camera."""
        super().__init__()
        count, channels, *grid = maps
        sizes = channels, (grid[0], grid[1]), width, tokens
        self.cameras = nn.ModuleList(CameraTokens(*sizes) for _ in range(count))
        self.head = nn.Linear(width, classes)
        self.core = config.build(width, count * tokens)

    def forward(self, maps: Tensor) -> Tensor:
        """Map the maps of T ticks, (B, T, cameras, C, h, w), to scores of the classes, (B, T, K)."""
        of_cameras = zip(self.cameras, maps.flatten(0, 1).float().unbind(1), strict=True)
        tokens = torch.cat([camera(each) for camera, each in of_cameras], dim=1)
        outputs, _ = self.core(tokens.unflatten(0, maps.shape[:2]))
        scores: Tensor = self.head(outputs.mean(dim=2))
        return scores


def average_precision(scores: Arrays, positive: Arrays) -> float:
    """Return the mean of the precision at each positive, with the ticks sorted by score; both (n,)."""
    hits = positive[np.argsort(-scores, kind="stable")].astype(bool)
    precision = hits.cumsum() / np.arange(1, len(hits) + 1)
    return float(precision[hits].mean())
