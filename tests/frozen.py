"""Record what a restructuring must not change, or compare with what was recorded before.

    python tests/frozen.py before.json              # records, where the file is missing
    python tests/frozen.py before.json              # compares, where it is there; 1 if anything differs
    python tests/frozen.py before.json results --episodes 20

Parts: `results` (`result.json` of the shipped policy), `weights` (names and shapes of the `state_dict` of
every core and preset), `outputs` (what each core computes from seeded weights, to the bit), `losses` (20
training steps), `options` (of every command), `ros` (topics, services and parameters of running nodes).
Figures are equal to the bit on one machine, and differ between machines.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

TASKS = ("pick", "open_drawer", "colour_shown")
TTM = (sys.executable, "-m", "ttm.training.cli")


def ttm(*words: str) -> str:
    """Run a command of `ttm`; return what it prints."""
    environment = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*TTM, *words], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise SystemExit(
            f"ttm {' '.join(words)}: exit code {done.returncode}\n{done.stderr[-2000:]}"
        )
    return done.stdout


def results(episodes: int) -> dict[str, Any]:
    """Return `result.json` of the shipped policy on states 0, 1, 2, …"""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for task in TASKS:
            out = Path(folder, task)
            words = ("--episodes", str(episodes), "--videos", "0", "--out", str(out))
            ttm("evaluate", "--task", task, *words)
            found[task] = json.loads((out / "result.json").read_text())
            found[task].pop("checkpoint", None)
    return found


def _cores() -> dict[str, Any]:
    registry = import_module("ttm.policy.cores.registry")
    made = {}
    for name, entry in registry.CORES.items():
        module, _, kind = entry.config.partition(":")
        made[name] = getattr(import_module(module), kind)()
    made["none"] = replace(made["ttm"], memory=False)
    for fields in (
        {"write": "ring", "read": "attend"},
        {"write": "gated"},
        {"write": "erase_add", "initial_memory": "learned"},
        {"write": "concatenate"},
    ):
        options = " ".join(f"{name}={value}" for name, value in fields.items())
        made[f"ttm {options}"] = replace(made["ttm"], **fields)
    return made


def weights(_: int) -> dict[str, Any]:
    """Return name -> shape of the weights of every core, and of every preset with every core."""
    import torch

    from ttm.policy import PRESETS, Policy
    from ttm.sim.kitchen.spec import SPEC

    def shapes(module: Any) -> dict[str, list[int]]:
        return {name: list(value.shape) for name, value in sorted(module.state_dict().items())}

    found = {}
    with torch.device("meta"):
        for name, core in _cores().items():
            found[f"core {name}"] = shapes(core.build(64, 10))
    for preset, config in PRESETS.items():
        if preset != "base":
            found[f"preset {preset}"] = shapes(Policy(SPEC, config))
    return found


def outputs(_: int) -> dict[str, str]:
    """Return a digest of what each core computes from seeded weights in float64."""
    import torch

    found = {}
    for name, core in _cores().items():
        torch.manual_seed(0)
        built = core.build(32, 6).double().eval()
        torch.manual_seed(1)
        for weight in built.parameters():
            torch.nn.init.normal_(weight, std=0.1)
        tokens = torch.randn(2, 7, 6, 32, dtype=torch.float64)
        with torch.no_grad():
            values, _state = built(tokens)
        found[name] = hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()[:16]
    return found


def losses(_: int) -> dict[str, Any]:
    """Return the figures of 20 training steps, and a digest of the weights that they end with."""
    from safetensors import safe_open

    with tempfile.TemporaryDirectory() as folder:
        data, out = f"{folder}/data", Path(folder, "run")
        ttm("collect", "--task", "colour_shown", "--episodes", "3", "--workers", "1", "--out", data)
        ttm(
            "train",
            "--data",
            data,
            "--out",
            str(out),
            "--steps",
            "20",
            "--threads",
            "1",
            "--validations",
            "2",
        )
        digest = hashlib.sha256()
        with safe_open(out / "best.safetensors", "np") as file:
            for name in sorted(file.keys()):
                digest.update(name.encode() + file.get_tensor(name).tobytes())
        result = json.loads((out / "result.json").read_text())
    for name in ("info", "elapsed_s"):
        result.pop(name, None)
    return {"weights": digest.hexdigest()[:16], "result": result}


def options(_: int) -> dict[str, list[str]]:
    """Return command -> the names of its options."""
    cli = import_module("ttm.training.cli")
    return {
        name: sorted(set(re.findall(r"^│ (--[\w.-]+)", ttm(*name.split(), "--help"), re.M)))
        for name in sorted(cli.COMMANDS)
    }


def ros(_: int) -> dict[str, Any]:
    """Return topics, services and parameters of the nodes of `ttm robot --sim`."""
    code = """
