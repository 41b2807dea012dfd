"""Runs `ttm study suite`: makes what is missing, then prints and writes the report."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock
from rich.console import Console

from ttm.policy.errors import UserError
from ttm.policy.files import write_atomically
from ttm.training.common.folders import make_folder
from ttm.training.common.progress import print_progress
from ttm.training.common.tables import write_figures
from ttm.training.study.suite.figures import collect_figures, merged_figures, read_figures
from ttm.training.study.suite.options import SuiteOptions
from ttm.training.study.suite.pieces import Workshop
from ttm.training.study.suite.plot import draw_choices
from ttm.training.study.suite.report import NOTES, Report
from ttm.training.study.suite.run_folder import run_folders


def run(options: SuiteOptions) -> int:
    """Run the study and return the exit code."""
    if not options.only_reports:
        code = Workshop(options).make_all()
        if code:
            return code
        if not any(folder.training_result for folder in run_folders(options.out)):
            print_progress("no training is finished yet; the same command goes on")
            return 0
    if options.figures:
        report = Report(merged_figures([read_figures(path) for path in options.figures]))
    else:
        report = Report(collect_figures(options.out))
        with FileLock(make_folder(options.out) / ".report.lock"):
            _write(options.out, report)
    _print(report, options)
    return 0


def _write(out: Path, report: Report) -> None:
    """Write report.md, figures.json and choices.svg."""
    tables = [grid.to_markdown() for grid in report.grids()]
    write_atomically(out / "report.md", "\n\n".join([report.heading(), *tables, NOTES]) + "\n")
    write_atomically(out / "figures.json", report.figures.to_json())
    if report.gaps:
        write_atomically(out / "choices.svg", draw_choices(report))


def _print(report: Report, options: SuiteOptions) -> None:
    """Print the tables, and write the files that the user asked for."""
    console = Console(highlight=False)
    console.print(report.heading(), soft_wrap=True, markup=False)
    for grid in report.grids():
        console.print(grid.for_terminal())
    console.print(NOTES, soft_wrap=True, markup=False)
    write_figures(console, options.json, report.figures.to_json())
    if options.plot is not None:
        _plot(options.plot, report)


def _plot(path: Path, report: Report) -> None:
    if not report.gaps:
        raise UserError("there is no evaluation to plot yet; leave --plot out")
    try:
        write_atomically(path, draw_choices(report))
    except OSError as error:
        raise UserError(f"cannot write {path} ({error}); give another file with --plot") from error
