"""Count the operations of all tables of `ttm bench flops`, and report them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from ttm.policy.network.config import PresetName
from ttm.policy.network.presets import PRESETS
from ttm.training.bench.flops.hierarchy_costs import (
    hierarchy_notes,
    hierarchy_table,
    measure_hierarchies,
)
from ttm.training.bench.flops.measure import hourglass_sizes, measure_cores, measure_tables
from ttm.training.bench.flops.paper_tables import WIDTH
from ttm.training.bench.flops.tables import (
    CONVENTION,
    LAYER_NORMS,
    core_notes,
    core_table,
    explanations,
    paper_table,
    to_dict,
)
from ttm.training.bench.report import Report


def run_bench(preset: PresetName, json_path: Path | None) -> None:
    """Print the paper's tables, all cores at the sizes of `preset`, and the hierarchies of Hourglass.

    json_path: where to write the figures, None for nowhere.
    """
    report = Report(json_path, convention=CONVENTION, tables=[])
    report.text(CONVENTION)
    for title, rows in measure_tables():
        report.table(paper_table(title, rows), explanations(rows))
        report.figures["tables"].append(
            {"title": title, "rows": [to_dict(measured, WIDTH) for measured in rows]}
        )
    report.text(LAYER_NORMS)
    cores = measure_cores(preset)
    report.table(core_table(cores, preset), core_notes(preset))
    width = PRESETS[preset].width
    report.figures["cores"] = {
        "preset": preset,
        "rows": [to_dict(measured, width) for measured in cores],
    }
    sizes = hourglass_sizes(preset)
    hierarchies = measure_hierarchies(sizes, width)
    report.table(hierarchy_table(hierarchies), hierarchy_notes(sizes, width))
    report.figures["hierarchies"] = [asdict(row) for row in hierarchies]
    report.write()
