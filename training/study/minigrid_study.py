"""`ttm study minigrid`: which memory learns a level of BabyAI from its bot, or one of Memory from a script?

Results are kept in one file for each core, so that several commands can fill one table. The fields of
`CoreResult` and `ActingResult` and the settings, with their order, are the format of these files.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, get_args

import minigrid
import torch
from rich.table import Table

from ttm.policy.cores.core import CoreConfig
from ttm.policy.errors import UserError, options, require_above_0, require_at_least, require_some
from ttm.policy.files import write_atomically
from ttm.sim.pages import Point, draw_rates
from ttm.sim.results import Rate, mcnemar_exact
from ttm.sim.workers import usable_cores
from ttm.training.console import compact_table, make_folder, print_progress, write_given
from ttm.training.help_texts import CoreName
from ttm.training.sequence_model import SHORTENED, num_parameters, study_core, with_parameters
from ttm.training.study.babyai import BoundedBot, babyai_environment
from ttm.training.study.common import p_text, percent, print_results, require_svg
from ttm.training.study.memory import MemoryExpert, RecallingPolicy, choices, memory_environment
from ttm.training.study.minigrid import (
    FIRST_EVALUATION_SEED,
    Demonstrations,
    EpisodeSampler,
    Expert,
    Level,
    MinigridEnvironment,
    MinigridPolicy,
    Vocabulary,
    clone,
    load_or_record,
    roll_out,
)

WAYS = {"best": "best action", "drawn": "drawn actions"}
"""How a policy acts: by its best action, or by actions drawn by their probabilities."""
BASELINE = "none"  # the core without memory, against which every other core is tested
NOTES = """\
In parentheses: Wilson's 95 % interval over the episodes, which does not say how much another training
of the same core would differ. p: McNemar's exact test of the successes against the core without memory,
on the same episodes. ticks: mean length of an episode, failed ones included. s: seconds of training. Drawn
actions help a policy out of going round in circles."""
OF_CHOICES = """
made: episodes in which the agent stepped to one of the two objects; right choices: portion of these in
which it was the matching one, 50 % for a guess."""

COMMON = {"process_size": 1, "num_layers": 2, "num_heads": 4, "window": 16, "bottleneck": 16}
"""Sizes of every core that has such fields: about two blocks, and one token a tick."""
OWN: dict[str, dict[str, Any]] = {
    "ttm": {"process_size": 2, "memory_size": 8},  # it needs several tokens to read from its memory
    "none": {"process_size": 2, "memory_size": 8},
    "recurrent-transformer": {"memory_size": 4},
    "mixer": {"window": 4, "token_mixing_size": 32},
    "frame-stacking": {"window": 4},
    "tlb": {"num_layers": 1, "num_latents": 8, "chunk_size": 8},
    "hourglass": SHORTENED,
}
"""Sizes of single cores, beside those of `COMMON`."""
REFERENCE = "lstm"  # determines the number of parameters; it has no MLP whose width could be chosen


def equal_core(name: str, width: int, options: Sequence[str] = ()) -> CoreConfig:
    """Return the core called `name` with about as many parameters as the LSTM.

    See `with_parameters`. Raises `UserError` also for options that do not fit.

    width: D, of both. options: what the user asked for, each "field=value".
    """
    config = study_core(name, COMMON, OWN, options)
    wanted = num_parameters(study_core(REFERENCE, COMMON, OWN), width)
    advice = (
        "give smaller --core-options, or an mlp_size among them, with which it has its own size"
    )
    return with_parameters(config, wanted, width, advice=advice, options=options)


@dataclass(frozen=True)
class ActingResult:
    """The results of episodes in which a policy acted in one way, in the order of seeds."""

    success: list[bool]
    lengths: list[int]  # in ticks
    seconds: float  # of all episodes

    @property
    def successes(self) -> Rate:
        return Rate(sum(self.success), len(self.success))


@dataclass(frozen=True)
class CoreResult:
    """The result of one core, trained and evaluated."""

    core: str  # with the options that it was given
    config: dict[str, Any]
    parameters: int  # of the core
    all_parameters: int  # of the whole policy
    loss: float  # mean of the last batches of the training
    training_s: float
    acting: dict[str, ActingResult]  # "best" or "drawn" -> results

    def is_of(self, config: CoreConfig) -> bool:
        """Return whether it is the result of `config`; a field that it lacks counts as its default."""
        return {**asdict(type(config)()), **self.config} == asdict(config)


def load_result(path: Path) -> CoreResult:
    """Read the result of one core. Raises `UserError` if the file is damaged."""
    try:
        values = json.loads(path.read_text())
        del values["settings"]
        acting = {way: ActingResult(**fields) for way, fields in values.pop("acting").items()}
        return CoreResult(**values, acting=acting)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged ({error}); delete it, and its core is trained again"
        ) from error


class Effort(NamedTuple):
    """How much a core learns from, and for how long."""

    demonstrations: int
    steps: int
    batch_ticks: int  # most in a batch of whole episodes


EFFORTS = {
    "GoToLocal": Effort(50_000, 1_500, 1_024),
    "GoToSeq": Effort(20_000, 1_600, 2_048),
    "GoToSeqS5R2": Effort(40_000, 2_000, 2_048),
}
"""Level -> effort by default."""
OTHER_LEVELS, MEMORY_LEVELS = Effort(10_000, 2_000, 2_048), Effort(4_000, 600, 1_024)


@dataclass(frozen=True)
class StudyMinigridCommand(Level):
    """Clone the expert of a MiniGrid level with every core, and count successes in new episodes.

    A level of BabyAI has an instruction in English and a bot. In one of Memory the agent sees a key or a ball
    in a room, walks down a corridor, and has to go to the object of the same kind at its end, where the
    first one cannot be seen any more.

    Needs minigrid: pip install 'ttm-policy-stack[babyai]'. All cores have the same number of parameters
    within one per cent, learn from the same demonstrations in the same batches, and train for the
    same number of steps. Demonstrations and results are kept under --cache and are not made again.
    Several of these commands may run at the same time, each for other cores or other --core-options.
    """

    level: str = "GoToLocal"
    """BabyAI's name without BabyAI- and -v0, such as GoToSeq, which needs a memory; or MemoryS and the side
    of the map, an odd number from 7, such as MemoryS13, with Random after it for corridors of any length."""
    core: tuple[CoreName, ...] = get_args(CoreName)
    """Cores to compare."""
    core_options: tuple[str, ...] = ()
    """Fields that all named cores get, as in ttm train. With mlp_size=… cores keep their size."""
    demonstrations: int | None = None
    """Episodes to learn from. Default: 50,000 for GoToLocal, 20,000 for GoToSeq, 40,000 for GoToSeqS5R2,
    4,000 for Memory, else 10,000."""
    steps: int | None = None
    """Training steps of every core. Default: 1,500 for GoToLocal, 1,600 for GoToSeq, 600 for Memory, else
    2,000."""
    recall: float = 1.0
    """In Memory, weight of a second loss without labels, for every core: its outputs must say which kinds of
    tiles the agent has seen in the episode and does not see now. 0: the actions alone."""
    learning_rate: float = 1e-3
    """Highest learning rate of Adam, after the warm-up."""
    width: int = 128
    """D, the width of the tokens that the cores get."""
    episodes: int = 512
    """Episodes for the evaluation, with seeds that no demonstration has."""
    seed: int = 0
    """Seed of weights and batches. The seeds of demonstrations and episodes stay the same."""
    cache: Path = Path("runs/minigrid")
    """Folder in which demonstrations and results are kept."""
    json: Path | None = None
    """Also write the figures of the tables and of every episode to this file."""
    plot: Path | None = None
    """Also draw the success rates with their intervals to this file, an SVG."""

    @property
    def is_memory(self) -> bool:
        """Whether the level is one of MiniGrid's Memory levels."""
        return self.level.startswith("MemoryS")

    @property
    def default_effort(self) -> Effort:
        """The effort for the level where the user asks for none."""
        return MEMORY_LEVELS if self.is_memory else EFFORTS.get(self.level, OTHER_LEVELS)

    def environment(self) -> MinigridEnvironment:
        return memory_environment(self.level) if self.is_memory else babyai_environment(self.level)

    def expert(self, environment: MinigridEnvironment) -> Expert:
        return (MemoryExpert if self.is_memory else BoundedBot)(environment).act

    def policy(self, config: CoreConfig, vocabulary: Vocabulary) -> MinigridPolicy:
        """Return a new policy around a core."""
        if self.is_memory:
            return RecallingPolicy(config, vocabulary, self.width, self.recall)
        return MinigridPolicy(config, vocabulary, self.width)

    def settings(self) -> dict[str, Any]:
        """Return what results must have in common to be compared with those of this command."""
        default = self.default_effort
        return {
            "level": self.level,
            "demonstrations": self.demonstrations or default.demonstrations,
            "steps": self.steps or default.steps,
            "batch_ticks": default.batch_ticks,
            "learning_rate": self.learning_rate,
            "width": self.width,
            "seed": self.seed,
            "episodes": self.episodes,
            "actions": tuple(WAYS),
            "minigrid": str(minigrid.__version__),  # levels and bots may change with the version
            **({"recall": self.recall} if self.is_memory else {}),
        }

    def check(self) -> None:
        """Raise `UserError` if a value is out of range."""
        require_some(options(self, "core"))
        require_at_least(1, options(self, "demonstrations", "steps", "width", "episodes"))
        require_above_0(options(self, "learning_rate"))
        require_at_least(0, options(self, "recall"))
        require_svg(self.plot)

    def run(self) -> int:
        """Train and evaluate the cores that have no result yet, print the tables of all results.

        Returns the exit code. Raises `UserError` for an unknown level and for core options that do
        not fit.
        """
        self.check()
        self.environment()  # raises here, before anything is recorded
        torch.set_num_threads(1)
        configs = {name: equal_core(name, self.width, self.core_options) for name in self.core}
        settings = self.settings()
        shown = load_or_record(self, settings["demonstrations"], self.cache, usable_cores())
        digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
        folder = make_folder(self.cache / "results" / f"{self.level}-{digest}", "--cache")
        for name, config in configs.items():
            label = " ".join((name, *self.core_options))
            path = folder / f"{re.sub(r'[^A-Za-z0-9@=._-]+', '_', label)}.json"
            if not path.exists() or not load_result(path).is_of(config):
                result = self.train(label, config, shown)
                write_atomically(path, json.dumps({"settings": settings, **asdict(result)}))
        results = [load_result(path) for path in sorted(folder.glob("*.json"))]
        mean, skipped = float(shown.lengths.mean()), shown.skipped.tolist()
        expert = {"demonstrations": len(shown), "mean_length": mean, "seeds_not_solved": skipped}
        figures = {"settings": settings, "expert": expert, "results": list(map(asdict, results))}
        tables = (self.table(results, way) for way in WAYS)
        notes = NOTES + OF_CHOICES * self.is_memory
        print_results(self.heading(shown), *tables, notes, figures=figures, json_path=self.json)
        if self.plot is not None:
            write_given(self.plot, draw_panels(panels_of(self.level, results)), "--plot")
        return 0

    def train(self, label: str, config: CoreConfig, shown: Demonstrations) -> CoreResult:
        """Train `config`, called `label`, and let it act in the episodes of the evaluation.

        Weights, batches and actions depend on the seed alone. Prints progress on stderr.
        """
        settings = self.settings()
        torch.manual_seed(self.seed)
        vocabulary = Vocabulary.of(shown.missions.tolist(), shown.images)
        policy = self.policy(config, vocabulary)
        batches = EpisodeSampler(shown, vocabulary, settings["batch_ticks"]).endless(self.seed)
        for progress in clone(policy, batches, settings["steps"], self.learning_rate):
            print_progress(
                f"{label}: step {progress.steps:,} of {settings['steps']:,}, "
                f"loss {progress.mean_loss:.4f}, {progress.seconds:.0f} s"
            )
        seeds = range(FIRST_EVALUATION_SEED, FIRST_EVALUATION_SEED + self.episodes)
        acting = {}
        for way in WAYS:
            begun, sample = time.perf_counter(), None if way == "best" else self.seed
            success, lengths = zip(*roll_out(policy, vocabulary, self, seeds, sample), strict=True)
            seconds = time.perf_counter() - begun
            acting[way] = ActingResult(list(success), list(lengths), seconds)
            rate = 100 * acting[way].successes.rate
            print_progress(f"{label}: {rate:.1f} % of {self.episodes} episodes ({way})")
        sizes = num_parameters(config, self.width), sum(p.numel() for p in policy.parameters())
        trained = progress.mean_loss, progress.seconds
        return CoreResult(label, asdict(config), *sizes, *trained, acting)

    def heading(self, shown: Demonstrations) -> str:
        """Return the text above the tables: demonstrations, training, and evaluation."""
        settings, count = self.settings(), len(shown)
        return (
            f"{self.level} (minigrid {settings['minigrid']}): {self.episodes} episodes\n"
            f"{count:,} demonstrations, mean length {shown.lengths.mean():.1f}; "
            f"the expert solves {count:,} of {count + len(shown.skipped):,} seeds\n"
            f"{settings['steps']:,} steps of {settings['batch_ticks']:,} ticks, width {self.width}, "
            f"seed {self.seed}"
        )

    def table(self, results: Sequence[CoreResult], way: str) -> Table:
        """Return a table with one row for each core, the best first. way: see `WAYS`."""
        baseline = next((each.acting[way] for each in results if each.core == BASELINE), None)
        rows = []
        for result in sorted(results, key=lambda result: -result.acting[way].successes.rate):
            acting, p_value = result.acting[way], "—"
            if baseline is not None and acting is not baseline:
                p_value = p_text(mcnemar_exact(acting.success, baseline.success).p_value)
            known = result.core, f"{result.parameters:,}", percent(acting.successes), p_value
            cells = [f"{fmean(acting.lengths):.1f}"]
            if self.is_memory:
                chosen = choices(acting.success, acting.lengths, self.environment().max_steps)
                cells += [str(chosen.episodes), percent(chosen)]
            rows.append([*known, *cells, f"{result.training_s:.0f}"])
        of_choices = ("made", "right choices in %") if self.is_memory else ()
        columns = ("core", "parameters", "success in %", "p", "ticks", *of_choices, "s")
        return compact_table(f"Success with {WAYS[way]}", columns, rows)


def panels_of(level: str, results: Sequence[CoreResult]) -> dict[str, dict[str, Rate]]:
    """Return a panel for each way of acting: title -> core -> how often it succeeded."""
    return {
        f"{level}, {WAYS[way]}": {each.core: each.acting[way].successes for each in results}
        for way in results[0].acting
    }


def draw_panels(panels: Mapping[str, Mapping[str, Rate]]) -> str:
    """Return an SVG of the panels side by side, with the cores sorted by the first of them."""
    return draw_rates(
        {
            title: [
                Point(core, None, rate)
                for core, rate in sorted(rates.items(), key=lambda item: -item[1].count)
            ]
            for title, rates in panels.items()
        }
    )
