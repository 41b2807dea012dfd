"""`ttm study pointing`: vision learns to find what an instruction names, before a policy learns to act on it.

A policy that learns from actions alone may learn to grasp long before it learns which object is meant. Here a
simulator says where in the image that is. This is privileged information, and for training alone: a policy
with this vision gets frames and words as ever.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.datasets.console import track
from ttm.datasets.windows import reduced_spec, resized_frames
from ttm.policy.checkpoint import save_checkpoint
from ttm.policy.config import VisionConfig, VisionModel
from ttm.policy.cpu_training import quicker_on_cpu
from ttm.policy.errors import UserError, first_line, options, require_at_least
from ttm.policy.files import partial_path, publish_partial
from ttm.policy.language import embed_instruction
from ttm.policy.policy import Policy
from ttm.policy.spec import CameraSpec
from ttm.policy.vision import CameraTokens
from ttm.sim.condition import FIRST_DEMONSTRATION_SEED, KITCHEN, Condition
from ttm.sim.environment import expert_of, inspect_env, make_env, reset_options
from ttm.sim.workers import TASK, VARY, WorkerPool
from ttm.training.network import chosen_network
from ttm.training.options import TrainOptions
from ttm.training.study.common import prepare_process, print_results

MOST_TICKS, EVERY = 80, 8
"""In each scene the expert acts until it is done, or for so many ticks; frames are kept at every so many."""
ASKED, NAMES = 3, ("first", "second")
"""Instructions of each task that a frame is kept with, of those whose things are all in view of a camera; the
things that they name, such as what to move and what near."""
HELD_OUT = 0.05
"""The portion of the frames, those of the last scenes, that is kept to measure on."""
BATCH, LEARNING_RATE, WARMUP, SHIFT_PX, CELL_SPREAD = 128, 2e-3, 50, 3, 0.7
"""Pairs in a batch; the largest rate, after so many steps; frames are moved by up to so much; the target's
width in cells."""
NOTES = """\
Within a cell: how often, of held-out pairs of frame and instruction, the cell that the token looks at most
is that of what is named, or touches it."""


class Views(NamedTuple):
    """Frames, and where the cameras have what instructions name."""

    frames: Any  # (frames, cameras, H, W, 3) uint8
    pairs: Any  # (pairs, 2) int64: a frame and a text
    places: Any  # (pairs, cameras, NAMES, 3) float32, see `PolicyEnv.named_places`
    texts: Any  # the instructions


class SceneJob(NamedTuple):
    """One scene to look at."""

    task: str
    seed: int
    folder: None = None


class Photographer:
    """Looks at scenes with one environment. vary: what varies, with levels; cameras: the frames to take."""

    def __init__(
        self, environment: str, vary: Mapping[str, int], cameras: Sequence[CameraSpec]
    ) -> None:
        self._env, self._vary = make_env(environment), vary
        if not self._env.has_wrapper_attr("named_places"):
            self._env.close()
            raise UserError(
                f"environment '{environment}' has no named_places; see ttm.sim.PolicyEnv"
            )
        self._cameras = cameras

    def run(self, job: SceneJob) -> Views:
        """Return views of a scene while the expert acts in it."""
        rng, found = np.random.default_rng((job.seed, 2)), Views([], [], [], [])
        options = reset_options(job.task, vary=self._vary)
        observation, _ = self._env.reset(seed=job.seed, options=options)
        expert = expert_of(self._env)
        for tick in range(int(rng.integers(EVERY)), MOST_TICKS):
            if tick % EVERY == 0:
                self._look(observation, rng, found)
            observation, _, ended, late, _ = self._env.step(expert.action())
            if ended or late:
                break
        return found

    def close(self) -> None:
        self._env.close()

    def _look(self, observation: Mapping[str, Any], rng: np.random.Generator, found: Views) -> None:
        frames = [resized_frames(observation[each.name][None], each) for each in self._cameras]
        found.frames.append(np.concatenate(frames))
        for of_task in self._env.get_wrapper_attr("named_places")().values():
            places = {}
            for text, seen in of_task.items():
                each = np.full((len(self._cameras), len(NAMES), 3), np.nan, np.float32)
                for row, camera in zip(each, self._cameras, strict=True):
                    row[: len(seen[camera.name])] = seen[camera.name][: len(NAMES)]
                names = max(map(len, seen.values()))
                if names and np.isfinite(each[:, :names]).any(axis=(0, 2)).all():
                    places[text] = each
            for text in rng.permutation(sorted(places))[:ASKED].tolist():
                found.pairs.append((len(found.frames) - 1, len(found.texts)))
                found.texts.append(text)
                found.places.append(places[text])


def together(scenes: list[Views]) -> Views:
    """Return the views of all scenes as arrays, each text once."""
    texts = sorted({text for scene in scenes for text in scene.texts})
    number = {text: i for i, text in enumerate(texts)}
    first = np.cumsum([0, *(len(scene.frames) for scene in scenes)])
    pairs = [
        (at + frame, number[scene.texts[text]])
        for at, scene in zip(first, scenes, strict=False)
        for frame, text in scene.pairs
    ]
    frames, places = ([each for scene in scenes for each in scene[i]] for i in (0, 2))
    return Views(np.stack(frames), np.array(pairs), np.array(places, np.float32), np.array(texts))


@dataclass(frozen=True)
class StudyPointingCommand:
    """Teach vision to find what an instruction names, in scenes of a simulator that says where it is.

    The first token of each camera learns to look at what the instruction names first, the second at what it
    names next, and both how far away that is. OUT/MODEL.safetensors is for --vision-weights of ttm train.
    Needs an environment with named_places, see ttm.sim.environment.PolicyEnv, and an expert.

    Example: ttm study pointing --out runs/pointing, and then ttm train --data demos/groups
    --vision-weights runs/pointing/efficientnet-b0.safetensors --out runs/groups
    """

    out: Path = Path("runs/pointing")
    """Folder of the frames, which are not made again, checkpoints, and figures in MODEL.json."""
    task: Annotated[tuple[str, ...], TASK] = ("groups",)
    env: str = KITCHEN
    """Gymnasium ID of the environment, as in ttm evaluate."""
    vary: Annotated[tuple[str, ...], VARY] = ("1",)
    scenes: int = 5000
    """Initial states to look at while the expert acts; evaluations use others."""
    vision_model: VisionModel = "efficientnet-b0"
    """The network: efficientnet-b0 as in the preset tiny, half as wide; others as in ttm train."""
    steps: int = 2500
    """Training steps, of 128 pairs of a frame and an instruction each."""
    seed: int = 0
    """Of first weights and batches."""
    workers: int | None = None
    """Processes that look at scenes, by default one for each core that may be used."""

    def run(self) -> int:
        """Take the frames, train, print how well it finds things, and write the checkpoint."""
        require_at_least(1, options(self, "scenes", "steps", "workers"))
        require_at_least(0, options(self, "seed"))
        facts = inspect_env(self.env)
        facts.require_expert()
        made: dict[str, Any] = {"env": self.env, "task": facts.choose(self.task)}
        made |= {"vary": facts.variant(self.vary), "scenes": self.scenes, "ticks": MOST_TICKS}
        model = None if self.vision_model == VisionConfig.model else self.vision_model
        network = chosen_network(TrainOptions((), self.out, vision_model=model))
        spec = reduced_spec(facts.spec, network.image_size)  # as ttm train does
        if len({(camera.height, camera.width) for camera in spec.cameras}) != 1:
            raise UserError(f"environment '{self.env}' has no cameras, or of several sizes")
        self.out.mkdir(parents=True, exist_ok=True)
        views = self._views(made, spec.cameras)
        prepare_process()
        torch.manual_seed(self.seed)
        pointer = Pointer(Policy(spec, network), views)
        list(track(pointer.learn(self.steps, self.seed), "learning to point", total=self.steps))
        figures = made | {"steps": self.steps, "seed": self.seed, "found": pointer.measure()}
        figures |= {"frames": len(views.frames), "pairs": len(views.pairs)}
        path = self.out / f"{self.vision_model}.safetensors"
        save_checkpoint(path, pointer.policy, {"pointing": figures})
        table = Table(*figures["found"][0])
        for row in figures["found"]:
            table.add_row(*map(str, row.values()))
        print_results(NOTES, table, figures=figures, json_path=path.with_suffix(".json"))
        return 0

    def _views(self, made: Mapping[str, Any], cameras: Sequence[CameraSpec]) -> Views:
        """Return the views in OUT, or take them. made: what they depend on."""
        path, key = self.out / "frames.npz", json.dumps(made)
        if path.exists():
            try:
                kept = dict(np.load(path))
                views = Views(*(kept[name] for name in Views._fields))
            except (BadZipFile, ValueError, KeyError, EOFError, OSError) as error:
                why = f"{path} is damaged ({first_line(error)}); delete it, and its frames are made again"
                raise UserError(why) from error
            if str(kept["made"]) != key:
                raise UserError(f"{path} has frames of {kept['made']}; give another --out")
            return views
        tasks, levels = made["task"], Condition(vary=made["vary"]).levels
        seeds = range(FIRST_DEMONSTRATION_SEED, FIRST_DEMONSTRATION_SEED + self.scenes)
        jobs = [SceneJob(tasks[i % len(tasks)], seed) for i, seed in enumerate(seeds)]
        with WorkerPool(Photographer, (self.env, levels, cameras), workers=self.workers) as pool:
            seen = dict(track(pool.run(jobs), "looking", total=len(jobs)))
        views = together([seen[i] for i in range(len(jobs))])
        with partial_path(path).open("wb") as file:
            np.savez(file, made=key, **views._asdict())
        publish_partial(path)
        return views


class Pointer:
    """Trains the vision of a policy to point, and measures how well it does."""

    def __init__(self, policy: Policy, views: Views) -> None:
        """Raise `UserError` if no camera has anything in view in some of the scenes."""
        assert policy.vision is not None, "environments without cameras have no named_places"
        self.policy, self.vision, self.views = policy, policy.vision, views
        self.codes = torch.from_numpy(np.stack([embed_instruction(str(t)) for t in views.texts]))
        self.distance = nn.Linear(policy.config.width, 1)
        quicker_on_cpu(policy)
        seen = np.argwhere(np.isfinite(views.places[..., 0, 0]))  # a pair and a camera each
        held_out = views.pairs[seen[:, 0], 0] >= (1 - HELD_OUT) * len(views.frames)
        self.train, self.held_out = seen[~held_out], seen[held_out]
        if not len(self.train) or not len(self.held_out):
            raise UserError(
                "too few scenes have in view what instructions name; give more --scenes"
            )

    def learn(self, steps: int, seed: int) -> Iterator[None]:
        """Train for so many steps."""
        parts = self.vision, self.policy.language, self.policy.camera_tokens, self.distance
        parameters = list(nn.ModuleList(parts).parameters())
        optimizer = torch.optim.AdamW(parameters, weight_decay=0.01)
        rng = np.random.default_rng(seed)
        self.policy.train()
        for step in range(steps):
            decay = 0.5 + 0.5 * np.cos(np.pi * step / steps)
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARMUP) * decay
            rows = self.train[rng.integers(len(self.train), size=BATCH)]
            right, down = rng.integers(-SHIFT_PX, SHIFT_PX + 1, 2).tolist()
            scores, wanted, guess, distance = self._see(rows, right, down)
            known = distance.isfinite()
            loss = -(wanted * scores.log_softmax(2)).sum(2)[known].mean()
            loss = loss + F.smooth_l1_loss(guess[known], distance[known].log())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            yield
        self.policy.eval()

    @torch.no_grad()
    def measure(self) -> list[dict[str, Any]]:
        """Return how often each camera finds what is named in held-out scenes."""
        hits, errors, found = [], [], []
        for rows in np.array_split(self.held_out, -(-len(self.held_out) // 256)):
            scores, wanted, guess, distance = self._see(rows)
            width = round(scores.shape[2] ** 0.5)
            best, right = scores.argmax(2), wanted.argmax(2)
            away = best % width - right % width, best // width - right // width
            hits.append(torch.stack(away).abs().amax(0) <= 1)
            off = (guess.exp() / distance - 1).abs()
            errors.append(torch.where(distance.isfinite(), off, torch.nan))
        hit, error = torch.cat(hits).numpy(), torch.cat(errors).numpy()
        for number, camera in enumerate(self.policy.spec.cameras):
            for name, of in enumerate(NAMES):
                these = (self.held_out[:, 1] == number) & np.isfinite(error[:, name])
                if count := int(these.sum()):
                    rate, median = hit[these, name].mean(), np.median(error[these, name])
                    row = {"camera": camera.name, "named": of, "pairs": count}
                    row |= {"within a cell": f"{rate:.1%}", "error in distance": f"{median:.1%}"}
                    found.append(row)
        return found

    def _see(self, rows: Any, right: int = 0, down: int = 0) -> tuple[Tensor, ...]:
        """Return scores and targets of cells, (B, NAMES, cells), log distances and distances, (B, NAMES).

        rows: a pair and a camera each, (B, 2). right, down: what the frames are moved by, in pixels.
        """
        pair, camera = rows.T
        frame, text = self.views.pairs[pair].T
        images = torch.from_numpy(self.views.frames[frame, camera]).permute(0, 3, 1, 2)
        height, width = images.shape[2:]
        padded = F.pad(images.float(), (SHIFT_PX,) * 4, mode="replicate")
        top, left = SHIFT_PX - down, SHIFT_PX - right
        images = padded[:, :, top : top + height, left : left + width].round().byte()
        maps = self.vision(images.contiguous(), self.policy.instruction_code(self.codes[text]))
        scores = maps.new_empty(len(rows), len(NAMES), maps.shape[2:].numel())
        guess = maps.new_empty(len(rows), len(NAMES))
        for number, tokens in enumerate(self.policy.camera_tokens):
            these = torch.from_numpy(np.flatnonzero(camera == number))
            assert isinstance(tokens, CameraTokens)
            scores[these] = tokens.logits(maps[these])[..., : len(NAMES)].transpose(1, 2)
            guess[these] = self.distance(tokens(maps[these])[:, : len(NAMES)]).squeeze(2)
        places = torch.from_numpy(self.views.places[pair, camera])  # (B, NAMES, 3)
        x, y = (places[..., :2] + torch.tensor([right / width, down / height])).unbind(2)
        across, along = _near(x.nan_to_num(), maps.shape[3]), _near(y.nan_to_num(), maps.shape[2])
        wanted = (along.unsqueeze(-1) * across.unsqueeze(-2)).flatten(2)
        return scores, wanted, guess, places[..., 2]


def _near(portions: Tensor, cells: int) -> Tensor:
    """Return how near each cell of a row is to a place, summing to 1: (B, n) -> (B, n, cells)."""
    away = (portions.clamp(0, 1).unsqueeze(-1) * cells - torch.arange(cells) - 0.5) / CELL_SPREAD
    return torch.softmax(-away.square(), dim=-1)
