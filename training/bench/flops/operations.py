"""Numbers of operations, by kind, and the rule by which they add up to one figure.

A multiply-add of a matrix product counts as one, so that (P, a) x (a, b) takes P a b. Element-wise
work is counted as the cost analysis of XLA counts it: one for each addition, multiplication or
division of one value, and nothing for exp, tanh, sigmoid and square roots.
"""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass


@dataclass(frozen=True)
class Operations:
    """The operations of one part of a step: `matrix` in multiply-adds, the others element-wise."""

    matrix: int = 0
    norms: int = 0
    activations: int = 0
    """gelu, and the products of gates."""
    softmaxes: int = 0
    additions: int = 0
    """Biases, residuals, positional embeddings, and the scaling of queries."""

    def __add__(self, other: Operations) -> Operations:
        return Operations(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: int) -> Operations:
        return Operations(*(times * value for value in astuple(self)))

    @property
    def elementwise(self) -> int:
        """The sum of all element-wise operations."""
        return sum(asdict(self).values()) - self.matrix

    @property
    def total(self) -> float:
        """Multiply-adds plus half of the element-wise operations.

        XLA counts two for a multiply-add. Scenic, the framework of the TTM paper's authors, halves
        the whole count to state the cost of a model, so element-wise work counts half.
        """
        return self.matrix + self.elementwise / 2


@dataclass(frozen=True)
class StepOperations:
    """One step of a core in three parts. Cores that do not read or write a memory have `process` alone."""

    read: Operations = Operations()
    process: Operations = Operations()
    write: Operations = Operations()

    @property
    def whole(self) -> Operations:
        """The sum of the three parts."""
        return self.read + self.process + self.write
