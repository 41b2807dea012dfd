"""Levels of MiniGrid (Chevalier-Boisvert et al. 2023), and policies that clone their experts.

From top to bottom: levels and demonstrations of their experts, a small policy around a temporal core,
its training, and the episodes in which it acts. `babyai.py` and `memory.py` hold levels and experts.
"""

from __future__ import annotations

import contextlib
import io
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import minigrid
import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.core import CoreConfig, CoreState
from ttm.policy.errors import UserError
from ttm.policy.files import write_atomically
from ttm.training.console import make_folder, print_progress
from ttm.training.options import OptimizerConfig
from ttm.training.sequence_model import Progress, fit

VIEW = 7  # side of the square that the agent sees, in tiles
NUM_TILES = VIEW * VIEW
NUM_ACTIONS = 7  # left, right, forward, pick up, drop, toggle, done
NUM_DIRECTIONS = 4


class MinigridView(NamedTuple):
    """What a MiniGrid environment shows the agent before an action."""

    image: NDArray[np.uint8]  # (7, 7, 3): object, colour and state of each tile that it sees
    direction: int  # 0 to 3, clockwise; 0 is to the right of the map
    mission: str  # the instruction in English, the same for a whole episode


class MinigridEnvironment:
    """A level of MiniGrid. The seed given to `reset` and the actions determine everything."""

    def __init__(self, name: str, **options: Any) -> None:
        """name: gymnasium's id of the level, such as "BabyAI-GoToLocal-v0".

        options: values for its arguments, instead of those that it is registered with.
        """
        self.unwrapped: Any = gymnasium.make(name, disable_env_checker=True, **options).unwrapped

    @property
    def max_steps(self) -> int:
        """Ticks after which the episode ends as failed; they may depend on the mission."""
        return int(self.unwrapped.max_steps)

    def reset(self, seed: int) -> MinigridView:
        """Begin a new episode."""
        with contextlib.redirect_stdout(io.StringIO()):  # it prints every layout that it rejects
            values, _ = self.unwrapped.reset(seed=seed)
        return _view(values)

    def step(self, action: int) -> tuple[MinigridView, bool, bool]:
        """Return the next view, whether the mission succeeded, and whether the episode is over."""
        values, reward, terminated, truncated, _ = self.unwrapped.step(action)
        return _view(values), reward > 0, terminated or truncated


def _view(values: dict[str, Any]) -> MinigridView:
    return MinigridView(values["image"], int(values["direction"]), str(values["mission"]))


class GaveUp(Exception):
    """Raised by an expert that has no action for a tick; its episode is no demonstration."""


Expert = Callable[[MinigridView, int | None], int]
"""View and previous action (None at first) -> action. It may know more than the agent sees."""


class Level(ABC):
    """A level that can be demonstrated. It must be picklable: processes that record get it."""

    level: str
    """The name of the level."""

    @abstractmethod
    def environment(self) -> MinigridEnvironment:
        """Return a new environment. Raises `UserError` if there is no such level."""

    @abstractmethod
    def expert(self, environment: MinigridEnvironment) -> Expert:
        """Return the expert for the episode that has just begun in `environment`."""


SEEDS_A_FILE = 500  # the unit of work of the processes that record
FIRST_EVALUATION_SEED = 100_000_000  # those of the demonstrations begin at 0
LEAST_SOLVED = 0.05  # portion of the seeds that the expert must solve to be a demonstrator


@dataclass(frozen=True)
class Demonstrations:
    """Episodes one after another: the first `lengths[0]` ticks are those of the first episode.

    The fields are the format of the files that hold them.
    """

    images: NDArray[np.uint8]  # (ticks, 7, 7, 3), before each action
    directions: NDArray[np.uint8]  # (ticks,)
    actions: NDArray[np.uint8]  # (ticks,)
    lengths: NDArray[np.int64]  # (episodes,), in ticks
    missions: NDArray[np.str_]  # (episodes,)
    seeds: NDArray[np.int64]  # (episodes,), in ascending order
    skipped: NDArray[np.int64]  # seeds between these that the expert did not solve

    def __len__(self) -> int:
        return len(self.lengths)

    def first(self, count: int) -> Demonstrations:
        """Return the first `count` episodes."""
        ticks = int(self.lengths[:count].sum())
        by_tick = (self.images[:ticks], self.directions[:ticks], self.actions[:ticks])
        by_episode = (self.lengths[:count], self.missions[:count], self.seeds[:count])
        skipped = self.skipped[self.skipped < self.seeds[count - 1]]
        return Demonstrations(*by_tick, *by_episode, skipped)


