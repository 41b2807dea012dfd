"""`ttm show memory`: options of the pictures of a memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from ttm.policy.checks import options, require_at_least


@dataclass(frozen=True)
class ShowCommand:
    """Show what a policy's memory reads and writes over a recorded episode (ttm show memory).

    The episode is replayed with the memory kept from tick to tick, as on the robot; the previous
    action that the policy sees is its own. OUT receives a picture and a video. Both show the camera
    images under a heat map of the places that the policy read and wrote into its memory, and over
    time how much it read and wrote from every source.

    For example:
      ttm collect --episodes 1 --out demos
      ttm show memory --episode demos
      ttm show memory --checkpoint runs/mine/best.safetensors --episode recorded.hdf5:demo_3 --out pictures
    """

    what: Annotated[Literal["memory"], Positional]
    """What to show."""
    episode: str
    """An HDF5 file, a folder of them or a glob in quotes; its first episode is shown. For another,
    add a colon and its name (recorded.hdf5:demo_3) or its number, counted from 0 (demos:7)."""
    checkpoint: str = "shipped"
    """A .safetensors file whose core is a Token Turing Machine, or `shipped`, the policy that comes
    with the project. The episode must be of its robot; frames of another size are resized."""
    out: Path = Path("memory")
    """Folder for the picture (.png) and the video (.mp4), which are named after the episode."""
    columns: int = 8
    """Number of ticks in the picture, evenly spread from the first to the last."""

    def run(self) -> int:
        """Write both files; return the exit code."""
        require_at_least(1, options(self, "columns"))
        from ttm.training.show.memory import show_memory

        show_memory(self.episode, self.checkpoint, self.out, self.columns)
        return 0
