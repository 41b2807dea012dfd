"""`ttm study peers`: our tiny network beside LeRobot's ACT and diffusion policy, and robomimic's BC-RNN-GMM.

Each policy learns one task alone, from the same demonstrations, by its own project's trainer: a process of
one thread, whose CPU time from start to end the kernel counts and limits. The policy after the last step is
evaluated; a star says that the time was up before that step, and that of the last checkpoint was taken.
success, choice: in %, with Wilson's 95 % interval, which does not say how much another training would differ;
choices are the right ones in memory tasks. Differences have the 95 % interval of Agresti and Min (2005), and
p is McNemar's with Holm's correction over all rows. Pairs are the same initial state and seed.
tick ms: median and longest of 40 ticks; a policy with chunks computes at the first tick of each.
ours: the defaults of ttm train, which hold out a tenth of the demonstrations; whole episodes in memory tasks.
All begin with random weights. Peers have their projects' defaults, and the instruction as a vector of 0 and
1. What differs:
act: no ImageNet weights; chunks of 10 ticks, which are 2 s at 5 Hz, as its 100 are at 50 Hz. No memory.
diffusion: U-Net of 64, 128, 256 channels, not 512, 1024, 2048; 10 steps of DDIM, not 100 of DDPM. It sees two
ticks.
bc-rnn-gmm: sizes of robomimic's study of images (Mandlekar et al. 2021), so that it remembers 10 ticks; crops
in the same proportion; batches of 4, not 16; actions from -1 to 1.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal, NamedTuple

import numpy as np
from filelock import FileLock
from torch import nn
from tyro.conf import Suppress

from ttm.datasets.console import TitledTable
from ttm.datasets.dataset import open_dataset
from ttm.datasets.formats.recording import Recording, Source
from ttm.datasets.formats.table import FORMATS, ConvertOptions, load
from ttm.datasets.tools.convert import write_whole
from ttm.policy.actor import ActorRunner
from ttm.policy.engines import cpu_threads
from ttm.policy.errors import UserError, options, require_above_0, require_at_least, require_some
from ttm.policy.files import write_json
from ttm.policy.peers import LerobotActor, RobomimicActor
from ttm.policy.runner import PolicyRunner
from ttm.policy.spec import SHIPPED, Array, Observation, PolicySpec, ProprioceptionSpec
from ttm.sim.condition import KITCHEN, LIVE, Condition
from ttm.sim.environment import EnvFacts, inspect_env
from ttm.sim.results import RESULT_FILE, load_evaluation
from ttm.training.console import compact_table, make_folder, print_progress
from ttm.training.run_log import LAST
from ttm.training.study.common import print_results
from ttm.training.study.suite import RunFolder
from ttm.training.study.suite_report import Choices, differences_table, success_table

Name = Literal["ours", "act", "diffusion", "bc-rnn-gmm"]
NAMES: tuple[Name, ...] = ("ours", "act", "diffusion", "bc-rnn-gmm")
INSTRUCTION = "instruction"  # the vector that tells a peer which of several instructions counts
SAVES = 4  # checkpoints of a training; its pilots have as many
PILOT = 0.02  # portion of the CPU time in which a pilot measures the cost of a step
MARGIN = 0.9  # portion that is planned for, as a step may cost more than in the pilots
TICKS = 40  # of which the latency is measured


@dataclass(frozen=True)
class Lesson:
    """The demonstrations of one task in the form of each trainer, and what a peer has to know of them."""

    folder: Path
    is_memory_task: bool
    robot: PolicySpec
    instructions: tuple[str, ...]
    centre: Array
    half: Array
    """Centre and half-width of the range of the actions, (A,): robomimic's policies act from -1 to 1."""

    @property
    def told(self) -> PolicySpec:
        """The robot's spec with the instruction as its last vector, unless there is one alone."""
        vector = ProprioceptionSpec(INSTRUCTION, self.instructions)
        more = (vector,) if len(self.instructions) > 1 else ()
        return replace(self.robot, proprioception=(*self.robot.proprioception, *more))

    def vector(self, instruction: str) -> Array:
        """Return 1 for the instruction and 0 for all others, (K,), as no peer reads text."""
        return np.array([each == instruction for each in self.instructions], np.float32)

    def place(self, form: str) -> Path:
        """Return where the demonstrations are in the format that is called `form`."""
        return self.folder.resolve() / f"{form}{'.hdf5' * FORMATS[form].is_file}"

    def write(self, form: str, recordings: Sequence[Recording]) -> None:
        """Write the demonstrations in a format, unless they are there."""
        ours, place = form == "ttm", self.place(form)
        spec = self.robot if ours else self.told

        def told() -> Iterator[Recording]:
            for recording in recordings:
                each = replace(recording, masks=frozenset())
                rows = np.tile(self.vector(each.instruction), (len(each.actions), 1))
                vectors = {**each.vectors, INSTRUCTION: rows}
                vectors = {vector.name: vectors[vector.name] for vector in spec.proprioception}
                actions: Array = each.actions
                if form == "robomimic":
                    actions = (actions - self.centre) / self.half
                yield each if ours else replace(each, actions=actions, vectors=vectors)

        source = Source(spec, len(recordings), told, has_own_spec=ours)
        choices = ConvertOptions(video_codec="none" if form == "lerobot" else None)
        writer = load(form, FORMATS[form].writer)
        if not place.exists():
            write_whole(place, lambda to: writer(source, to, choices), contents=(), overwrite=False)


