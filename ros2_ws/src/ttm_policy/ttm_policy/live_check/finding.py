"""What was found about the entries of a contract, and its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What the live graph says about one topic of a contract."""

    topic: str
    seen: str
    """What there is, such as a rate; may be empty."""
    problems: tuple[str, ...] = ()
    """What is wrong, each with its remedy."""


def report(findings: Sequence[Finding], file: str) -> str:
    """Return a line for each finding and problem, and a summary."""
    width = max(len(finding.topic) for finding in findings)
    lines = []
    for finding in findings:
        mark = "WRONG" if finding.problems else "ok"
        lines.append(f"{mark:5}  {finding.topic:{width}}  {finding.seen}".rstrip())
        lines += [f"{'':7}{problem}" for problem in finding.problems]
    wrong = sum(bool(finding.problems) for finding in findings)
    summary = (
        f"{wrong} of {len(findings)} topics do not fit {file}; mend the robot or the contract"
        if wrong
        else f"all {len(findings)} topics fit {file}"
    )
    return "\n".join([*lines, summary])
