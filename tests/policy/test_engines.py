"""Engines: their results equal those of the policy for any core and spec, and never change later."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from rounding import assert_same_but_rounding
from torch import Tensor, nn

from ttm.policy import (
    CameraSpec,
    CoreConfig,
    Policy,
    PolicyConfig,
    PolicyInputs,
    PolicySpec,
    TemporalCore,
    UserError,
)
from ttm.policy.config import ActionHeadConfig
from ttm.policy.cores.core import CoreState
from ttm.policy.cores.registry import CORES, sized_like
from ttm.policy.engines import (
    CompiledTorchEngine,
    CoreTickModule,
    Engine,
    OpenVinoEngine,
    TickLayout,
    TickModule,
    TorchEngine,
    example_tick,
    make_engine,
    random_tick,
    require_agreement,
)
from ttm.policy.openvino_engine import CompiledModule, LayerNormGroups, PlanarPointwise, trace

CPU = torch.device("cpu")


@dataclass(frozen=True)
class CountingConfig(CoreConfig):
    def build(self, width: int, num_inputs: int) -> Counting:
        return Counting(width)


class Counting(TemporalCore):
    """A core whose state holds integers, a mask, a tensor that is passed on, and a constant."""

    num_outputs = 2

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)

    def initial_state(self, batch_size: int) -> CoreState:
        return {
            "ticks": torch.zeros(batch_size, dtype=torch.int64),
            "seen": torch.zeros(batch_size, 3),
            "kept": torch.full((batch_size, 2, 3), 7.0),
            "constant": torch.ones(batch_size, 1),
        }

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        ticks = state["ticks"] + 1
        seen = (torch.arange(3)[None] < ticks[:, None]).float()
        outputs = self.mix(tokens[:, :2]) + seen.sum(dim=1)[:, None, None] + state["kept"].mean()
        new = {
            "ticks": ticks,
            "seen": seen,
            "kept": state["kept"],
            "constant": torch.ones(len(tokens), 1),
        }
        return outputs, new


def moving(policy: Policy, tick: int) -> PolicyInputs:
    """Return the inputs of the tick of that number."""
    return replace(random_tick(policy, tick), previous_action_valid=torch.tensor([[tick > 0]]))


def run(engine: Engine, policy: Policy, ticks: int = 6) -> list[tuple[Tensor, CoreState]]:
    _, state = example_tick(policy)
    results = []
    for tick in range(ticks):
        action, state = engine.step(moving(policy, tick), state)
        results.append((action, state))
    return results


def assert_close(
    results: list[tuple[Tensor, CoreState]], expected: list[tuple[Tensor, CoreState]], atol: float
) -> None:
    for (action, state), (wanted, wanted_state) in zip(results, expected, strict=True):
        torch.testing.assert_close(action, wanted, rtol=0, atol=atol)
        assert list(state) == list(wanted_state)
        for name, value in state.items():
            assert value.dtype == wanted_state[name].dtype
            torch.testing.assert_close(value, wanted_state[name], rtol=0, atol=atol)


@pytest.fixture(scope="module")
def engines() -> dict[str, OpenVinoEngine]:
    """Keep the engine, which takes a second to make. The policy is the same in every test."""
    return {}


@pytest.fixture
def openvino_engine(policy: Policy, engines: dict[str, OpenVinoEngine]) -> OpenVinoEngine:
    if not engines:
        engines["it"] = OpenVinoEngine(policy.eval())
    return engines["it"]


def test_openvino_gives_what_the_policy_gives(
    policy: Policy, openvino_engine: OpenVinoEngine
) -> None:
    assert_close(run(openvino_engine, policy.eval()), run(TorchEngine(policy.eval()), policy), 1e-5)


@pytest.mark.parametrize("name", CORES)
@torch.no_grad()
def test_openvino_runs_every_core(name: str, config: PolicyConfig) -> None:
    core = sized_like(name, config.core).build(config.width, 7).eval()
    for parameter in core.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    state = core.initial_state(1)
    names = list(state)
    step = CompiledModule(
        CoreTickModule(core, names), [torch.zeros(1, 7, config.width), *state.values()]
    )
    streamed = state
    for _ in range(12):
        tokens = torch.randn(1, 7, config.width)
        outputs, state = core.step(tokens, state)
        made, *values = step(tokens, *streamed.values())
        streamed = dict(zip(names, values, strict=True))
        assert_same_but_rounding(made, outputs)
        for key in names:
            assert_same_but_rounding(streamed[key], state[key])


def test_openvino_runs_any_core_and_spec(spec: PolicySpec, config: PolicyConfig) -> None:
    """Cameras of two sizes, no proprioception, a binned head, integers in the state."""
    odd = replace(
        spec, cameras=(CameraSpec("head", 32, 32), CameraSpec("wrist", 24, 40)), proprioception=()
    )
    head = ActionHeadConfig(kind="bins", num_bins=16, hidden_size=16)
    policy = Policy(odd, replace(config, core=CountingConfig(), head=head)).eval()
    results = run(OpenVinoEngine(policy), policy)
    assert_close(results, run(TorchEngine(policy), policy), 1e-5)
    assert [int(state["ticks"]) for _, state in results] == [1, 2, 3, 4, 5, 6]
    assert results[-1][1]["ticks"].dtype == torch.int64


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
def test_compiled_torch_gives_what_the_policy_gives_and_compiles_at_load(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend differs from that on a GPU and needs no compiler. The graph is the same."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    engine = CompiledTorchEngine(policy.eval())
    with torch.compiler.set_stance("fail_on_recompile"):
        results = run(engine, policy)
    assert_close(results, run(TorchEngine(policy), policy), 1e-6)


def test_results_do_not_change_later_nor_inputs_ever(
    policy: Policy, openvino_engine: OpenVinoEngine
) -> None:
    inputs, (_, state) = moving(policy, 1), example_tick(policy)
    first = openvino_engine.step(inputs, state)
    copies = first[0].clone(), {name: value.clone() for name, value in first[1].items()}
    second = openvino_engine.step(moving(policy, 2), first[1])
    assert not torch.equal(second[0], first[0])
    assert torch.equal(first[0], copies[0])
    assert all(torch.equal(first[1][name], copies[1][name]) for name in copies[1])
    assert all(
        torch.equal(inputs.images[name], value) for name, value in moving(policy, 1).images.items()
    )


def test_the_same_twice_is_bit_identical(policy: Policy, openvino_engine: OpenVinoEngine) -> None:
    once, again = (run(openvino_engine, policy) for _ in range(2))
    assert_close(once, again, 0)


def test_bfloat16_is_near_and_stays_within_limits(policy: Policy) -> None:
    """This includes a joint far from zero that hardly moves, whose angles are equal in bfloat16."""
    policy = policy.eval()
    policy.normalizer.proprioception[0].set(np.full(2, 1.5), np.full(2, 0.01))
    with torch.no_grad():
        policy.action_head.mlp.out.bias[0] = 9.0  # beyond the limit
    try:
        engine = make_engine(policy, CPU, precision="bfloat16")
    except UserError as error:
        pytest.skip(str(error))
    exact = TorchEngine(policy)
    _, state = example_tick(policy)
    for tick in range(4):
        inputs = moving(policy, tick)
        angles = {name: 1.5 + 0.01 * value for name, value in inputs.proprioception.items()}
        inputs = replace(inputs, proprioception=angles)
        (action, after), (wanted, wanted_after) = (
            engine.step(inputs, state),
            exact.step(inputs, state),
        )
        assert 0 < (action - wanted).abs().max() < 0.05
        assert (after["memory"] - wanted_after["memory"]).abs().max() < 0.1
        assert after["memory"].dtype == torch.float32
        assert action[0, 0, 0] == wanted[0, 0, 0] == policy.highest_action[0]
        state = wanted_after


def test_the_policy_itself_is_left_as_it_was(
    policy: Policy, openvino_engine: OpenVinoEngine
) -> None:
    assert any(isinstance(module, nn.GroupNorm) for module in policy.modules())
    assert not any(isinstance(module, LayerNormGroups) for module in policy.modules())
    assert all(parameter.requires_grad for parameter in policy.parameters())


def test_group_norm_by_layer_norm_is_the_same() -> None:
    norm = nn.GroupNorm(4, 12, eps=1e-3)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(2, 12, 5, 7).to(memory_format=torch.channels_last)
    torch.testing.assert_close(LayerNormGroups(norm)(x), norm(x), rtol=0, atol=1e-5)


def test_a_pointwise_convolution_by_a_matrix_product_is_the_same() -> None:
    convolution = nn.Conv2d(6, 10, 1, bias=False)
    x = torch.randn(2, 6, 5, 7).to(memory_format=torch.channels_last)
    assert_same_but_rounding(PlanarPointwise(convolution)(x), convolution(x))


def test_only_pointwise_convolutions_beside_a_group_norm_are_replaced() -> None:
    kept = [
        nn.Conv2d(4, 4, 3, padding=1, bias=False),
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 1, stride=2, bias=False),
        nn.Conv2d(4, 4, 1, groups=2, bias=False),
        nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)),
    ]
    block = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.GroupNorm(2, 4), *kept)
    x = torch.randn(1, 4, 8, 8)
    expected = block.eval()(x)
    traced = trace(block, (x,))
    assert [isinstance(child, PlanarPointwise) for child in block] == [True, *[False] * 6]
    torch.testing.assert_close(traced(x), expected, rtol=0, atol=1e-5)


def test_loading_says_nothing(policy: Policy, capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OpenVinoEngine(policy.eval())
    out, err = capfd.readouterr()
    # PyTorch writes that it has no NNPACK where a CPU without AVX2 first convolves.
    assert (out, [line for line in err.splitlines() if "NNPACK" not in line]) == ("", [])


def test_openvino_reports_nothing_to_its_makers() -> None:
    from openvino.tools.ovc import telemetry_utils

    assert sys.modules["openvino_telemetry"] is None
    assert telemetry_utils.tm.__name__ == "openvino.tools.ovc.telemetry_stub"


def test_a_process_that_runs_no_policy_loads_no_openvino() -> None:
    code = "import sys, ttm.policy.runner; assert 'openvino' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_openvino_cannot_convert_is_an_error_that_names_a_way_out() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return (torch.special.bessel_j0(x),)

    with pytest.raises(UserError, match="engine torch"):
        CompiledModule(Odd(), [torch.zeros(1, 2)])


@pytest.mark.parametrize(
    ("device", "engine", "precision", "message"),
    [
        ("cuda", "openvino", "float32", "needs a CPU"),
        ("cpu", "torch", "bfloat16", "no precision 'bfloat16'"),
        ("cpu", "jax", "float32", "engine is 'jax'; give one of auto, torch, openvino"),
        ("cpu", "auto", "int4", "precision is 'int4'"),
    ],
)
def test_what_does_not_go_together_is_an_error(
    policy: Policy, device: str, engine: str, precision: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_engine(policy, torch.device(device), engine, precision)  # type: ignore[arg-type]


def test_auto_is_openvino_on_a_cpu(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ttm.policy.engines.OpenVinoEngine", lambda policy, precision: precision)
    assert make_engine(policy, CPU, precision="bfloat16") == "bfloat16"
    assert isinstance(make_engine(policy, CPU, "torch"), TorchEngine)


@pytest.mark.parametrize("tokens", [2, 4])
def test_openvino_is_right_where_there_are_as_many_tokens_as_heads(
    spec: PolicySpec, config: PolicyConfig, tokens: int
) -> None:
    """OpenVINO 2026.4 confuses the two axes there if its own fusion of attention is enabled."""
    core = replace(config.core, process_size=tokens, num_heads=tokens)
    policy = Policy(spec, replace(config, core=core)).eval()
    assert_close(run(OpenVinoEngine(policy), policy), run(TorchEngine(policy), policy), 1e-5)


def test_an_engine_that_computes_something_else_is_refused(policy: Policy) -> None:
    layout = TickLayout(policy.spec, ("memory",))
    tick = TickModule(policy.eval(), layout)

    def other(*tensors: Tensor) -> list[Tensor]:
        action, memory = tick(*tensors)
        return [action, memory * 1.01]

    require_agreement(tick, tick, policy, layout, "float32")
    with pytest.raises(UserError, match="another memory than PyTorch"):
        require_agreement(other, tick, policy, layout, "float32")


def test_signals_are_handled_after_models_have_come_and_gone() -> None:
    """Each core of OpenVINO installs a stack for signals, and restores the one before it at its end.

    With two cores, the second would restore the stack of the first, which is gone.
    """
    script = (
        "import os, signal, torch\n"
        "from ttm.policy.openvino_engine import CompiledModule\n"
        "models = [CompiledModule(torch.nn.Linear(4, 4), [torch.zeros(1, 4)]) for _ in range(2)]\n"
        "del models[0]\n"
        "del models[0]\n"
        "signal.signal(signal.SIGINT, lambda *_: print('noted'))\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "noted"), done.stderr


def test_a_limit_of_onednn_does_not_break_openvino() -> None:
    """Half of OpenVINO obeys it. On a CPU with AVX-512 this network could then not be compiled."""
    script = (
        "import os, torch\n"
        "from ttm.policy.openvino_engine import CompiledModule\n"
        "norm, x = torch.nn.LayerNorm(16), torch.randn(1, 7, 16)\n"
        "made = CompiledModule(torch.nn.Sequential(norm), [x])(x)[0]\n"
        "torch.testing.assert_close(made, norm(x), rtol=0, atol=1e-5)\n"
        "assert os.environ['ONEDNN_MAX_CPU_ISA'] == 'SSE41', 'PyTorch may still have to read it'\n"
    )
    limited = {**os.environ, "ONEDNN_MAX_CPU_ISA": "SSE41"}
    subprocess.run([sys.executable, "-c", script], check=True, env=limited)
