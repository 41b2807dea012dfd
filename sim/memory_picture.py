"""The picture of an episode: what its memory read and wrote, on the camera images and over time.

Warm heat stands for reading and cool heat for writing. The colours of sources are those of Okabe and
Ito, which colour-blind readers can tell apart. Sizes are in inches of 100 pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import cycle
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter
from PIL import Image

from ttm.datasets.frames import Frames
from ttm.policy.memory_attention import (
    MEMORY,
    OUTPUTS,
    Floats,
    MemoryAttention,
    Which,
    cell_centres,
    record_attention,
)
from ttm.policy.policy import INSTRUCTION, PREVIOUS_ACTION, Policy
from ttm.policy.runner import PolicyRunner
from ttm.policy.sight import SOURCES as SIGHT_SOURCES
from ttm.policy.spec import PolicySpec
from ttm.sim.actors import PolicyActor
from ttm.sim.environment import EXECUTED
from ttm.sim.rollout import Outcome
from ttm.sim.shipped import CueName

PROPRIOCEPTION = "proprioception"
"""The source that stands for all proprioception vectors together."""
SIGHT = "sight memory"
"""The source that stands for all tokens of the sight memory together."""


@dataclass(frozen=True, eq=False)
class SeenEpisode:
    """What a policy saw over the T ticks of one episode."""

    title: str
    """Names the episode and the policy."""
    instruction: str
    observations: Mapping[str, npt.NDArray[Any]]
    """Camera -> (T, H, W, 3) uint8 RGB, and proprioception -> (T, n), of the policy's own sizes."""
    embedding: Floats | None = None
    """Of the instruction, (L,), if the policy does not know it."""
    moments: Mapping[str, int] = field(default_factory=dict)
    """What happened -> the tick at which it did, to be marked in pictures."""
    executed: Floats | None = None
    """(T, A): what the robot did at each tick; None if it did what the policy commanded."""
    delay_s: float = 0.0
    """What the policy was told of the time until its command is in force."""


@dataclass(frozen=True, eq=False)
class MemoryTrace:
    """The memory over the T ticks of one episode."""

    seen: SeenEpisode
    spec: PolicySpec
    """The spec of the policy."""
    attention: tuple[MemoryAttention, ...]
    norms: Floats
    """(T, m): Euclidean norms of the memory tokens after each tick."""

    @property
    def num_ticks(self) -> int:
        return len(self.attention)

    @property
    def frames(self) -> dict[str, Frames]:
        """Camera -> (T, H, W, 3) uint8 RGB, as the policy saw them."""
        return {camera.name: self.seen.observations[camera.name] for camera in self.spec.cameras}

    @property
    def erase_add(self) -> bool:
        """Whether the memory is written by erase-and-add, whose writing has no weights."""
        return self.attention[0].write is None

    @property
    def directions(self) -> tuple[Which, ...]:
        """The directions that can be shown."""
        return ("read",) if self.erase_add else ("read", "write")

    @cached_property
    def shares(self) -> dict[Which, dict[str, Floats]]:
        """Direction -> source -> (T,) its share at every tick."""
        groups = {vector.name: PROPRIOCEPTION for vector in self.spec.proprioception}
        groups |= dict.fromkeys(SIGHT_SOURCES, SIGHT)
        found: dict[Which, dict[str, Floats]] = {}
        for which in self.directions:
            sums = found[which] = {}
            ticks = [tick.shares(which) for tick in self.attention]
            for name in ticks[0]:
                share = np.array([tick[name] for tick in ticks], np.float32)
                source = groups.get(name, name)
                sums[source] = sums[source] + share if source in sums else share
        return found

    @cached_property
    def maps(self) -> dict[Which, dict[str, Floats]]:
        """Direction -> camera -> (T, h, w): the share of every cell of the camera's image."""
        return {
            which: {
                camera: np.stack([tick.image_map(camera, which) for tick in self.attention])
                for camera in self.frames
            }
            for which in self.directions
        }

    @cached_property
    def brightest(self) -> float:
        """Share of a cell that gets the brightest colour: the 99.9th percentile of all maps."""
        maps = [values.ravel() for cameras in self.maps.values() for values in cameras.values()]
        return max(float(np.quantile(np.concatenate(maps), 0.999)), 1e-6)

    def pixels(self, camera: str, which: Which | None, tick: int, size: tuple[int, int]) -> Frames:
        """Return a camera's image as seen, or under the heat of a direction, (*size, 3) uint8."""
        frame = self.frames[camera][tick]
        if which is None:
            return enlarged(frame, size)
        return heat_over(frame, self.maps[which][camera][tick], self.brightest, which, size)

    @cached_property
    def matrices(self) -> Floats:
        """(T, m, m): how much of each old memory token (last axis) each new one kept.

        With erase-and-add it is (T, vectors, m): to which memory slots each of its vectors went.
        """
        size = self.attention[0].memory_size
        written = [tick.slots if tick.write is None else tick.write for tick in self.attention]
        return np.stack([each[:, :size] for each in written if each is not None])

    @cached_property
    def slots(self) -> Floats:
        """(T, m): how much of each memory token was kept, or received by erase-and-add."""
        return self.matrices.mean(axis=1) if self.erase_add else self.matrices.sum(axis=2)


