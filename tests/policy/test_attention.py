"""A Transformer encoder that returns its first tokens computes them from all tokens in every layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ttm.policy.attention import TransformerEncoder


def encoder(num_layers: int, num_outputs: int | None) -> TransformerEncoder:
    torch.manual_seed(0)
    return TransformerEncoder(8, 6, num_layers, 2, 16, num_outputs).double()


@pytest.mark.parametrize("num_layers", [0, 1, 3])
@torch.no_grad()
def test_its_outputs_are_the_first_of_all_tokens(num_layers: int) -> None:
    tokens = torch.randn(2, 6, 8, dtype=torch.float64)
    found = encoder(num_layers, 4)(tokens)
    torch.testing.assert_close(found, encoder(num_layers, None)(tokens)[:, :4])


@torch.no_grad()
def test_the_last_layer_computes_no_others() -> None:
    made, shapes = encoder(2, 4), list[torch.Size]()

    def note(module: object, args: tuple[Tensor, ...], output: Tensor) -> None:
        shapes.append(output.shape)

    for block in made.blocks:
        block.register_forward_hook(note)
    made(torch.randn(2, 6, 8, dtype=torch.float64))
    assert shapes == [(2, 6, 8), (2, 4, 8)]