class InstructedActor:
    """A peer that is told the instruction as a vector, and whose actions have the robot's units."""

    def __init__(self, checkpoint: Path, lesson: Lesson) -> None:
        """checkpoint: a file of robomimic, or a folder of LeRobot."""
        self._checkpoint, self._lesson = checkpoint, lesson
        self._is_scaled = checkpoint.is_file()

    @cached_property
    def peer(self) -> Any:
        """The `LerobotActor` or `RobomimicActor`, loaded when it is first needed."""
        kind = RobomimicActor if self._is_scaled else LerobotActor
        return kind(str(self._checkpoint), self._lesson.told)

    def reset(self, instruction: str) -> None:
        """Begin an episode."""
        self.peer.reset(instruction)
        self._vector = self._lesson.vector(instruction)

    def act(self, observation: Observation) -> Array:
        """Return the action, (A,)."""
        action: Array = self.peer.act({**observation, INSTRUCTION: self._vector})
        return self._lesson.centre + action * self._lesson.half if self._is_scaled else action


Command = Callable[[Lesson, Path, int, int], list[str]]
"""Returns Python's arguments that train in a folder for so many steps with a seed, saving `SAVES` times."""


def ours(lesson: Lesson, out: Path, steps: int, seed: int) -> list[str]:
    """Return how `ttm train` is called."""
    what = ["--data", str(lesson.place("ttm")), "--out", str(out)]
    sizes = f"--steps {steps} --seed {seed} --validations {SAVES} --device cpu --threads 1"
    more = " --window episode" * lesson.is_memory_task
    return ["-m", "ttm.training.cli", "train", *what, *(sizes + more).split()]


def lerobot(kind: str, **changes: Any) -> Command:
    """Return how `lerobot-train` is called. changes: of the policy's configuration, from its defaults."""

    def command(lesson: Lesson, out: Path, steps: int, seed: int) -> list[str]:
        values = {
            "dataset": {"repo_id": "local/demos", "root": str(lesson.place("lerobot"))},
            "policy": {"type": kind, "device": "cpu", "push_to_hub": False, **changes},
            "output_dir": str(out), "steps": steps, "save_freq": steps // SAVES, "seed": seed,
            "eval_freq": 0, "num_workers": 0,
        }  # fmt: skip
        write_json(out.with_suffix(".json"), values)
        return ["-m", "lerobot.scripts.lerobot_train", f"--config_path={out.with_suffix('.json')}"]

    return command


ONE_THREAD = """import runpy, torch
torch.set_num_threads = print
runpy.run_module("robomimic.scripts.train", run_name="__main__", alter_sys=True)"""
"""Runs robomimic's trainer, which asks for two threads of its own accord, on one."""


def robomimic(lesson: Lesson, out: Path, steps: int, seed: int) -> list[str]:
    """Return how robomimic's trainer is called."""
    crop, spec = round(76 / 84 * min(each.height for each in lesson.robot.cameras)), lesson.told
    crops = {"crop_height": crop, "crop_width": crop, "num_crops": 1, "pos_enc": False}
    names = {
        "low_dim": [v.name for v in spec.proprioception],
        "rgb": [c.name for c in spec.cameras],
    }
    values = {
        "algo_name": "bc",
        "experiment": {"name": "bc", "validate": False, "epoch_every_n_steps": steps // SAVES,
                       "rollout": {"enabled": False}, "save": {"every_n_epochs": 1}},
        "train": {"data": str(lesson.place("robomimic")), "output_dir": str(out), "seq_length": 10,
                  "batch_size": 4, "num_epochs": SAVES, "cuda": False, "seed": seed},
        "algo": {"actor_layer_dims": [], "gmm": {"enabled": True},
                 "rnn": {"enabled": True, "horizon": 10, "hidden_dim": 1000}},
        "observation": {"modalities": {"obs": names}, "encoder": {
            "rgb": {"obs_randomizer_class": "CropRandomizer", "obs_randomizer_kwargs": crops}}},
    }  # fmt: skip
    write_json(out.with_suffix(".json"), values)
    return ["-c", ONE_THREAD, "--config", str(out.with_suffix(".json"))]


