"""Whether this machine can render without a screen; if not, the one line that mends it."""

from __future__ import annotations

import os

from ttm.policy.errors import UserError


def require_rendering() -> None:
    """Raise `UserError` if nothing can be rendered off screen. Call it before anything imports MuJoCo."""
    try:
        import mujoco

        mujoco.Renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 8, 8).close()
    except Exception as error:  # MuJoCo's import and its GL bindings raise whatever they come upon
        raise no_rendering(error) from error


def no_rendering(error: Exception) -> UserError:
    """What to tell a user of whatever a GL binding raised."""
    library = os.environ.get("MUJOCO_GL", "egl")
    return UserError(
        f"no off-screen rendering with MUJOCO_GL={library} ({' '.join(str(error).split())}); "
        "on Debian or Ubuntu run: sudo apt-get install -y libegl1 libgl1-mesa-dri, and set MUJOCO_GL=egl"
    )
