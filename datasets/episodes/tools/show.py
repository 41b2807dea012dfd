"""`ttm data show`: tables and contact sheets of a data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import tyro
from PIL import Image, ImageDraw, ImageFont
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from tyro.conf import OmitArgPrefixes

from ttm.datasets.console import TitledTable
from ttm.datasets.dataset import EpisodeDataset, dataset_statistics, open_dataset
from ttm.datasets.description import Choices, write_spec_file
from ttm.datasets.reader import EpisodeReader
from ttm.datasets.writer import limits_text
from ttm.policy.errors import UserError, options, require_at_least
from ttm.policy.files import replacing
from ttm.policy.spec import RATES_HZ, CameraSpec, PolicySpec

TILE_HEIGHT, CAPTION_HEIGHT, GAP = 120, 26, 4
FONT_SIZE, LABEL_SIZE = 15, 11
PAPER, INK, GREEN, RED = "#ffffff", "#1a1a1a", "#1a7f37", "#c62828"


@dataclass(frozen=True)
class DataShowCommand:
    """Show what is in a data set: episodes, steps, rate, cameras, ranges, instructions, success.

    With --sheet, also write a contact sheet for each camera: a picture whose rows are episodes and
    whose columns are evenly spaced ticks.

    For example:
      ttm data show demos
      ttm data show demos --sheet sheet.png
      ttm data show "demos/pick_*.hdf5" --mask valid
      ttm data show theirs.hdf5 --spec theirs.yaml    # writes it; edit it and give it with --spec
    """

    path: Annotated[str, tyro.conf.Positional]
    """An HDF5 file, a folder of them, or a glob in quotes."""
    mask: str | None = None
    """Show only the episodes of this mask, such as train or valid."""
    sheet: Path | None = None
    """Where to write the contact sheet, as .png or .jpg. With several cameras there is one file for
    each, with the camera's name added. None writes no contact sheet."""
    rows: int = 12
    """The number of episodes on the contact sheet, evenly spread over the data set."""
    columns: int = 8
    """The number of ticks of each episode on the contact sheet, from its first to its last."""
    choices: OmitArgPrefixes[Choices] = field(default_factory=Choices)

    def run(self) -> int:
        """Print the summary and write the contact sheets; return the exit code."""
        require_at_least(1, options(self, "rows", "columns"))
        choices, given = self.choices, self.choices.spec
        new_spec = given if given is not None and not given.exists() else None
        choices = replace(choices, spec=None) if new_spec else choices
        episodes = open_dataset(self.path, choices=choices)
        episodes = episodes.filter(self.mask) if self.mask else episodes
        if not len(episodes):
            raise UserError(f"{self.path}: no episode is in mask '{self.mask}'; leave --mask out")
        console = Console()
        console.print(episodes.source, style="bold", soft_wrap=True, highlight=False, markup=False)
        for table in (overview_table, member_table, vector_table, instruction_table):
            made = table(episodes)
            # No number is cut where the terminal is narrow: the line goes on in the next one.
            least = Measurement.get(console, console.options.update(max_width=1000), made).minimum
            Console(width=max(console.width, least)).print(made)
        if new_spec is not None:
            write_spec_file(new_spec, episodes.spec, dict(episodes[0].stored))
            print(f"spec: {new_spec}")
        for file in () if self.sheet is None else _write_sheets(episodes, self.sheet, self):
            print(f"contact sheet: {file}")
        return 0


def overview_table(episodes: EpisodeDataset) -> Table:
    """Return the robot, files, episodes, steps, rate, cameras, success and note."""
    spec = episodes.spec
    lengths = [episode.num_samples for episode in episodes]
    counts = (f"{key} {sum(key in each.masks for each in episodes)}" for key in episodes.mask_keys)
    masks = ", ".join(counts)
    table = Table(show_header=False, box=box.SIMPLE)
    rows = {
        "robot": spec.robot,
        "files": str(len({episode.path for episode in episodes})),
        "episodes": f"{len(episodes)} ({masks})" if masks else f"{len(episodes)}",
        "steps": f"{sum(lengths)} ({min(lengths)} to {max(lengths)} an episode, "
        f"median {np.median(lengths):g})",
        "rate": rate_text(episodes),
        "cameras": "\n".join(f"{c.name} {c.width}x{c.height}" for c in spec.cameras) or "none",
        "success": _success_text(episodes),
        "note": episodes.note,
    }
    for name, text in rows.items():
        if text:
            table.add_row(f"[bold]{name}[/bold]", escape(text))
    return table