class Learner(NamedTuple):
    """A row of the table."""

    form: str  # of the demonstrations: "ttm" for ours, else also the name of the package
    checkpoints: str  # a pattern, in the folder of the training
    command: Command

    def checkpoint(self, out: Path) -> Path | None:
        """Return the newest checkpoint of a training."""
        found = out.glob(self.checkpoints)
        return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


NEWEST = "checkpoints/last/pretrained_model"
DDIM = {"noise_scheduler_type": "DDIM", "num_inference_steps": 10}
CHUNKS = {"chunk_size": 10, "n_action_steps": 10}
ACT = lerobot("act", pretrained_backbone_weights=None, **CHUNKS)
LEARNERS: dict[str, Learner] = {
    "ours": Learner("ttm", LAST, ours),
    "act": Learner("lerobot", NEWEST, ACT),
    "diffusion": Learner("lerobot", NEWEST, lerobot("diffusion", down_dims=(64, 128, 256), **DDIM)),
    "bc-rnn-gmm": Learner("robomimic", "bc/*/models/*.pth", robomimic),
}


@dataclass(frozen=True)
class Row:
    """One training, as run.json has it when it is finished."""

    policy: str
    task: str
    seed: int
    steps: int = 0
    step_s: float = 0.0  # CPU seconds of a step; by the pilots if it ended early
    cpu_s: float = 0.0  # of the training
    ended_early: bool = False
    parameters: int = 0
    tick_ms: float = 0.0
    longest_tick_ms: float = 0.0


