"""`ttm study seeds`: tables of the papers behind this project, made again on small tasks, with several seeds.

A table compares rows, each a core with options, on one task. Rows of equal task, core and options are
trained once for all tables. Every training is one file in OUT, so that the same command goes on where it
was stopped, and several may share OUT.

The papers: TTM (Ryoo et al. 2022, arXiv 2211.09119).
"""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from tyro.conf import Positional, arg

from ttm.datasets.console import TitledTable, track
from ttm.datasets.dataset import EpisodeDataset
from ttm.datasets.reader import EpisodeReader
from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.cores.baselines import (
    CausalTransformerConfig,
    FrameStackingConfig,
    LstmConfig,
    RecurrentTransformerConfig,
    TemporalMixerConfig,
    WindowedCore,
)
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.policy.errors import UserError, options, require_at_least, require_choice, require_some
from ttm.policy.files import replacing, write_json
from ttm.policy.layers import TransformerEncoder
from ttm.policy.spec import checkpoint_path
from ttm.policy.vision import CameraTokens
from ttm.sim.pages import COLOURS, to_svg
from ttm.training.console import compact_table, make_folder, print_progress, write_given
from ttm.training.data import open_all, split
from ttm.training.sequence_model import (
    fit,
    lstm_with_parameters,
    num_parameters,
    with_parameters,
)
from ttm.training.study.common import (
    HELD_OUT_SEED,
    prepare_process,
    print_results,
    require_svg,
    seeded,
)

Arrays = npt.NDArray[Any]
TTM_PAPER = "Ryoo et al. 2022, arXiv 2211.09119, mean average precision on Charades"


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    name: str
    config: CoreConfig
    paper: float | None = None
    """The figure in the paper; None where it has none, or where we could not check which one it is."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What the row asks of its task, beside the core."""


