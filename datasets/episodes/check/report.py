"""What `ttm data check` prints."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ttm.datasets.check.check import CheckReport, check_dataset
from ttm.datasets.observations.choices import Choices
from ttm.datasets.observations.member_table import member_lines
from ttm.policy.errors import printable


def check_and_report(path: str, choices: Choices | None = None) -> int:
    """Check the data set `path` and print the report; return 1 if it has faults, 0 otherwise."""
    report = check_dataset(path, choices)
    print_report(report, Console())
    return 1 if report.num_errors else 0


def print_report(report: CheckReport, console: Console) -> None:
    """Print what is used of `obs`, the faults by file, and then a line that sums up."""
    for line in member_lines(report.members):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    current: Path | None = None
    for fault in report.faults:
        if fault.path != current:
            current = fault.path
            console.print(str(current), style="bold", soft_wrap=True, markup=False, highlight=False)
        label = "[yellow]warning[/yellow]" if fault.is_warning else "[red]fault[/red]  "
        place = " ".join(
            [fault.demo or "file", *([] if fault.tick is None else [f"tick {fault.tick}"])]
        )
        console.print(f"  {label} {place}: ", end="", highlight=False)
        console.print(
            printable(f"{fault.what} -> {fault.remedy}"),
            markup=False,
            soft_wrap=True,
            highlight=False,
        )
    colour = "red" if report.num_errors else "green"
    scope = f"{report.num_episodes} episodes ({report.num_ticks} ticks) of {report.num_files} files"
    verdict = f"[{colour}]{report.num_errors} faults[/{colour}], {report.num_warnings} warnings"
    console.print(f"{verdict} in {scope}", highlight=False)