@dataclass(frozen=True)
class StudyPeersCommand:
    """Train our tiny network and policies of LeRobot and robomimic in equal CPU time, and compare them.

    Each learns each task alone, by its project's own trainer (pip install lerobot robomimic), and is
    evaluated on the same initial states. What OUT holds is not made again, so that the same command goes on
    where it was stopped; a training that was cut begins anew. Several commands may share one OUT. Use an idle
    machine.

    Example: ttm study peers --data demos/pick demos/open_drawer --task pick open_drawer
    """

    data: tuple[str, ...]
    """Demonstrations of all tasks: HDF5 files, folders of them, or globs in quotes."""
    task: tuple[str, ...] = ("pick", "open_drawer", "side_shown", "colour_shown")
    """Tasks to learn, or groups of them."""
    policy: tuple[Name, ...] = NAMES
    """What to compare."""
    demonstrations: int = 100
    """Demonstrations of each task, the first ones in the data."""
    minutes: float = 30.0
    """Minutes of the CPU for each training."""
    seeds: tuple[int, ...] = (0,)
    """One training for each seed."""
    episodes: int = 100
    """Initial states for each task."""
    env: Suppress[str] = KITCHEN
    """Gymnasium ID of the environment, as in ttm evaluate."""
    out: Path = Path("runs/peers")
    """Folder of demonstrations, trainings, evaluations and figures.json."""

    def run(self) -> int:
        """Make what is missing, print and write the tables, and return the exit code."""
        require_some(options(self, "data", "task", "policy", "seeds"))
        require_at_least(1, options(self, "demonstrations", "episodes"))
        require_above_0(options(self, "minutes"))
        for package in {LEARNERS[name].form for name in self.policy} - {"ttm"}:
            if find_spec(package) is None:
                remedy = f"run: pip install {package}, or name others with --policy"
                raise UserError(f"{package} is not installed; {remedy}")
        self._keep_terms(make_folder(self.out) / "terms.json")
        facts = inspect_env(self.env)
        with FileLock(self.out / ".lock"):
            lessons = {task: self._lesson(facts, task) for task in facts.choose(self.task)}
        for seed, task, name in product(self.seeds, lessons, self.policy):
            folder = RunFolder(self.out / task / name / f"seed_{seed}")
            with folder.claimed() as mine:
                if mine:
                    self._make(folder, Row(name, task, seed), lessons[task])
                else:
                    print_progress(f"{folder.path}: another process works on it")
        print_results(*tables(self.out), __doc__ or "")
        return 0

    def _keep_terms(self, path: Path) -> None:
        """Write what all trainings in OUT share. Raises `UserError` if it was something else before."""
        terms = {n: getattr(self, n) for n in ("demonstrations", "minutes", "env")}
        terms["data"] = list(self.data)
        for name, value in json.loads(path.read_text()).items() if path.exists() else ():
            if value != terms[name]:
                raise UserError(f"{self.out} has --{name} {value}; give that, or another --out")
        write_json(path, terms)

    def _lesson(self, facts: EnvFacts, task: str) -> Lesson:
        """Return the demonstrations of a task, and write them in every form that is needed."""
        read = load("ttm", f"{FORMATS['ttm'].reader}:read_source")
        sources = (read(Path(each), ConvertOptions()) for each in self.data)
        found = (one for source in sources for one in source.recordings() if one.task == task)
        chosen = list(islice(found, self.demonstrations))
        if len(chosen) < self.demonstrations:
            have = f"--data has {len(chosen)} demonstrations of {task}"
            raise UserError(f"{have}; lower --demonstrations, or run: ttm collect --task {task}")
        actions = np.concatenate([one.actions for one in chosen])
        low, high = actions.min(axis=0), actions.max(axis=0)
        half = np.where(high > low, (high - low) / 2, np.float32(1))
        texts = tuple(sorted({one.instruction for one in chosen}))
        is_memory_task = task in facts.task_groups.get("memory", ())
        lesson = Lesson(self.out / task, is_memory_task, facts.spec, texts, (low + high) / 2, half)
        for form in {"ttm", *(LEARNERS[name].form for name in self.policy)}:
            lesson.write(form, chosen)
        return lesson

    def _make(self, folder: RunFolder, row: Row, lesson: Lesson) -> None:
        """Train and evaluate one policy, so far as that is not done."""
        learner, is_new = LEARNERS[row.policy], not folder.facts_file.exists()
        label = f"{row.policy}, {row.task}, seed {row.seed}"
        if is_new:
            row = self._train(folder, row, lesson, label)
        checkpoint = learner.checkpoint(folder.training.resolve())
        if checkpoint is None:
            raise UserError(f"{folder.path} has no checkpoint any more; delete this folder")
        given: dict[str, Any] = {"episodes": self.episodes, "env": self.env, "label": label}
        actor = None if learner.form == "ttm" else InstructedActor(checkpoint, lesson)
        if actor:
            given |= {"policy": SHIPPED, "actor": actor}
        if is_new:
            runner: Any = ActorRunner(actor, lesson.robot) if actor else None
            runner = runner or PolicyRunner.from_checkpoint(checkpoint)
            network = actor.peer.policy if actor else runner.policy
            module = network if isinstance(network, nn.Module) else network.policy.nets
            size, ticks = sum(p.numel() for p in module.parameters()), latencies_ms(runner, lesson)
            row = replace(row, parameters=size, tick_ms=median(ticks), longest_tick_ms=max(ticks))
            write_json(folder.facts_file, asdict(row))
        folder.evaluation(folder.evaluations, row.task, Condition(), **given)

    def _train(self, folder: RunFolder, row: Row, lesson: Lesson, label: str) -> Row:
        """Measure what a step costs, train for as many as fit, and return the row so far."""
        out, budget_s, learner = folder.training.resolve(), 60 * self.minutes, LEARNERS[row.policy]

        def spent(steps: int, limit_s: float = math.inf) -> tuple[float, bool]:
            """Return the CPU time of a new training, and whether it was ended at `limit_s`."""
            shutil.rmtree(out, ignore_errors=True)
            cpu_s, code = run_limited(learner.command(lesson, out, steps, row.seed), out, limit_s)
            ended = code == -signal.SIGXCPU
            if (code and not ended) or not learner.checkpoint(out):
                raise UserError(f"{label}: the training failed; see {out.with_suffix('.log')}")
            return cpu_s, ended

        print_progress(f"{label}: measuring what a step costs")
        few, many = SAVES, 2 * SAVES
        short_s, _ = spent(few)
        while (taken_s := spent(many)[0] - short_s) < PILOT * budget_s:
            factor = min(20.0, max(2.0, 1.2 * PILOT * budget_s / max(taken_s, 0.01)))
            many = few + SAVES * math.ceil((many - few) * factor / SAVES)
        step_s = taken_s / (many - few)
        start_s = max(0.0, short_s - few * step_s)
        steps = int((MARGIN * budget_s - start_s) / step_s)
        steps -= steps % SAVES
        if steps < SAVES:
            raise UserError(f"{label}: {few} steps take {short_s:.0f} s; give more --minutes")
        print_progress(f"{label}: training for {steps} steps of {step_s:.3f} s of the CPU")
        cpu_s, ended = spent(steps, budget_s)
        kept = (learner.checkpoint(out) or out).resolve()
        for path in out.rglob("*") if learner.form != "ttm" else ():
            if path.is_file() and kept not in (path, *path.parents):
                path.unlink()  # older checkpoints and the states of optimisers
        step_s = step_s if ended else (cpu_s - start_s) / steps
        return replace(row, steps=steps, step_s=step_s, cpu_s=cpu_s, ended_early=ended)


