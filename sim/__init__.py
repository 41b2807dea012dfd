"""The simulated mobile manipulator: kitchen, tasks, experts, evaluation (MuJoCo)."""

import os

# MuJoCo reads this when it is first imported, by whichever module that is; EGL renders without a screen.
os.environ.setdefault("MUJOCO_GL", "egl")
