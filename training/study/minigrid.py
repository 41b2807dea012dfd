"""Levels of the optional package `minigrid` (Chevalier-Boisvert et al. 2023)."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import minigrid
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.core import CoreConfig, CoreState
from ttm.policy.errors import UserError
from ttm.training.console import print_progress

VIEW = 7
"""Side of the square that the agent sees, in tiles."""
NUM_ACTIONS = 7
"""Left, right, forward, pick up, drop, toggle, done."""


@dataclass(frozen=True)
class MinigridView:
    """What a MiniGrid environment shows the agent before an action."""

    image: NDArray[np.uint8]
    """(7, 7, 3): object, colour and state of every tile that the agent sees, in minigrid's numbers.
    """
    direction: int
    """0 to 3, clockwise; 0 is to the right of the map."""
    mission: str
    """The instruction in English; it is the same for a whole episode."""


class MinigridEnvironment:
    """A level of MiniGrid. The seed given to `reset` and the actions determine everything."""

    def __init__(self, name: str, **options: Any) -> None:
        """name: gymnasium's id of the level, such as "BabyAI-GoToLocal-v0".

        options: values for its arguments, instead of those that it is registered with.
        """
        self.unwrapped: Any = gymnasium.make(name, disable_env_checker=True, **options).unwrapped

    @property
    def max_steps(self) -> int:
        """Number of ticks after which the episode ends as failed; it may depend on the mission."""
        return int(self.unwrapped.max_steps)

    def reset(self, seed: int) -> MinigridView:
        """Begin a new episode."""
        # minigrid prints every layout that it draws and rejects.
        with contextlib.redirect_stdout(io.StringIO()):
            values, _ = self.unwrapped.reset(seed=seed)
        return _view(values)

    def step(self, action: int) -> tuple[MinigridView, bool, bool]:
        """Return the next view, whether the mission succeeded, and whether the episode is over."""
        values, reward, terminated, truncated, _ = self.unwrapped.step(action)
        return _view(values), reward > 0, terminated or truncated


def minigrid_version() -> str:
    """Return the version of minigrid; levels and bots may change from one version to the next."""
    return str(minigrid.__version__)


def _view(values: dict[str, Any]) -> MinigridView:
    return MinigridView(values["image"], int(values["direction"]), str(values["mission"]))


# A level with a scripted expert, as a study gives it to the shared parts, and the expert's episodes.


class GaveUp(Exception):
    """Raised by an expert that has no action for a tick; its episode is no demonstration."""


class Expert(Protocol):
    """Acts in one episode. It may know more than the agent sees."""

    def act(self, view: MinigridView, previous_action: int | None) -> int:
        """Return the action at a tick. previous_action: None at the first. May raise `GaveUp`."""


class Level(Protocol):
    """A level that can be demonstrated. It must be picklable: processes that record get it."""

    @property
    def name(self) -> str:
        """What `--level` calls it."""

    def environment(self) -> MinigridEnvironment:
        """Return a new environment. Raises `UserError` if there is no such level."""

    def expert(self, environment: MinigridEnvironment) -> Expert:
        """Return the expert for the episode that has just begun in `environment`."""


@dataclass(frozen=True)
class Demonstration:
    """One episode that the expert solved; images and directions are those before each action."""

    mission: str
    images: NDArray[np.uint8]
    """(T, 7, 7, 3)."""
    directions: NDArray[np.uint8]
    """(T,)."""
    actions: NDArray[np.uint8]
    """(T,)."""


def demonstrate(level: Level, environment: MinigridEnvironment, seed: int) -> Demonstration | None:
    """Return the expert's episode in an environment of `level`; None if it fails or gives up."""
    now = environment.reset(seed)
    expert = level.expert(environment)
    views: list[MinigridView] = []
    actions: list[int] = []
    done = over = False
    while not over:
        try:
            action = expert.act(now, actions[-1] if actions else None)
        except GaveUp:
            return None
        views.append(now)
        actions.append(action)
        now, done, over = environment.step(action)
    return _demonstration(views, actions) if done else None


def _demonstration(views: Sequence[MinigridView], actions: Sequence[int]) -> Demonstration:
    return Demonstration(
        views[0].mission,
        np.stack([view.image for view in views]),
        np.array([view.direction for view in views], np.uint8),
        np.array(actions, np.uint8),
    )


