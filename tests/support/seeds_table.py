"""Our tables beside the papers', from files of `ttm study seeds`: a page generator.

python -m seeds_table FILE.json …      # with this folder on the path; each with its picture beside it
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ttm.training.study.seeds import Results


def main(arguments: Sequence[str]) -> None:
    """Print the picture of each of the JSON files, and what they have cost."""
    found = {Path(name): Results.read(Path(name)) for name in arguments}
    for path, of in found.items():
        picture = path.with_suffix(".svg").relative_to(path.parents[2])
        print(f"![{of.title}]({picture})\n")
    hours = sum(of.cpu_hours for of in found.values())
    print(f"Together {hours:.1f} CPU hours at most: rows of two tables cost once.")


if __name__ == "__main__":
    main(sys.argv[1:])
