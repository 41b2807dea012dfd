"""The elements of the pictures of a memory: a page, heat maps on camera images, charts over time.

Warm heat stands for reading and cool heat for writing. The colours of sources are those of Okabe
and Ito, which colour-blind readers can tell apart. Sizes are in inches of 100 pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter
from PIL import Image

from ttm.datasets.frames import Frames
from ttm.policy.network.policy import INSTRUCTION, PREVIOUS_ACTION
from ttm.policy.run.memory_attention import MEMORY, OUTPUTS, Floats, Which, cell_centres
from ttm.sim.memory_picture.trace import PROPRIOCEPTION, SIGHT, MemoryTrace

DPI = 100
INK, FAINT, RULE = "#1a1a1a", "#666666", "#b8b8b8"
MEMORY_COLOUR = "#0072B2"
CAMERA_COLOURS = ("#E69F00", "#D55E00", "#F0E442", "#8C510A")
OTHER_COLOURS = MappingProxyType(
    {
        PROPRIOCEPTION: "#009E73",
        SIGHT: "#882255",
        PREVIOUS_ACTION: "#CC79A7",
        INSTRUCTION: "#56B4E9",
        OUTPUTS: "#999999",
    }
)
HEAT: Mapping[Which, LinearSegmentedColormap] = MappingProxyType(
    {
        "read": LinearSegmentedColormap.from_list("read", ["#a02000", "#ff8c1a", "#fff47a"]),
        "write": LinearSegmentedColormap.from_list("write", ["#005fa8", "#1fc4f0", "#dcfff6"]),
    }
)
HEAT_POWER = 0.5
"""Exponent of the colour scale. Most cells have small shares and a few large ones; a square root
shows both."""
VERBS: Mapping[Which, str] = MappingProxyType({"read": "read", "write": "written"})
"""What happened to a place of an image."""
TITLES: Mapping[Which, str] = MappingProxyType({"read": "Read from", "write": "Memory now made of"})


class Page:
    """A figure on which elements are placed by their distance from the top left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
        self.canvas = FigureCanvasAgg(self.figure)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes of this size."""
        place = (
            left / self.width,
            1 - (top + height) / self.height,
            width / self.width,
            height / self.height,
        )
        axes = self.figure.add_axes(place)
        axes.tick_params(labelsize=9, colors=INK)
        return axes

    def image(self, left: float, top: float, width: float, height: float, pixels: Frames) -> Any:
        """Add a picture in a thin frame; its `set_data` changes the pixels."""
        axes = self.axes(left, top, width, height)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(color=RULE, lw=0.6)
        return axes.imshow(pixels, aspect="auto", interpolation="nearest")

    def text(self, left: float, top: float, text: str, size: float = 10, **style: Any) -> Any:
        """Add text with its top left corner at this place, unless `style` aligns it otherwise.

        Its `set_text` changes it.
        """
        style = {"va": "top", "ha": "left", "color": INK, **style}
        return self.figure.text(
            left / self.width, 1 - top / self.height, text, fontsize=size, **style
        )


def enlarged(frame: Frames, size: tuple[int, int]) -> Frames:
    """Enlarge a frame: (H, W, 3) -> (*size, 3) uint8."""
    return np.asarray(Image.fromarray(frame).resize((size[1], size[0]), Image.Resampling.BICUBIC))


def heat_over(
    frame: Frames, shares: Floats, top: float, which: Which, size: tuple[int, int]
) -> Frames:
    """Draw the frame in grey under the heat of its cells.

    frame: (H, W, 3), shares: (h, w) -> (*size, 3) uint8. top: the share that gets the brightest
    heat.
    """
    grey = np.asarray(
        Image.fromarray(frame).convert("L").resize((size[1], size[0]), Image.Resampling.BICUBIC)
    )
    rows, columns = (
        _between_cells(frame.shape[axis], shares.shape[axis], size[axis]) for axis in (0, 1)
    )
    return _blend(
        grey.astype(np.float32), np.clip(rows @ shares @ columns.T / top, 0, 1) ** HEAT_POWER, which
    )


def heat_scale(
    page: Page, left: float, top: float, height: float, which: Which, brightest: float
) -> None:
    """Add a bar that tells which share of the weight a colour stands for."""
    levels = np.linspace(0, 1, 256)[None] ** HEAT_POWER
    colours = ListedColormap(_blend(np.full((1, 256), 110, np.float32), levels, which)[0] / 255)
    scale = ScalarMappable(PowerNorm(1, 0, brightest), colours)
    bar = page.figure.colorbar(scale, cax=page.axes(left, top, 0.2, height))
    bar.ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    bar.ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")


def source_colours(trace: MemoryTrace) -> dict[str, str]:
    """Return source -> colour, in the order in which the sources are stacked."""
    return {
        MEMORY: MEMORY_COLOUR,
        **dict(zip(trace.frames, cycle(CAMERA_COLOURS), strict=False)),
        **OTHER_COLOURS,
    }


def source_label(source: str, which: Which, trace: MemoryTrace) -> str:
    """Return the name of a source in pictures."""
    if source == MEMORY:
        return "memory" if which == "read" else "memory (kept)"
    if source == OUTPUTS:
        return "own outputs"
    return f"{source} camera" if source in trace.frames else source


def stack_shares(axes: Axes, trace: MemoryTrace, which: Which) -> list[Patch]:
    """Stack the shares of all sources at all ticks; return legend handles, the topmost first."""
    edges = np.arange(trace.num_ticks + 1) - 0.5
    below = np.zeros(trace.num_ticks + 1)
    colours, handles = source_colours(trace), []
    for source, share in trace.shares[which].items():
        above = below + np.append(share, share[-1])
        axes.fill_between(
            edges, below, above, step="post", facecolor=colours[source], edgecolor="white", lw=0.4
        )
        label = f"{source_label(source, which, trace)}  {share.mean():.0%}"
        handles.append(Patch(facecolor=colours[source], label=label))
        below = above
    axes.set(ylim=(0, 1), yticks=(0, 0.5, 1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    return handles[::-1]


def _between_cells(pixels: int, cells: int, size: int) -> np.ndarray:
    """Return weights (size, cells) that interpolate from cell centres to `size` new pixels."""
    places = (np.arange(size) + 0.5) * pixels / size
    centres = cell_centres(pixels, cells)
    return np.stack([np.interp(places, centres, cell) for cell in np.eye(cells)], axis=1)


def _blend(grey: np.ndarray, level: np.ndarray, which: Which) -> Frames:
    """Blend heat over grey: grey (H, W) 0 to 255, level (H, W) 0 to 1 -> (H, W, 3) uint8.

    There is no heat where the level is 0.
    """
    colour = HEAT[which](level)[..., :3] * 255
    opaque = np.clip(1.6 * level, 0, 0.95)[..., None]
    return (0.65 * grey[..., None] * (1 - opaque) + colour * opaque).round().astype(np.uint8)