# Demonstrations of a level's expert, recorded once in files that all trainings read.
#
# A file holds the episodes of a range of seeds, so that several processes can record at the same
# time, and an interrupted recording loses only what is not in a file yet. The fields of
# `Demonstrations` are the format of these files.

SEEDS_A_FILE = 500
"""Number of seeds whose episodes one file holds."""
FIRST_EVALUATION_SEED = 100_000_000
"""First seed of the evaluation. The seeds of the demonstrations begin at 0."""
LEAST_SOLVED = 0.05
"""Smallest portion of the seeds that the expert must solve to be a demonstrator of the level."""


@dataclass(frozen=True)
class Demonstrations:
    """Episodes one after another: the first `lengths[0]` ticks are those of the first episode."""

    images: NDArray[np.uint8]
    """(ticks, 7, 7, 3)."""
    directions: NDArray[np.uint8]
    """(ticks,)."""
    actions: NDArray[np.uint8]
    """(ticks,)."""
    lengths: NDArray[np.int64]
    """(episodes,), number of ticks."""
    missions: tuple[str, ...]
    """Instruction of each episode."""
    seeds: NDArray[np.int64]
    """(episodes,), in ascending order."""
    skipped: tuple[int, ...]
    """Seeds between these that the expert did not solve."""
    seconds: float
    """Time that one CPU core took to record."""

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.lengths)

    @property
    def per_second(self) -> float:
        """Demonstrations that one CPU core recorded in a second."""
        return len(self) / self.seconds

    def first(self, count: int) -> Demonstrations:
        """Return the first `count` episodes, with their part of the seconds."""
        ticks, last = int(self.lengths[:count].sum()), int(self.seeds[count - 1])
        return Demonstrations(
            self.images[:ticks],
            self.directions[:ticks],
            self.actions[:ticks],
            self.lengths[:count],
            self.missions[:count],
            self.seeds[:count],
            tuple(seed for seed in self.skipped if seed < last),
            self.seconds * count / len(self),
        )


