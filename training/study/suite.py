"""`ttm study suite`: which memory learns the memory suite of the simulated kitchen?

Policies are trained that differ in their core alone. A folder for each core and seed holds the first
weights, the training, and one evaluation for each task, gap and probe. A kill at any moment leaves it
whole, and a lock keeps other processes away while one works in it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, cast

import numpy as np
import torch
from filelock import FileLock, Timeout
from rich.console import Console
from torch import Tensor
from tyro.conf import Suppress, arg

from ttm.policy.checkpoint import load_checkpoint, save_checkpoint
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.registry import NAMES, TTM, core_from_dict, core_to_dict
from ttm.policy.engines import cpu_threads
from ttm.policy.errors import (
    UserError,
    options,
    require_above_0,
    require_at_least,
    require_choice,
    require_some,
)
from ttm.policy.files import write_atomically, write_json
from ttm.policy.policy import Policy
from ttm.policy.sight import SightMemory
from ttm.policy.spec import checkpoint_path
from ttm.sim.condition import (
    KITCHEN,
    LIVE,
    NOISE,
    PROBE_DESCRIPTIONS,
    Condition,
    CueName,
    ProbeName,
    conditions_of,
)
from ttm.sim.environment import inspect_env, require_memory_tasks
from ttm.sim.evaluation import evaluate_conditions
from ttm.sim.results import RESULT_FILE, Evaluation, load_evaluation
from ttm.training.console import make_folder, print_progress, write_given
from ttm.training.data import FeatureCache
from ttm.training.network import parameters_and_tokens, with_vision_kept
from ttm.training.options import (
    FrozenVisionConfig,
    InputDropoutConfig,
    LossConfig,
    OptimizationConfig,
    TrainOptions,
)
from ttm.training.run_log import LAST, RESULT, resume_path
from ttm.training.sequence_model import (
    SHORTENED,
    TOLERANCE,
    lstm_with_parameters,
    num_parameters,
    split_sight,
    study_core,
    with_parameters,
)
from ttm.training.study.common import print_results, require_svg
from ttm.training.study.suite_report import (
    OURS,
    VARIANTS,
    Choices,
    Figures,
    Report,
    Training,
    read_figures,
)
from ttm.training.train import assembled, train
from ttm.training.trainer import Trainer

OURS_OPTIONS = (
    "write=ring", "read=attend", "process_memory=true", "write_outputs=false", "num_layers=1",
    "gate_max_ticks=1000", "sight_tokens=6",
)  # fmt: skip
"""What ours differs in from the published machine."""
COMMON = {
    "process_size": 8, "memory_size": 16, "num_layers": 2, "num_heads": 4, "window": 32, "bottleneck": 64,
}  # fmt: skip
"""Sizes of every core that has such fields: those of the tiny preset. A window of 32 ticks reaches
back over a gap of 15, but not over one of 45."""
OWN: dict[str, dict[str, Any]] = {
    "lstm": {"num_layers": 3},
    "mixer": {"window": 6},
    "frame-stacking": {"window": 6},
    "tlb": {"num_layers": 1, "chunk_size": 8},
    "hourglass": SHORTENED,
}
"""Sizes of single cores, beside those of `COMMON`."""
REFERENCE = "lstm"  # determines the number of parameters; it has no MLP whose width could be chosen
COSTS = "costs.json"  # the file of measured costs
WARM_UP, ROUNDS = 2, 15  # steps of each variant that are not counted, and that are


@dataclass(frozen=True)
class Variant:
    """A core with options, and perhaps a sight memory, as it is named in the tables."""

    label: str
    core: str
    options: tuple[str, ...] = ()
    sight: int = 0
    """The slots of the sight memory; 0 for none."""

    def num_parameters(self, config: CoreConfig, seen: Policy) -> int:
        """Return the number of parameters of the core of `config` and of the sight memory.

        seen: what the policy sees as.
        """
        own, tokens = parameters_and_tokens(seen, self.sight)
        return own + num_parameters(config, seen.config.width, tokens)

    def sized(self, wanted: int, seen: Policy) -> CoreConfig:
        """Return the core with MLPs of such a width that the variant has `wanted` parameters.

        An LSTM, which has none, gets other numbers of layers and a wider summary of its inputs where it
        needs to. A core whose options name such a size has a size of its own.
        """
        config = study_core(self.core, COMMON, OWN, self.options)
        own, tokens = parameters_and_tokens(seen, self.sight)
        sizes, advice = (wanted - own, seen.config.width, tokens), "give it smaller sizes"
        if self.core != REFERENCE:
            return with_parameters(config, *sizes, advice=advice, options=self.options)
        if {option.partition("=")[0] for option in self.options} & {"num_layers", "bottleneck"}:
            return config
        return lstm_with_parameters(config, *sizes, advice=advice)


def parse_variant(text: str) -> Variant:
    """Return the variant of "CORE FIELD=VALUE ...", in which the core may be `OURS`.

    Later options count. Raises `UserError` if there is no such core. The fields of the core are
    checked where it is built.
    """
    try:
        name, *given = shlex.split(text)
    except ValueError as error:
        raise UserError(
            f"--core '{text}' is no core; give a name, such as 'lstm num_layers=2'"
        ) from error
    require_choice("--core", name, (OURS, *NAMES))
    core, own = (TTM, OURS_OPTIONS) if name == OURS else (name, ())
    return Variant(" ".join([name, *given]), core, *split_sight((*own, *given)))


def suite_cores(ours: Variant, variants: Sequence[Variant], seen: Policy) -> dict[str, CoreConfig]:
    """Return label -> configuration of each of `variants` and of `ours`.

    Ours has as many parameters as the LSTM at the study's sizes, and all others as many as ours.

    seen: what all policies see as. Raises `UserError` for options that do not fit, and for a variant
    whose number of parameters differs from that of `ours` by more than `TOLERANCE`.
    """
    lstm = Variant(REFERENCE, REFERENCE)
    reference = lstm.num_parameters(study_core(REFERENCE, COMMON, OWN), seen)
    cores = {ours.label: ours.sized(reference, seen)}
    wanted = ours.num_parameters(cores[ours.label], seen)
    for variant in variants:
        core = cores[variant.label] = variant.sized(wanted, seen)
        found = variant.num_parameters(core, seen)
        if abs(found - wanted) > TOLERANCE * wanted:
            raise UserError(
                f"--core '{variant.label}' has {found:,} parameters and ours {wanted:,}, more than 2 % "
                "apart; leave mlp_size out"
            )
    return cores


def source_cores(ours: Variant, seen: Policy) -> list[CoreConfig]:
    """Return the cores with whose first weights all others begin where names and shapes are equal."""
    sources = [Variant(name, name) for name in (TTM, REFERENCE)]
    return list(suite_cores(ours, sources, seen).values())[1:]


def first_policy(
    seen: Policy, config: CoreConfig, sources: Sequence[CoreConfig], seed: int, sight: int = 0
) -> Policy:
    """Return the policy with the core of `config` with which the training of `seed` begins.

    Vision and normalisation are those of `seen`. All else is drawn at random by the seed. A drawn
    tensor whose name and shape one of `sources` has, too, is the one drawn there, the first of them
    first, with no sight memory or with one of as many slots. What initialisation sets
    without chance, such as biases, stays as it is.

    sources: the same for all policies that are compared.
    """
    policy = _new(seen, config, seed, sight)
    mine = _drawn(seen, config, seed, sight)
    shared: dict[str, Tensor] = {}
    for size, source in product((sight, 0), reversed(sources)):
        theirs = _drawn(seen, source, seed, size)
        shared |= {n: v for n, v in theirs.items() if n in mine and mine[n].shape == v.shape}
    policy.load_state_dict(shared, strict=False)
    return policy


def _new(seen: Policy, config: CoreConfig, seed: int, sight: int) -> Policy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return with_vision_kept(seen, config, sight)


@lru_cache(maxsize=16)  # of each seed, the sources of all variants
def _drawn(seen: Policy, config: CoreConfig, seed: int, sight: int) -> dict[str, Tensor]:
    one, other = (_new(seen, config, each, sight).state_dict() for each in (seed, seed + 1))
    return {name: value for name, value in one.items() if not torch.equal(value, other[name])}


FACTS = ("variant", "seed", "core", "settings", "parameters", "all_parameters", "steps", "cost")
"""What run.json says of a training, among others the settings of all trainings that are compared."""


@dataclass(frozen=True)
class Cost:
    """What the training of a variant costs, in seconds of the CPU: medians."""

    step_s: float
    memory_s: float  # until a sight memory knows what to keep; 0 without one
    of_lstm: float  # `step_s` as a portion of that of the LSTM, measured on the same batches

    def steps(self, minutes: float) -> int:
        """Return how many steps fit into `minutes` beside what the memory takes."""
        left = 60 * minutes - self.memory_s
        if left < self.step_s:
            raise UserError(f"--minutes is {minutes:g}, in which no step fits; give more")
        return int(left / self.step_s)


def measured_costs(trainers: Mapping[str, Trainer], rounds: int) -> dict[str, Cost]:
    """Measure `rounds` steps of each training in turns. trainers: among others that of `REFERENCE`."""
    batches = {name: each.source.sample(WARM_UP + rounds) for name, each in trainers.items()}
    taken: dict[str, list[float]] = {name: [] for name in trainers}
    for _, (name, trainer) in product(range(WARM_UP + rounds), trainers.items()):
        begun = time.process_time()
        trainer.backpropagate(next(batches[name]))
        trainer.update_weights()
        taken[name].append(time.process_time() - begun)
    steps = {name: np.array(each[WARM_UP:]) for name, each in taken.items()}
    lstm = steps[REFERENCE]
    lesson_s = median([each.memory_s for each in trainers.values() if each.memory_s] or [0.0])
    return {
        name: Cost(median(of), trainers[name].memory_s and lesson_s, median(of / lstm))
        for name, of in steps.items()
    }


class RunFolder:
    """The files of one core and seed, and what of them is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts_file = path / "run.json"
        self.start = path / "start.safetensors"  # the checkpoint that the training begins with
        self.training = path / "training"  # as `ttm train --out` leaves it
        self.checkpoint = self.training / LAST  # after the last step; it is evaluated
        self.evaluations = path / "evaluation"

    @property
    def can_resume(self) -> bool:
        """Whether a training has begun, and saved its state."""
        return resume_path(self.training).exists()

    @property
    def facts(self) -> dict[str, Any]:
        """What the folder is of. Raises `UserError` if it is damaged."""
        return _read(self.facts_file, (*FACTS, "sight_tokens"))

    @property
    def training_result(self) -> Mapping[str, Any] | None:
        """What the finished training says of itself; None if it is not finished."""
        path = self.training / RESULT
        result = _read(path, ["finished"]) if path.exists() else {"finished": False}
        return result if result["finished"] else None

    def evaluation(
        self,
        place: Path,
        task: str,
        condition: Condition,
        *,
        episodes: int,
        policy: str | None = None,
        **given: Any,
    ) -> Evaluation:
        """Return the evaluation of the last step's policy that `place` holds; make it if it is not there.

        policy: None for `checkpoint`. given: as of `evaluate_conditions`.
        """
        if (place / RESULT_FILE).exists():
            known = load_evaluation(place)
            if (known.first_seed, known.tasks[task].episodes) == (0, episodes):
                return known
        policy = policy or str(self.checkpoint)
        (made,) = evaluate_conditions(policy, task, {condition: None}, episodes=episodes, **given)
        made.save(place)
        print_progress(f"{given['label']}: {made.tasks[task]} ({condition.folder})")
        return made

    @contextmanager
    def claimed(self) -> Iterator[bool]:
        """Keep other processes from working here. Yields False if one does so already."""
        try:
            with FileLock(make_folder(self.path) / ".lock", timeout=0):
                yield True
        except Timeout:
            yield False