def run_limited(arguments: Sequence[str], out: Path, limit_s: float) -> tuple[float, int]:
    """Run Python on one thread for `limit_s` seconds of the CPU at most, and no longer than this process.

    Returns the seconds it took, and its exit code. out: its folder, beside which the log is written.
    """

    def children_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    kernel = ctypes.CDLL(None)  # prctl(PR_SET_PDEATHSIG) ends a process when its parent is gone
    hub, before = out.with_name("hub"), children_s()  # hub: the cache of Hugging Face's libraries
    own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(hub)}
    with out.with_suffix(".log").open("wb") as log:
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        given |= {"env": os.environ | own, "preexec_fn": lambda: kernel.prctl(1, signal.SIGKILL)}
        process = subprocess.Popen([sys.executable, *arguments], **given)
        try:
            if math.isfinite(limit_s):
                soft = math.ceil(limit_s)  # SIGXCPU; SIGKILL for who ignores it
                resource.prlimit(process.pid, resource.RLIMIT_CPU, (soft, soft + 2))
            code = process.wait()
            return children_s() - before, code
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(hub, ignore_errors=True)


def latencies_ms(runner: Any, lesson: Lesson) -> list[float]:
    """Return what each of `TICKS` ticks takes, after as many to warm up."""
    episode, taken = open_dataset(lesson.place("ttm"))[0], []
    seen = episode.observation(0)
    with cpu_threads(1):
        runner.reset(episode.instruction)
        for _ in range(2 * TICKS):
            begun = time.perf_counter()
            runner.step(seen)
            taken.append(1000 * (time.perf_counter() - begun))
    return taken[TICKS:]


def tables(out: Path) -> list[TitledTable]:
    """Return the tables of what `out` holds, and write figures.json there."""
    rows: list[Row] = []
    found: list[Choices] = []
    for path in sorted(out.glob(f"*/*/*/evaluation/{RESULT_FILE}")):
        rows.append(row := Row(**json.loads((path.parents[1] / "run.json").read_text())))
        evaluation = load_evaluation(path)
        outcomes = evaluation.tasks[row.task].outcomes
        ended = {row.task: [each.success for each in outcomes]}
        if right := [each.choice.is_right for each in outcomes if each.choice]:
            ended[f"{row.task}, choice"] = right
        for what, each in ended.items():
            text, first = "".join(str(int(one)) for one in each), evaluation.first_seed
            counts = first, len(each), sum(each), None, sum(ended[row.task]), text
            found.append(Choices(row.policy, row.seed, what, 0, LIVE, *counts))
    lists = {"rows": [asdict(row) for row in rows], "choices": [asdict(each) for each in found]}
    write_json(out / "figures.json", lists)
    names = {name: name for name in NAMES if any(row.policy == name for row in rows)}
    columns = {each.task: (each.task,) for each in found}
    costs = ["policy", "task", "parameters", "steps", "CPU s/step", "CPU min", "tick ms"]
    cells = [(name, task) for name in names for task in dict.fromkeys(row.task for row in rows)]
    made = {each: [row for row in rows if (row.policy, row.task) == each] for each in cells}
    return [
        success_table("Success, in %", found, names, columns),
        differences_table("Paired differences, in points", found, {NAMES[0]: "", **names}, columns),
        compact_table("Costs", costs, [_costs(of) for of in made.values() if of]),
    ]


def _costs(rows: Sequence[Row]) -> list[str]:
    """Return the row of costs of one policy in one task: means over seeds, and the longest tick."""
    ticks = median(row.tick_ms for row in rows), max(row.longest_tick_ms for row in rows)
    return [
        rows[0].policy,
        rows[0].task,
        f"{max(row.parameters for row in rows):,}",
        f"{fmean(row.steps for row in rows):.0f}{'*' * any(row.ended_early for row in rows)}",
        f"{fmean(row.step_s for row in rows):.3f}",
        f"{fmean(row.cpu_s for row in rows) / 60:.1f}",
        "{:.1f}, {:.1f}".format(*ticks),
    ]
