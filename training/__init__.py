"""Training of policies, benchmarks, studies of memories, and the `ttm` command."""

import sys


def main() -> int:
    """Run `ttm`; return its exit code, after Ctrl-C also where it comes while the command is imported."""
    try:
        from ttm.training import cli

        return cli.main()
    except KeyboardInterrupt:
        print("ttm: interrupted", file=sys.stderr)
        return 130
