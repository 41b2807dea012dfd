"""Our tables beside the papers', from files of `ttm study seeds`: a page generator.

python -m seeds_table FILE.json …      # with this folder on the path; each with its picture beside it
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ttm.training.study.seeds import UNREAD, Results


def main(arguments: Sequence[str]) -> None:
    """Print a Markdown table with a line for each of the JSON files, and then their pictures."""
    found = {Path(name): Results.read(Path(name)) for name in arguments}
    print("| table | rank correlation (95 %) | CPU hours |\n| --- | --- | --- |")
    for of in found.values():
        print(f"| `{of.table}` | {of.correlation or '—'} | {of.cpu_hours:.2f} |")
    print(f"| together | | {sum(of.cpu_hours for of in found.values()):.1f} |")
    for path, of in found.items():
        note = f"; {of.note}" if of.note not in ("", UNREAD) else ""
        picture = path.with_suffix(".svg").relative_to(path.parents[2])
        print(f"\n`{of.table}`{note}:\n\n![{of.title}]({picture})")


if __name__ == "__main__":
    main(sys.argv[1:])
