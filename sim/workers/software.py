"""What the bytes of a result depend on beside the job: code, packages and renderer of the machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from ttm.policy.errors import UserError

CODE = ("ttm.policy", "ttm.datasets", "ttm.sim")
SOURCES = ("*.py", "*.xml")
"""Files of these packages that decide what happens: code, and MuJoCo's scenes."""
PACKAGES = (
    "torch", "numpy", "mujoco", "mink", "daqp", "gymnasium", "gymnasium-robotics", "openvino", "h5py",
    "imageio-ffmpeg", "efficientnet-pytorch",
)  # fmt: skip


def software() -> dict[str, str | None]:
    """Return name -> version, or None for what is missing, on this machine."""
    found: dict[str, str | None] = {name: _version(name) for name in PACKAGES}
    return {**found, "the code of ttm": _code(), "MUJOCO_GL": os.environ.get("MUJOCO_GL")}


def require_same_software(wanted: Mapping[str, str | None]) -> None:
    """Raise `UserError` if this machine differs from `wanted`, that of the machine with the command."""
    for name, here in software().items():
        if here != wanted.get(name):
            raise UserError(
                f"{name} is {here} there, but {wanted.get(name)} where the command runs, so that results "
                "could differ; install the same on both"
            )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _code() -> str:
    """Return a hash of the files that `SOURCES` names."""
    digest = hashlib.sha256()
    for package in CODE:
        spec = find_spec(package)
        assert spec is not None
        assert spec.submodule_search_locations
        folder = Path(spec.submodule_search_locations[0])
        for path in sorted(path for pattern in SOURCES for path in folder.rglob(pattern)):
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]