import json, sys, time
import rclpy
rclpy.init()
node = rclpy.create_node("frozen_observer")
deadline = time.monotonic() + 60
names = set()
while time.monotonic() < deadline and not {"policy_node", "sim_node"} <= names:
    rclpy.spin_once(node, timeout_sec=0.2)
    names = set(node.get_node_names())
graph, since = None, time.monotonic()
while time.monotonic() < since + 8:  # on a busy machine nodes come up late
    rclpy.spin_once(node, timeout_sec=0.2)
    found = [node.get_topic_names_and_types(), node.get_service_names_and_types()]
    if found != graph:
        graph, since = found, time.monotonic()
mine = {"/rosout", "/parameter_events"}
print(json.dumps({"topics": sorted([n, *t] for n, t in node.get_topic_names_and_types() if n not in mine),
  "services": sorted([n, *t] for n, t in node.get_service_names_and_types() if "frozen_observer" not in n)}))
"""
    environment = {**os.environ, "ROS_DOMAIN_ID": str(150 + os.getpid() % 60)}
    words = ("robot", "--sim", "--task", "pick", "--episodes", "40")
    robot = subprocess.Popen(
        [*TTM, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        robot.send_signal(2)
        robot.wait(60)
    graph: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    parameters = import_module("ttm_policy.parameters")
    found = {}
    for name in sorted(vars(parameters)):
        kind = getattr(parameters, name)
        if (
            isinstance(kind, type)
            and hasattr(kind, "__dataclass_fields__")
            and name.endswith("Parameters")
        ):
            found[name] = {
                key: [
                    re.sub(
                        r"^Annotated\[(.+), (Parameter|_limit)\(.*|^Instruction$",
                        lambda found: found[1] or "str",
                        str(field.type),
                    ),
                    repr(field.default),
                ]
                for key, field in sorted(kind.__dataclass_fields__.items())
            }
    return {**graph, "parameters": found}


PARTS: dict[str, Callable[[int], Any]] = {
    "weights": weights,
    "outputs": outputs,
    "options": options,
    "losses": losses,
    "ros": ros,
    "results": results,
}


def differences(before: Any, after: Any, place: str = "") -> list[str]:
    """Return a line for each value that differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        lines = []
        for key in sorted({*before, *after}):
            if key not in before or key not in after:
                lines.append(f"{place}/{key}: {'new' if key not in before else 'gone'}")
            else:
                lines += differences(before[key], after[key], f"{place}/{key}")
        return lines
    if isinstance(before, list) and isinstance(after, list) and before != after:
        gone, new = [v for v in before if v not in after], [v for v in after if v not in before]
        return [f"{place}: gone {gone}, new {new}"[:600]]
    return [] if before == after else [f"{place}: {before} before, {after} now"[:600]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all of them by default")
    parser.add_argument("--episodes", type=int, default=100)
    given = parser.parse_args()
    before = json.loads(given.file.read_text()) if given.file.is_file() else {}
    different = False
    for name in given.parts or PARTS:
        start = time.monotonic()
        found = json.loads(json.dumps(PARTS[name](given.episodes)))
        if name in before:
            lines = differences(before[name], found)
            different |= bool(lines)
            print(
                f"{name}: {'differs' if lines else 'the same'} ({time.monotonic() - start:.0f} s)",
                *lines,
                sep="\n  ",
            )
        else:
            before[name] = found
            given.file.write_text(json.dumps(before, indent=1) + "\n")
            print(f"{name}: recorded ({time.monotonic() - start:.0f} s)")
    return int(different)


if __name__ == "__main__":
    sys.exit(main())