def demonstrate(
    level: Level, environment: MinigridEnvironment, seed: int
) -> list[tuple[MinigridView, int]]:
    """Return the ticks of the expert's episode in an environment of `level`; none if it fails."""
    view = environment.reset(seed)
    expert = level.expert(environment)
    ticks: list[tuple[MinigridView, int]] = []
    done = over = False
    while not over:
        try:
            action = expert(view, ticks[-1][1] if ticks else None)
        except GaveUp:
            break
        ticks.append((view, action))
        view, done, over = environment.step(action)
    return ticks if done else []


def record(level: Level, seeds: Iterable[int]) -> Demonstrations:
    """Record the expert's episodes with these seeds, except those that it does not solve."""
    environment = level.environment()
    tried = {seed: demonstrate(level, environment, seed) for seed in seeds}
    solved = {seed: ticks for seed, ticks in tried.items() if ticks}
    every = [tick for ticks in solved.values() for tick in ticks]
    return Demonstrations(
        np.array([view.image for view, _ in every], np.uint8).reshape(-1, VIEW, VIEW, 3),
        np.array([view.direction for view, _ in every], np.uint8),
        np.array([action for _, action in every], np.uint8),
        np.array([len(ticks) for ticks in solved.values()], np.int64),
        np.array([ticks[0][0].mission for ticks in solved.values()], np.str_),
        np.array(list(solved), np.int64),
        np.array([seed for seed in tried if seed not in solved], np.int64),
    )


