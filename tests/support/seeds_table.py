"""The agreement of our tables with the papers', from files of `ttm study seeds`: a page generator.

python -m seeds_table FILE.json …      # with this folder on the path
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ttm.training.study.seeds import Results


def main(arguments: Sequence[str]) -> None:
    """Print a Markdown table with a line for each of the JSON files."""
    print("| table | rank correlation (95 %) | CPU hours |\n| --- | --- | --- |")
    for name in arguments:
        found = Results.read(Path(name))
        print(f"| `{found.table}` | {found.correlation or '—'} | {found.cpu_hours:.1f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