def load_or_record(level: Level, count: int, cache: Path, workers: int) -> Demonstrations:
    """Return the first `count` episodes, by seed, that the expert solves.

    They are read from files in a folder of `cache`. Missing and damaged files are recorded by so
    many processes. The result depends on level and count alone, except for its seconds. Raises
    `UserError` if the level does not exist, if the expert hardly ever solves it, or if the folder
    cannot be written.
    """
    level.environment()  # raises here, rather than in every worker
    folder = cache / f"{level.name}-minigrid-{minigrid_version()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write to {cache} ({error}); give another folder with --cache"
        ) from error
    parts: list[Demonstrations] = []
    while (missing := count - sum(len(part) for part in parts)) > 0:
        wanted = range(len(parts), len(parts) + -(-missing // SEEDS_A_FILE))
        parts += _files(level, folder, wanted, workers)
        _require_solved(level, parts)
    return join(parts).first(count)


def record(level: Level, seeds: Iterable[int]) -> Demonstrations:
    """Record the expert's episodes with these seeds, except those that it does not solve."""
    environment = level.environment()
    begun = time.process_time()
    made = {seed: demonstrate(level, environment, seed) for seed in seeds}
    solved = {seed: episode for seed, episode in made.items() if episode is not None}
    skipped = tuple(seed for seed in made if seed not in solved)
    return _end_to_end(solved, skipped, time.process_time() - begun)


def join(parts: Sequence[Demonstrations]) -> Demonstrations:
    """Return the episodes of all parts, one part after the other."""
    return Demonstrations(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.directions for part in parts]),
        np.concatenate([part.actions for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        tuple(mission for part in parts for mission in part.missions),
        np.concatenate([part.seeds for part in parts]),
        tuple(seed for part in parts for seed in part.skipped),
        sum(part.seconds for part in parts),
    )


def write(path: Path, recorded: Demonstrations) -> None:
    """Write a file, so that another process never reads half of it."""
    # numpy writes to paths that end with .npz; the process id keeps several commands apart.
    unfinished = path.with_name(f".{path.stem}-{os.getpid()}.npz")
    values: dict[str, Any] = {name: np.asarray(value) for name, value in vars(recorded).items()}
    np.savez_compressed(unfinished, **values)
    unfinished.replace(path)


def read(path: Path) -> Demonstrations | None:
    """Read a file that `write` wrote; return None if it does not exist or is damaged.

    Prints on stderr if it is damaged.
    """
    try:
        with np.load(path) as stored:
            values: dict[str, Any] = {name: stored[name] for name in stored.files}
            values |= {name: tuple(values[name].tolist()) for name in ("missions", "skipped")}
            return Demonstrations(**{**values, "seconds": float(values["seconds"])})
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        print_progress(f"{path} is damaged ({error}); it is recorded again")
        return None


def _files(
    level: Level, folder: Path, numbers: Sequence[int], workers: int
) -> list[Demonstrations]:
    """Read the files with these numbers in order; record and write those that are missing."""
    paths = {number: folder / f"seeds-{number * SEEDS_A_FILE:08d}.npz" for number in numbers}
    known = {number: read(path) for number, path in paths.items()}
    missing = [number for number, part in known.items() if part is None]
    begun = time.perf_counter()
    for done, (number, part) in enumerate(_record_files(level, missing, workers), start=1):
        write(paths[number], part)
        known[number] = part
        elapsed = time.perf_counter() - begun
        print_progress(
            f"recorded {done * SEEDS_A_FILE:,} of {len(missing) * SEEDS_A_FILE:,} seeds "
            f"of {level.name}, {elapsed:.0f} s"
        )
    return [part for part in known.values() if part is not None]


def _record_files(
    level: Level, numbers: Sequence[int], workers: int
) -> Iterator[tuple[int, Demonstrations]]:
    """Record the files with these numbers in order, in at most so many processes."""
    if min(workers, len(numbers)) < 2:
        yield from ((number, _record_file(level, number)) for number in numbers)
        return
    # Processes are spawned, because torch's threads do not survive a fork.
    with ProcessPoolExecutor(min(workers, len(numbers)), mp_context=get_context("spawn")) as pool:
        yield from zip(
            numbers, pool.map(_record_file, [level] * len(numbers), numbers), strict=True
        )


def _record_file(level: Level, number: int) -> Demonstrations:
    return record(level, range(number * SEEDS_A_FILE, (number + 1) * SEEDS_A_FILE))


def _end_to_end(
    solved: dict[int, Demonstration], skipped: tuple[int, ...], seconds: float
) -> Demonstrations:
    episodes = list(solved.values())
    # The empty arrays in front give the result its shape and type if there is no episode.
    images = [np.empty((0, VIEW, VIEW, 3), np.uint8), *(episode.images for episode in episodes)]
    nothing = np.empty(0, np.uint8)
    return Demonstrations(
        np.concatenate(images),
        np.concatenate([nothing, *(episode.directions for episode in episodes)]),
        np.concatenate([nothing, *(episode.actions for episode in episodes)]),
        np.array([len(episode.actions) for episode in episodes], np.int64),
        tuple(episode.mission for episode in episodes),
        np.array(list(solved), np.int64),
        skipped,
        seconds,
    )


def _require_solved(level: Level, parts: Sequence[Demonstrations]) -> None:
    solved, tried = sum(map(len, parts)), SEEDS_A_FILE * len(parts)
    if solved < LEAST_SOLVED * tried:
        raise UserError(
            f"the expert solves {solved} of {tried} seeds of level {level.name}, too few to learn from; "
            f"give another --level"
        )


# A small policy for MiniGrid levels with an instruction, with a temporal core as its memory.
#
# As in BabyAI's baseline (Chevalier-Boisvert et al. 2019) a recurrent network reads the instruction,
# and FiLM applies it to what the agent sees. There are only a few dozen kinds of tiles. FiLM is
# therefore computed for each kind and instruction; for each tile at each tick it would cost more than
# the rest.

NUM_TILES = VIEW * VIEW
NUM_DIRECTIONS = 4
UNKNOWN = 0
"""Number of a word or a kind of tile that is in no demonstration, and of the padding after an
instruction."""
CODES = np.array([24, 4, 1])
"""Factors that make one number of a tile's object (0 to 10), colour (0 to 5) and state (0 to 3)."""
NUM_CODES = 11 * 24
TILE_WIDTH = 32
"""Channels of a tile after FiLM."""
WORD_WIDTH = 32
"""Channels of a word's embedding."""


@dataclass(frozen=True)
class Vocabulary:
    """The words and kinds of tiles of demonstrations, numbered from 1; others are `UNKNOWN`."""

    words: tuple[str, ...]
    codes: tuple[int, ...]

    @classmethod
    def of(cls, missions: Sequence[str], images: NDArray[np.uint8]) -> Vocabulary:
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


@dataclass(frozen=True)
class Instructions:
    """M instructions as the policy has read them."""

    tiles: Tensor
    """(M, kinds, `TILE_WIDTH`)."""
    vectors: Tensor
    """(M, D)."""

    def __getitem__(self, index: Tensor) -> Instructions:
        """Return a part of the instructions. index: (any,) int64 or bool."""
        return Instructions(self.tiles[index], self.vectors[index])


class MinigridPolicy(nn.Module):
    """Makes one token of instruction and view at each tick, for the core, and scores the actions.

    The scores depend on the outputs of the core and on the token itself.
    """

    def __init__(self, config: CoreConfig, vocabulary: Vocabulary, width: int) -> None:
        """width: D, the width of the token and the core."""
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
    ) -> tuple[Tensor, CoreState]:
        """Score the actions at T ticks of B episodes, from their beginning or from `state` on.

        Returns the scores (B, T, 7) and the core's state.

        which: (B,) int64, the number of each episode's instruction.
        tiles: (B, T, 49) int64.
        directions: (B, T) int64.
        """
        tokens, outputs, state = self.remember(instructions, which, tiles, directions, state)
        return self.score(tokens, outputs), state

    def remember(
        self,
        instructions: Instructions,
        which: Tensor,
        tiles: Tensor,
        directions: Tensor,
        state: CoreState | None = None,
    ) -> tuple[Tensor, Tensor, CoreState]:
        """Return the tokens (B, T, D), the core's mean outputs (B, T, D), and the core's state.

        See `forward`.
        """
        tokens = self._see(instructions, which, tiles, directions)
        outputs, state = self.core(tokens.unsqueeze(2), state)
        return tokens, outputs.mean(dim=2), state

    def score(self, tokens: Tensor, outputs: Tensor) -> Tensor:
        """Return the scores of the actions, (B, T, 7), for what `remember` returned."""
        scores: Tensor = self.head(torch.cat([outputs, tokens], dim=-1))
        return scores

    def _see(
        self, instructions: Instructions, which: Tensor, tiles: Tensor, directions: Tensor
    ) -> Tensor:
        """Return the tokens (B, T, D)."""
        kinds = instructions.tiles.shape[1]
        rows = F.embedding(which[:, None, None] * kinds + tiles, instructions.tiles.flatten(0, 1))
        x = self.see_tiles(rows.flatten(-2)) + self.direction(directions)
        x = torch.relu(x + instructions.vectors[which].unsqueeze(1))
        token: Tensor = self.norm(x + self.out(torch.relu(self.hidden(x))))
        return token


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

    HIDDEN = 64

    def __init__(self, num_kinds: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(num_kinds, self.HIDDEN))
        self.first = nn.Linear(width, 2 * self.HIDDEN)
        self.between = nn.Linear(self.HIDDEN, TILE_WIDTH)
        self.second = nn.Linear(width, 2 * TILE_WIDTH)

    def forward(self, vectors: Tensor) -> Tensor:
        """vectors: (M, D) -> (M, kinds, `TILE_WIDTH`)."""
        x = torch.relu(_film(self.embedding, self.first(vectors)))
        return torch.relu(_film(self.between(x), self.second(vectors)))


def _film(x: Tensor, parameters: Tensor) -> Tensor:
    """Scale and shift x: (kinds, C) or (M, kinds, C), parameters: (M, 2 C) -> (M, kinds, C)."""
    scale, shift = parameters.unsqueeze(1).chunk(2, dim=-1)
    return x * (1 + scale) + shift


# Lets a policy act in many episodes at once, with one batched step of the core for each tick.


@dataclass(frozen=True)
class EpisodeResult:
    """Whether an episode ended with success, and after how many ticks."""

    success: bool
    steps: int


def roll_out(
    policy: MinigridPolicy,
    vocabulary: Vocabulary,
    level: Level,
    seeds: Sequence[int],
    sample: int | None = None,
) -> list[EpisodeResult]:
    """Let the policy act in one episode for each seed; return the results in order.

    Episodes that are over take no more computation.

    sample: None for the action with the highest score; otherwise the seed with which actions are
        drawn by their probabilities.
    """
    environments = [level.environment() for _ in seeds]
    views = [environment.reset(seed) for environment, seed in zip(environments, seeds, strict=True)]
    generator = None if sample is None else torch.Generator().manual_seed(sample)
    results: dict[int, EpisodeResult] = {}
    policy.eval()
    with torch.inference_mode():
        instructions = policy.instruct(vocabulary.sentences([view.mission for view in views]))
        state = policy.core.initial_state(len(seeds))
        running = torch.arange(len(seeds))
        steps = 0
        while len(running):
            steps += 1
            tiles = torch.from_numpy(vocabulary.tiles(np.stack([views[i].image for i in running])))
            directions = torch.tensor([[views[i].direction] for i in running])
            scores, state = policy(
                instructions, running, tiles.long().unsqueeze(1), directions, state
            )
            actions = _choose(scores[:, 0], generator)
            kept = []
            for place, (i, action) in enumerate(zip(running.tolist(), actions, strict=True)):
                views[i], success, over = environments[i].step(action)
                if over:
                    results[i] = EpisodeResult(success, steps)
                else:
                    kept.append(place)
            running, state = running[kept], {name: value[kept] for name, value in state.items()}
    return [results[i] for i in range(len(seeds))]


def _choose(scores: Tensor, generator: torch.Generator | None) -> list[int]:
    """Return an action for each row of the scores (B, 7)."""
    if generator is None:
        return scores.argmax(dim=1).tolist()
    return torch.multinomial(scores.softmax(dim=1), 1, generator=generator).squeeze(1).tolist()


# Results of a study on disk, one file for each core.
#
# Several commands, at any time, can so fill one table.
#
# The fields of `StudySettings`, `CoreResult` and `ActingResult`, their names and their order are the
# format of these files; a change would make the files unreadable that users already have.


@dataclass(frozen=True)
class StudySettings:
    """What results must have in common to be compared."""

    level: str
    demonstrations: int
    steps: int
    batch_ticks: int
    learning_rate: float
    width: int
    seed: int
    episodes: int
    actions: tuple[str, ...]
    """How the policy acts: "best", "drawn" or both."""
    minigrid: str
    """Version of the package."""

    @property
    def folder(self) -> str:
        """A folder name that no other settings have."""
        digest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:8]
        return f"{self.level}-{digest}"


