"""What `ttm data merge`, `split` and `filter` print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ttm.datasets.arrange.arrange import SplitBy, filter_episodes, merge_episodes, split_episodes
from ttm.datasets.arrange.wanted import Wanted


def merge_and_report(sources: Sequence[str], out: Path, overwrite: bool) -> int:
    """Merge, print the number of episodes, and return the exit code."""
    print(f"{out}: {merge_episodes(sources, out, overwrite=overwrite)} episodes")
    return 0


def split_and_report(
    source: str, out: Path, by: SplitBy, valid: float, seed: int, overwrite: bool
) -> int:
    """Split, print the number of episodes of each file, and return the exit code."""
    files = split_episodes(source, out, by=by, valid=valid, seed=seed, overwrite=overwrite)
    for name, count in files.items():
        print(f"{out / name}: {count} episodes")
    return 0


def filter_and_report(source: str, out: Path, wanted: Wanted, overwrite: bool) -> int:
    """Filter, print how many episodes were kept, and return the exit code."""
    kept, total = filter_episodes(source, out, wanted, overwrite=overwrite)
    print(f"{out}: {kept} of {total} episodes")
    return 0
