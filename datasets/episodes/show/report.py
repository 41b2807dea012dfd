"""What `ttm data show` prints and writes."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from PIL import Image
from rich.console import Console

from ttm.datasets.episode_dataset import EpisodeDataset, open_dataset
from ttm.datasets.observations.choices import Choices
from ttm.datasets.observations.spec_file import write_spec_file
from ttm.datasets.show.contact_sheet import contact_sheet, evenly_chosen
from ttm.datasets.show.nearness import nearness_lines
from ttm.datasets.show.summary import (
    instruction_table,
    member_table,
    overview_table,
    vector_table,
)
from ttm.datasets.show.turning import turning_lines
from ttm.policy.errors import UserError
from ttm.policy.files import write_atomically


def show_dataset(
    path: str,
    *,
    mask: str | None = None,
    sheet: Path | None = None,
    rows: int = 12,
    columns: int = 8,
    choices: Choices | None = None,
) -> None:
    """Print the summary of the data set `path`, and write its contact sheets if `sheet` is given.

    The other arguments are those of `DataShowCommand`. A spec file that is not there is written.
    """
    choices = choices or Choices()
    new_spec = choices.spec if choices.spec is not None and not choices.spec.exists() else None
    episodes = open_dataset(path, choices=replace(choices, spec=None) if new_spec else choices)
    episodes = episodes.filter(mask) if mask else episodes
    if not len(episodes):
        raise UserError(f"{path}: no episode is in mask '{mask}'; leave --mask out to see all")
    console = Console()
    console.print(episodes.source, style="bold", soft_wrap=True, highlight=False, markup=False)
    tables = (overview_table, member_table, vector_table, instruction_table)
    for table in tables:
        console.print(table(episodes))
    for line in (*nearness_lines(episodes), *turning_lines(episodes)):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if new_spec is not None:
        write_spec_file(new_spec, episodes.spec, dict(episodes[0].stored))
        console.print(f"spec: {new_spec}", soft_wrap=True, highlight=False, markup=False)
    if sheet is not None:
        for file in write_contact_sheets(episodes, sheet, rows, columns):
            console.print(f"contact sheet: {file}", soft_wrap=True, highlight=False, markup=False)


def write_contact_sheets(
    episodes: EpisodeDataset, path: Path, rows: int, columns: int
) -> list[Path]:
    """Write one picture for each camera and return their paths.

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
    chosen = evenly_chosen(episodes, rows)
    written = []
    for camera in episodes.spec.cameras:
        file = path.with_stem(f"{path.stem}_{camera.name}") if several else path
        picture = io.BytesIO()
        contact_sheet(chosen, camera, columns).save(picture, format=picture_format, quality=90)
        try:
            write_atomically(file, picture.getvalue())
        except OSError as error:
            raise UserError(
                f"cannot write {file} ({error}); give another file with --sheet"
            ) from error
        written.append(file)
    return written
