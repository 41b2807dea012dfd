"""What the studies print as results: notes, tables, and the name of a JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ttm.training.common.tables import write_figures


def print_results(*parts: str | Table, figures: dict[str, Any], json_path: Path | None) -> None:
    """Print notes and tables in this order; write `figures` to `json_path`, if it is not None.

    Raises `UserError` if the file cannot be written.
    """
    console = Console(highlight=False)
    for part in parts:
        if isinstance(part, str):
            console.print(part, soft_wrap=True, markup=False)
        else:
            console.print(part)
    write_figures(console, json_path, json.dumps(figures, indent=2))