class Task(ABC):
    """What the cores of a table learn, and how that is measured."""

    name: ClassVar[str]
    measure: ClassVar[str]
    """What is measured, and its unit."""
    digits: ClassVar[int] = 2

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return all that trainings must have in common, as plain data."""

    def sized(self, row: Row) -> Row:
        """Return the row with the sizes of this task, such as those that make cores equal."""
        return row

    @abstractmethod
    def train(self, row: Row, seed: int) -> dict[str, Any]:
        """Train a row; return "value", what was measured, "parameters", their number, and perhaps more."""


@dataclass(frozen=True)
class Table:
    """A table of a paper."""

    title: str
    source: str
    task: Callable[[StudySeedsCommand], Task]
    rows: Sequence[Row]
    note: str = ""
    """What differs from the paper, or is not known of it."""


# The task of the Token Turing Machine's tables: which activity is under way?

PHASES = ("wait", "close", "open", "lift", "pull", "carry", "drive", "reach")
AGAIN = "again"
"""The activity of a skill that the stream has shown before: it asks for a memory of minutes."""
GRIPPER_STEP, HELD_BELOW = 0.05, 0.9  # of the opening, 0 to 1: a change in a tick, and "closed"
BASE_SPEED, PULL_SPEED, HAND_STEP = 0.1, 0.05, 0.008  # m/s or rad/s, m/s, m in a tick
FEWEST_TICKS = 50
"""Activities with fewer ticks in the training data are no classes."""
FRAMES_AT_ONCE, STREAMS_AT_ONCE = 64, 8


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
            frames = torch.from_numpy(episode.frames(camera.name)).permute(0, 3, 1, 2)
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
        kept = ((seen[0] >= FEWEST_TICKS) & (seen[1] > 0)).nonzero()[:, 0]
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


WIDTH = 64
SIZES = {
    "process_size": 8, "memory_size": 16, "num_layers": 2, "num_heads": 4, "mlp_size": 128,
    "bottleneck": 64, "window": 16, "token_mixing_size": 64,
}  # fmt: skip
"""Sizes of every core that has such fields. The published Token Turing Machine at these sizes determines
the number of parameters, and the other cores get MLPs of such a width that they have as many."""


def core(kind: type[CoreConfig], sizes: Mapping[str, Any] = SIZES, **own: Any) -> CoreConfig:
    """Return a core at the sizes of a study, with values of its own."""
    names = {each.name for each in fields(kind)}
    return kind(**{**{n: v for n, v in sizes.items() if n in names}, **own})


class ActivityTask(Task):
    """Say at each tick of a stream, from the frames so far, which skill's phase is under way.

    The counterpart of the TTM paper's detection of activities in Charades.
    """

    name, measure = "activity", "mean average precision, %"
    ticks, batch_size, tokens, evaluated, learning_rate = 96, 8, 16, 64, 1e-3

    def __init__(self, command: StudySeedsCommand) -> None:
        """Raise `UserError` if episodes are missing. Features that OUT does not hold are computed."""
        init = checkpoint_path(Path("shipped"))
        opened = open_all(command.data, like=load_checkpoint(init)[0].spec)
        training, validation = split(opened, "train"), split(opened, "valid")
        self._steps = command.steps or 1500
        skills = sorted({episode.task for episode in [*training, *validation]})
        self._settings = {
            "skills": skills,
            "episodes": [len(training), len(validation)],
            "ticks_of_episodes": training.num_ticks + validation.num_ticks,
            "vision": hashlib.sha256(init.read_bytes()).hexdigest()[:12],
        }
        path = command.out / f"features-{digest(self._settings)}.safetensors"
        if not path.exists():
            made = seen_episodes(training, validation, init)
            with replacing(path) as partial:
                save_file(made._asdict(), partial)
        with safe_open(path, "pt") as file:
            episodes = Episodes(*(file.get_tensor(name) for name in Episodes._fields))
        self.streams = Streams(episodes, skills, self.ticks)

    def settings(self) -> dict[str, Any]:
        sizes = {n: getattr(self, n) for n in ("ticks", "batch_size", "evaluated", "learning_rate")}
        return {**self._settings, **sizes, "steps": self._steps, "classes": self.streams.names}

    def sized(self, row: Row) -> Row:
        given = {"tokens": self.tokens, "last_only": False, **row.given}
        inputs = self.streams.episodes.maps.shape[1] * given["tokens"]
        wanted = num_parameters(core(TokenTuringConfig), WIDTH, inputs)
        fitted = lstm_with_parameters if isinstance(row.config, LstmConfig) else with_parameters
        config = fitted(
            row.config, wanted, WIDTH, inputs, advice="change the row in the study's file"
        )
        return replace(row, config=config, given=given)

    def train(self, row: Row, seed: int) -> dict[str, Any]:
        streams, maps = self.streams, self.streams.episodes.maps
        torch.manual_seed(seed)
        tokens, last = row.given["tokens"], -1 if row.given["last_only"] else 0
        model = ActivityModel(row.config, maps.shape[1:], WIDTH, tokens, len(streams.names))
        source = seeded(seed)
        batches = (streams.draw(self.batch_size, False, source) for _ in range(self._steps))

        def loss(model: nn.Module, ticks: Tensor, wanted: Tensor) -> Tensor:
            scores = model(maps[ticks])
            return F.binary_cross_entropy_with_logits(scores[:, last:], wanted[:, last:])

        for progress in fit(model, batches, loss, learning_rate=self.learning_rate):
            print_progress(f"{row.name}, seed {seed}: {progress.steps}, {progress.mean_loss:.4f}")
        found = self._precisions(model)
        parameters = sum(each.numel() for each in model.core.parameters())
        return {
            "value": 100 * float(np.mean(list(found.values()))),
            "parameters": parameters,
            "each": found,
        }

    @torch.no_grad()
    def _precisions(self, model: ActivityModel) -> dict[str, float]:
        """Return the average precision of each activity in held-out streams, the same for all rows."""
        model.eval()
        ticks, wanted = self.streams.draw(self.evaluated, True, seeded(HELD_OUT_SEED))
        maps = self.streams.episodes.maps
        scores = torch.cat([model(maps[part]) for part in ticks.split(STREAMS_AT_ONCE)])
        flat = zip(scores.flatten(0, 1).numpy().T, wanted.flatten(0, 1).numpy().T, strict=True)
        each = zip(self.streams.names, flat, strict=True)
        return {name: round(average_precision(*pair), 4) for name, pair in each if pair[1].any()}


@dataclass(frozen=True)
class MeanPoolingConfig(FrameStackingConfig):
    """The sizes of a Transformer over the mean tokens of the last ticks."""

    def build(self, width: int, num_inputs: int) -> WindowedCore:
        return WindowedCore(width, num_inputs, self, MeanOfTicks(width, self))


class MeanOfTicks(nn.Module):
    """The mean over a window, and an encoder."""

    def __init__(self, width: int, config: MeanPoolingConfig) -> None:
        super().__init__()
        self.window = config.window
        sizes = config.num_layers, config.num_heads, config.mlp_size
        self.encoder = TransformerEncoder(width, config.process_size, *sizes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map the tokens of W ticks, (B, W * r, D), to (B, r, D)."""
        mean: Tensor = self.encoder(tokens.unflatten(1, (self.window, -1)).mean(dim=1))
        return mean


