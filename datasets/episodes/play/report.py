"""What `ttm data play` writes and prints."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from ttm.datasets.access.unreadable import one_line
from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.play.episode_film import film_frames
from ttm.datasets.play.film import WRITERS, Film
from ttm.datasets.progress import track
from ttm.policy.errors import UserError
from ttm.policy.files import partial_path, publish_partial

EXPORTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        ".rrd": ("ttm.datasets.play.rerun_file", "rerun"),
        ".mcap": ("ttm.datasets.play.mcap_file", "foxglove"),
    }
)
"""Suffix -> the module whose `write` makes such files, and the package of the extra `[look]` it needs."""


def play_and_report(path: Path, demo: str | None, out: Path | None) -> int:
    """Write the film or the export of an episode, print where it is, and return the exit code."""
    episode = EpisodeReader.open(path, demo)
    target = out or Path(f"{path.stem}{'' if demo is None else f'_{demo}'}.mp4")
    if target.suffix not in {*WRITERS, *EXPORTS}:
        known = ", ".join([*WRITERS, *EXPORTS])
        raise UserError(f"cannot write {target}; give a path that ends in one of {known}")
    try:
        (_film if target.suffix in WRITERS else _export)(episode, target)
    except OSError as error:
        raise UserError(
            f"cannot write {target} ({one_line(error.strerror or error)}); give another --out"
        ) from error
    judged = {True: "success", False: "failure", None: "not judged"}[episode.success]
    print(f"{target}: {episode.num_samples} ticks, {judged}: {episode.instruction}")
    return 0


def _film(episode: EpisodeReader, target: Path) -> None:
    with Film(target, episode.spec.rate_hz) as film:
        for frame in track(film_frames(episode), "drawing", total=episode.num_samples):
            film.show(frame)


def _export(episode: EpisodeReader, target: Path) -> None:
    module, package = EXPORTS[target.suffix]
    if find_spec(package) is None:
        raise UserError(
            f"{package} is missing, which writes {target.suffix}; "
            'run: pip install "ttm-policy-stack[look]"'
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(target)
    partial.touch()  # rerun raises no OSError where it cannot write
    try:
        import_module(module).write(episode, partial)
        publish_partial(target)
    finally:
        partial.unlink(missing_ok=True)
