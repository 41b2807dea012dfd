"""The simulated mobile manipulator: kitchen, tasks, expert, evaluation and collection (MuJoCo).

Importing this package registers the kitchen with Gymnasium as `ttm/Kitchen-v0`. Names are loaded
when they are first asked for, so that `import ttm.sim` needs neither MuJoCo nor torch.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# MuJoCo reads this when it is first imported, by whichever module. EGL renders without a screen.
os.environ.setdefault("MUJOCO_GL", "egl")

from ttm.sim.registration import register_kitchen

if TYPE_CHECKING:
    from ttm.sim.environment import PolicyEnv, make_env
    from ttm.sim.evaluation.evaluate import evaluate
    from ttm.sim.evaluation.result import Evaluation, load_evaluation
    from ttm.sim.kitchen_env import KitchenEnv
    from ttm.sim.tasks.table import TASK_NAMES

__all__ = [
    "TASK_NAMES",
    "Evaluation",
    "KitchenEnv",
    "PolicyEnv",
    "evaluate",
    "load_evaluation",
    "make_env",
]

_MODULES = {
    "TASK_NAMES": "tasks.table",
    "Evaluation": "evaluation.result",
    "KitchenEnv": "kitchen_env",
    "PolicyEnv": "environment",
    "evaluate": "evaluation.evaluate",
    "load_evaluation": "evaluation.result",
    "make_env": "environment",
}
"""Public name -> the module that defines it."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_kitchen()
