"""Contact sheets: rows are episodes under their instruction, columns evenly spaced ticks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ttm.datasets.episode_reader import EpisodeReader
from ttm.policy.spec import CameraSpec

TILE_HEIGHT = 120
CAPTION_HEIGHT = 26
GAP = 4
FONT_SIZE = 15
LABEL_SIZE = 11
PAPER, INK, FAINT, GREEN, RED = "#ffffff", "#1a1a1a", "#707070", "#1a7f37", "#c62828"


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
            corner = (GAP + column * (tile[0] + GAP), top + CAPTION_HEIGHT)
            frame = Image.fromarray(episode.frames(camera.name, tick, tick + 1)[0])
            sheet.paste(frame.resize(tile, Image.Resampling.LANCZOS), corner)
            _label(draw, corner, f"{tick}")
    return sheet


def spaced_ticks(num_samples: int, columns: int) -> list[int]:
    """Return up to `columns` evenly spaced ticks, from the first to the last.

    They are all ticks of an episode that is shorter.
    """
    count = min(num_samples, columns)
    return [int(tick) for tick in np.linspace(0, num_samples - 1, count).round()]


def evenly_chosen(episodes: Sequence[EpisodeReader], count: int) -> list[EpisodeReader]:
    """Return `count` episodes (or all, if there are fewer), evenly spread over their order."""
    return [episodes[i] for i in spaced_ticks(len(episodes), count)]


def _caption(draw: ImageDraw.ImageDraw, episode: EpisodeReader, top: int, width: int) -> None:
    """Write the instruction on the left, and on the right success, file and length if they fit."""
    y = top + CAPTION_HEIGHT // 2
    outcome, colour = {True: ("success", GREEN), False: ("failure", RED), None: ("", FAINT)}[
        episode.success
    ]
    facts = f"{episode.path.stem}/{episode.name}, {episode.num_samples} ticks"
    right = width - GAP
    if outcome:
        draw.text((right, y), outcome, fill=colour, font=_font(FONT_SIZE), anchor="rm")
        right -= round(draw.textlength(outcome, font=_font(FONT_SIZE))) + 12
    instruction = _fitting(draw, episode.instruction or "(no instruction)", right - GAP)
    draw.text((GAP + 2, y), instruction, fill=INK, font=_font(FONT_SIZE), anchor="lm")
    room = right - GAP - draw.textlength(instruction, font=_font(FONT_SIZE)) - 20
    if draw.textlength(facts, font=_font(FONT_SIZE)) <= room:
        draw.text((right, y), facts, fill=FAINT, font=_font(FONT_SIZE), anchor="rm")


def _fitting(draw: ImageDraw.ImageDraw, text: str, width: float) -> str:
    """Return the text, shortened to `width` pixels."""
    if draw.textlength(text, font=_font(FONT_SIZE)) <= width:
        return text
    while text and draw.textlength(f"{text}…", font=_font(FONT_SIZE)) > width:
        text = text[:-1]
    return f"{text}…"


def _label(draw: ImageDraw.ImageDraw, corner: tuple[int, int], text: str) -> None:
    """Write the tick into a corner of the frame, on black so that it can be read on any scene."""
    width = round(draw.textlength(text, font=_font(LABEL_SIZE))) + 6
    draw.rectangle((*corner, corner[0] + width, corner[1] + LABEL_SIZE + 4), fill="#000000")
    draw.text((corner[0] + 3, corner[1] + 1), text, fill="#ffffff", font=_font(LABEL_SIZE))


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
