"""Whether this machine can render without a screen, and what to do if it cannot."""

from __future__ import annotations

import os

from ttm.policy.errors import UserError


def require_rendering() -> None:
    """Raise `UserError` if nothing can be rendered off screen.

    Call it before any module imports MuJoCo, whose import fails where EGL is missing.
    """
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