def trace_memory(
    policy: Policy, seen: SeenEpisode, *, each: Callable[[range], Iterable[int]] = iter
) -> MemoryTrace:
    """Replay the observations of `seen` in order, with the memory kept, as on the robot.

    The previous action is what the robot did, or the policy's own command if `seen` does not say it.
    `each` yields the ticks, for a caller that shows its progress. Raises `UserError` if the core is no
    Token Turing Machine, or an observation is unfit.
    """
    runner = PolicyRunner(policy, engine="torch")  # hooks see only PyTorch's modules
    runner.reset(seen.instruction, embedding=seen.embedding)
    attention, norms = [], []
    with record_attention(policy) as record:
        for tick in each(range(len(next(iter(seen.observations.values()))))):
            now = {name: values[tick] for name, values in seen.observations.items()}
            runner.step(now, delay_s=seen.delay_s)
            if seen.executed is not None:
                runner.executed(seen.executed[tick])
            attention.append(record.latest)
            norms.append(runner.memory_norms)
    return MemoryTrace(seen, policy.spec, tuple(attention), np.stack(norms))


class EpisodeMemory:
    """Collects what a policy sees in an episode, to draw what its memory did in a replay by PyTorch."""

    def __init__(self, actor: PolicyActor) -> None:
        assert actor.policy is not None
        self._actor, self._policy = actor, actor.policy
        names = actor.policy.spec.observation_names
        self._seen: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        self._executed: list[Floats] = []

    def on_tick(self, observation: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        """Keep a copy of the observation; see `ttm.sim.rollout.OnTick`."""
        for name, values in self._seen.items():
            values.append(np.array(observation[name]))
        if EXECUTED in info and info["tick"]:  # before the first tick, nothing was executed
            self._executed.append(np.array(info[EXECUTED], np.float32))

    def draw(self, path: Path, outcome: Outcome, cue: CueName) -> None:
        """Write the picture of the episode that ended with `outcome`, and in which the cue was `cue`."""
        choice, moments = outcome.choice, {}
        if choice and choice.go_tick is not None:
            if cue != "left_on" and choice.gap:
                moments["the cue is gone"] = choice.go_tick - choice.gap
            moments["the robot may act"] = choice.go_tick
        seen = SeenEpisode(
            f"{outcome.task}, initial state {outcome.seed}",
            outcome.instruction,
            # The last observation was shown, and not acted upon.
            {name: np.stack(values[: outcome.ticks]) for name, values in self._seen.items()},
            self._actor.embedding(outcome.instruction),
            moments,
            np.stack(self._executed) if self._executed else None,
            self._actor.delay_s,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure = draw_strip(trace_memory(self._policy, seen))
        figure.savefig(path, pil_kwargs={"quality": QUALITY})


DPI = 100
QUALITY = 85
"""Of pictures of evaluated episodes, out of 100."""
INK, FAINT, RULE = "#1a1a1a", "#666666", "#b8b8b8"
MEMORY_COLOUR = "#0072B2"
CAMERA_COLOURS = ("#E69F00", "#D55E00", "#F0E442", "#8C510A")
OTHER_COLOURS = {
    PROPRIOCEPTION: "#009E73",
    SIGHT: "#882255",
    PREVIOUS_ACTION: "#CC79A7",
    INSTRUCTION: "#56B4E9",
    OUTPUTS: "#999999",
}
HEAT: Mapping[Which, LinearSegmentedColormap] = {
    "read": LinearSegmentedColormap.from_list("read", ["#a02000", "#ff8c1a", "#fff47a"]),
    "write": LinearSegmentedColormap.from_list("write", ["#005fa8", "#1fc4f0", "#dcfff6"]),
}
HEAT_POWER = 0.5
"""Exponent of the colour scale. Most cells have small shares and a few large ones; a square root
shows both."""
VERBS: Mapping[Which, str] = {"read": "read", "write": "written"}
"""What happened to a place of an image."""
TITLES: Mapping[Which, str] = {"read": "Read from", "write": "Memory now made of"}


class Page:
    """A figure on which elements are placed by their distance from the top left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
        self.canvas = FigureCanvasAgg(self.figure)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes of this size."""
        bottom = 1 - (top + height) / self.height
        place = (left / self.width, bottom, width / self.width, height / self.height)
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
        """Add text with its top left corner at this place, unless `style` aligns it otherwise."""
        style = {"va": "top", "ha": "left", "color": INK, "fontsize": size, **style}
        return self.figure.text(left / self.width, 1 - top / self.height, text, **style)


def enlarged(frame: Frames, size: tuple[int, int]) -> Frames:
    """Enlarge a frame: (H, W, 3) -> (*size, 3) uint8."""
    return np.asarray(Image.fromarray(frame).resize((size[1], size[0]), Image.Resampling.BICUBIC))


def heat_over(
    frame: Frames, shares: Floats, top: float, which: Which, size: tuple[int, int]
) -> Frames:
    """Draw the frame in grey under the heat of its cells.

    frame: (H, W, 3), shares: (h, w) -> (*size, 3) uint8. top: the share of the brightest heat.
    """
    image = Image.fromarray(frame).convert("L").resize((size[1], size[0]), Image.Resampling.BICUBIC)
    rows, columns = map(_between_cells, frame.shape[:2], shares.shape, size)
    level = np.clip(rows @ shares @ columns.T / top, 0, 1) ** HEAT_POWER
    return _blend(np.asarray(image, np.float32), level, which)


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
    cameras = dict(zip(trace.frames, cycle(CAMERA_COLOURS), strict=False))
    return {MEMORY: MEMORY_COLOUR, **cameras, **OTHER_COLOURS}


def source_label(source: str, which: Which, trace: MemoryTrace) -> str:
    """Return the name of a source in pictures."""
    if source == MEMORY:
        return "memory" if which == "read" else "memory (kept)"
    if source == OUTPUTS:
        return "own outputs"
    return f"{source} camera" if source in trace.frames else source


def stack_shares(axes: Axes, trace: MemoryTrace, which: Which) -> list[Patch]:
    """Stack the shares of all sources at all ticks; return legend handles, the topmost first."""
    shares, colours = trace.shares[which], source_colours(trace)
    stacked = np.pad(list(shares.values()), ((0, 0), (0, 1)), mode="edge")
    style: dict[str, Any] = {"step": "post", "edgecolor": "white", "lw": 0.4}
    edges = np.arange(trace.num_ticks + 1) - 0.5
    axes.stackplot(edges, stacked, colors=[colours[source] for source in shares], **style)
    axes.set(ylim=(0, 1), yticks=(0, 0.5, 1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    labels = {s: f"{source_label(s, which, trace)}  {shares[s].mean():.0%}" for s in shares}
    return [Patch(facecolor=colours[s], label=label) for s, label in labels.items()][::-1]


def _between_cells(pixels: int, cells: int, size: int) -> np.ndarray:
    """Return weights (size, cells) that interpolate from cell centres to `size` new pixels."""
    places = (np.arange(size) + 0.5) * pixels / size
    centres = cell_centres(pixels, cells)
    return np.stack([np.interp(places, centres, cell) for cell in np.eye(cells)], axis=1)


def _blend(grey: np.ndarray, level: np.ndarray, which: Which) -> Frames:
    """Blend heat over grey: grey (H, W) 0 to 255, level (H, W) 0 to 1 -> (H, W, 3) uint8."""
    colour = HEAT[which](level)[..., :3] * 255
    opaque = np.clip(1.6 * level, 0, 0.95)[..., None]
    return (0.65 * grey[..., None] * (1 - opaque) + colour * opaque).round().astype(np.uint8)


LEFT, CONTENT, RIGHT = 1.6, 12.0, 2.4
"""Widths of the columns of the page: names, pictures and charts, legends."""
GAP, CAMERA_GAP = 0.06, 0.18
HEADER, CHART, CHART_GAP, FOOTER = 1.5, 1.6, 0.5, 0.75
"""Heights of the rows of the page."""
LEGEND: Mapping[str, Any] = {
    "loc": "center left", "bbox_to_anchor": (1.01, 0.5), "frameon": False, "borderaxespad": 0.2,
    "fontsize": 10,
}  # fmt: skip
KEPT = "How much of each memory token was kept"
EXPLANATION = (
    "Heat: which places in the image were read (warm), and written into the memory (cool). "
    "100 % is all that was read, or written, at a tick, from all sources together."
)


def draw_strip(trace: MemoryTrace, columns: int = 8) -> Figure:
    """Draw the camera images at up to `columns` evenly chosen ticks, above charts of all ticks."""
    count = min(trace.num_ticks, columns)
    ticks = np.linspace(0, trace.num_ticks - 1, count).round().astype(int).tolist()
    tile = CONTENT / columns - GAP
    heights = {c: tile * frames.shape[1] / frames.shape[2] for c, frames in trace.frames.items()}
    rows = 1 + len(trace.directions)
    images = sum(rows * (height + GAP) + CAMERA_GAP for height in heights.values())
    charts: dict[str, Callable[[Page, MemoryTrace, Axes, float], None]]
    charts = {TITLES[which]: partial(_draw_shares, which=which) for which in trace.directions}
    charts["Slots that erase-and-add wrote to" if trace.erase_add else KEPT] = _draw_slots
    charts["Size of the memory: Euclidean norm of its tokens"] = _draw_norms
    height = HEADER + images + len(charts) * (CHART + CHART_GAP) + FOOTER
    page = Page(LEFT + CONTENT + RIGHT, height)
    middles = [LEFT + (column + 0.5) * CONTENT / len(ticks) for column in range(len(ticks))]
    _draw_title(page, trace, dict(zip(ticks, middles, strict=True)))
    top = HEADER
    for camera, height in heights.items():
        pixels = (round(2 * height * DPI), round(2 * tile * DPI))
        for row, which in enumerate((None, *trace.directions)):
            label, weight = (f"{camera} camera", "bold") if which is None else (VERBS[which], None)
            at = top + row * (height + GAP)
            style = {"ha": "right", "va": "center", "weight": weight}
            page.text(LEFT - 0.15, at + height / 2, label, 11, **style)
            for tick, middle in zip(ticks, middles, strict=True):
                image = trace.pixels(camera, which, tick, pixels)
                page.image(middle - tile / 2, at, tile, height, image)
        top += rows * (height + GAP) + CAMERA_GAP
    for number, which in enumerate(trace.directions):
        left = LEFT + CONTENT + 0.25 + number
        page.text(left, HEADER, f"{VERBS[which]},\nper cell", 10)
        heat_scale(page, left, HEADER + 0.5, 2.2, which, trace.brightest)
    for number, (title, draw) in enumerate(charts.items(), start=1):
        axes = page.axes(LEFT, top + CHART_GAP, CONTENT, CHART)
        axes.set_title(title, loc="left", fontsize=11, weight="bold", color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        draw(page, trace, axes, top + CHART_GAP)
        _align(axes, trace, ticks, last=number == len(charts))
        _mark_moments(axes, trace, named=number == 1)
        top += CHART + CHART_GAP
    return page.figure


def _draw_title(page: Page, trace: MemoryTrace, middles: Mapping[int, float]) -> None:
    """Draw the title, and the ticks above the images. middles: tick -> where its images are."""
    rate, seen = trace.spec.rate_hz, trace.seen
    title = f"“{shorten(seen.instruction, 90, placeholder=' …')}”"
    page.text(0.25, 0.2, title, 18, weight="bold")
    facts = f"{seen.title}, {trace.num_ticks} ticks at {rate:g} Hz ({trace.num_ticks / rate:.1f} s)"
    page.text(0.25, 0.58, facts, 11, color=FAINT)
    page.text(0.25, 0.84, EXPLANATION, 11, color=FAINT)
    for tick, middle in middles.items():
        name = f"tick {tick}  ({tick / rate:.1f} s)"
        page.text(middle, HEADER - 0.06, name, 10, ha="center", va="bottom")


def _draw_shares(page: Page, trace: MemoryTrace, axes: Axes, top: float, which: Which) -> None:
    axes.legend(
        handles=stack_shares(axes, trace, which), title="source, mean", **LEGEND, labelspacing=0.25,
        handlelength=1.2, alignment="left",
    )  # fmt: skip


def _draw_slots(page: Page, trace: MemoryTrace, axes: Axes, top: float) -> None:
    brightest = trace.slots.max() if trace.erase_add else 1.0
    style: Any = {"aspect": "auto", "cmap": "cividis", "interpolation": "nearest"}
    shown = axes.imshow(trace.slots.T, vmin=0, vmax=brightest, **style)
    axes.set_ylabel("memory token", fontsize=9)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    bar = page.figure.colorbar(shown, cax=page.axes(LEFT + CONTENT + 0.25, top, 0.2, CHART))
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1))


def _draw_norms(page: Page, trace: MemoryTrace, axes: Axes, top: float) -> None:
    ticks, norms = np.arange(trace.num_ticks), trace.norms
    low, high = norms.min(axis=1), norms.max(axis=1)
    label = "smallest to largest"
    axes.fill_between(ticks, low, high, color=MEMORY_COLOUR, alpha=0.25, lw=0, label=label)
    axes.plot(ticks, norms.mean(axis=1), color=MEMORY_COLOUR, lw=2, label="mean")
    axes.set_ylim(bottom=0)
    axes.legend(**LEGEND)


def _align(axes: Axes, trace: MemoryTrace, ticks: list[int], *, last: bool) -> None:
    """Align the time axis with the images above, and mark their ticks by dotted lines."""
    step = (ticks[-1] - ticks[0]) / max(len(ticks) - 1, 1) or 1.0
    axes.set_xlim(ticks[0] - step / 2, ticks[-1] + step / 2)
    times = [f"{tick}\n{tick / trace.spec.rate_hz:.1f} s" for tick in ticks]
    axes.set_xticks(ticks, times if last else [""] * len(ticks))
    axes.set_xlabel("tick and time" if last else "")
    for tick in ticks:
        axes.axvline(tick, color=RULE, lw=0.8, ls=(0, (1, 3)))


def _mark_moments(axes: Axes, trace: MemoryTrace, *, named: bool) -> None:
    """Mark the ticks at which something happened by solid lines, named above the title of the chart."""
    moments = trace.seen.moments
    for name, tick in moments.items():
        axes.axvline(tick - 0.5, color=INK, lw=1.4)
        if named:
            side = "left" if name == list(moments)[-1] else "right"  # keeps two names apart
            place = (tick - 0.5, 1.17)
            axes.annotate(name, place, xycoords=axes.get_xaxis_transform(), fontsize=10, ha=side)
