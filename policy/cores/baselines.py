"""An LSTM and a temporal MLP-Mixer, with which the TTM paper compares (Ryoo et al. 2022, table 2)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.core import CoreState, reset_where
from ttm.policy.cores.sequence import SequenceConfig, SequenceCore, WindowedConfig, WindowedCore
from ttm.policy.layers import MlpMixer, layer_norm


@dataclass(frozen=True)
class LstmConfig(SequenceConfig):
    """The sizes of the LSTM. Its hidden width is the width D of the tokens."""

    def build(self, width: int, num_inputs: int) -> LstmCore:
        """See `CoreConfig.build`."""
        return LstmCore(width, num_inputs, self)


class LstmCore(SequenceCore):
    """An LSTM of L layers for each of the r token slots, with shared weights.

        i, f, g, o = W x + U h    c' = sigmoid(f) c + sigmoid(i) tanh(g)    h' = sigmoid(o) tanh(c')

    The LSTM is that with a forget gate (Hochreiter and Schmidhuber 1997; Gers et al. 2000).
    The state is {"hidden", "cell"}, (B, L, r, D) each. The slots do not exchange information here;
    a learned embedding tells the shared weights which slot they process.
    """

    def __init__(self, width: int, num_inputs: int, config: LstmConfig) -> None:
        super().__init__(width, num_inputs, config)
        self.state_shape = (config.num_layers, config.process_size, width)
        self.slot = nn.Parameter(torch.randn(config.process_size, width) * 0.02)
        self.norm = layer_norm(width)
        self.lstm = nn.LSTM(width, width, config.num_layers, batch_first=True)
        self.output_norm = layer_norm(width)
        for _, _, input_bias, _ in self.lstm.all_weights:
            # An LSTM that starts by keeping its cell learns over longer times (Jozefowicz et al. 2015).
            nn.init.ones_(input_bias.data[width : 2 * width])

    def initial_state(self, batch_size: int) -> CoreState:
        """Return zeros."""
        return {name: self.zeros(batch_size, *self.state_shape) for name in ("hidden", "cell")}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """Run one tick by plain matrix products, which are faster than `nn.LSTM` for one tick."""
        x = self.norm(self.read(tokens) + self.slot)  # (B, r, D)
        hidden, cell = [], []
        layers = zip(state["hidden"].unbind(1), state["cell"].unbind(1), strict=True)
        for layer, (h, c) in enumerate(layers):
            x, c = self._cell(layer, x, h, c)
            hidden.append(x)
            cell.append(c)
        state = {"hidden": torch.stack(hidden, dim=1), "cell": torch.stack(cell, dim=1)}
        return self.output_norm(x), state

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """Call `nn.LSTM` once for each stretch of ticks in which no episode starts."""
        batch, ticks = tokens.shape[:2]
        x = self.norm(self.read_all(tokens) + self.slot)  # (B, T, r, D)
        x = x.transpose(1, 2).flatten(0, 1)  # (B * r, T, D)
        initial = self.initial_state(batch)
        state = initial if state is None else state
        outputs = []
        for first, end in _stretches(episode_start, ticks):
            if episode_start is not None:
                state = reset_where(episode_start[:, first], state, initial)
            output, state = self._run(x[:, first:end], state)
            outputs.append(output)
        joined = torch.cat(outputs, dim=1).view(batch, self.num_outputs, ticks, -1)  # (B, r, T, D)
        return self.output_norm(joined.transpose(1, 2)), state

    def _cell(self, layer: int, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Return h' and c' of one layer. All tensors are (B, r, D)."""
        input_weight, hidden_weight, input_bias, hidden_bias = self.lstm.all_weights[layer]
        gates = F.linear(x, input_weight, input_bias) + F.linear(h, hidden_weight, hidden_bias)
        i, f, g, o = gates.chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def _run(self, x: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """Run `nn.LSTM` on x, (B * r, T, D). Returns outputs of that shape, and the new state."""
        if _lacks_bfloat16(x):
            with torch.autocast("cpu", enabled=False):
                return self._run(x.float(), {name: part.float() for name, part in state.items()})
        given = (state[name].transpose(0, 1).flatten(1, 2) for name in ("hidden", "cell"))
        output, made = self.lstm(x, tuple(part.contiguous() for part in given))  # (L, B * r, D)
        hidden, cell = (part.unflatten(1, (-1, self.num_outputs)).transpose(0, 1) for part in made)
        return output, {"hidden": hidden, "cell": cell}


def _lacks_bfloat16(x: Tensor) -> bool:
    """Return whether autocast would ask a CPU for an LSTM in bfloat16 that it does not have."""
    return (
        x.device.type == "cpu"
        and torch.is_autocast_enabled("cpu")
        and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def _stretches(episode_start: Tensor | None, ticks: int) -> list[tuple[int, int]]:
    """Return first tick and end of the stretches of a window that episode starts separate."""
    starts = [] if episode_start is None else episode_start.any(dim=0).nonzero().flatten().tolist()
    return list(pairwise(sorted({0, *starts, ticks})))


@dataclass(frozen=True)
class TemporalMixerConfig(WindowedConfig):
    """An MLP-Mixer (Tolstikhin et al. 2021) over the tokens of the last ticks: its window and sizes."""

    token_mixing_size: int = 128
    """Hidden width of the MLPs over tokens."""

    def build(self, width: int, num_inputs: int) -> WindowedCore:
        """See `CoreConfig.build`."""
        mixer = MlpMixer(
            width, self.num_tokens, self.num_layers, self.token_mixing_size, self.mlp_size
        )
        return WindowedCore(width, num_inputs, self, mixer)