def member_table(episodes: EpisodeDataset) -> Table:
    """Return every member of `obs` with what is done with it, and why; those that are used first."""
    table = TitledTable("Members of obs", box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for member in sorted(episodes.members, key=lambda member: not member.is_used):
        table.add_row(escape(member.name), escape(member.text))
    return table


def vector_table(episodes: EpisodeDataset) -> Table:
    """Return the range and mean of each dimension, with its unit and limits."""
    statistics, spec = dataset_statistics(episodes), episodes.spec
    table = TitledTable("Actions and proprioception, by dimension", box=box.SIMPLE_HEAD)
    table.add_column("dimension", overflow="fold")
    for name in ("min", "mean", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limits", no_wrap=True)
    groups = [(_action_labels(spec), statistics.actions)]
    for vector in spec.proprioception:
        labels = [(label, "") for label in vector.labels]
        groups.append((labels, statistics.proprioception[vector.name]))
    for labels, found in groups:
        columns = (found.min, found.mean, found.max)
        for (label, limit), *values in zip(labels, *columns, strict=True):
            table.add_row(escape(label), *(f"{value:.3g}" for value in values), limit)
        table.add_section()
    return table


def _action_labels(spec: PolicySpec) -> list[tuple[str, str]]:
    """Return the label and the limits of each dimension."""
    found = []
    for part in spec.actions:
        unit = f" ({part.unit})" if part.unit not in ("", "unknown") else ""
        bounded = np.isfinite([part.low, part.high]).all()
        limit = f"{part.low:g} to {part.high:g}" if bounded else ""
        limit = limits_text(part) if part.kind == "binary" else limit
        indices = [""] if part.size == 1 else [f"[{i}]" for i in range(part.size)]
        found += [(f"{part.name}{index}{unit}", limit) for index in indices]
    return found


def instruction_table(episodes: EpisodeDataset) -> Table:
    """Return the distinct instructions with their task and counts, the most frequent first."""
    counts = Counter((each.instruction, each.task) for each in episodes)
    succeeded = Counter((each.instruction, each.task) for each in episodes if each.success)
    judged = any(episode.success is not None for episode in episodes)
    table = TitledTable("Instructions", box=box.SIMPLE_HEAD)
    for name in ("episodes", "successes", "task", "instruction"):
        table.add_column(name, justify="right" if name.endswith("s") else "left")
    for (instruction, task), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        successes = str(succeeded[instruction, task]) if judged else "-"
        table.add_row(str(count), successes, escape(task) or "-", escape(instruction) or "(none)")
    return table


def rate_text(episodes: EpisodeDataset) -> str:
    """Return the control rate that the timestamps give, and the one that the spec says."""
    steps = [np.diff(times) for episode in episodes if (times := episode.timestamps) is not None]
    intervals: npt.NDArray[np.float64] = np.concatenate(steps) if steps else np.empty(0)
    rate = episodes.spec.rate_hz
    if not intervals.size:
        return f"not measured: no timestamps ({rate:g} Hz assumed)"
    middle = float(np.median(intervals))
    if not middle > 1 / RATES_HZ[1]:
        return f"not measured: timestamps {middle:g} s apart tell no rate ({rate:g} Hz assumed)"
    spread = f"ticks {intervals.min() * 1e3:.0f} to {intervals.max() * 1e3:.0f} ms apart"
    return f"{1 / middle:.2f} Hz measured ({spread}); the spec says {rate:g} Hz"


def _success_text(episodes: EpisodeDataset) -> str:
    outcomes = [episode.success for episode in episodes if episode.success is not None]
    if not outcomes:
        return "not recorded"
    unknown = len(episodes) - len(outcomes)
    return f"{sum(outcomes)} of {len(outcomes)}" + (f" ({unknown} not recorded)" if unknown else "")


def contact_sheet(
    episodes: Sequence[EpisodeReader], camera: CameraSpec, columns: int
) -> Image.Image:
    """Draw what `camera` saw in each episode, at `columns` ticks from the first to the last."""
    tile = (max(round(TILE_HEIGHT * camera.width / camera.height), 1), TILE_HEIGHT)
    row_height = CAPTION_HEIGHT + tile[1] + GAP
    size = (columns * (tile[0] + GAP) + GAP, max(len(episodes), 1) * row_height + GAP)
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    for row, episode in enumerate(episodes):
        top = GAP + row * row_height
        _caption(draw, episode, top, size[0])
        for column, tick in enumerate(spaced_ticks(episode.num_samples, columns)):
            left, upper = GAP + column * (tile[0] + GAP), top + CAPTION_HEIGHT
            frame = Image.fromarray(episode.frames(camera.name, tick, tick + 1)[0])
            sheet.paste(frame.resize(tile, Image.Resampling.LANCZOS), (left, upper))
            # The tick stands on black, so that it can be read on any scene.
            width = round(draw.textlength(f"{tick}", font=_font(LABEL_SIZE))) + 6
            draw.rectangle((left, upper, left + width, upper + LABEL_SIZE + 4), fill="#000000")
            draw.text((left + 3, upper + 1), f"{tick}", fill="#ffffff", font=_font(LABEL_SIZE))
    return sheet


def spaced_ticks(num_samples: int, columns: int) -> list[int]:
    """Return up to `columns` evenly spaced ticks, from the first to the last."""
    count = min(num_samples, columns)
    return [int(tick) for tick in np.linspace(0, num_samples - 1, count).round()]


def evenly_chosen(episodes: Sequence[EpisodeReader], count: int) -> list[EpisodeReader]:
    """Return `count` episodes (or all, if there are fewer), evenly spread over their order."""
    return [episodes[i] for i in spaced_ticks(len(episodes), count)]


def _caption(draw: ImageDraw.ImageDraw, episode: EpisodeReader, top: int, width: int) -> None:
    """Write the instruction and the place as far as they fit, and the success at the right."""
    y, font = top + CAPTION_HEIGHT // 2, _font(FONT_SIZE)
    judged = {True: ("success", GREEN), False: ("failure", RED), None: ("", INK)}
    outcome, colour = judged[episode.success]
    draw.text((width - GAP, y), outcome, fill=colour, font=font, anchor="rm")
    room = width - 4 * GAP - draw.textlength(outcome, font=font)
    place = f"{episode.path.stem}/{episode.name}, {episode.num_samples} ticks"
    text = whole = f"{episode.instruction or '(no instruction)'} ({place})"
    while whole and draw.textlength(text, font=font) > room:
        whole = whole[:-1]
        text = f"{whole}…"
    draw.text((GAP + 2, y), text, fill=INK, font=font, anchor="lm")


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _write_sheets(episodes: EpisodeDataset, path: Path, options: DataShowCommand) -> Iterator[Path]:
    """Write one picture for each camera and yield their paths.

    They are `path`, or with several cameras `path` with the camera's name added to its stem. The
    suffix chooses the format and is .png if there is none.
    """
    path = path if path.suffix else path.with_suffix(".png")
    picture_format = Image.registered_extensions().get(path.suffix.lower())
    if picture_format is None:
        raise UserError(f"{path} is no kind of picture; give --sheet a name such as sheet.png")
    if not episodes.spec.cameras:
        raise UserError(f"{episodes.source} has no camera for a contact sheet; leave --sheet out")
    several = len(episodes.spec.cameras) > 1
    chosen = evenly_chosen(episodes, options.rows)
    for camera in episodes.spec.cameras:
        file = path.with_stem(f"{path.stem}_{camera.name}") if several else path
        sheet = contact_sheet(chosen, camera, options.columns)
        try:
            with replacing(file) as partial:
                sheet.save(partial, format=picture_format, quality=90)
        except OSError as error:
            raise UserError(f"cannot write {file} ({error}); give another --sheet") from error
        yield file
