"""The picture of an episode: what its memory read and wrote, on the camera images and over time.

Warm heat stands for reading and cool heat for writing. The colours of sources are those of Okabe and
Ito, which colour-blind readers can tell apart. Sizes are in inches of 100 pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
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
from ttm.sim.condition import CueName
from ttm.sim.environment import EXECUTED
from ttm.sim.pages import COLOURS
from ttm.sim.rollout import Outcome

PROPRIOCEPTION = "proprioception"
"""The source that stands for all proprioception vectors together."""
CUE, GAP, GO = "cue", "gap", "go"
"""What marks of pictures are called: the cue is shown, it is hidden, the robot may act."""
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
    changes: Mapping[str, Floats]
    """Action part -> (T,): how far the commands of a run whose memory was erased once are away, as a
    portion of the largest command of the part."""
    erased: int
    """The tick before which it was erased: the first at which the robot may act, or else the middle one."""

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

    def pixels(self, camera: str, which: Which | None, tick: int, size: tuple[int, int]) -> Frames:
        """Return a camera's image as seen, or under the heat of a direction, (*size, 3) uint8.

        The brightest heat is the 99.9th percentile of the direction, however small that is.
        """
        frame = self.frames[camera][tick]
        if which is None:
            return enlarged(frame, size)
        all_maps = np.concatenate([each.ravel() for each in self.maps[which].values()])
        brightest = max(float(np.quantile(all_maps, 0.999)), 1e-6)
        return heat_over(frame, self.maps[which][camera][tick], brightest, which, size)

    @cached_property
    def slots(self) -> Floats:
        """(T, m): how much of each memory token was kept, or received by erase-and-add."""
        size = self.attention[0].memory_size
        if self.erase_add:
            sent = [tick.slots for tick in self.attention if tick.slots is not None]
            return np.stack(sent).mean(axis=1)
        return np.stack([w[:, :size].sum(axis=1) for w in self._written])

    @property
    def written(self) -> Floats:
        """(T, m): how much of each slot was written. A ring's slots are numbered by their visits."""
        if self.erase_add:
            return self.slots
        new, size = 1 - self.slots, self.attention[0].memory_size
        is_ring = all(np.array_equal(w[:-1, 1:size], np.eye(size - 1)) for w in self._written)
        return np.stack([np.roll(row, t + 1) for t, row in enumerate(new)]) if is_ring else new

    @property
    def _written(self) -> list[Floats]:
        return [tick.write for tick in self.attention if tick.write is not None]

    @cached_property
    def gates(self) -> Floats | None:
        """(T, J): how far each slot of a sight memory opened; None if the policy has none."""
        gates = [tick.gates for tick in self.attention if tick.gates is not None]
        return np.stack(gates) if gates else None


