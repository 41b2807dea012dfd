"""Reading results of `ttm evaluate` from their folders, and comparing them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ttm.policy.checks import require_some
from ttm.policy.errors import UserError
from ttm.sim.evaluation.condition import PROBE_DESCRIPTIONS, Condition
from ttm.sim.evaluation.pages.comparison import Entry, print_comparison, write_comparison
from ttm.sim.evaluation.result import RESULT_FILE, VIDEOS, Evaluation, load_evaluation


def compare_and_report(results: Sequence[Path], out: Path) -> int:
    """Print the rates and the paired tests of all `results`, and write report.html into `out`.

    Returns the exit code. Raises `UserError` if a result is missing, named twice, or of another
    environment than the first.
    """
    require_some({"RESULT": results})
    entries = [entry for path in results for entry in read_entries(path)]
    _require_different(entries)
    page = write_comparison(out / "report.html", "Evaluations compared", entries)
    print_comparison(entries)
    print(f"report: {page}")
    return 0


def read_entries(path: Path) -> list[Entry]:
    """Return the evaluation of an `--out` folder, or those of its combinations of gap and probe.

    Raises `UserError` if there is none.
    """
    if path.is_dir() and not (path / RESULT_FILE).is_file():
        files = sorted(path.glob(f"*/{RESULT_FILE}"))
        if files:
            entries = [_entry(path, file) for file in files]
            return sorted(entries, key=lambda entry: _order(entry.evaluation))
    return [_entry(path, path / RESULT_FILE if path.is_dir() else path)]


def _entry(path: Path, file: Path) -> Entry:
    """Return the evaluation, named for `path` and what its condition adds to the plain one."""
    evaluation = load_evaluation(file)
    series = evaluation.condition.series
    name = str(path) if series == Condition().series else f"{path} ({series})"
    return Entry(name, evaluation, file.parent / VIDEOS)


def _order(evaluation: Evaluation) -> tuple[int, int, str]:
    """Order by gap, and then as the probes are listed, "live" first."""
    condition = evaluation.condition
    gap = -1 if condition.gap is None else condition.gap
    return gap, list(PROBE_DESCRIPTIONS).index(condition.probe), condition.series


def _require_different(entries: Sequence[Entry]) -> None:
    labels = [entry.label for entry in entries]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"{label} is named twice; name each evaluation once")
