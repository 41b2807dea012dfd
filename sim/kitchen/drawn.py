"""What a frame depends on, so that the same frame need not be rendered twice."""

from __future__ import annotations

import mujoco

OF_MODEL = (
    "geom_group",
    "geom_matid",
    "geom_rgba",
    "geom_size",
    "mat_rgba",
    "mat_emission",
    "site_group",
    "site_rgba",
    "site_size",
    "light_active",
    "light_ambient",
    "light_diffuse",
    "cam_fovy",
)
"""Fields of the model that a task may change during an episode to show something."""
OF_DATA = (
    "geom_xpos",
    "geom_xmat",
    "site_xpos",
    "site_xmat",
    "light_xpos",
    "light_xdir",
    "cam_xpos",
    "cam_xmat",
)
"""Fields of the simulator's state that MuJoCo draws with its default options."""


def drawn_state(model: mujoco.MjModel, data: mujoco.MjData) -> bytes:
    """Return poses, sizes and colours of all that cameras see, and their own poses.

    If two are equal, so is the frame of each camera. The shapes of meshes, textures and the other
    parameters of the model must not change once it is compiled.
    """
    fields = [getattr(model, name) for name in OF_MODEL] + [getattr(data, name) for name in OF_DATA]
    return b"".join(field.tobytes() for field in fields)
