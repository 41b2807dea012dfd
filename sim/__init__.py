"""The simulated mobile manipulator: kitchen, tasks, expert, evaluation and collection (MuJoCo).

Importing this package registers the kitchen with Gymnasium, where that is installed, as
`ttm/Kitchen-v0`. The names in `__init__.pyi` can be imported from here. They are loaded when they are
first used, so that `import ttm.sim` needs neither MuJoCo nor torch.
"""

from __future__ import annotations

import os

import lazy_loader

# MuJoCo reads this when it is first imported, by whichever module. EGL renders without a screen.
os.environ.setdefault("MUJOCO_GL", "egl")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

try:
    import gymnasium  # noqa: F401
except ModuleNotFoundError:
    pass  # a robot's computer: the names of tasks and the shipped policy are all that it needs
else:
    from ttm.sim.kitchen.rendering import register_kitchen

    register_kitchen()
