"""The counts by hand reproduce the published figures of the Token Turing Machines paper."""

from __future__ import annotations

import pytest

from ttm.policy.cores.transformers import RecurrentTransformerConfig
from ttm.training.bench.flops import Measured, explanation, measure_tables


@pytest.fixture(scope="module")
def tables() -> dict[str, list[Measured]]:
    return dict(measure_tables())


def test_hand_count_is_exact_in_all_rows_of_the_paper(tables: dict[str, list[Measured]]) -> None:
    for rows in tables.values():
        for measured in rows:
            assert measured.by_hand.whole.matrix == measured.counted.multiply_adds, (
                measured.row.name
            )


def test_published_figures_within_two_percent(tables: dict[str, list[Measured]]) -> None:
    published = [m for rows in tables.values() for m in rows if m.row.paper_gflops is not None]
    assert len(published) == 12
    for measured in published:
        assert measured.gflops == pytest.approx(measured.row.paper_gflops, rel=0.01), (
            measured.row.name
        )
        assert measured.matrix_gflops == pytest.approx(measured.row.paper_gflops, rel=0.031)


def test_tables_2_and_3_to_the_last_digit_with_6_operations_a_value_of_a_layer_norm(
    tables: dict[str, list[Measured]],
) -> None:
    """The text that is printed below the tables claims this."""
    for measured in (m for title in list(tables)[:2] for m in tables[title] if m.row.paper_gflops):
        step = measured.by_hand
        counted = (
            step.process
            if isinstance(measured.row.config, RecurrentTransformerConfig)
            else step.whole
        )
        assert round((counted.total - counted.norms / 7 / 2) / 1e9, 3) == measured.row.paper_gflops


def test_every_row_without_a_published_figure_says_so(tables: dict[str, list[Measured]]) -> None:
    for rows in tables.values():
        for measured in rows:
            if measured.row.paper_gflops is None:
                assert "not determined" in explanation(measured)
