"""Where the videos and pictures of an evaluation lie, and how they get into its page."""

from __future__ import annotations

import base64
from pathlib import Path


def video_path(folder: Path | None, task: str, seed: int) -> Path | None:
    """Return where the video of one episode lies in `folder`."""
    return folder / f"{task}_{seed:04d}.mp4" if folder else None


def memory_path(folder: Path | None, task: str, seed: int) -> Path | None:
    """Return where the picture of what the memory did in one episode lies in `folder`."""
    return folder / f"{task}_{seed:04d}_memory.webp" if folder else None


def remove_media(folder: Path | None, task: str, seed: int) -> None:
    """Remove the video and the picture of one episode that an earlier evaluation left in `folder`."""
    for path in (video_path(folder, task, seed), memory_path(folder, task, seed)):
        if path is not None:
            path.unlink(missing_ok=True)


def encoded(path: Path) -> str:
    """Return the file as text for a page."""
    return base64.b64encode(path.read_bytes()).decode()
