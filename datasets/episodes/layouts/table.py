"""The known layouts of episodes, each described once: its name, and the command that comes next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True)
class Layout:
    """How a project stores its episodes."""

    name: str
    """Its name in messages, such as "LeRobot 3.0"."""
    next_step: str = ""
    """What to run first, in words with commands; {path} and {out} stand for the data and a new
    folder. Empty for layouts that are read as they are."""
    way_there: str = ""
    """How episodes at {path} get into this layout at {out}, in words with commands. Empty for layouts that
    `ttm data convert` writes."""

    @property
    def is_read(self) -> bool:
        """Whether `open_dataset` reads this layout as it is."""
        return not self.next_step

    def refusal(self, path: Path) -> str:
        """Return in one line what lies at `path` and what to run next."""
        out = path.name.split(".")[0] or "data"
        step = self.next_step.format(path=path, out=f"{out}_episodes")
        return f"{path} is in the layout of {self.name}, which is not read as it is; {step}"

    def not_written(self, path: Path, out: Path) -> str:
        """Return in one line how episodes at `path` get into this layout."""
        step = self.way_there.format(path=path, out=out.with_suffix(""))
        return f"`ttm data convert` does not write {self.name}; {step}"


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
            "`python -m robomimic.scripts.dataset_states_to_obs --dataset {path} --output_name "
            "image.hdf5 --done_mode 2 --camera_names agentview robot0_eye_in_hand "
            "--camera_height 84 --camera_width 84`, and use image.hdf5",
            "only robosuite knows the states; for episodes with observations run `ttm data convert {path} "
            "{out}.hdf5 --to robomimic`",
        ),
        "droid": Layout(
            "DROID (trajectory.h5), whose frames lie in other files",
            "fetch DROID's episodes in LeRobot's format by `hf download cadene/droid_1.0.1 --repo-type "
            "dataset --local-dir {out}_lerobot` (399 GB; lerobot/droid_100 has 100 of them), then run `ttm "
            "data convert {out}_lerobot {out}`; episodes of your own robot are written with EpisodeWriter",
            "its training programs read LeRobot's and RLDS; run `ttm data convert {path} {out} --to lerobot`",
        ),
        "maniskill": Layout(
            "ManiSkill (trajectory.h5)",
            "if it has no images, run `python -m mani_skill.trajectory.replay_trajectory --traj-path {path} "
            "-o rgb --save-traj`; of the file with images run `python -m "
            "mani_skill.trajectory.convert_to_lerobot --traj-path FILE --output-dir {out}_lerobot`, then "
            "`ttm data convert {out}_lerobot {out}`",
            "it replays what it has simulated itself; for training programs run `ttm data convert {path} "
            "{out} --to lerobot`",
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
            "run `ttm data bags {path} {out} --contract robot.yaml --rate-hz 5 --instruction TEXT` with "
            "the contract of your robot, then use {out}",
            "run `ttm data bags {path} {out} --contract robot.yaml --to mcap` (or sqlite3) with the contract "
            "of your robot",
        ),
        "rlds": Layout(
            "RLDS (TensorFlow Datasets)",
            "convert it to LeRobot with the port of https://github.com/Tavish9/any4lerobot, `python "
            "any4lerobot/openx2lerobot/openx_rlds.py --raw-dir {path} --local-dir {out}_lerobot`, then "
            "run `ttm data convert {out}_lerobot {out}`",
            "run `ttm data convert {path} {out}_lerobot --to lerobot-v2.1`, then with the port of "
            "https://github.com/Tavish9/any4lerobot `python any4lerobot/lerobot2rlds/lerobot2rlds.py "
            "--src-dir {out}_lerobot --output-dir {out} --task-name my_task`",
        ),
    }
)
"""Key -> layout. The first six are read as they are."""
