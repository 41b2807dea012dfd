"""The kitchen's place in Gymnasium's registry, and what to do if this machine cannot render it."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import gymnasium

from ttm.policy.errors import UserError
from ttm.policy.extras import require_extra
from ttm.sim.condition import KITCHEN


def register_kitchen() -> None:
    """Let `gymnasium.make("ttm/Kitchen-v0")` make the kitchen. `import ttm.sim` calls this."""
    if KITCHEN not in gymnasium.registry:
        gymnasium.register(KITCHEN, entry_point=f"{__name__}:make_kitchen")


def make_kitchen(**options: Any) -> gymnasium.Env[Any, Any]:
    """Return a new `KitchenEnv`. Raises `UserError` if this machine cannot render.

    The environment's module is imported after that check, since it imports MuJoCo.
    """
    require_rendering()
    kitchen: gymnasium.Env[Any, Any] = import_module("ttm.sim.kitchen_env").KitchenEnv(**options)
    return kitchen


def require_rendering() -> None:
    """Raise `UserError` if the extra [kitchen] is not installed, or nothing can be rendered off screen.

    Call it before any module imports MuJoCo, whose import fails where EGL is missing.
    """
    require_extra("kitchen", "the simulated kitchen")
    try:
        import mujoco  # here, since importing it is what may fail

        mujoco.Renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 8, 8).close()
    except Exception as error:  # MuJoCo's import and its GL bindings raise exceptions of many kinds
        raise no_rendering(error) from error


def no_rendering(error: Exception) -> UserError:
    """Return the error that tells a user what to do about what a GL binding raised."""
    library = os.environ.get("MUJOCO_GL", "egl")
    return UserError(
        f"no off-screen rendering with MUJOCO_GL={library} ({' '.join(str(error).split())}); on Debian "
        "or Ubuntu run: sudo apt-get install -y libegl1 libgl1-mesa-dri, and set MUJOCO_GL=egl"
    )