def load_or_record(level: Level, count: int, cache: Path, workers: int) -> Demonstrations:
    """Return the first `count` episodes, by seed, that the expert solves.

    They are read from files in a folder of `cache`. Missing and damaged files are recorded by so
    many processes; the result depends on level and count alone. Raises `UserError` if the level does
    not exist, if the expert hardly ever solves it, or if the folder cannot be written.
    """
    level.environment()  # raises here, rather than in every worker
    folder = make_folder(cache / f"{level.level}-minigrid-{minigrid.__version__}", "--cache")
    parts: list[Demonstrations] = []
    with FileLock(folder / ".lock"):  # other commands then read what this one records
        while (missing := count - sum(map(len, parts))) > 0:
            wanted = range(len(parts), len(parts) + -(-missing // SEEDS_A_FILE))
            parts += _files(level, folder, wanted, workers)
            solved, tried = sum(map(len, parts)), SEEDS_A_FILE * len(parts)
            if solved < LEAST_SOLVED * tried:
                raise UserError(
                    f"the expert solves {solved} of {tried} seeds of level {level.level}, too few"
                )
    arrays = ([getattr(part, each.name) for part in parts] for each in fields(Demonstrations))
    return Demonstrations(*map(np.concatenate, arrays)).first(count)


def _files(
    level: Level, folder: Path, numbers: Sequence[int], workers: int
) -> list[Demonstrations]:
    """Read the files with these numbers in order; record and write those that are missing."""
    paths = {number: folder / f"seeds-{number * SEEDS_A_FILE:08d}.npz" for number in numbers}
    known = {number: read(path) for number, path in paths.items()}
    missing = [number for number, part in known.items() if part is None]
    seeds = [range(n * SEEDS_A_FILE, (n + 1) * SEEDS_A_FILE) for n in missing]
    begun = time.perf_counter()
    with contextlib.ExitStack() as stack:
        apply: Any = map
        if min(workers, len(missing)) > 1:
            # Processes are spawned, because torch's threads do not survive a fork.
            pool = ProcessPoolExecutor(min(workers, len(missing)), get_context("spawn"))
            apply = stack.enter_context(pool).map
        recorded = apply(record, [level] * len(missing), seeds)
        for done, (number, part) in enumerate(zip(missing, recorded, strict=True), start=1):
            content = io.BytesIO()
            np.savez_compressed(content, **vars(part))
            write_atomically(paths[number], content.getvalue())
            known[number] = part
            print_progress(
                f"recorded {done * SEEDS_A_FILE:,} of {len(missing) * SEEDS_A_FILE:,} seeds "
                f"of {level.level}, {time.perf_counter() - begun:.0f} s"
            )
    return [part for part in known.values() if part is not None]


def read(path: Path) -> Demonstrations | None:
    """Read a file of demonstrations; return None if it does not exist or is damaged, and say so."""
    try:
        with np.load(path) as stored:
            return Demonstrations(**{f.name: stored[f.name] for f in fields(Demonstrations)})
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        print_progress(f"{path} is damaged ({error}); it is recorded again")
        return None


UNKNOWN = 0  # a word or a kind of tile that is in no demonstration, and the padding of instructions
CODES = np.array([24, 4, 1])
"""Factors that make one number of a tile's object (0 to 10), colour (0 to 5) and state (0 to 3)."""
NUM_CODES = 11 * 24
TILE_HIDDEN, TILE_WIDTH, WORD_WIDTH = 64, 32, 32  # channels; TILE_WIDTH is after FiLM
NO_LOSS = -100  # in place of an action after the end of an episode


@dataclass(frozen=True)
class Vocabulary:
    """The words and kinds of tiles of demonstrations, numbered from 1; others are `UNKNOWN`."""

    words: tuple[str, ...]
    codes: tuple[int, ...]

    @classmethod
    def of(cls, missions: Iterable[str], images: NDArray[np.uint8]) -> Vocabulary:
        """Return the vocabulary of demonstrations. images: (..., 7, 7, 3), see `MinigridView`."""
        words = {word for mission in set(missions) for word in split(mission)}
        codes = np.flatnonzero(np.bincount(_codes(images).ravel(), minlength=NUM_CODES))
        return cls(tuple(sorted(words)), tuple(codes.tolist()))

    def tiles(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the number of each tile's kind, (..., 49), for images (..., 7, 7, 3)."""
        numbers = np.full(NUM_CODES, UNKNOWN, np.uint8)
        numbers[list(self.codes)] = np.arange(1, len(self.codes) + 1)
        tiles: NDArray[np.uint8] = numbers[_codes(images)].reshape(*images.shape[:-3], NUM_TILES)
        return tiles

    def sentences(self, missions: Sequence[str]) -> Tensor:
        """Return the numbers of the words of M missions, padded: (M, words) int64."""
        numbers = {word: number for number, word in enumerate(self.words, start=1)}
        rows = [torch.tensor([numbers.get(word, UNKNOWN) for word in split(m)]) for m in missions]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=UNKNOWN)


def split(mission: str) -> list[str]:
    """Return the words and commas of an instruction."""
    return mission.replace(",", " ,").split()


def _codes(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    # The images have 8-bit numbers, and their products must not overflow.
    codes: NDArray[np.int64] = images.astype(np.int16) @ CODES
    return codes


class Instructions(NamedTuple):
    """M instructions as the policy has read them."""

    tiles: Tensor  # (M, kinds, TILE_WIDTH)
    vectors: Tensor  # (M, D)


class MinigridPolicy(nn.Module):
    """Makes one token of instruction and view at each tick, for the core, and scores the actions.

    The scores depend on the outputs of the core and on the token itself. As in BabyAI's baseline
    (Chevalier-Boisvert et al. 2019) a recurrent network reads the instruction, and FiLM applies it
    to what the agent sees: once for each of the few dozen kinds of tiles, to save time.
    """

    def __init__(self, config: CoreConfig, vocabulary: Vocabulary, width: int) -> None:
        super().__init__()
        self.reader = InstructionReader(len(vocabulary.words) + 1, width)
        self.tiles = TileReader(len(vocabulary.codes) + 1, width)
        self.see_tiles = nn.Linear(NUM_TILES * TILE_WIDTH, width)
        self.direction = nn.Embedding(NUM_DIRECTIONS, width)
        self.hidden = nn.Linear(width, 2 * width)
        self.out = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)
        self.core = config.build(width, num_inputs=1)
        self.head = nn.Linear(2 * width, NUM_ACTIONS)

    def instruct(self, sentences: Tensor) -> Instructions:
        """Read M instructions. sentences: (M, words) int64, see `Vocabulary.sentences`."""
        vectors = self.reader(sentences)
        return Instructions(self.tiles(vectors), vectors)

    def forward(
        self,
        instructions: Instructions,
        which: Tensor,
        tiles: Tensor,
        directions: Tensor,
        state: CoreState | None = None,
    ) -> tuple[Tensor, Tensor, CoreState]:
        """Score the actions at T ticks of B episodes, from their beginning or from `state` on.

        Returns the scores (B, T, 7), the core's mean outputs (B, T, D), and its state.

        which: (B,) int64, the number of each episode's instruction. tiles: (B, T, 49) int64.
        directions: (B, T) int64.
        """
        kinds = instructions.tiles.shape[1]
        rows = F.embedding(which[:, None, None] * kinds + tiles, instructions.tiles.flatten(0, 1))
        x = self.see_tiles(rows.flatten(-2)) + self.direction(directions)
        x = torch.relu(x + instructions.vectors[which].unsqueeze(1))
        tokens = self.norm(x + self.out(torch.relu(self.hidden(x))))  # (B, T, D)
        outputs, state = self.core(tokens.unsqueeze(2), state)
        outputs = outputs.mean(dim=2)
        return self.head(torch.cat([outputs, tokens], dim=-1)), outputs, state

    def loss(self, batch: EpisodeTensors) -> Tensor:
        """Return the cross-entropy with the demonstrated actions, a scalar.

        Every tick of every episode contributes alike.
        """
        instructions = self.instruct(batch.sentences)
        scores, _, _ = self(instructions, batch.which, batch.tiles, batch.directions)
        return action_loss(scores, batch.actions)


def action_loss(scores: Tensor, actions: Tensor) -> Tensor:
    """scores: (B, T, 7), actions: (B, T) int64, see `EpisodeTensors` -> a scalar."""
    return F.cross_entropy(scores.flatten(0, 1), actions.flatten(), ignore_index=NO_LOSS)


class InstructionReader(nn.Module):
    """Reads an instruction with a GRU (Cho et al. 2014)."""

    def __init__(self, num_words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_words, WORD_WIDTH, padding_idx=UNKNOWN)
        self.gru = nn.GRU(WORD_WIDTH, width, batch_first=True)

    def forward(self, sentences: Tensor) -> Tensor:
        """sentences: (M, words) int64, padded at the end -> (M, D), after the last words."""
        outputs, _ = self.gru(self.embedding(sentences))
        place = torch.arange(sentences.shape[1], device=sentences.device)
        last = torch.where(sentences != UNKNOWN, place, 0).amax(dim=1)
        read: Tensor = outputs[torch.arange(len(outputs), device=sentences.device), last]
        return read


class TileReader(nn.Module):
    """Embeds each kind of tile, in two layers that the instruction scales and shifts (FiLM)."""

    def __init__(self, num_kinds: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(num_kinds, TILE_HIDDEN))
        self.first = nn.Linear(width, 2 * TILE_HIDDEN)
        self.between = nn.Linear(TILE_HIDDEN, TILE_WIDTH)
        self.second = nn.Linear(width, 2 * TILE_WIDTH)

    def forward(self, vectors: Tensor) -> Tensor:
        """vectors: (M, D) -> (M, kinds, `TILE_WIDTH`)."""
        x = torch.relu(_film(self.embedding, self.first(vectors)))
        return torch.relu(_film(self.between(x), self.second(vectors)))


def _film(x: Tensor, parameters: Tensor) -> Tensor:
    """Scale and shift x: (kinds, C) or (M, kinds, C), parameters: (M, 2 C) -> (M, kinds, C)."""
    scale, shift = parameters.unsqueeze(1).chunk(2, dim=-1)
    return x * (1 + scale) + shift


POOL = 16  # batches that are cut from one pool of episodes, sorted by length
REPORT_EVERY = 100  # steps


class EpisodeTensors(NamedTuple):
    """B episodes from their first tick on, padded to the T ticks of the longest."""

    sentences: Tensor  # (M, words) int64, the different instructions
    which: Tensor  # (B,) int64, the number of each episode's instruction
    tiles: Tensor  # (B, T, 49) int64
    directions: Tensor  # (B, T) int64
    actions: Tensor  # (B, T) int64, NO_LOSS after the end


class EpisodeSampler:
    """Cuts demonstrations into batches, the same ones for every core.

    A batch has about the same number of ticks, whatever the lengths of its episodes.
    """

    def __init__(self, shown: Demonstrations, vocabulary: Vocabulary, ticks: int) -> None:
        """ticks: most ticks of a batch with its padding; a longer episode has its own batch."""
        missions, which = np.unique(shown.missions, return_inverse=True)
        self._sentences = vocabulary.sentences(missions.tolist())
        self._which = torch.from_numpy(which)
        self._tiles = torch.from_numpy(vocabulary.tiles(shown.images))
        self._directions = torch.from_numpy(shown.directions)
        self._actions = torch.from_numpy(shown.actions)
        self._lengths = shown.lengths
        self._first = np.cumsum(shown.lengths) - shown.lengths
        self._ticks = ticks

    def endless(self, seed: int) -> Iterator[EpisodeTensors]:
        """Yield batches without end, pass after pass, in an order that depends on `seed` alone."""
        rng = np.random.default_rng(seed)
        while True:
            for episodes in self.one_pass(rng):
                yield self.batch(episodes)

    def one_pass(self, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the episodes of each batch; every episode comes once."""
        order = rng.permutation(len(self._lengths))
        pool_of = self._lengths[order].cumsum() // (POOL * self._ticks)
        for pool in np.split(order, np.flatnonzero(np.diff(pool_of)) + 1):
            batches: list[list[int]] = [[]]
            for episode in pool[np.argsort(self._lengths[pool], kind="stable")].tolist():
                if batches[-1] and (len(batches[-1]) + 1) * self._lengths[episode] > self._ticks:
                    batches.append([])
                batches[-1].append(episode)
            for i in rng.permutation(len(batches)):
                yield np.array(batches[i])

    def batch(self, episodes: NDArray[np.int64]) -> EpisodeTensors:
        """Return the episodes with these numbers (B,)."""
        lengths = torch.from_numpy(self._lengths[episodes])
        first = torch.from_numpy(self._first[episodes])
        tick = torch.arange(int(lengths.max()))
        real = tick < lengths[:, None]  # (B, T)
        place = torch.where(real, first[:, None] + tick, 0)
        asked, which = self._which[episodes].unique(return_inverse=True)
        return EpisodeTensors(
            self._sentences[asked],
            which,
            self._tiles[place].long(),
            self._directions[place].long(),
            torch.where(real, self._actions[place].long(), NO_LOSS),
        )


def clone(
    policy: MinigridPolicy,
    batches: Iterator[EpisodeTensors],
    steps: int,
    learning_rate: float,
    report_every: int = REPORT_EVERY,
) -> Iterator[Progress]:
    """Train for `steps` steps with a warm-up and half a cosine; yield as `fit` does."""
    course = OptimizerConfig()
    return fit(
        policy,
        islice(batches, steps),
        lambda policy, *batch: policy.loss(EpisodeTensors(*batch)),
        learning_rate=lambda step: course.learning_rate(learning_rate, step, step / steps),
        report_every=report_every,
    )


@torch.inference_mode()
def roll_out(
    policy: MinigridPolicy,
    vocabulary: Vocabulary,
    level: Level,
    seeds: Sequence[int],
    sample: int | None = None,
) -> list[tuple[bool, int]]:
    """Let the policy act in one episode for each seed, with one step of the core for each tick.

    Returns whether each episode ended with success, and after how many ticks. Episodes that are
    over take no more computation.

    sample: None for the action with the highest score; otherwise the seed with which actions are
    drawn by their probabilities.
    """
    environments = [level.environment() for _ in seeds]
    views = [environment.reset(seed) for environment, seed in zip(environments, seeds, strict=True)]
    generator = None if sample is None else torch.Generator().manual_seed(sample)
    results = [(False, 0)] * len(seeds)
    policy.eval()
    instructions = policy.instruct(vocabulary.sentences([view.mission for view in views]))
    state = policy.core.initial_state(len(seeds))
    running = torch.arange(len(seeds))
    steps = 0
    while len(running):
        steps += 1
        tiles = torch.from_numpy(vocabulary.tiles(np.stack([views[i].image for i in running])))
        directions = torch.tensor([[views[i].direction] for i in running])
        seen = tiles.long().unsqueeze(1), directions
        scores, _, state = policy(instructions, running, *seen, state)
        actions = scores[:, 0].argmax(dim=1)
        if generator is not None:
            drawn = torch.multinomial(scores[:, 0].softmax(dim=1), 1, generator=generator)
            actions = drawn.squeeze(1)
        kept = []
        for place, (i, action) in enumerate(zip(running.tolist(), actions.tolist(), strict=True)):
            views[i], success, over = environments[i].step(action)
            if over:
                results[i] = (success, steps)
            else:
                kept.append(place)
        running, state = running[kept], {name: value[kept] for name, value in state.items()}
    return results
