"""What `ttm data play` writes and prints."""

from __future__ import annotations

from pathlib import Path

from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.play.episode_film import film_frames
from ttm.datasets.play.film import Film
from ttm.datasets.progress import track


def play_and_report(path: Path, demo: str | None, out: Path | None) -> int:
    """Write the film of an episode, print where it is, and return the exit code."""
    episode = EpisodeReader.open(path, demo)
    target = out or Path(f"{path.stem}{'' if demo is None else f'_{demo}'}.mp4")
    with Film(target, episode.spec.rate_hz) as film:
        for frame in track(film_frames(episode), "drawing", total=episode.num_samples):
            film.show(frame)
    judged = {True: "success", False: "failure", None: "not judged"}[episode.success]
    print(f"{target}: {episode.num_samples} ticks, {judged}: {episode.instruction}")
    return 0
