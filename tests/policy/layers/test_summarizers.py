"""The four token summarisers against their definitions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ttm.policy.errors import UserError
from ttm.policy.summarizers import (
    AttentionSummarizer,
    PoolingSummarizer,
    QuerySummarizer,
    Summarizer,
    TokenSummarizer,
)

WIDTH, K = 16, 3
SUMMARIZERS: dict[str, Callable[[], Summarizer]] = {
    "mlp": lambda: TokenSummarizer(WIDTH, K, bottleneck=8),
    "mha": lambda: AttentionSummarizer(WIDTH, K),
    "query": lambda: QuerySummarizer(WIDTH, K),
    "pooling": lambda: PoolingSummarizer(K),
}


@pytest.fixture(params=SUMMARIZERS)
def summarizer(request: pytest.FixtureRequest) -> Summarizer:
    """Return a summariser with parameters of order 1, so that its weights are far from uniform."""
    made = SUMMARIZERS[request.param]()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter))
    return made.double()


def tokens(batch: int = 2, count: int = 7) -> torch.Tensor:
    return torch.randn(batch, count, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize(("batch", "count"), [(1, 7), (3, 7), (2, 2)])
def test_weights_sum_to_one_over_the_tokens(summarizer: Summarizer, batch: int, count: int) -> None:
    weights = summarizer.weights(tokens(batch, count))
    assert weights.shape == (batch, count, K)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(batch, K, dtype=torch.float64))
    assert summarizer(tokens(batch, count)).shape == (batch, K, WIDTH)


@pytest.mark.parametrize("name", ["mlp", "query", "pooling"])
def test_summary_is_the_weighted_mean(name: str) -> None:
    summarizer, x = SUMMARIZERS[name]().double(), tokens()
    torch.testing.assert_close(summarizer(x), summarizer.weights(x).transpose(1, 2) @ x)
    same = x[:, :1].expand(-1, 7, -1)
    torch.testing.assert_close(summarizer(same), same[:, :K])


def test_mlp_weights_follow_equations_1_and_3() -> None:
    summarizer, x = TokenSummarizer(WIDTH, K, bottleneck=8).double(), tokens()
    normed = F.layer_norm(x, (WIDTH,), eps=1e-6)
    hidden = F.gelu(normed @ summarizer.mlp.hidden.weight.T, approximate="tanh")
    expected = (hidden @ summarizer.mlp.out.weight.T).softmax(dim=1)  # biases are zero at the start
    torch.testing.assert_close(summarizer.weights(x), expected)


def test_query_weights_follow_equation_2() -> None:
    summarizer, x = QuerySummarizer(WIDTH, K).double(), tokens()
    with torch.no_grad():
        summarizer.queries.normal_()
    queries, values = summarizer.queries.detach().numpy(), x.numpy()
    for b in range(2):
        for k in range(K):
            logits = np.array([queries[k] @ value for value in values[b]]) / np.sqrt(WIDTH)
            weights = np.exp(logits) / np.exp(logits).sum()
            np.testing.assert_allclose(summarizer.weights(x)[b, :, k].detach(), weights, rtol=1e-12)
            np.testing.assert_allclose(
                summarizer(x)[b, k].detach(), weights @ values[b], rtol=1e-10
            )


def test_pooling_takes_means_of_neighbours() -> None:
    x = tokens(count=6)
    torch.testing.assert_close(PoolingSummarizer(3)(x), x.unflatten(1, (3, 2)).mean(dim=2))


def test_pooling_with_more_groups_than_tokens_repeats_tokens() -> None:
    x, pool = tokens(count=2), PoolingSummarizer(4)
    torch.testing.assert_close(pool(x), x[:, [0, 0, 1, 1]])
    torch.testing.assert_close(pool.weights(x).transpose(1, 2) @ x, x[:, [0, 0, 1, 1]])


def test_pooling_has_nothing_to_learn() -> None:
    assert not list(PoolingSummarizer(3).parameters())


def test_attention_weights_are_those_that_the_values_get() -> None:
    """With one head and identity maps for values and outputs, the summary is the weighted mean."""
    summarizer, x = AttentionSummarizer(WIDTH, K, num_heads=1).double(), tokens()
    with torch.no_grad():
        summarizer.queries.normal_()
        summarizer.key_value.weight[WIDTH:] = torch.eye(WIDTH)
        summarizer.out.weight.copy_(torch.eye(WIDTH))
    torch.testing.assert_close(summarizer(x), summarizer.weights(x).transpose(1, 2) @ x)


def test_attention_starts_as_flax_does() -> None:
    """lecun_normal: variance 1 / inputs, cut off at two deviations of the uncut normal."""
    summarizer = AttentionSummarizer(128, K)
    for layer in (summarizer.query, summarizer.key_value, summarizer.out):
        assert abs(layer.weight.std().item() * 128**0.5 - 1) < 0.03
        assert layer.weight.abs().max() <= 2 / 0.8796 / 128**0.5 + 1e-6
        assert not layer.bias.any()


def test_attention_needs_a_width_that_its_heads_divide() -> None:
    with pytest.raises(UserError, match="8 heads, which do not divide the width 12"):
        AttentionSummarizer(12, K)