def trace_memory(
    policy: Policy, seen: SeenEpisode, *, each: Callable[[range], Iterable[int]] = iter
) -> MemoryTrace:
    """Replay the observations of `seen` in order, with the memory kept, as on the robot.

    The previous action is what the robot did, or the policy's own command if `seen` does not say it.
    `each` yields the ticks, for a caller that shows its progress. Raises `UserError` if the core is no
    Token Turing Machine, or an observation is unfit.
    """
    runner, other = (PolicyRunner(policy, engine="torch") for _ in range(2))  # hooks need PyTorch
    runner.reset(seen.instruction, embedding=seen.embedding)
    count = len(next(iter(seen.observations.values())))
    erased = min(seen.moments.get(GO, count // 2), count - 1)
    attention, norms, commands = [], [], []
    with record_attention(policy) as record:
        for tick in each(range(count)):
            now = {name: values[tick] for name, values in seen.observations.items()}
            if tick == erased:
                other.reset(seen.instruction, embedding=seen.embedding)
                other.restore(runner.snapshot())
                other.erase_memory()
            command = runner.step(now, delay_s=seen.delay_s).values
            attention.append(record.latest)
            norms.append(runner.memory_norms)
            without = other.step(now, delay_s=seen.delay_s).values if tick >= erased else command
            commands.append((command, without))
            for driven in (runner, other)[: 1 + (tick >= erased)]:
                if seen.executed is not None:
                    driven.executed(seen.executed[tick])
    both = np.array(commands)  # (T, 2, A)
    away = np.abs(both[:, 0] - both[:, 1]) / np.maximum(np.abs(both).max(axis=(0, 1)), 1e-6)
    slices = policy.spec.action_slices
    changes = {name: away[:, where].max(axis=1) for name, where in slices.items()}
    return MemoryTrace(seen, policy.spec, tuple(attention), np.stack(norms), changes, erased)


class EpisodeMemory:
    """Collects what a policy sees in an episode, to draw what its memory did in a replay by PyTorch."""

    def __init__(self, actor: PolicyActor) -> None:
        assert actor.policy is not None
        self._actor, self._policy = actor, actor.policy
        names = actor.policy.spec.observation_names
        self._seen: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        self._executed: list[Floats] = []

    def on_tick(self, observation: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        """Keep a copy of what the policy sees; see `ttm.sim.rollout.OnTick`."""
        seen = self._policy.spec.seen(observation)
        for name, values in self._seen.items():
            values.append(np.array(seen[name]))
        if EXECUTED in info and info["tick"]:  # before the first tick, nothing was executed
            self._executed.append(np.array(info[EXECUTED], np.float32))

    def draw(self, path: Path, outcome: Outcome, cue: CueName) -> None:
        """Write the picture of the episode that ended with `outcome`, and in which the cue was `cue`."""
        choice, moments = outcome.choice, {}
        if choice and choice.go_tick is not None:
            if cue != "left_on" and choice.gap:
                moments[GAP] = choice.go_tick - choice.gap
            moments[GO] = choice.go_tick
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
BANDS = {CUE: "#f6d97a", GAP: "#dddddd", GO: "#bfe3d3"}
SLOT_COLOURS = (*COLOURS, *COLOURS)


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
    """Draw the frame under the heat of its cells.

    frame: (H, W, 3), shares: (h, w) -> (*size, 3) uint8. top: the share of the brightest heat.
    """
    rows, columns = map(_between_cells, frame.shape[:2], shares.shape, size)
    level = np.clip(rows @ shares @ columns.T / top, 0, 1) ** HEAT_POWER
    colour = HEAT[which](level)[..., :3] * 255
    opaque = np.clip(1.6 * level, 0, 0.9)[..., None]
    shown = 0.9 * enlarged(frame, size).astype(np.float32)
    return (shown * (1 - opaque) + colour * opaque).round().astype(np.uint8)


def source_colours(trace: MemoryTrace) -> dict[str, str]:
    """Return source -> colour, in the order in which the sources are stacked."""
    cameras = dict(zip(trace.frames, cycle(CAMERA_COLOURS), strict=False))
    return {MEMORY: MEMORY_COLOUR, **cameras, **OTHER_COLOURS}


def source_label(source: str, trace: MemoryTrace) -> str:
    """Return the name of a source in pictures."""
    return f"{source} camera" if source in trace.frames else source


def _between_cells(pixels: int, cells: int, size: int) -> np.ndarray:
    """Return weights (size, cells) that interpolate from cell centres to `size` new pixels."""
    places = (np.arange(size) + 0.5) * pixels / size
    centres = cell_centres(pixels, cells)
    return np.stack([np.interp(places, centres, cell) for cell in np.eye(cells)], axis=1)


WIDTH, HEIGHT = 12.0, 6.0
LEFT, CONTENT = 0.75, 8.5
"""Where the charts begin, and how wide they are."""
HEADER, CHARTS_TOP, CHART, CHART_GAP, BAND = 1.0, 2.8, 0.6, 0.35, 0.2
"""Where images and charts begin, and heights of a chart, what separates two, and the band of marks."""
LEGEND: Mapping[str, Any] = {
    "loc": "center left", "bbox_to_anchor": (1.01, 0.5), "frameon": False, "borderaxespad": 0.2,
    "fontsize": 10, "labelspacing": 0.2, "handlelength": 1.0, "alignment": "left",
}  # fmt: skip


def draw_strip(trace: MemoryTrace, columns: int = 8) -> Figure:
    """Draw what the first camera saw at up to `columns` ticks, above charts of all ticks.

    The ticks are evenly spread, but for the last of the cue and the first at which the robot may act.
    """
    ticks = np.linspace(0, trace.num_ticks - 1, min(trace.num_ticks, columns)).round().astype(int)
    for name, tick in trace.seen.moments.items():
        ticks[np.abs(ticks - tick).argmin()] = min(tick - (name == GAP), trace.num_ticks - 1)
    page, _ = draw_charts(trace, HEIGHT, CHARTS_TOP)
    ticks, camera = np.unique(ticks), next(iter(trace.frames))
    side = min((WIDTH - 0.4) / columns - 0.06, CHARTS_TOP - HEADER - 0.45)
    which: Which | None = "write" if trace.gates is None and "write" in trace.directions else None
    for column, tick in enumerate(ticks.tolist()):
        left = 0.2 + column * (WIDTH - 0.4 - side) / max(len(ticks) - 1, 1)
        image = trace.pixels(camera, which, tick, (round(2 * side * DPI),) * 2)
        mark_slots(page.image(left, HEADER, side, side, image).axes, trace, tick)
        page.text(left + side / 2, HEADER - 0.04, f"tick {tick}", 10.5, ha="center", va="bottom")
        below = LEFT + (tick + 0.5) / trace.num_ticks * CONTENT
        ends = (HEADER + side + 0.02, CHARTS_TOP - BAND - 0.03)
        x, y = np.array([left + side / 2, below]) / WIDTH, 1 - np.array(ends) / HEIGHT
        page.figure.add_artist(Line2D(x, y, color=RULE, lw=0.9))
    return page.figure


def draw_charts(trace: MemoryTrace, height: float, top: float) -> tuple[Page, list[Axes]]:
    """Return a page with its title and the charts of all ticks below `top`, and the charts."""
    page, rate, seen = Page(WIDTH, height), trace.spec.rate_hz, trace.seen
    page.text(0.2, 0.12, f"“{shorten(seen.instruction, 80, placeholder=' …')}”", 16, weight="bold")
    if trace.gates is not None:
        how = "Square: what is written. Rings: where what the slots hold is found."
    else:
        how = "" if trace.erase_add else "Blue heat: what is written."
    facts = f"{seen.title}, {trace.num_ticks / rate:.1f} s. {how}"
    page.text(0.2, 0.46, facts, 10.5, color=FAINT)
    erased = f"Commands if the memory is erased at tick {trace.erased}: change, of the largest"
    charts: dict[str, Callable[[MemoryTrace, Axes], None]] = {
        "Read, by source" if trace.erase_add else "Written, by source, of the largest": _draw_shares
    }
    if trace.gates is not None:
        charts = {"When the sight memory is open": _draw_gates}
    charts |= {"Written, by slot of the core, of the largest": _draw_slots, erased: _draw_changes}
    _draw_band(page.axes(LEFT, top - BAND, CONTENT, BAND), trace)
    every = list[Axes]()
    heights = (0.85, 0.45, 0.5) if trace.gates is not None else (CHART,) * 3
    for (title, draw), tall in zip(charts.items(), heights, strict=True):
        axes = page.axes(LEFT, top + CHART_GAP - 0.1, CONTENT, tall)
        axes.set_title(title, loc="left", fontsize=11, weight="bold", color=INK, pad=3)
        axes.spines[["top", "right"]].set_visible(False)
        draw(trace, axes)
        axes.set_xlim(-0.5, trace.num_ticks - 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
        axes.tick_params(labelbottom=len(every) == 2)
        for tick in trace.seen.moments.values():
            axes.axvline(tick - 0.5, color=INK, lw=1.2)
        every.append(axes)
        top += tall + CHART_GAP
    every[-1].set_xlabel(f"tick, of {1 / rate:g} s", fontsize=10, labelpad=1)
    return page, every


def mark_slots(axes: Axes, trace: MemoryTrace, tick: int) -> list[Line2D]:
    """Mark on an image of the first camera what a sight memory writes, and where its slots are found."""
    looks, marks = trace.attention[tick].looks, list[Line2D]()
    if trace.gates is None or looks is None:
        return marks
    cells, size = math.isqrt(looks.shape[-1]), axes.get_images()[0].get_size()[0]
    places = (
        (np.stack(np.unravel_index(looks.argmax(axis=-1), (cells, cells)), -1) + 0.5) * size / cells
    )
    opened = trace.gates[: tick + 1, 0] > 0
    events = int((np.diff(opened.astype(int), prepend=0) > 0).sum())
    look: dict[str, Any] = {"mfc": "none", "mew": 2, "clip_on": False}
    if opened[tick]:
        marks += axes.plot(*places[0, ::-1], "s", ms=7, mec=SLOT_COLOURS[0], **look)
    for (row, column), colour in zip(places[1 : 1 + events], SLOT_COLOURS, strict=False):
        marks += axes.plot(column, row, "o", ms=11, mec=colour, **look)
    return marks


def _draw_band(axes: Axes, trace: MemoryTrace) -> None:
    """Draw when the cue was shown, when it was hidden, and when the robot may act."""
    axes.set(xlim=(-0.5, trace.num_ticks - 0.5), ylim=(0, 1), yticks=[], xticks=[])
    axes.axis("off")
    moments = {CUE: 0} | dict(trace.seen.moments)
    ends = [*list(moments.values())[1:], trace.num_ticks]
    for (name, start), end in zip(moments.items() if len(moments) > 1 else (), ends, strict=False):
        axes.axvspan(start - 0.5, end - 0.5, color=BANDS.get(name, RULE), lw=0)
        axes.text(
            (start + end - 1) / 2, 0.45, name, fontsize=10, ha="center", va="center", color=INK
        )


def _draw_shares(trace: MemoryTrace, axes: Axes) -> None:
    which = trace.directions[-1]
    shares = {s: each for s, each in trace.shares[which].items() if which == "read" or s != MEMORY}
    colours = source_colours(trace)
    largest = max(float(np.sum(list(shares.values()), axis=0).max()), 1e-9)
    stacked = np.pad(list(shares.values()), ((0, 0), (0, 1)), mode="edge") / largest
    style: dict[str, Any] = {"step": "post", "edgecolor": "white", "lw": 0.3}
    edges = np.arange(trace.num_ticks + 1) - 0.5
    axes.stackplot(edges, stacked, colors=[colours[source] for source in shares], **style)
    axes.set(ylim=(0, 1), yticks=(0, 0.5, 1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    most = sorted(shares, key=lambda source: -shares[source].mean())[:4]
    labels = [(colours[s], source_label(s, trace)) for s in shares if s in most]
    handles = [Patch(facecolor=colour, label=label) for colour, label in reversed(labels)]
    axes.legend(handles=handles, **LEGEND)


def _draw_slots(trace: MemoryTrace, axes: Axes) -> None:
    written = trace.written / max(float(trace.written.max()), 1e-9)
    style: Any = {"aspect": "auto", "cmap": "Blues", "interpolation": "nearest"}
    axes.imshow(written.T, vmin=0, vmax=1, **style)
    axes.set_ylabel("slot", fontsize=10)
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    share = f"dark: {100 * trace.written.max():.2g} % of a slot\nis new at this tick"
    axes.text(1.012, 0.5, share, transform=axes.transAxes, fontsize=10, va="center", color=INK)


def _draw_gates(trace: MemoryTrace, axes: Axes) -> None:
    assert trace.gates is not None
    level = np.append(trace.gates[:, 0], trace.gates[-1, 0])
    edges = np.arange(trace.num_ticks + 1) - 0.5
    axes.fill_between(edges, level, step="post", color=SLOT_COLOURS[0], lw=0)
    axes.set(ylim=(0, 1.1), yticks=[])


def _draw_changes(trace: MemoryTrace, axes: Axes) -> None:
    for (name, change), colour in zip(trace.changes.items(), cycle(SLOT_COLOURS), strict=False):
        axes.plot(change, color=colour, lw=1.8, label=name.replace("_", " "))
    axes.set_ylim(0, 1.05 * max(0.02, *(float(change.max()) for change in trace.changes.values())))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.legend(**LEGEND)
