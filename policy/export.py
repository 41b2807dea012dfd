"""`ttm export`: a policy as files that need no Python, with its memory as inputs and outputs.

One tick of `PolicyRunner` becomes one ONNX graph. Vision, normalisation, limits, the execution of chunks, and
the commands of binary parts are part of it. The graph takes what a snapshot of the runner holds, under
the same names, and returns the next value of NAME as NAME_out; the previous action is the output `action`.

The folder has the layout of LEAPP (NVIDIA's Lightweight Export Annotations for Policy Pipelines, 1.3):
policy.onnx, the state at the start of an episode in safetensors, and a YAML that says which output
becomes which input of the next tick. That YAML also holds the `PolicySpec`.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from hashlib import md5, sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.numpy import save
from torch import Tensor, nn

from ttm.policy.actor import STATE
from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.cores.core import CoreState
from ttm.policy.engines import TickLayout
from ttm.policy.errors import UserError, printable, require_at_least
from ttm.policy.execution import NEWEST, PLAN, RecedingHorizon, TemporalEnsemble
from ttm.policy.files import write_atomically
from ttm.policy.inputs import PolicyInputs
from ttm.policy.policy import Policy
from ttm.policy.runner import PolicyRunner
from ttm.policy.spec import Array, checkpoint_path, random_observation

SEEN, NEXT = "observation.", "_out"
"""What stands before the names of cameras and proprioception, and after those of a new state."""
PREVIOUS, LANGUAGE, TICK, DELAY = "previous_action", "language", "tick", "delay_s"
NODE = "policy"
"""The name of the graph, as LEAPP counts them, and of its files."""
MODEL, INITIAL = f"{NODE}.onnx", "initial.safetensors"
NEEDED = ("onnx", "onnxscript", "onnxruntime")
OPSET = 20
LARGEST_DIFFERENCE = 1e-4
"""Between the graph and the runner, relative to values above 1."""
LEAPP_FORMAT = "1.3"


@dataclass(frozen=True)
class ExportCommand:
    """Write a policy as files that need no Python: ONNX, its memory as inputs and outputs.

    The folder also gets the state at the start of an episode, the embeddings of the known instructions,
    the contract in YAML (LEAPP's layout), and run_policy.py, which runs it with NumPy and ONNX Runtime.

    For example:
      ttm export --checkpoint runs/mine/best.safetensors --out exported
      python exported/run_policy.py exported "open the top drawer"
    """

    checkpoint: Path
    """A .safetensors file of `ttm train`, or shipped."""
    out: Path
    """Folder for the files."""
    execution: str = NEWEST
    """Which predicted actions are carried out; see `ttm evaluate --execution`."""
    ticks: int = 100
    """Ticks over which the files are compared with the runner before they are written."""

    def run(self) -> int:
        """Write the files, and print how exact they are."""
        policy, _ = load_checkpoint(checkpoint_path(self.checkpoint))
        difference = export_policy(policy, self.out, execution=self.execution, ticks=self.ticks)
        print(
            f"{self.out}: differs from the runner by at most {difference:.1g} in {self.ticks} ticks"
        )
        print(f"try it: python {self.out}/run_policy.py {self.out}")
        return 0


def export_policy(policy: Policy, out: Path, *, execution: str = NEWEST, ticks: int = 100) -> float:
    """Write a policy, which is on the CPU, to the folder `out`; see `ExportCommand`.

    Returns the greatest difference between files and runner, as `difference`. Raises `UserError` if a
    package is missing, ONNX cannot express the policy, or the difference is above `LARGEST_DIFFERENCE`.
    """
    require_at_least(1, {"--ticks": ticks})
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        install = 'run: pip install "ttm-policy-stack[export]"'
        raise UserError(f"ttm export needs {', '.join(missing)}; {install}")
    runner = PolicyRunner(policy, engine="torch", execution=execution)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(ExportedTick(runner), folder)
        found = difference(runner, folder, ticks)
        if not found <= LARGEST_DIFFERENCE:
            raise UserError(
                f"ONNX Runtime differs from PyTorch by {found:.2g} within {ticks} ticks, more than "
                f"{LARGEST_DIFFERENCE:g}; drive the robot by ttm robot"
            )
        for file in folder.iterdir():
            write_atomically(out / file.name, file.read_bytes())
    return found


class ExportedTick(nn.Module):
    """`PolicyRunner.step` as a function of named tensors, without axes for batch and time."""

    binary: Tensor
    thresholds: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, runner: PolicyRunner) -> None:
        super().__init__()
        self.policy, self.spec, self.execution = runner.policy, runner.spec, runner.execution
        low, high = self.spec.action_limits
        arrays = {"binary": self.spec.binary_mask, "thresholds": self.spec.thresholds}
        for name, values in {**arrays, "low": low, "high": high}.items():
            self.register_buffer(name, torch.from_numpy(values), persistent=False)
        language = np.zeros(self.policy.config.embedding_size, np.float32)
        runner.reset("", embedding=language)
        self.initial = kept_of(runner)
        """What the graph keeps from tick to tick, as it is at the start of an episode."""
        seen = random_observation(self.spec, np.random.default_rng(0))
        self.example: dict[str, Array] = {
            **{SEEN + name: seen[name] for name in self.spec.observation_names},
            **{name: self.initial[name] for name in (PREVIOUS, TICK)},
            LANGUAGE: language,
            **({} if self.policy.delay_code is None else {DELAY: np.zeros((), np.float32)}),
            **{name: x for name, x in self.initial.items() if name.startswith((STATE, PLAN))},
        }
        """All inputs of the graph, by name, in the order of a `TickLayout` with the plan behind it."""
        self.layout = TickLayout.of(self.policy, self.policy.initial_state(1))

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs, in their order."""
        return ["action", "probabilities", *(n + NEXT for n in self.initial if n != PREVIOUS)]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self.example, tensors, strict=True))
        inputs, state = self._unflatten(given)
        raw, state = self.policy.step(inputs, state)
        chunk = self.policy.decode_chunk(raw, inputs.proprioception)[0, 0]  # (K, P)
        plan = {n.removeprefix(PLAN): x for n, x in given.items() if n.startswith(PLAN)}
        planned, plan = self._carried_out(chunk, plan)
        decoded = self._command(planned, inputs)
        chosen = torch.where(decoded >= self.thresholds, self.high, self.low)
        values = torch.where(self.binary, chosen, decoded)
        portion = (decoded - self.low) / (self.high - self.low)
        probabilities = torch.where(self.binary, portion, decoded)
        # Clip of ONNX Runtime may turn NaN, which must not become a command, into a limit.
        failed = raw.isnan().any() | ~chunk.isfinite().all()
        new = {STATE + name: value[0] for name, value in state.items()}
        new |= {TICK: given[TICK] + 1, **{PLAN + name: value for name, value in plan.items()}}
        kept = (new[name] for name in self.initial if name != PREVIOUS)
        return torch.where(failed, torch.nan, values), probabilities, *kept

    def _unflatten(self, given: dict[str, Tensor]) -> tuple[PolicyInputs, CoreState]:
        """Return the arguments of `Policy.step`."""
        without_time = (LANGUAGE, STATE)
        batch = {
            n: x[None] if n.startswith(without_time) else x[None, None] for n, x in given.items()
        }
        batch[TICK] = batch[TICK] > 0  # whether there was an action before
        if DELAY in batch:
            batch[DELAY] = batch[DELAY].clamp(0.0, self.policy.config.longest_delay_s)
        return self.layout.unflatten([x for n, x in batch.items() if not n.startswith(PLAN)])

    def _carried_out(
        self, chunk: Tensor, plan: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what `Execution.next` does."""
        if not plan:
            return chunk[0], plan
        if isinstance(self.execution, RecedingHorizon):
            size = len(plan["actions"])
            fresh = plan["left"] == 0
            actions = torch.where(fresh, chunk[:size], plan["actions"])
            left = torch.where(fresh, size, plan["left"])
            return actions[size - left], {"actions": actions, "left": left - 1}
        assert isinstance(self.execution, TemporalEnsemble)
        last = torch.arange(len(chunk) - 1, -1, -1)
        shares = torch.from_numpy(self.execution.shares)
        share = shares[torch.minimum(plan["chunks"], last)].unsqueeze(1)
        means = (1 - share) * plan["means"] + share * chunk
        chunks = (plan["chunks"] + 1).clamp(max=len(chunk))
        return means[0], {"means": means.roll(-1, 0), "chunks": chunks}

    def _command(self, planned: Tensor, inputs: PolicyInputs) -> Tensor:
        plan, measured = planned[None, None], inputs.proprioception
        first, later = (
            self.policy.command(plan, measured, previous)[0, 0]
            for previous in (None, inputs.previous_action)
        )
        return torch.where(inputs.previous_action_valid[0], later, first)


def kept_of(runner: PolicyRunner) -> dict[str, Array]:
    """Return what the next tick depends on beside weights, observation and instruction, by name."""
    kept = (TICK, PREVIOUS, STATE, PLAN)
    return {name: value for name, value in runner.snapshot().items() if name.startswith(kept)}


def difference(runner: PolicyRunner, folder: Path, ticks: int, seed: int = 0) -> float:
    """Return the greatest difference between runner and files over an episode of random observations.

    Both keep their own memory, and see as the previous action what the runner commands. Compared are
    continuous values and probabilities, and all that is kept. Differences are divided by values above 1.
    """
    # Imported here since ONNX Runtime is an extra. So the check runs what users run.
    from ttm.policy.exported import ExportedPolicy

    rng, spec, config = np.random.default_rng(seed), runner.spec, runner.policy.config
    language = rng.normal(size=config.embedding_size).astype(np.float32)
    language /= np.linalg.norm(language)
    delays = {DELAY: config.longest_delay_s / 2} if config.longest_delay_s else {}
    exported, found = ExportedPolicy(folder), list[float]()
    runner.reset("", embedding=language)
    exported.reset(language)
    for _ in range(ticks):
        observation = random_observation(spec, rng)
        action = runner.step(observation, **delays)
        values = exported.step(observation, **delays)
        made = {**exported.state, "probabilities": exported.results["probabilities"]}
        wanted = {**kept_of(runner), "probabilities": action.probabilities}
        # A probability beside the threshold may fall on either side of it.
        near = spec.binary_mask & (abs(action.probabilities - spec.thresholds) < LARGEST_DIFFERENCE)
        made[PREVIOUS] = np.where(near, action.values, values)
        exported.state[PREVIOUS] = action.values
        for name, value in wanted.items():
            error = abs(made[name] - value) / np.maximum(1, abs(value))
            found.append(float(np.max(error, initial=0)))
    return float(np.max(found))  # NaN if one is


def _write(tick: ExportedTick, folder: Path) -> None:
    """Write all files. Raises `UserError` if ONNX cannot express the policy."""
    _write_graph(tick, folder / MODEL)
    (folder / INITIAL).write_bytes(save({f"{NODE}/{n}": x for n, x in tick.initial.items()}))
    known = {text: np.array(value) for text, value in tick.policy.known_instructions.items()}
    (folder / "instructions.safetensors").write_bytes(save(known))
    contract = yaml.safe_dump(
        _contract(tick, folder / MODEL), sort_keys=False, default_flow_style=None, width=100
    )
    (folder / f"{NODE}.yaml").write_text(contract, encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name("exported.py"), folder / "run_policy.py")


def _write_graph(tick: ExportedTick, path: Path) -> None:
    example = tuple(torch.from_numpy(np.array(value)) for value in tick.example.values())
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it names each package that it could use
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of PyTorch's own use of what it replaces
            torch.onnx.export(
                tick.eval(),
                example,
                path,
                input_names=list(tick.example),
                output_names=tick.outputs,
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except (torch.onnx.OnnxExporterError, RuntimeError) as error:
        cause: BaseException = error  # the exporter's own errors are advice to programmers
        while cause.__cause__ is not None:
            cause = cause.__cause__
        why = printable(str(cause).strip().split("\n")[0], 200)
        raise UserError(
            f"ONNX cannot express this policy ({why}); drive the robot by ttm robot"
        ) from error
    finally:
        log.setLevel(level)


def _contract(tick: ExportedTick, model: Path) -> dict[str, Any]:
    """Return what the YAML says: LEAPP's tables, and under `contract` what ours holds."""
    data, config = model.read_bytes(), tick.policy.config
    with torch.no_grad():
        made = tick(*(torch.from_numpy(np.array(value)) for value in tick.example.values()))
    outputs = dict(zip(tick.outputs, (value.numpy() for value in made), strict=True))
    feedback = {f"{NODE}/{n}{NEXT}": [f"{NODE}/{n}"] for n in tick.initial if n != PREVIOUS}
    return {
        "models": {
            NODE: {
                "inputs": [_described(name, value) for name, value in tick.example.items()],
                "outputs": [_described(name, value) for name, value in outputs.items()],
                "parameters": {
                    "model_path": model.name,
                    "md5sum": md5(data).hexdigest(),
                    "sha256sum": sha256(data).hexdigest(),
                    "backend": "onnx",
                    "opset_version": OPSET,
                },
            }
        },
        "pipeline": {
            "data_flow": {},
            "feedback_flow": {f"{NODE}/action": [f"{NODE}/{PREVIOUS}"], **feedback},
            "initial_values": INITIAL,
            "inputs": {NODE: [name for name in tick.example if name not in tick.initial]},
            "outputs": {NODE: ["action", "probabilities"]},
        },
        "system information": {
            "leapp config version": LEAPP_FORMAT,
            "torch version": str(torch.__version__),
        },
        "contract": {
            **json.loads(tick.spec.to_json()),
            "execution": tick.execution.name,
            "longest_delay_s": config.longest_delay_s,
            "language_model": config.language_model,
        },
    }


def _described(name: str, value: Array) -> dict[str, Any]:
    return {"name": name, "dtype": str(value.dtype), "shape": list(value.shape), "type": "tensor"}
