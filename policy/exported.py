"""Run a policy that `ttm export` wrote, with NumPy and ONNX Runtime alone; the folder holds a copy.
python run_policy.py FOLDER ["INSTRUCTION"]   runs ten ticks on random frames
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

KINDS: dict[str, Any] = {"F32": np.float32, "I64": np.int64, "uint8": np.uint8, "float": np.float32}


def read_safetensors(path: Path) -> dict[str, Any]:
    """Return name -> array. Such a file begins with the length of a table (8 bytes), and the table."""
    data, arrays = path.read_bytes(), dict[str, Any]()
    end = 8 + int.from_bytes(data[:8], "little")
    for name, at in json.loads(data[8:end]).items():
        values = data[end:][slice(*at["data_offsets"])]
        arrays[name] = np.frombuffer(values, KINDS[at["dtype"]]).reshape(at["shape"])
    return arrays


class ExportedPolicy:
    """The tick of `PolicyRunner`. If the robot does something else, set `state["previous_action"]`."""

    def __init__(self, folder: Path) -> None:
        off = {"disabled_optimizers": ["MatmulTransposeFusion"]}  # wrong in ONNX Runtime 1.32
        self.session = onnxruntime.InferenceSession(folder / "policy.onnx", **off)
        initial = read_safetensors(folder / "initial.safetensors").items()
        self.initial = {name.removeprefix("policy/"): value for name, value in initial}
        self.known = read_safetensors(folder / "instructions.safetensors")  # text -> (L,)

    def reset(self, language: Any) -> None:
        """Start an episode. language: the embedding of the instruction, (L,)."""
        self.state, self.language = dict(self.initial), language

    def step(self, observation: dict[str, Any], **more: float) -> Any:
        """Return the action, (A,). observation: camera -> (H, W, 3) uint8 RGB, name -> (K,) float32."""
        given = {f"observation.{name}": value for name, value in observation.items()}
        given |= {name: np.array(value, np.float32) for name, value in more.items()}  # delay_s
        results = self.session.run(None, {**given, **self.state, "language": self.language})
        names = [output.name for output in self.session.get_outputs()]
        self.results = dict(zip(names, results, strict=True))
        if not all(np.isfinite(value).all() for value in (*given.values(), self.results["action"])):
            raise ValueError("observation or action is not finite; the memory is as before")
        new = {**self.results, "previous_action_out": self.results["action"]}
        self.state = {name: new[f"{name}_out"] for name in self.state}
        return self.results["action"]


if __name__ == "__main__":
    policy, rng = ExportedPolicy(Path(sys.argv[1])), np.random.default_rng(0)
    policy.reset(policy.known[sys.argv[2] if len(sys.argv) > 2 else next(iter(policy.known))])
    seen = [x for x in policy.session.get_inputs() if x.name.startswith("observation.")]
    for _ in range(10):
        values = (rng.integers(0, 256, x.shape).astype(KINDS[x.type[7:-1]]) for x in seen)
        print(policy.step({x.name[12:]: value for x, value in zip(seen, values, strict=True)}))
