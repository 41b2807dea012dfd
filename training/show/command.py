"""`ttm show memory`: what a policy's memory reads and writes over a recorded episode, as a picture and a video."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from ttm.policy.errors import UserError

if TYPE_CHECKING:
    from ttm.datasets.episode_dataset import EpisodeDataset
    from ttm.datasets.episode_reader import EpisodeReader
    from ttm.policy.spec import PolicySpec
    from ttm.training.show.trace import MemoryTrace


@dataclass(frozen=True)
class ShowCommand:
    """Look into a policy: `ttm show memory` shows what its memory attends to over a recorded episode.

    Replays what the robot observed, with the memory kept from tick to tick as on the robot; the previous action that
    the policy sees is its own. OUT receives a picture (camera images under heat where the policy read them and
    wrote them into its memory; what else it read and wrote, over time) and the same as a video, tick by tick.

    For example:
      ttm collect --episodes 1 --out demos
      ttm show memory --episode demos
      ttm show memory --checkpoint runs/mine/best.safetensors --episode recorded.hdf5:demo_3 --out pictures
    """

    what: Annotated[Literal["memory"], tyro.conf.Positional]
    """What to look into."""
    episode: str
    """An HDF5 file, a folder of them or a glob in quotes: its first episode. For another, add a colon and its name
    (recorded.hdf5:demo_3) or its number, counted from 0 (demos:7)."""
    checkpoint: str = "shipped"
    """A .safetensors file whose temporal core is a Token Turing Machine; or shipped, the policy that comes with the
    project. The episode must be of its robot; frames of another size are resized."""
    out: Path = Path("memory")
    """Folder for the picture (.png) and the video (.mp4), which are named after the episode."""
    columns: int = 8
    """Ticks that the picture shows, evenly spread from the first to the last."""

    def run(self) -> int:
        """Writes both files; returns the exit code."""
        if self.columns < 1:
            raise UserError(f"--columns is {self.columns}; give at least 1")
        from ttm.policy.run.checkpoint import load_checkpoint
        from ttm.sim.shipped import checkpoint_path
        from ttm.training.show.strip import draw_strip
        from ttm.training.show.trace import trace_memory
        from ttm.training.show.video import write_video

        policy, _ = load_checkpoint(checkpoint_path(self.checkpoint))
        episode = find_episode(self.episode, policy.spec, self.checkpoint)
        title = f"{episode.path.stem}/{episode.name}, policy {Path(self.checkpoint).stem}"
        trace = trace_memory(policy, episode, title)
        picture = self._folder() / f"{episode.path.stem}_{episode.name}.png"
        draw_strip(trace, self.columns).savefig(picture)
        video = picture.with_suffix(".mp4")
        write_video(trace, video)
        console = Console()
        console.print(shares_table(trace))
        console.print(f"picture: {picture}\nvideo: {video}", soft_wrap=True, highlight=False)
        return 0

    def _folder(self) -> Path:
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot write to {self.out} ({error}); give another folder with --out"
            ) from error
        return self.out


def find_episode(wanted: str, spec: PolicySpec, checkpoint: str) -> EpisodeReader:
    """The episode that `PATH`, `PATH:NAME` or `PATH:NUMBER` means.

    `UserError` if there is none or several, or if it is of another robot than `spec`, which is `checkpoint`'s. Files
    without a spec get the one inferred from all of PATH, as in training.
    """
    from ttm.datasets.episode_dataset import open_dataset

    path, colon, which = wanted.rpartition(":")
    if not colon or Path(wanted).exists():
        path, which = wanted, ""
    episodes = open_dataset(path)
    names = {camera.name for camera in episodes.spec.cameras}
    if names >= {
        camera.name for camera in spec.cameras
    }:  # what else the robot has is left out, as in training
        shown = replace(episodes.spec, cameras=spec.cameras)
    else:
        shown = episodes.spec
    spec.require_compatible(shown, ours=checkpoint, theirs=path)
    return _choose(episodes, which or "0")


def _choose(episodes: EpisodeDataset, which: str) -> EpisodeReader:
    if which.isdecimal():
        if int(which) >= len(episodes):
            raise UserError(
                f"{episodes.source} has {len(episodes)} episodes and none of number {which}; they count from 0"
            )
        return episodes[int(which)]
    found = [episode for episode in episodes if episode.name == which]
    if len(found) != 1:
        names = ", ".join(dict.fromkeys(episode.name for episode in episodes))
        raise UserError(
            f"{episodes.source} has {len(found) or 'no'} episodes of the name '{which}' (it has: {names}); "
            "give the file that it is in, or its number, counted from 0"
        )
    return found[0]


def shares_table(trace: MemoryTrace) -> Table:
    """The mean share of every source, and the size of the memory."""
    from ttm.training.show.charts import TITLES, source_label

    table = Table(
        title=f"{trace.title}\n“{trace.instruction}”", title_justify="left", box=box.SIMPLE_HEAD
    )
    table.add_column(f"mean of {trace.num_ticks} ticks")
    for which in trace.directions:
        table.add_column(TITLES[which].lower(), justify="right")
    for source in list(trace.shares[trace.directions[-1]]):
        shares = [trace.shares[which].get(source) for which in trace.directions]
        table.add_row(
            source_label(source, "read", trace),
            *("-" if share is None else f"{share.mean():.1%}" for share in shares),
        )
    table.add_section()
    table.add_row(
        "norm of memory tokens", *[""] * (len(trace.directions) - 1), f"{trace.norms.mean():.2f}"
    )
    return table