def run_folders(out: Path) -> list[RunFolder]:
    """Return the folders of all trainings in `out` that have begun, in the order of their names."""
    return [RunFolder(path.parent) for path in sorted(out.glob("*/seed_*/run.json"))]


def _read(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of a JSON object, which must have those called `names`."""
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict) or not values.keys() >= set(names):
            raise ValueError(f"there must be values called {', '.join(names)}")
    except (ValueError, OSError) as error:
        raise UserError(
            f"{path} is damaged ({error}); delete its folder, which is then made again"
        ) from error
    return values


def collect_figures(out: Path) -> Figures:
    """Return what the folder of a study holds. Unfinished trainings are left out.

    Raises `UserError` if nothing is finished, or if trainings in it differ in their settings.
    """
    folders: list[RunFolder] = []
    settings: dict[str, Any] = {}
    trainings: list[Training] = []
    choices: list[Choices] = []
    for folder in run_folders(out):
        if (result := folder.training_result) is None:
            continue
        facts = folder.facts
        settings = settings or facts["settings"]
        folders.append(folder)
        if facts["settings"] != settings:
            raise UserError(
                f"{folders[0].path} and {folder.path} have different settings; move one of them away"
            )
        error = result["validation"]["policy"]["normalized"] if "validation" in result else None
        trainings.append(
            Training(
                **{name: facts[name] for name in FACTS if name != "settings"},
                minutes=round(result["elapsed_s"] / 60, 2),
                cpu_minutes=round(facts.get("cpu_s", 0) / 60, 3),
                validation_error=None if error is None else round(error, 4),
            )
        )
        for path in sorted(folder.evaluations.glob(f"*/*/{RESULT_FILE}")):
            choices += _choices(facts["variant"], facts["seed"], load_evaluation(path))
    if not folders:
        raise UserError(
            f"{out} holds no finished training; name demonstrations to learn from with --data"
        )
    # Data and checkpoint say nothing on another machine.
    shared = {name: value for name, value in settings.items() if name not in ("data", "init")}
    return Figures(shared, trainings, choices)


def _choices(variant: str, seed: int, evaluation: Evaluation) -> Iterator[Choices]:
    condition = evaluation.condition
    for result in evaluation.tasks.values():
        made = [outcome.choice for outcome in result.outcomes]
        right = "".join(str(int(choice is not None and choice.is_right)) for choice in made)
        if condition.gap is None:
            right = "".join(str(int(outcome.success)) for outcome in result.outcomes)
        donors = result.donor_choices
        yield Choices(
            variant,
            seed,
            result.task,
            condition.gap or 0,
            condition.probe,
            evaluation.first_seed,
            result.episodes,
            right.count("1"),
            donors.count if donors else None,
            result.successes,
            right if condition.probe == LIVE else None,
        )


class StudyRunner:
    """Makes what is missing of a study: a training, or the evaluation of one task and condition.

    What a training begins with and how it is done, a subclass says.
    """

    def __init__(
        self,
        options: Any,
        settings: Mapping[str, Any],
        tasks: Sequence[str],
        conditions: Sequence[Condition],
    ) -> None:
        """options: of the command, with `variants`. settings: what all trainings must have in common."""
        self._options, self.settings = options, settings
        self._tasks, self._conditions = tasks, conditions

    def make_all(self) -> int:
        """Make what is missing; return the exit code, which is that of a signal if one came.

        A folder in which another process works is left out.
        """
        wanted = product(self._options.seeds, self._options.variants)
        return next(filter(None, (self.make(variant, seed) for seed, variant in wanted)), 0)

    def make(self, variant: Any, seed: int) -> int:
        """Make what is missing of one training; see `make_all`."""
        options, label = self._options, f"{variant.label}, seed {seed}"
        name = re.sub(r"[^A-Za-z0-9@=._-]+", "_", variant.label)
        folder = RunFolder(options.out / name / f"seed_{seed}")
        with folder.claimed() as mine:
            if not mine:
                print_progress(f"{label}: another process works on it")
                return 0
            self._prepare(folder, variant, seed)
            if folder.training_result is None:
                facts, begun = folder.facts, time.process_time()
                print_progress(f"{label}: training")
                wanted = self._train_options(folder, variant, seed)
                code = train(wanted, self._features(variant))
                spent = time.process_time() - begun
                write_json(folder.facts_file, {**facts, "cpu_s": facts.get("cpu_s", 0) + spent})
                if code:
                    return code
            given = {**vars(options), "label": label}
            given = {name: given[name] for name in ("episodes", "env", "workers", "label")}
            for task, condition in product(self._tasks, self._conditions):
                place = folder.evaluations / task / condition.folder
                folder.evaluation(place, task, condition, **given)
        return 0

    def _prepare(self, folder: RunFolder, variant: Variant, seed: int) -> None:
        """Write the facts; check them if a training has begun with them."""
        core, sight = self._core(variant), variant.sight
        if not folder.can_resume:
            made = {"variant": variant.label, "seed": seed, "core": core_to_dict(core)}
            made |= {"settings": self.settings, "sight_tokens": sight}
            write_json(folder.facts_file, made | self._begin(folder, variant, seed))
            return
        facts = folder.facts
        advice = "give the same options as before, another --out, or delete that folder"
        if (core_from_dict(facts["core"]), facts["sight_tokens"]) != (core, sight):
            raise UserError(f"{folder.path} holds a core of other sizes or options; {advice}")
        for name, value in self.settings.items():
            if facts["settings"].get(name) != value:
                raise UserError(
                    f"--{name.replace('_', '-')} is {value}, but {folder.path} was made with "
                    f"{facts['settings'].get(name)}; {advice}"
                )

    def _core(self, variant: Variant) -> CoreConfig:
        raise NotImplementedError

    def _features(self, variant: Variant) -> FeatureCache | None:
        """Return where trainings of a variant share the features of frozen vision; None if they do not."""
        raise NotImplementedError

    def _begin(self, folder: RunFolder, variant: Variant, seed: int) -> dict[str, Any]:
        """Make what the training begins with; return the last four of `FACTS`."""
        raise NotImplementedError

    def _train_options(self, folder: RunFolder, variant: Variant, seed: int) -> TrainOptions:
        wanted: TrainOptions = self._options.train_options(folder, variant, seed)
        return wanted


def run_in_pieces(options: Any, runner: Callable[[Any], StudyRunner], kind: type[Report]) -> int:
    """Make what is missing, print and write the report, and return the exit code."""
    if options.figures is not None:
        figures = read_figures(options.figures)
    else:
        if options.data and (code := runner(options).make_all()):
            return code
        if options.data and not any(each.training_result for each in run_folders(options.out)):
            print_progress("no training is finished yet; the same command goes on")
            return 0
        figures = collect_figures(options.out)
        write_atomically(options.out / "figures.json", figures.to_json())
    report = kind(figures)
    print_results(report.heading(), *report.tables(), report.notes)
    if options.plot is not None:
        if not report.gaps:
            raise UserError("there is no evaluation to plot yet; leave --plot out")
        write_given(options.plot, report.draw(), "--plot")
    return 0


VARIANT = arg(
    metavar="CORE",
    help="What to compare: ours (ttm with options of our own) or a name of those that ttm train offers, "
    "each with FIELD=VALUE in the same quotes if need be, such as 'lstm num_layers=2'.",
)
PROBE = arg(
    help="What is done to the memory in evaluations; live is always among them: "
    + "; ".join(f"{name}: {text}" for name, text in PROBE_DESCRIPTIONS.items())
    + "."
)


@dataclass(frozen=True)
class StudySuiteCommand:
    """Train policies that differ in their core alone on a robot's memory tasks, and compare their choices.

    Each core and seed is trained as `ttm train --init VISION --freeze-vision --window episode` does,
    with the same demonstrations, steps and losses, and as many parameters within 2 %, and evaluated
    as `ttm evaluate --gap --probe` does. Each has a folder of its own in OUT. What is there is not
    made again, and Ctrl-C loses no training: the same command goes on exactly where it stopped.
    Several of these commands may share one OUT.

    OUT also receives figures.json, of all that is there. Without --data nothing is trained, and the
    command reports what OUT holds.

    Example: ttm study suite --data demos/memory --init shipped --core ours lstm --steps 2000
    """

    data: tuple[str, ...] = ()
    """Demonstrations of the tasks: HDF5 files, folders of them, or globs in quotes."""
    init: Path = Path("shipped")
    """The checkpoint whose vision and normalisation all policies begin with. Vision stays frozen; all
    else is new."""
    core: Annotated[tuple[str, ...], VARIANT] = VARIANTS
    seeds: tuple[int, ...] = (0, 1, 2)
    """One training for each seed, which seeds first weights and batches."""
    steps: int = 2000
    """Training steps of every core."""
    minutes: float | None = None
    """In place of --steps: equal CPU time. What a step of each core costs is measured once, in turns, and
    each gets the steps that fit into so many minutes of the CPU, beside its memory's lesson."""
    batch_size: int = 16
    """Windows in a batch."""
    learning_rate: float | None = None
    """Peak learning rate. Default: that of ttm train --init."""
    recall_weight: float = 2.0
    """Weight of the recall loss, as in ttm train."""
    weigh_starts: float = LossConfig.weigh_starts
    """Weight of the first ticks after a stand-still, as in ttm train."""
    previous_action_dropout: float = InputDropoutConfig.previous_action_dropout
    """Portion of windows without previous actions, as in ttm train."""
    task: tuple[str, ...] = ("memory",)
    """Memory tasks to evaluate, or groups of them."""
    env: Suppress[str] = KITCHEN
    """Gymnasium ID of the environment, as in ttm evaluate."""
    gap: tuple[int, ...] = (15, 45)
    """Ticks for which the tasks hide their cue in evaluations."""
    probe: Annotated[tuple[ProbeName, ...], PROBE] = (LIVE, "swap", "erase")
    cue: CueName = "hidden"
    """Hide the cue in evaluations, or leave it on as a control; then give demonstrations and an OUT of that
    kind as well."""
    episodes: int = 100
    """Initial states for each task, gap and probe."""
    workers: int = 1
    """CPU cores: threads of a training, and processes that share the episodes of an evaluation."""
    out: Path = Path("runs/suite")
    """Folder of trainings, evaluations and report."""
    figures: Path | None = None
    """Make nothing, and report this file, the figures.json of a study."""
    plot: Path | None = None
    """Also draw the choices over the gap to this file, an SVG."""

    @property
    def variants(self) -> list[Variant]:
        """What to compare, each once. Raises `UserError` if there is no such core."""
        return list(dict.fromkeys(parse_variant(text) for text in self.core))

    def train_options(
        self, folder: RunFolder, seed: int, sight: int = 0, steps: int | None = None
    ) -> TrainOptions:
        """Return the options of `ttm train` for one training. steps: None for --steps."""
        return TrainOptions(
            data=self.data,
            out=folder.training,
            init=folder.start.resolve(),  # so that another spelling of --out can resume
            steps=steps or self.steps,
            resume=folder.can_resume,
            window="episode",
            batch_size=self.batch_size,
            vision=FrozenVisionConfig(freeze_vision=True),
            optimization=OptimizationConfig(learning_rate=self.learning_rate),
            input_dropout=InputDropoutConfig(self.previous_action_dropout),
            loss=LossConfig(weigh_starts=self.weigh_starts, recall_weight=self.recall_weight),
            validations=4,  # the policy after the last step counts
            seed=seed,
            device="cpu",
            threads=self.workers,
        )

    def check(self) -> None:
        """Raise `UserError` if a value is out of range."""
        require_some(options(self, "seeds", "gap", "task", "core"))
        require_at_least(1, options(self, "steps", "batch_size", "episodes", "workers"))
        require_at_least(0, {"--seeds": min(self.seeds)})
        require_above_0({} if self.minutes is None else options(self, "minutes"))
        _ = self.variants  # raises for a core that there is not
        self.train_options(RunFolder(self.out), seed=0).check()
        require_svg(self.plot)

    def run(self) -> int:
        """Make what is missing, print and write the report, and return the exit code."""
        self.check()
        return run_in_pieces(self, SuiteRunner, Report)


class SuiteRunner(StudyRunner):
    """Makes what is missing of the study.

    The features of frozen vision are computed once for all trainings of a process.
    """

    def __init__(self, options: StudySuiteCommand) -> None:
        """Raise `UserError` if cores, checkpoint or tasks are wrong, before anything is made."""
        init = checkpoint_path(options.init)
        self._seen = load_checkpoint(init)[0]
        training = options.train_options(RunFolder(options.out), seed=0)
        # What trainings must have in common to be compared.
        settings = {
            "data": list(options.data),
            "init": hashlib.sha256(init.read_bytes()).hexdigest(),
            "steps": None if options.minutes else options.steps,
            "minutes": options.minutes,
            "batch_size": options.batch_size,
            **asdict(training.loss),
            **asdict(training.optimization),
            **asdict(training.input_dropout),
            "env": options.env,
            "cue": options.cue,
        }
        ours = parse_variant(OURS)
        self.cores = suite_cores(ours, [parse_variant(REFERENCE), *options.variants], self._seen)
        self._sources = source_cores(ours, self._seen)
        tasks = inspect_env(options.env).choose(options.task)
        require_memory_tasks(options.env, tasks, "ttm study suite")
        found = conditions_of(options.gap, (LIVE, *options.probe), options.cue, NOISE)
        super().__init__(options, settings, tasks, found)
        self._cache = FeatureCache(self._seen, self._seen.spec.cameras)
        self._cost: dict[str, Cost] = {}

    def make_all(self) -> int:
        """Make what is missing, as many steps as --minutes allow; return the exit code."""
        self._cost = {} if self._options.minutes is None else self._costs()
        return super().make_all()

    def _core(self, variant: Variant) -> CoreConfig:
        return self.cores[variant.label]

    def _features(self, variant: Variant) -> FeatureCache:
        return self._cache

    def _train_options(self, folder: RunFolder, variant: Variant, seed: int) -> TrainOptions:
        wanted = folder, seed, variant.sight, folder.facts["steps"]
        return cast(StudySuiteCommand, self._options).train_options(*wanted)

    def _costs(self) -> dict[str, Cost]:
        """Return what each variant costs, as OUT/costs.json says. What it lacks is measured.

        A later measurement is scaled to the step of the LSTM in the first one.
        """
        options, path = self._options, self._options.out / COSTS
        with FileLock(make_folder(options.out) / ".costs.lock"), cpu_threads(options.workers):
            known = _read(path, ()) if path.exists() else {}
            found = {name: Cost(**values) for name, values in known.items()}
            lacking = [each for each in options.variants if each.label not in found]
            if lacking:
                print_progress("measuring what a training step costs")
                measured = measured_costs(self._trainers(lacking), ROUNDS)
                own = measured[REFERENCE].step_s
                scale = found[REFERENCE].step_s / own if found else 1.0
                for name, cost in measured.items():
                    scaled = Cost(scale * cost.step_s, scale * cost.memory_s, cost.of_lstm)
                    found.setdefault(name, scaled)
                write_json(path, {name: asdict(cost) for name, cost in found.items()})
        return found

    def _trainers(self, variants: Sequence[Variant]) -> dict[str, Trainer]:
        """Return a trainer of each variant and of the LSTM; they write no files."""
        trainers, quiet = {}, Console(quiet=True)
        with tempfile.TemporaryDirectory() as name:
            folder = RunFolder(Path(name))
            for variant in dict.fromkeys([parse_variant(REFERENCE), *variants]):
                policy = first_policy(
                    self._seen, self.cores[variant.label], self._sources, 0, variant.sight
                )
                save_checkpoint(folder.start, policy, {})
                wanted = replace(self._options.train_options(folder, 0), dry_run=True)
                trainers[variant.label] = assembled(wanted, quiet, self._cache)
        return trainers

    def _lesson(self, seed: int, sight: int) -> SightMemory | None:
        """Return a memory of another training of the seed, which learned to keep what one would here, too."""
        known = (each for each in run_folders(self._options.out) if each.checkpoint.exists())
        like = {"seed": seed, "sight_tokens": sight, "settings": self.settings}.items()
        found = [each.checkpoint for each in known if like <= each.facts.items()]
        return load_checkpoint(found[0])[0].sight if found else None

    def _begin(self, folder: RunFolder, variant: Variant, seed: int) -> dict[str, Any]:
        """Write first weights; return the facts."""
        steps, cost = self._options.steps, self._cost.get(variant.label)
        if cost is not None:
            steps = cost.steps(self._options.minutes or 0)
        config = self._core(variant)
        policy = first_policy(self._seen, config, self._sources, seed, variant.sight)
        if policy.sight is not None and (known := self._lesson(seed, variant.sight)) is not None:
            policy.sight.take_lesson(known)
        save_checkpoint(folder.start, policy, {"seed": seed, "core": variant.label})
        return {
            "parameters": variant.num_parameters(config, self._seen),
            "all_parameters": sum(parameter.numel() for parameter in policy.parameters()),
            "steps": steps,
            "cost": None if cost is None else asdict(cost),
        }
