"""`ttm study seeds`: tables of the papers behind this project, made again on small tasks, with several seeds.

A table compares rows, each a core with options, on one task. Rows of equal task, core and options are
trained once for all tables. Every training is one file in OUT, so that the same command goes on where it
was stopped, and several processes may share OUT and its rows.

The papers: TTM (Ryoo et al. 2022), Hourglass (Nawrot et al. 2021), TLB (Didolkar et al. 2022).
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from pydoc_data.topics import topics
from textwrap import fill
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock, Timeout
from matplotlib.figure import Figure
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from tyro.conf import Positional, arg

from ttm.datasets.console import TitledTable
from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.cores.baselines import (
    CausalTransformerConfig,
    FrameStackingConfig,
    LstmConfig,
    RecurrentTransformerConfig,
    TemporalMixerConfig,
    WindowedCore,
)
from ttm.policy.cores.core import CoreConfig, CoreState
from ttm.policy.cores.hourglass import HourglassConfig
from ttm.policy.cores.tlb import TemporalLatentBottleneck, TemporalLatentBottleneckConfig
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.policy.errors import UserError, options, require_at_least, require_choice, require_some
from ttm.policy.extras import require_extra
from ttm.policy.files import replacing, write_json
from ttm.policy.layers import TransformerEncoder
from ttm.policy.spec import checkpoint_path
from ttm.sim.pages import COLOURS, to_svg
from ttm.training.bench.common import bytes_for_backward, counted_step
from ttm.training.console import compact_table, make_folder, print_progress, write_given
from ttm.training.data import open_all, split
from ttm.training.resume import fingerprint
from ttm.training.sequence_model import (
    SequenceModel,
    fit,
    lstm_with_parameters,
    num_parameters,
    with_parameters,
)
from ttm.training.study import common, listops
from ttm.training.study.activity import (
    AGAIN,
    ActivityModel,
    Episodes,
    Streams,
    average_precision,
    seen_episodes,
)
from ttm.training.study.common import (
    FeedbackConfig,
    PlainTransformerConfig,
    prepare_process,
    print_results,
    require_svg,
)
from ttm.training.study.suite import StudySuiteCommand, SuiteRunner, collect_figures, parse_variant

Given = Mapping[str, Any] | None
TTM_PAPER = "Ryoo et al. 2022, arXiv 2211.09119, mean average precision on Charades"
HOURGLASS_PAPER = "Nawrot et al. 2021, arXiv 2110.13711"
ENWIK8 = f"{HOURGLASS_PAPER}, bits for each byte of enwik8; 512 wide, 200,000 steps"
DRAWS = 2000  # of the bootstrap
TLB_PAPER = "Didolkar et al. 2022, arXiv 2205.14794"


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    name: str
    config: CoreConfig
    paper: float | None = None
    """The figure in the paper; None where it has none, or where we could not check which one it is."""
    given: Given = None
    """What the row asks of its task, beside the core."""


class Task(ABC):
    """What the cores of a table learn, and how that is measured."""

    name: ClassVar[str]
    measure: ClassVar[str]
    """What is measured, and its unit."""
    digits: ClassVar[int] = 2
    steps = 1
    given: ClassVar[Mapping[str, Any]] = {}
    """What a row may ask for beside its core, with the values if it does not."""
    like: CoreConfig | None = None
    """The core as large as which all are made, for one token a tick; None to leave their sizes."""

    def __init__(self, command: StudySeedsCommand) -> None:
        """Raise `UserError` if what the task needs is missing."""
        self.steps = command.steps or self.steps

    def settings(self) -> dict[str, Any]:
        """Return all that trainings must have in common, as plain data: here, every number of the class."""
        names = {name for kind in type(self).__mro__ for name in vars(kind)}
        found = {name: getattr(self, name) for name in sorted(names - {"digits"})}
        return {name: value for name, value in found.items() if isinstance(value, int | float)}

    def sized(self, row: Row) -> Row:
        """Return the row with all of `given`, and with sizes that make its core equal to the others."""
        config = row.config if self.like is None else equal(row.config, self.like)
        return replace(row, config=config, given={**self.given, **(row.given or {})})

    @abstractmethod
    def train(self, row: Row, seed: int) -> dict[str, Any]:
        """Train a row; return "value", what was measured, "parameters", their number, and perhaps more."""

    def fit(self, row: Row, seed: int, *given: Any, learning_rate: float) -> None:
        """Train a model; see `fit`. Prints progress."""
        for progress in fit(*given, learning_rate=learning_rate):
            print_progress(f"{row.name}, seed {seed}: {progress.steps}, {progress.mean_loss:.4f}")


@dataclass(frozen=True)
class Table:
    """A table of a paper."""

    title: str
    source: str
    task: Callable[[StudySeedsCommand], Task]
    rows: Sequence[Row]
    note: str = ""
    """What differs from the paper, or is not known of it."""


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


def equal(
    config: CoreConfig, to: CoreConfig, num_inputs: int = 1, width: int = WIDTH
) -> CoreConfig:
    """Return a core with MLPs of such a width, or an LSTM of such a depth, that it is as large as another."""
    wanted = num_parameters(to, width, num_inputs)
    fitted = lstm_with_parameters if isinstance(config, LstmConfig) else with_parameters
    return fitted(config, wanted, width, num_inputs, advice="change the row in the study's file")


def demonstrations(command: StudySeedsCommand) -> tuple[Path, list[Any], dict[str, Any]]:
    """Return the shipped checkpoint, episodes to train on and held out, and what tells these from others."""
    init = checkpoint_path(Path("shipped"))
    opened = open_all(command.data, like=load_checkpoint(init)[0].spec)
    parts = [split(opened, "train"), split(opened, "valid")]
    facts = fingerprint("training", parts[0], {}) | fingerprint("held-out", parts[1], {})
    return init, parts, facts | {"vision": hashlib.sha256(init.read_bytes()).hexdigest()[:12]}


class ActivityTask(Task):
    """Say at each tick of a stream, from the frames so far, which skill's phase is under way.

    The counterpart of the TTM paper's detection of activities in Charades.
    """

    name, measure, steps = "activity", "mean average precision, %", 1500
    ticks, batch_size, evaluated, learning_rate = 96, 8, 64, 1e-3
    given: ClassVar[Mapping[str, Any]] = {"tokens": 16, "last_only": False}

    def __init__(self, command: StudySeedsCommand) -> None:
        """See `Task`. Features of vision that OUT does not hold are computed."""
        super().__init__(command)
        init, (training, validation), facts = demonstrations(command)
        skills = sorted({episode.task for episode in [*training, *validation]})
        self._settings = {"skills": skills, **facts}
        path = command.out / f"features-{digest(self._settings)}.safetensors"
        if not path.exists():
            made = seen_episodes(training, validation, init)
            with replacing(path) as partial:
                save_file(made._asdict(), partial)
        with safe_open(path, "pt") as file:
            episodes = Episodes(*(file.get_tensor(name) for name in Episodes._fields))
        self.streams = Streams(episodes, skills, self.ticks)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **self._settings, "classes": self.streams.names}

    def sized(self, row: Row) -> Row:
        row = super().sized(row)
        assert row.given is not None
        inputs = self.streams.episodes.maps.shape[1] * row.given["tokens"]
        return replace(row, config=equal(row.config, core(TokenTuringConfig), inputs))

    def train(self, row: Row, seed: int) -> dict[str, Any]:
        streams, maps, given = self.streams, self.streams.episodes.maps, row.given or {}
        torch.manual_seed(seed)
        tokens, last = given["tokens"], -1 if given["last_only"] else 0
        model = ActivityModel(row.config, maps.shape[1:], WIDTH, tokens, len(streams.names))
        source = common.seeded(seed)
        batches = (streams.draw(self.batch_size, False, source) for _ in range(self.steps))

        def loss(model: nn.Module, ticks: Tensor, wanted: Tensor) -> Tensor:
            scores = model(maps[ticks])
            return F.binary_cross_entropy_with_logits(scores[:, last:], wanted[:, last:])

        self.fit(row, seed, model, batches, loss, learning_rate=self.learning_rate)
        found = self._precisions(model)
        step = counted_step(row.config, WIDTH, maps.shape[1] * tokens)
        value, gflops = 100 * float(np.mean(list(found.values()))), step.operations / 1e9
        return {"value": value, "parameters": step.parameters, "gflops": gflops, "each": found}

    @torch.no_grad()
    def _precisions(self, model: ActivityModel) -> dict[str, float]:
        """Return the average precision of each activity in held-out streams, the same for all rows."""
        model.eval()
        ticks, wanted = self.streams.draw(self.evaluated, True, common.seeded(common.HELD_OUT_SEED))
        maps = self.streams.episodes.maps
        scores = torch.cat([model(maps[part]) for part in ticks.split(self.batch_size)])
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


class SymbolTask(Task):
    """Predict symbols, at each tick those that follow."""

    width, batch_size, learning_rate = 64, 8, 3e-3
    num_symbols: ClassVar[int]

    @abstractmethod
    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw symbols and those that follow each, (B, T) int64 both."""

    @abstractmethod
    def measured(self, model: SequenceModel) -> float:
        """Return what is measured, on held-out sequences."""

    def train(self, row: Row, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        source = common.seeded(seed)
        model = SequenceModel(row.config, self.num_symbols, self.num_symbols, self.width)
        batches = (self.batch(source) for _ in range(self.steps))
        self.fit(row, seed, model, batches, SequenceModel.loss, learning_rate=self.learning_rate)
        return {"value": self.measured(model), "parameters": model.num_parameters}


class TextTask(SymbolTask):
    """Predict each byte of Python's help, whose last tenth is held out, in windows with an empty memory."""

    name, measure, digits, steps = "text", "bits for each byte", 3, 1500
    ticks, num_symbols, held_out = 256, 256, 0.1

    def __init__(self, command: StudySeedsCommand) -> None:
        super().__init__(command)
        joined = "\n\n".join(topics[name] for name in sorted(topics))
        text = torch.from_numpy(np.frombuffer(joined.encode(), np.uint8).astype(np.int64))
        self.text, self.end = text.split(len(text) - round(len(text) * self.held_out))

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "text": digest(self.text.tolist())}

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        latest = len(self.text) - self.ticks
        place = torch.randint(latest, (self.batch_size, 1), generator=generator)
        place = place + torch.arange(self.ticks)
        return self.text[place], self.text[place + 1]

    @torch.no_grad()
    def measured(self, model: SequenceModel) -> float:
        model.eval()
        windows = (part.unfold(0, self.ticks, self.ticks) for part in (self.end[:-1], self.end[1:]))
        symbols, following = windows
        parts = zip(symbols.split(32), following.split(32), strict=True)
        total = sum(float(model.loss(*part)) * part[0].numel() for part in parts)
        return total / symbols.numel() / math.log(2)


