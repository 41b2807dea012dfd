"""The HDF5 files that a path means (a file, a folder or a glob), and the layouts of other projects."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

import h5py

from ttm.datasets.hdf5 import find_member, no_file, one_line, require_inside
from ttm.datasets.layout import SUFFIXES, natural_key
from ttm.policy.errors import UserError


@dataclass(frozen=True)
class Layout:
    """How a project stores its episodes."""

    name: str
    """Its name in messages, such as "LeRobot 3.0"."""
    next_step: str = ""
    """What to run first; {path} and {out} stand for the data and a new folder. Empty if it is read."""
    way_there: str = ""
    """How episodes at {path} get into this layout at {out}. Empty if `ttm data convert` writes it."""

    @property
    def is_read(self) -> bool:
        """Whether `open_dataset` reads this layout as it is."""
        return not self.next_step

    def refusal(self, path: Path) -> str:
        """Return in one line what lies at `path` and what to run next."""
        out = path.name.split(".")[0] or "data"
        step = self.next_step.format(path=path, out=f"{out}_episodes")
        return f"{path} is in the layout of {self.name}, which is not read as it is; {step}"


AS_ROBOMIMIC = (
    "its training programs read robomimic's layout; run `ttm data convert {path} {out}.hdf5 "
    "--to robomimic`"
)
CONVERT = "run `ttm data convert {path} {out}`, then use {out}"

LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "ours": Layout("this project"),
        "robomimic": Layout("robomimic"),
        "mimicgen": Layout("MimicGen", way_there=AS_ROBOMIMIC),
        "libero": Layout("LIBERO", way_there=AS_ROBOMIMIC),
        "robocasa": Layout("RoboCasa", way_there=AS_ROBOMIMIC),
        "isaaclab": Layout("Isaac Lab", way_there=AS_ROBOMIMIC),
        "robosuite": Layout(
            "robosuite's demo.hdf5, which has states and no observations",
            "run `python -m robomimic.scripts.conversion.convert_robosuite --dataset {path}`, then "
            "`python -m robomimic.scripts.dataset_states_to_obs --dataset {path} --output_name image.hdf5 "
            "--done_mode 2 --camera_names agentview --camera_height 84 --camera_width 84`",
            "only robosuite knows the states; run `ttm data convert {path} {out}.hdf5 --to robomimic`",
        ),
        "droid": Layout(
            "DROID (trajectory.h5), whose frames lie in other files",
            "fetch them in LeRobot's format by `hf download cadene/droid_1.0.1 --repo-type dataset "
            "--local-dir {out}_lerobot` (399 GB), then run `ttm data convert {out}_lerobot {out}`",
            "its training programs read LeRobot's and RLDS; run `ttm data convert {path} {out} --to lerobot`",
        ),
        "maniskill": Layout(
            "ManiSkill (trajectory.h5)",
            "with images (mani_skill.trajectory.replay_trajectory -o rgb), run `python -m "
            "mani_skill.trajectory.convert_to_lerobot --traj-path {path} --output-dir {out}_lerobot`, then "
            "`ttm data convert {out}_lerobot {out}`",
            "for training programs run `ttm data convert {path} {out} --to lerobot`",
        ),
        "aloha": Layout(
            "ALOHA / ACT",
            "run `ttm data convert {path} {out} --colour-order rgb` (or bgr: look at the colours with "
            "`ttm data show {out} --sheet sheet.png`), then use {out}",
        ),
        "diffusion_policy": Layout("diffusion_policy (zarr)", CONVERT),
        "lerobot_v2": Layout("LeRobot 2.1", CONVERT),
        "lerobot_v3": Layout("LeRobot 3.0", CONVERT),
        "rosbag2": Layout(
            "rosbag2",
            "run `ttm data bags {path} {out} --contract robot.yaml --rate-hz 5 --instruction TEXT`",
            "run `ttm data bags {path} {out} --contract robot.yaml --to mcap` (or sqlite3)",
        ),
        "rlds": Layout(
            "RLDS (TensorFlow Datasets)",
            "convert it by https://github.com/Tavish9/any4lerobot, `python any4lerobot/openx2lerobot/"
            "openx_rlds.py --raw-dir {path} --local-dir {out}_lerobot`, then run `ttm data convert "
            "{out}_lerobot {out}`",
            "run `ttm data convert {path} {out}_lerobot --to lerobot-v2.1`, then lerobot2rlds of "
            "https://github.com/Tavish9/any4lerobot",
        ),
    }
)
"""Key -> layout. The first six are read as they are."""

TRAJECTORY = re.compile(r"traj_\d+")  # how ManiSkill names an episode


def layout_of_file(file: Any) -> Layout | None:
    """Return the layout of an open `h5py.File` by the marks that the projects' own writers leave, or None.

    Raises `OutsideLink` if an external link is in the way and not allowed.
    """
    return LAYOUTS.get(_key_of_file(file) or "")


def _key_of_file(file: Any) -> str | None:
    action, data = find_member(file, "action"), find_member(file, "data")
    observations = find_member(file, "observations")
    if isinstance(action, h5py.Dataset) and isinstance(observations, h5py.Group):
        return "aloha"
    state = find_member(file, "observation/robot_state")
    if isinstance(action, h5py.Group) and isinstance(state, h5py.Group):
        return "droid"
    if any(TRAJECTORY.fullmatch(name) for name in file):
        return "maniskill"
    if not isinstance(data, h5py.Group):
        return None
    if "ttm_spec" in data.attrs:
        return "ours"
    name = next(iter(data), None)
    found = None if name is None else find_member(data, name)
    demo = found if isinstance(found, h5py.Group) else None
    if "problem_info" in data.attrs or "bddl_file_name" in data.attrs:
        return "libero" if demo is not None and "obs" in demo else "robosuite"
    if demo is None:
        return None
    if "obs" not in demo:
        return "robosuite" if "states" in demo and "actions" in demo else None
    if "ep_meta" in demo.attrs:
        return "robocasa"
    if "datagen_info" in demo:
        return "mimicgen"
    return "isaaclab" if "initial_state" in demo else "robomimic"


def layout_of_path(path: Path) -> Layout | None:
    """Return the layout of a folder, or of a file that is not HDF5, by names; None if unknown."""
    return LAYOUTS.get((_key_of_folder(path) if path.is_dir() else _key_of_name(path)) or "")


def _key_of_folder(folder: Path) -> str | None:
    info = folder / "meta" / "info.json"
    if info.is_file():
        version = ""
        with suppress(OSError, ValueError, AttributeError, RecursionError):
            version = str(json.loads(info.read_text("utf-8")).get("codebase_version", ""))
        return "lerobot_v3" if version.startswith("v3") else "lerobot_v2"
    if (folder / "data").is_dir() and (folder / "meta" / "episode_ends").is_dir():
        return "diffusion_policy"
    if (folder / "metadata.yaml").is_file():
        return "rosbag2"
    # TensorFlow Datasets puts a folder of the version in between.
    versions = (folder, *(item for item in folder.iterdir() if item.is_dir()))
    if any((version / "dataset_info.json").is_file() for version in versions):
        return "rlds"
    keys = (_key_of_name(item) for item in sorted(folder.iterdir()))
    return next(filter(None, keys), None)


def _key_of_name(path: Path) -> str | None:
    if path.suffix in (".db3", ".mcap"):
        return "rosbag2"
    if ".tfrecord" in path.name:
        return "rlds"
    if path.name.endswith((".zarr", ".zarr.zip")):
        return "diffusion_policy"
    return "lerobot_v2" if path.suffix == ".parquet" else None


def find_files(path: str | Path, *, allow_external: bool = False) -> list[Path]:
    """Return the HDF5 files that a file, folder or glob means, without hidden ones, in natural order.

    Raises `UserError` if there is no file, if a symbolic link leads out of the folder and this is not
    allowed, or if the data are in a layout that is not HDF5.
    """
    place = root = Path(path).expanduser()
    _require_printable(place)
    try:
        is_file, is_folder = place.is_file(), place.is_dir()
    except OSError:  # such as a name that is too long
        is_file = is_folder = False
    if is_file:
        if place.suffix not in SUFFIXES:
            _refuse_other_layout(place)
        return [place]
    if is_folder:
        found = list(_below(place, allow_external))
    elif glob.has_magic(str(place)):
        found = [Path(item) for item in glob.glob(str(place), recursive=True)]
        root = Path(*takewhile(lambda part: not glob.has_magic(part), place.parts))
    else:
        what = no_file(place)
        what = "does not exist" if what in (None, "not there") else f"is {what}"
        raise UserError(f"{path} {what}; give an HDF5 file, a folder of them, or a glob in quotes")
    files = [item for item in found if not item.name.startswith(".") and not item.is_dir()]
    if not files:
        _refuse_other_layout(place)
        what = "folder has no *.hdf5 or *.h5 in it" if is_folder else "glob matches no file"
        raise UserError(f"{path}: this {what}; record episodes there, or check the name")
    if not allow_external:
        require_inside(files, root)
    return sorted(files, key=natural_key)


def _refuse_other_layout(place: Path) -> None:
    layout = layout_of_path(place) if os.path.exists(place) else None
    if layout is not None:
        raise UserError(layout.refusal(place))


def _below(folder: Path, allow_external: bool) -> Iterator[Path]:
    """Yield the files with a suffix of HDF5 in a folder and all folders in it.

    A folder that is a symbolic link is entered if it leads to a place within `folder`, or if this
    is allowed; otherwise it is refused, because its episodes would be missing without a word.
    """

    def refuse(error: OSError) -> None:
        what = f"{error.filename}: the folder cannot be read ({error.strerror})"
        raise UserError(f"{what}; change its permissions")

    seen = set()
    for here, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        real = os.path.realpath(here)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if not allow_external:
            links = [Path(here, name) for name in folders if Path(here, name).is_symlink()]
            require_inside(links, folder)
        for name in names:
            _require_printable(Path(here, name))
            if Path(name).suffix in SUFFIXES:
                yield Path(here, name)


def _require_printable(place: Path) -> None:
    name = str(place)
    # The control characters are what a terminal may take for a command.
    if name != name.encode("utf-8", "replace").decode() or re.search(r"[\x00-\x1f\x7f-\x9f]", name):
        raise UserError(
            f"{one_line(place)}: the name cannot be printed, or is not UTF-8; rename it"
        )
