"""The work of `ttm show memory`: a picture, a video and a table of an episode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ttm.datasets.episode_dataset import EpisodeDataset, open_dataset
from ttm.datasets.episode_reader import EpisodeReader
from ttm.policy.errors import UserError
from ttm.policy.run.checkpoint import load_checkpoint
from ttm.policy.spec import PolicySpec
from ttm.sim.memory_picture.charts import TITLES, source_label
from ttm.sim.memory_picture.strip import draw_strip
from ttm.sim.memory_picture.trace import MemoryTrace
from ttm.sim.shipped import checkpoint_path
from ttm.training.common.folders import make_folder
from ttm.training.common.tables import compact_table
from ttm.training.show.replay import trace_episode
from ttm.training.show.video import write_video


def show_memory(wanted: str, checkpoint: str, out: Path, columns: int) -> None:
    """Write the picture and the video of an episode to the folder `out`, and print mean shares.

    wanted: as in `find_episode`. checkpoint: a path, or `shipped`. columns: ticks in the picture.
    """
    policy, _ = load_checkpoint(checkpoint_path(checkpoint))
    episode = find_episode(wanted, policy.spec, checkpoint)
    title = f"{episode.path.stem}/{episode.name}, policy {Path(checkpoint).stem}"
    trace = trace_episode(policy, episode, title)
    picture = make_folder(out) / f"{episode.path.stem}_{episode.name}.png"
    draw_strip(trace, columns).savefig(picture)
    video = picture.with_suffix(".mp4")
    write_video(trace, video)
    console = Console()
    console.print(shares_table(trace))
    console.print(f"picture: {picture}\nvideo: {video}", soft_wrap=True, highlight=False)


def find_episode(wanted: str, spec: PolicySpec, checkpoint: str) -> EpisodeReader:
    """Return the episode that `wanted` names as `PATH`, `PATH:NAME` or `PATH:NUMBER`.

    spec: the spec of the policy `checkpoint`. Files without a spec get the one inferred from all of
    PATH, as in training. Raises `UserError` if there is no such episode or more than one, or if the
    episode is of another robot than the policy.
    """
    path, colon, which = wanted.rpartition(":")
    if not colon or Path(wanted).exists():
        path, which = wanted, ""
    episodes = open_dataset(path, like=spec)
    recorded = {camera.name for camera in episodes.spec.cameras}
    needed = {camera.name for camera in spec.cameras}
    # Cameras that the policy does not use are left out, as in training.
    shown = replace(episodes.spec, cameras=spec.cameras) if recorded >= needed else episodes.spec
    spec.require_compatible(shown, ours=checkpoint, theirs=path)
    return _choose(episodes, which or "0")


def _choose(episodes: EpisodeDataset, which: str) -> EpisodeReader:
    """Return the episode of the name or number `which`."""
    if which.isdecimal():
        if int(which) >= len(episodes):
            raise UserError(
                f"{episodes.source} has {len(episodes)} episodes and none of number {which}; "
                "they count from 0"
            )
        return episodes[int(which)]
    found = [episode for episode in episodes if episode.name == which]
    if len(found) != 1:
        names = ", ".join(dict.fromkeys(episode.name for episode in episodes))
        raise UserError(
            f"{episodes.source} has {len(found) or 'no'} episodes of the name '{which}' "
            f"(it has: {names}); give the file that it is in, or its number, counted from 0"
        )
    return found[0]


def shares_table(trace: MemoryTrace) -> Table:
    """Return a table of the mean share of every source, and of the size of the memory."""
    table = compact_table(
        f"{trace.seen.title}\n“{trace.seen.instruction}”",
        [
            f"mean of {trace.num_ticks} ticks",
            *(TITLES[which].lower() for which in trace.directions),
        ],
    )
    for source in list(trace.shares[trace.directions[-1]]):
        shares = [trace.shares[which].get(source) for which in trace.directions]
        table.add_row(
            source_label(source, "read", trace),
            *("-" if share is None else f"{share.mean():.1%}" for share in shares),
        )
    table.add_section()
    blank = [""] * (len(trace.directions) - 1)
    table.add_row("norm of memory tokens", *blank, f"{trace.norms.mean():.2f}")
    return table