@dataclass(frozen=True)
class ActingResult:
    """The results of episodes in which a policy acted in one way, in the order of seeds."""

    success: list[bool]
    lengths: list[int]
    """Number of ticks of each episode."""
    seconds: float
    """Duration of all episodes."""

    @property
    def rate(self) -> float:
        """The portion of the episodes that succeeded."""
        return sum(self.success) / len(self.success)


@dataclass(frozen=True)
class CoreResult:
    """The result of one core, trained and evaluated."""

    core: str
    """The name of the core and the options that it was given."""
    config: dict[str, Any]
    parameters: int
    """Number of parameters of the core."""
    all_parameters: int
    """Number of parameters of the whole policy."""
    loss: float
    """Mean loss of the last batches of the training."""
    training_s: float
    acting: dict[str, ActingResult]
    """"best" or "drawn" -> results."""


class ResultFolder:
    """The results so far with the same settings, in a folder of their own."""

    def __init__(self, root: Path, settings: StudySettings) -> None:
        """root: the folder that holds the results of all settings."""
        self.settings = settings
        self._folder = root / settings.folder

    def save(self, result: CoreResult) -> None:
        """Write the file of one core, so that another process never reads half of it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(result.core)
        # The process id is part of the temporary name, because several commands may run at once.
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps({"settings": asdict(self.settings), **asdict(result)}))
        unfinished.replace(path)

    def find(self, core: str) -> CoreResult | None:
        """Return the result of a core, named with its options; None if there is none.

        Raises `UserError` if the file is damaged.
        """
        path = self._path(core)
        return _read(path) if path.exists() else None

    def all(self) -> list[CoreResult]:
        """Return all results, sorted by name. Raises `UserError` if a file is damaged."""
        return [_read(path) for path in sorted(self._folder.glob("*.json"))]

    def _path(self, core: str) -> Path:
        return self._folder / f"{re.sub(r'[^A-Za-z0-9@=._-]+', '_', core)}.json"


def _read(path: Path) -> CoreResult:
    try:
        values = json.loads(path.read_text())
        del values["settings"]
        acting = {way: ActingResult(**fields) for way, fields in values.pop("acting").items()}
        return CoreResult(**values, acting=acting)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged ({error}); delete it, and its core is trained again"
        ) from error