TTM_ROW = Row("TTM", core(TokenTuringConfig), 26.34)
UNASSIGNED = (
    "25.85, 25.97, 23.96 and 25.83 are the paper's figures of other rows; we could not check of which"
)
TABLES: Mapping[str, Table] = {
    "ttm-models": Table(
        "Sequence models",
        f"table 2: {TTM_PAPER}",
        ActivityTask,
        (
            Row("mean pooling", core(MeanPoolingConfig)),
            Row("causal Transformer", core(CausalTransformerConfig)),
            Row("recurrent Transformer", core(RecurrentTransformerConfig)),
            Row("LSTM", core(LstmConfig)),
            Row("Mixer", core(TemporalMixerConfig, window=6)),
            replace(TTM_ROW, paper=26.24),
        ),
        UNASSIGNED,
    ),
    "ttm-processor": Table(
        "Processing unit",
        f"table 3: {TTM_PAPER}",
        ActivityTask,
        (
            Row("MLP", core(TokenTuringConfig, processor="mlp"), 23.34),
            Row("Mixer", core(TokenTuringConfig, processor="mixer"), 26.14),
            replace(TTM_ROW, name="Transformer"),
        ),
    ),
    "ttm-summarizer": Table(
        "Summariser",
        f"table 4: {TTM_PAPER}",
        ActivityTask,
        (
            Row("pooling", core(TokenTuringConfig, summarizer="pooling"), 25.75),
            replace(TTM_ROW, name="MLP"),
            Row("query", core(TokenTuringConfig, summarizer="query"), 26.75),
        ),
    ),
    "ttm-write": Table(
        "Memory write",
        f"table 5: {TTM_PAPER}",
        ActivityTask,
        (
            Row("concatenate", core(TokenTuringConfig, write="concatenate"), 20.97),
            Row(
                "erase and add",
                core(TokenTuringConfig, write="erase_add", initial_memory="learned"),
                25.86,
            ),
            Row("none", core(TokenTuringConfig, memory=False), 22.65),
            TTM_ROW,
        ),
    ),
    "ttm-training": Table(
        "Loss and tokens of a camera",
        f"text of {TTM_PAPER}",
        ActivityTask,
        (
            Row("loss at the last tick", core(TokenTuringConfig), given={"last_only": True}),
            Row("4 tokens a camera", core(TokenTuringConfig), given={"tokens": 4}),
            Row("16 tokens, loss at every tick", core(TokenTuringConfig)),
            Row("64 tokens a camera", core(TokenTuringConfig), given={"tokens": 64}),
        ),
        "the paper calls a loss at the last step alone a better training, and reports 26.24 and, with more "
        "tokens, 26.34; its figures for each row are not known to us",
    ),
}
"""Name -> table."""


