"""Computes the embedding of one instruction, in a process of its own.

    echo "pick up the red can" | python -m ttm_policy.embedding_process all-MiniLM-L6-v2

The text comes on standard input, and the embedding leaves as JSON in the last line of standard output.
The exit code is 2 for a mistake of the user, whose message is the last line of standard error.
"""

from __future__ import annotations

import json
import sys

from ttm.policy.errors import UserError
from ttm.policy.language import embed_instruction


def main() -> int:
    """Read, compute and write. Return the exit code."""
    try:
        embedding = embed_instruction(sys.stdin.read(), sys.argv[1])
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n" + json.dumps(embedding.tolist()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