class ChunkTask(SymbolTask):
    """Predict the next symbol of chunks L#L, where L is one of V letters (Nawrot et al. 2021, appendix A.1).

    The first symbol of a chunk can only be guessed, the second is always #, and the third repeats the
    first: (2 + 1 / V) / 3 of the symbols can be right. If ticks are shortened in groups of three and no
    layer runs at full length, the newest group ends with the previous chunk, and the third symbol is a
    guess, too: (1 + 2 / V) / 3.
    """

    name, measure, steps = "chunks", "symbols predicted, %", 600
    letters, chunks, evaluated, batch_size, learning_rate = 4, 6, 1000, 32, 1e-3
    num_symbols = letters + 2

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.draw(self.batch_size, generator)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw `count` (B) sequences of letters, # and, before the first tick, one more symbol."""
        letter = torch.randint(self.letters, (count, self.chunks), generator=generator)
        mark = torch.full_like(letter, self.letters)
        targets = torch.stack([letter, mark, letter], dim=2).flatten(1)
        return F.pad(targets[:, :-1], (1, 0), value=self.letters + 1), targets

    def measured(self, model: SequenceModel) -> float:
        symbols, targets = self.draw(self.evaluated, common.seeded(common.HELD_OUT_SEED))
        return 100 * float((common.predicted(model, symbols, 100) == targets).double().mean())