class Spearman(NamedTuple):
    """A rank correlation with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


DRAWS = 2000


def rank_correlation(ours: Sequence[Sequence[float]], paper: Sequence[float]) -> Spearman | None:
    """Return Spearman's correlation of our rows' means with the paper's figures; None below three rows.

    ours: the figures of each row, one for each seed, of which the bootstrap draws as many as there are.
    """
    if len(paper) < 3:
        return None
    rng, wanted = np.random.default_rng(0), _ranks(paper)

    def correlation(means: Sequence[float]) -> float:
        ranks = _ranks(means)
        varies = ranks.std() and wanted.std()
        return float(np.corrcoef(ranks, wanted)[0, 1]) if varies else 0.0

    drawn = [correlation([rng.choice(row, len(row)).mean() for row in ours]) for _ in range(DRAWS)]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Spearman(correlation([float(np.mean(row)) for row in ours]), float(low), float(high))


def _ranks(values: Sequence[float]) -> Arrays:
    """Return the rank of each value; equal values share the mean of theirs."""
    one, other = np.asarray(values)[:, None], np.asarray(values)
    return (one > other).sum(axis=1) + (one == other).sum(axis=1) / 2


def digest(value: Any) -> str:
    """Return twelve characters that stand for plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Results:
    """What is known of a table; the fields are those of its JSON file."""

    table: str
    title: str
    source: str
    note: str
    measure: str
    digits: int
    settings: dict[str, Any]
    rows: list[dict[str, Any]]
    """Of each: "row", "paper", "core", "given", and "trainings", each with "seed", "value", "parameters",
    "cpu_hours" and perhaps more."""

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what a study wrote. Raises `UserError` for any other file."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"{path}: no table ({error}); give a file that this study wrote"
            ) from error

    def values(self, row: Mapping[str, Any]) -> list[float]:
        """Return the figures of a row, one for each seed."""
        return [each["value"] for each in row["trainings"]]

    @property
    def cpu_hours(self) -> float:
        """The cost of all rows."""
        return sum(each["cpu_hours"] for row in self.rows for each in row["trainings"])

    @property
    def correlation(self) -> Spearman | None:
        """Of the rows for which there is a figure of the paper and one of ours."""
        both = [row for row in self.rows if row["trainings"] and row["paper"] is not None]
        return rank_correlation(list(map(self.values, both)), [row["paper"] for row in both])

    def texts(self) -> Iterator[str | TitledTable]:
        """Yield table and notes for the terminal."""
        columns = ("row", "paper", "ours", "from", "to", "seeds", "parameters", "CPU h")
        rows = []
        for row in self.rows:
            done, values = row["trainings"], self.values(row)
            shown = ["—"] * 3
            if done:
                ours = (float(np.mean(values)), min(values), max(values))
                shown = [f"{each:.{self.digits}f}" for each in ours]
            size = f"{done[0]['parameters']:,}" if done else "—"
            paper = "—" if row["paper"] is None else f"{row['paper']:g}"
            hours = sum(each["cpu_hours"] for each in done)
            rows.append([row["row"], paper, *shown, len(done), size, f"{hours:.2f}"])
        yield compact_table(f"{self.title}: {self.measure}", columns, rows)
        found = self.correlation
        agreement = "too few rows for one" if found is None else str(found)
        yield f"Spearman's rank correlation with the paper, 95 % interval over seeds: {agreement}"
        yield f"All rows together: {self.cpu_hours:.2f} CPU hours. The paper: {self.source}."
        if self.note:
            yield f"{self.note[0].upper()}{self.note[1:]}."

    def draw(self) -> str:
        """Return an SVG: ours, with a dot for each seed, beside the paper's figures."""
        figure = Figure(figsize=(7.5, 1.1 + 0.3 * len(self.rows)), layout="constrained")
        ours, paper = figure.subplots(1, 2, sharey=True)
        words = []
        for place, row in enumerate(self.rows):
            values = self.values(row)
            ours.plot(values, [place] * len(values), "o", color=COLOURS[0], alpha=0.5, markersize=4)
            if values:
                ours.plot(np.mean(values), place, "|", color=COLOURS[0], markersize=14)
                words.append(f"{row['row']}: {np.mean(values):.{self.digits}f}")
            if row["paper"] is not None:
                paper.plot(row["paper"], place, "D", color=COLOURS[1], markersize=5)
        ours.set_yticks(range(len(self.rows)), [row["row"] for row in self.rows])
        ours.set(ylim=(len(self.rows) - 0.5, -0.5), title="here", xlabel=self.measure)
        paper.set(title="in the paper")
        for axes in (ours, paper):
            axes.grid(axis="x", linewidth=0.4, alpha=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        return to_svg(figure, "\n".join(words))


TABLE = arg(
    metavar="TABLE", help="; ".join(f"{name}: {of.title}" for name, of in TABLES.items()) + "."
)


@dataclass(frozen=True)
class StudySeedsCommand:
    """Make a table of the papers behind this project again, on a small task, beside the paper's figures.

    All rows get the same data in the same order and the same steps, one training for each seed. Each
    training is kept in OUT, so that the same command goes on where it was stopped; Ctrl-C loses the
    training under way alone. OUT also receives TABLE.json.

    Tables of ttm need demonstrations of at least two skills: for task in pick open_drawer take_back
    search; do ttm collect --task $task --episodes 150 --vary 1 --out demos/$task; done, and then
    ttm study seeds ttm-write --data demos/pick demos/open_drawer demos/take_back demos/search
    """

    table: Annotated[Positional[str], TABLE]
    data: tuple[str, ...] = ()
    """Demonstrations for the tables of ttm: HDF5 files, folders of them, or globs in quotes."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One training of each row for each seed, which seeds first weights and batches."""
    steps: int | None = None
    """Training steps of each row. Default: those of the task."""
    out: Path = Path("runs/seeds")
    """Folder of trainings and TABLE.json."""
    figures: Path | None = None
    """Make nothing, and report this file, a TABLE.json."""
    plot: Path | None = None
    """Also draw the table to this file, an SVG."""

    def run(self) -> int:
        """Make what is missing, print and write the report, and return the exit code."""
        require_choice("TABLE", self.table, tuple(TABLES))
        require_some(options(self, "seeds"))
        require_at_least(0, {"--seeds": min(self.seeds)})
        require_at_least(1, {} if self.steps is None else options(self, "steps"))
        require_svg(self.plot)
        results = self.make() if self.figures is None else Results.read(self.figures)
        print_results(*results.texts())
        if self.plot is not None:
            write_given(self.plot, results.draw(), "--plot")
        return 0

    def make(self) -> Results:
        """Train what OUT lacks, seed by seed; write and return the results."""
        prepare_process()
        table, folder = TABLES[self.table], make_folder(self.out / "trainings")
        task = table.task(self)
        settings = {"task": task.name, **task.settings()}
        sized = [task.sized(row) for row in table.rows]
        rows = [
            {
                "row": row.name,
                "paper": row.paper,
                "core": {"kind": type(row.config).__name__, **asdict(row.config)},
                "given": dict(row.given),
                "trainings": list[dict[str, Any]](),
            }
            for row in sized
        ]
        for seed in self.seeds:
            for row, of in zip(sized, rows, strict=True):
                key = {name: of[name] for name in ("core", "given")}
                name = f"{task.name}-{digest([settings, key])}-seed_{seed}.json"
                if not (folder / name).exists():
                    begun = time.process_time()
                    found = task.train(row, seed)
                    hours = (time.process_time() - begun) / 3600
                    write_json(folder / name, {"seed": seed, **found, "cpu_hours": round(hours, 4)})
                of["trainings"].append(json.loads((folder / name).read_text(encoding="utf-8")))
        results = Results(
            self.table,
            table.title,
            table.source,
            table.note,
            task.measure,
            task.digits,
            settings,
            rows,
        )
        write_json(self.out / f"{self.table}.json", vars(results))
        return results