class CostTask(Task):
    """What a training pass over 2,048 ticks keeps for the backward pass, and how long it takes."""

    name, measure, wanted = "cost", "MB kept for the backward pass", "megabytes"
    width, ticks = 64, 2048

    def train(self, row: Row, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        built = row.config.build(self.width, 1)
        tokens = torch.randn(1, self.ticks, 1, self.width)
        towards = torch.randn(1, self.ticks, built.num_outputs, self.width)
        built(tokens)[0].backward(towards)
        built.zero_grad()
        begun = time.process_time()
        built(tokens)[0].backward(towards)
        spent = time.process_time() - begun
        besides = [tokens, *built.parameters(), *built.buffers()]
        kept = bytes_for_backward(lambda: built(tokens), besides) / 1e6
        size = num_parameters(row.config, self.width)
        found = {"megabytes": kept, "seconds": spent, "parameters": size}
        return {**found, "value": found[self.wanted]}


class TimeTask(CostTask):
    """The same, by the time."""

    name, measure, wanted = "time", "CPU seconds of a training pass", "seconds"


@dataclass(frozen=True)
class AblatedBottleneckConfig(TemporalLatentBottleneckConfig):
    """The sizes of a Temporal Latent Bottleneck without one of its parts."""

    past: bool = True
    """False: the latents start anew with each chunk."""
    top_down: bool = True
    """False: ticks do not attend to the latents, whose mean is added to the outputs instead."""

    def build(self, width: int, num_inputs: int) -> AblatedBottleneck:
        return AblatedBottleneck(width, num_inputs, self)


class AblatedBottleneck(TemporalLatentBottleneck):
    """See `AblatedBottleneckConfig`."""

    def __init__(self, width: int, num_inputs: int, config: AblatedBottleneckConfig) -> None:
        super().__init__(width, num_inputs, config)
        self.past, self.top_down = config.past, config.top_down
        if not self.top_down:
            self.crossings, self.cross_every = nn.ModuleList(), len(self.layers) + 1

    def _look_at(self, latents: Tensor) -> CoreState:
        return super()._look_at(latents) if self.top_down else {}

    def _within_chunk(
        self, tokens: Tensor, chunk: Any, state: CoreState
    ) -> tuple[Tensor, CoreState]:
        outputs, after = super()._within_chunk(tokens, chunk, state)
        below = outputs if self.top_down else outputs + state["latents"].mean(dim=1)[:, None, None]
        return below, after

    def _ended(self, state: CoreState) -> CoreState:
        ended = super()._ended(state)
        if self.past:
            return ended
        latents = self.initial_latents.expand_as(ended["latents"])
        return {**ended, "latents": latents, **self._look_at(latents)}


TLB = core(AblatedBottleneckConfig, common.SMALL_CORE, num_latents=10, chunk_size=10)


class CopyTask(Task):
    """Repeat ten digits after T ticks until all held-out sequences are right."""

    name, measure, digits, steps = "copy", "thousands of samples until all are right", 1, 1000
    batch_size, learning_rate = 32, 1e-3
    given: ClassVar[Mapping[str, Any]] = {"blanks": 100}
    like = TLB

    def train(self, row: Row, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        blanks, source = (row.given or {})["blanks"], common.seeded(seed)
        model = SequenceModel(row.config, common.GO + 1, common.GO + 1, WIDTH)
        held_out = common.copy_sequences(
            common.HELD_OUT_COPIES, blanks, common.seeded(common.HELD_OUT_SEED)
        )
        drawn = (common.copy_sequences(self.batch_size, blanks, source) for _ in range(self.steps))
        for progress in fit(model, drawn, SequenceModel.loss, learning_rate=self.learning_rate):
            digits, whole = common.copy_accuracy(model, *held_out, self.batch_size)
            print_progress(f"{row.name}, seed {seed}: {progress.steps}, {100 * digits:.1f} %")
            if whole == 1:
                break
        value = progress.steps * self.batch_size / 1000
        found = {"value": value, "digits": digits, "solved": whole == 1}
        return {**found, "parameters": model.num_parameters}


class ExpressionTask(Task):
    """Predict the value of ListOps expressions of 10 to 50 tokens, shorter than in Long Range Arena."""

    name, measure, digits, steps = "listops", "values that are right, %", 1, 2000
    batch_size, learning_rate, samples, evaluated = 64, 1e-3, 64_000, 2000
    bounds, like = listops.ListopsTask(), TLB

    def __init__(self, command: StudySeedsCommand) -> None:
        super().__init__(command)
        made = self.bounds.make(self.evaluated + self.samples, seed=0)
        self._held_out, self._training = made[: self.evaluated], made[self.evaluated :]

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **asdict(self.bounds)}

    def train(self, row: Row, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = SequenceModel(row.config, listops.NUM_SYMBOLS, len(listops.DIGITS), WIDTH)
        batches = listops.training_batches(self._training, self.batch_size, seed)
        drawn = islice(batches, self.steps)
        self.fit(row, seed, model, drawn, listops.listops_loss, learning_rate=self.learning_rate)
        values = listops.predicted_values(model, self._held_out, 4 * self.batch_size)
        right = [value == each.value for value, each in zip(values, self._held_out, strict=True)]
        return {"value": 100 * float(np.mean(right)), "parameters": model.num_parameters}


class LongExpressionTask(ExpressionTask):
    """The same with the lengths of Long Range Arena, 500 to 2,000 tokens."""

    name, steps, batch_size, samples, evaluated = "listops-long", 3000, 8, 24_000, 500
    bounds = listops.ListopsTask(500, 2000, depth=9, arguments=10)


TTM_ROW = Row("TTM", core(TokenTuringConfig), 26.34)
DEEP = {"process_size": 1, "num_heads": 4, "mlp_size": 256, "window": 64, "position": "rotary"}
"""Sizes of the tables of Hourglass, at one token a tick."""


class BabyTask(Task):
    """Act as the bot of BabyAI's GoToSeq does, in several rooms and for up to four goals."""

    name, measure, digits, steps = "babyai", "success with the best action, %", 1, 1600
    demonstrations, episodes, width = 20_000, 512, 128

    def __init__(self, command: StudySeedsCommand) -> None:
        """Raise `UserError` without the extra that has BabyAI."""
        super().__init__(command)
        require_extra("babyai", "this table")
        study = import_module("ttm.training.study.minigrid_study").StudyMinigridCommand
        names = "demonstrations", "steps", "episodes", "width"
        self._study = study(level="GoToSeq", **{name: getattr(self, name) for name in names})
        recorder = import_module("ttm.training.study.minigrid").load_or_record
        self._shown = recorder(self._study, self.demonstrations, command.out, 1)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **self._study.settings()}

    def sized(self, row: Row) -> Row:
        config = equal(row.config, replace(TLB, **BABY), width=self.width)
        return replace(super().sized(row), config=config)

    def train(self, row: Row, seed: int) -> dict[str, Any]:
        made = replace(self._study, seed=seed).train(row.name, row.config, self._shown)
        rates = {way: 100 * acting.successes.rate for way, acting in made.acting.items()}
        return {"value": rates["best"], "parameters": made.parameters, "each": rates}


class SuiteTask(Task):
    """Choose in the memory suite by what was counted or shown 15 ticks before, by `ttm study suite`."""

    name, measure, digits, steps = "suite", "right choices, %", 1, 3000

    def __init__(self, command: StudySeedsCommand) -> None:
        super().__init__(command)
        _, _, self._facts = demonstrations(command)
        self._study = StudySuiteCommand(
            data=command.data, core=tuple(row.name for row in TABLES[command.table].rows),
            steps=self.steps, learning_rate=1e-3, weigh_starts=8, previous_action_dropout=0.7,
            task=("count", "side_shown"), gap=(15,), probe=("live",), out=command.out / self.name,
        )  # fmt: skip
        self._runner = SuiteRunner(self._study)

    def settings(self) -> dict[str, Any]:
        others = {name: value for name, value in self._runner.settings.items() if name != "data"}
        return {**super().settings(), **others, **self._facts}

    def sized(self, row: Row) -> Row:
        return replace(super().sized(row), config=self._runner.cores[row.name])

    def train(self, row: Row, seed: int) -> dict[str, Any]:
        if self._runner.make(parse_variant(row.name), seed):
            raise KeyboardInterrupt  # the same command goes on with this training
        found, key = collect_figures(self._study.out), (row.name, seed)
        (made,) = (each for each in found.trainings if (each.variant, each.seed) == key)
        right = (each for each in found.choices if (each.variant, each.seed) == key)
        each = {one.task: 100 * one.right / one.episodes for one in right}
        value, hours = float(np.mean(list(each.values()))), (made.cpu_minutes or 0) / 60
        return {"value": value, "parameters": made.parameters, "each": each, "cpu_hours": hours}


def ttm(name: str, paper: float | None = None, given: Given = None, **own: Any) -> Row:
    """Return a row of a Token Turing Machine with fields of its own."""
    return Row(name, core(TokenTuringConfig, **own), paper, given)


def hourglass(hierarchy: str, paper: float | None = None, name: str = "", **own: Any) -> Row:
    """Return a row of an Hourglass."""
    return Row(name or hierarchy, core(HourglassConfig, DEEP, hierarchy=hierarchy, **own), paper)


def tlb(name: str, paper: float | None = None, blanks: int | None = None, **own: Any) -> Row:
    """Return a row of a Temporal Latent Bottleneck with fields of its own; blanks: T of copying."""
    given = None if blanks is None else {"blanks": blanks}
    return Row(name, replace(TLB, **own), paper, given)


BABY: dict[str, Any] = {"num_layers": 1, "num_latents": 8, "chunk_size": 8, "mlp_size": 128}
HIERARCHIES = ("8@1", "2@1 4@2 2@1", "2@1 4@3 2@1", "2@1 4@4 2@1", "2@1 1@2 4@4 1@2 2@1")

PLAIN = Row("8 layers without a window", core(PlainTransformerConfig, DEEP, num_layers=8))
CHUNKED = tuple(
    Row(f"TLB, K = {size}", core(AblatedBottleneckConfig, DEEP, num_layers=8, chunk_size=size))
    for size in (16, 64)
)
TABLES: dict[str, Table] = {
    "ttm-models": Table("Sequence models", f"table 2: {TTM_PAPER}", ActivityTask, (
        Row("mean pooling", core(MeanPoolingConfig)),
        Row("causal Transformer", core(CausalTransformerConfig)),
        Row("recurrent Transformer", core(RecurrentTransformerConfig)),
        Row("LSTM", core(LstmConfig)),
        Row("Mixer", core(TemporalMixerConfig, window=6)),
        replace(TTM_ROW, paper=26.24),
    ), "25.85, 25.97, 23.96 and 25.83 are the paper's figures of other rows; we could not check of which"),
    "ttm-processor": Table("Processing unit", f"table 3: {TTM_PAPER}", ActivityTask, (
        ttm("MLP", 23.34, processor="mlp"), ttm("Mixer", 26.14, processor="mixer"),
        replace(TTM_ROW, name="Transformer"),
    )),
    "ttm-summarizer": Table("Summariser", f"table 4: {TTM_PAPER}", ActivityTask, (
        ttm("pooling", 25.75, summarizer="pooling"), replace(TTM_ROW, name="MLP"),
        ttm("query", 26.75, summarizer="query"),
    )),
    "ttm-write": Table("Memory write", f"table 5: {TTM_PAPER}", ActivityTask, (
        ttm("concatenate", 20.97, write="concatenate"),
        ttm("erase and add", 25.86, write="erase_add", initial_memory="learned"),
        ttm("none", 22.65, memory=False), TTM_ROW,
    )),
    "ttm-suite": Table("Memory write, on a robot", f"table 5: {TTM_PAPER}", SuiteTask, (
        ttm("ttm write=concatenate", 20.97), ttm("ttm write=erase_add initial_memory=learned", 25.86),
        ttm("ttm memory=false", 22.65), ttm("ttm", 26.34),
    ), "a guess is right in a third"),
    "ttm-training": Table("Loss and tokens of a camera", f"text of {TTM_PAPER}", ActivityTask, (
        ttm("loss at the last tick alone", given={"last_only": True}),
        ttm("4 tokens a camera", given={"tokens": 4}),
        ttm("16 tokens, loss at every tick"),
        ttm("64 tokens a camera", given={"tokens": 64}),
    ), "the paper calls a loss at the last step alone better; we do not know what 26.24 and 26.34 are of"),
    "hourglass-depth": Table("Shortened layers", f"table 5: {ENWIK8}", TextTask, tuple(
        hourglass(f"2@1 {count}@3 2@1", paper)
        for count, paper in ((1, 1.164), (4, 1.134), (8, 1.111), (16, 1.096))
    )),
    "hourglass-vanilla": Table("Layers at full length", f"table 6: {ENWIK8}", TextTask, (
        hourglass("4@3", 1.460), hourglass("0@1 4@3 2@1", 1.176),
        hourglass("2@1 4@3 0@1", 1.189), hourglass("1@1 4@3 1@1", 1.171),
        hourglass("2@1 4@3 2@1", 1.128),
    )),
    "hourglass-chunks": Table("Layers at full length", f"appendix A.1: {HOURGLASS_PAPER}", ChunkTask, (
        *(Row(h, core(HourglassConfig, common.SMALL_CORE, hierarchy=h)) for h in ("1@1 1@3 1@1", "1@3")),
        Row("TTM", core(TokenTuringConfig, common.SMALL_CORE, memory_size=4)),
    ), "75 % is the most that is possible, and 50 % without layers at full length"),
    "hourglass-resampling": Table("Pooling and upsampling", f"tables 7 and 8: {ENWIK8}", TextTask, tuple(
        hourglass("2@1 4@3 2@1", paper, f"{pooling}, {upsampling}", pooling=pooling, upsampling=upsampling)
        for pooling, *papers in (("average", None, None, 1.129), ("linear", None, None, 1.159),
                                 ("attention", 1.148, 1.163, 1.124))
        for upsampling, paper in zip(("repeat", "linear", "attention"), papers, strict=True)
    ), "1.148 and 1.163 are of deeper networks, of unknown pooling, where attention upsampling has 1.132"),
    "hourglass-hierarchies": Table("Hierarchies", f"table 1: {ENWIK8}", TextTask,
        tuple(map(hourglass, HIERARCHIES, (1.151, None, 1.128, 1.143, 1.115)))),
    "hourglass-memory": Table("Memory at 2,048 ticks", f"table 1: {HOURGLASS_PAPER}, GB", CostTask,
        (PLAIN, *map(hourglass, HIERARCHIES, (5.75, None, 4.88, 4.41, 4.69)), *CHUNKED)),
    "hourglass-time": Table("Time at 2,048 ticks", f"table 1: {HOURGLASS_PAPER}, s, 1 / speed", TimeTask,
        (PLAIN, *map(hourglass, HIERARCHIES, (1.37, None, 1.0, 0.91, 1.16)), *CHUNKED)),
    "tlb-copy": Table("Copying", f"copying: {TLB_PAPER}", CopyTask, (
        tlb("TLB, T = 100", 6.2, 100), tlb("TLB, T = 200", None, 200), tlb("TLB, T = 300", None, 300),
        tlb("TLB, T = 400", 14.6, 400),
        *(Row(f"Feedback Transformer, T = {n}", FeedbackConfig(1), None, {"blanks": n})
          for n in (100, 200, 300, 400)),
        ttm("TTM, T = 100", given={"blanks": 100}, initial_memory="learned"),
        *(ttm(f"ours, T = {n}", given={"blanks": n}, write="ring", read="attend", num_layers=0,
              process_size=1, write_outputs=False) for n in (100, 400)),
    ), "a row that did not get all right has the samples of all its steps. In the paper a Feedback "
       "Transformer fails above T = 400"),
    "tlb-parts": Table("Past and top-down attention", f"ablation: {TLB_PAPER}", ExpressionTask, (
        tlb("TLB"), tlb("no past", past=False), tlb("no top-down", top_down=False),
    ), "the paper has this table of BabyAI; see tlb-babyai"),
    "tlb-babyai": Table("Past and top-down attention in BabyAI", f"ablation: {TLB_PAPER}", BabyTask, (
        tlb("TLB", **BABY), tlb("no past", past=False, **BABY), tlb("no top-down", top_down=False, **BABY),
    ), "91.30 and 93.75 are the paper's figures, of other levels; we could not check of which rows"),
    "tlb-chunks": Table("Chunk size", f"ablation: {TLB_PAPER}", ExpressionTask, tuple(
        tlb(f"K = {size}", chunk_size=size) for size in (2, 5, 10, 20, 50)
    ), "in the paper 100 is the best, of longer sequences"),
    "tlb-latents": Table("Number of latents", f"ablation: {TLB_PAPER}", ExpressionTask, tuple(
        tlb(f"N = {count}", num_latents=count) for count in (1, 5, 10, 20, 40)
    ), "in the paper 20 is the best"),
    "tlb-cores": Table("ListOps of 10 to 50 tokens", f"none; the task: {TLB_PAPER}", ExpressionTask, (
        tlb("TLB"), Row("TTM", core(TokenTuringConfig, common.SMALL_CORE, initial_memory="learned")),
        Row("Transformer", core(PlainTransformerConfig, common.SMALL_CORE)),
        Row("LSTM", core(LstmConfig, common.SMALL_CORE)),
        Row("Hourglass", core(HourglassConfig, common.SMALL_CORE, hierarchy="1@1 2@4 1@1", window=50)),
        Row("no memory", core(TokenTuringConfig, common.SMALL_CORE, memory=False)),
    ), "a guess by the first operator is right in 24 %"),
    "tlb-listops": Table("ListOps of 500 to 2,000 tokens", f"ListOps: {TLB_PAPER}", LongExpressionTask, (
        tlb("TLB", 38.2, chunk_size=100, num_latents=20),
        Row("Transformer", core(PlainTransformerConfig, common.SMALL_CORE), 37.64),
        Row("LSTM", core(LstmConfig, common.SMALL_CORE)),
    ), "a guess by the first operator is right in 36 %"),
}  # fmt: skip
"""Name -> table."""


class Spearman(NamedTuple):
    """A rank correlation with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


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


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
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
    "cpu_hours" and perhaps more, as "gflops", a multiply-add of a step counted as one."""

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what a study wrote. Raises `UserError` for any other file."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{path}: no table ({error}); give a TABLE.json of OUT") from error

    def values(self, row: Mapping[str, Any]) -> list[float]:
        """Return the figures of a row, one for each seed."""
        return [each["value"] for each in row["trainings"]]

    @property
    def cpu_hours(self) -> float:
        """The cost of all rows."""
        return sum(each["cpu_hours"] for row in self.rows for each in row["trainings"])

    @property
    def correlation(self) -> str:
        """Of the rows for which there is a figure of the paper and one of ours, in words."""
        both = [row for row in self.rows if row["trainings"] and row["paper"] is not None]
        found = rank_correlation(list(map(self.values, both)), [row["paper"] for row in both])
        return f"correlation {found or 'unknown'}"

    def texts(self) -> Iterator[str | TitledTable]:
        """Yield table and notes for the terminal."""
        heads = ("row", "paper", "ours", "from", "to", AGAIN, "seeds", "params", "GFLOPs", "CPU h")
        rows = []
        for row in self.rows:
            done, values = row["trainings"], self.values(row)
            ours = (float(np.mean(values)), min(values), max(values)) if done else ()
            shown = [f"{each:.{self.digits}f}" for each in ours] or ["—"] * 3
            size = f"{done[0]['parameters']:,}" if done else "—"
            cost = f"{done[0]['gflops']:.4f}" if done and "gflops" in done[0] else "—"
            paper = "—" if row["paper"] is None else f"{row['paper']:g}"
            hours = sum(each["cpu_hours"] for each in done)
            classes = chain(*(each.get("each", {}).items() for each in done))
            again = [100 * value for name, value in classes if name.endswith(AGAIN)]
            shown.append(f"{np.mean(again):.{self.digits}f}" if again else "—")
            rows.append([row["row"], paper, *shown, len(done), size, cost, f"{hours:.2f}"])
        known = [each for each in zip(heads, *rows, strict=True) if set(each[1:]) != {"—"}]
        names, *lines = zip(*known, strict=True)
        yield compact_table(f"{self.title}: {self.measure}", names, lines)
        yield f"With the paper, Spearman's rank {self.correlation}, 95 % interval over seeds."
        yield f"All rows together: {self.cpu_hours:.2f} CPU hours. The paper: {self.source}."
        if self.note:
            yield f"{self.note[0].upper()}{self.note[1:]}."

    def draw(self) -> str:
        """Return an SVG: ours, a dot for each seed, with each row's CPU hours, beside the paper's figures."""
        known = any(row["paper"] is not None for row in self.rows)
        figure = Figure(figsize=(7.5, 1.4 + 0.3 * len(self.rows)), layout="constrained")
        ours, *paper = figure.subplots(1, 1 + known, sharey=True, squeeze=False)[0]
        names = []
        for place, row in enumerate(self.rows):
            values = self.values(row)
            ours.plot(values, [place] * len(values), "o", color=COLOURS[0], alpha=0.5, markersize=4)
            mean = [np.mean(values)] if values else []
            ours.plot(mean, [place] * len(mean), "|", color=COLOURS[0], markersize=14)
            hours = sum(each["cpu_hours"] for each in row["trainings"])
            found = [f"{each:.{self.digits}f}  ({hours:.2g} h)" for each in mean]
            names.append(":  ".join([fill(row["row"], 30), *found]))
            if row["paper"] is not None:
                paper[0].plot(row["paper"], place, "D", color=COLOURS[1], markersize=5)
        ours.set_yticks(range(len(self.rows)), names)
        ours.set(ylim=(len(self.rows) - 0.5, -0.5), xlabel=self.measure)
        figure.suptitle(f"{self.table}: {self.title}", fontsize=11)
        figure.supxlabel(self.note, fontsize=8)
        titles = f"here, {self.cpu_hours:.2f} CPU hours", f"the paper, rank\n{self.correlation}"
        for axes, title in zip((ours, *paper), titles, strict=False):
            axes.set_title(title, fontsize=10)
            axes.grid(axis="x", linewidth=0.4, alpha=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        return to_svg(figure, "\n".join(names))


TABLE = arg(
    metavar="TABLE", help="; ".join(f"{name}: {of.title}" for name, of in TABLES.items()) + "."
)


@dataclass(frozen=True)
class StudySeedsCommand:
    """Make a table of the papers behind this project again, on a small task, beside the paper's figures.

    All rows get the same data in the same order and the same steps, one training for each seed. Each
    training is kept in OUT, so that the same command goes on where it was stopped; Ctrl-C loses the
    training under way alone. OUT also receives TABLE.json.

    Tables of ttm need demonstrations of two skills or more: ttm collect --task pick open_drawer
    take_back search --episodes 150 --vary 1 --out demos/activity, and then ttm study seeds ttm-write
    --data demos/activity
    """

    table: Annotated[Positional[str], TABLE]
    data: tuple[str, ...] = ()
    """Demonstrations for the tables of ttm (ttm-suite: count, side_shown): files, folders or quoted globs."""
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
        rows: list[dict[str, Any]] = []
        trainings = []
        for row in map(task.sized, table.rows):
            core_of = {"kind": type(row.config).__name__, **asdict(row.config)}
            key = {"core": core_of, "given": row.given}
            name = f"{task.name}-{digest([settings, key])}-seed_"
            trainings.append([(row, seed, folder / f"{name}{seed}.json") for seed in self.seeds])
            rows.append({"row": row.name, "paper": row.paper, **key})
        by_seed = [*chain(*zip(*trainings, strict=True))]
        for timeout in (0, -1):  # those that other processes are at come last
            for row, seed, path in by_seed:
                with suppress(Timeout), FileLock(folder / f".{path.name}.lock", timeout):
                    if not path.exists():
                        begun = time.process_time()
                        found = task.train(row, seed)
                        hours = round((time.process_time() - begun) / 3600, 6)
                        write_json(path, {"seed": seed, "cpu_hours": hours, **found})
        for of, made in zip(rows, trainings, strict=True):
            of["trainings"] = [json.loads(path.read_text(encoding="utf-8")) for *_, path in made]
        texts = table.title, table.source, table.note, task.measure
        results = Results(self.table, *texts, task.digits, settings, rows)
        write_json(self.out / f"{self.table}.json", vars(results))
        return results
