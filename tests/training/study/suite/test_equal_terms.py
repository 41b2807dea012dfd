"""What is equal for all variants: the number of parameters, and the first weights they share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ttm.policy.cores.registry import NAMES
from ttm.policy.run.checkpoint import load_checkpoint
from ttm.training.common.core_sizes import num_parameters
from ttm.training.study.suite.core_sizes import TOLERANCE, source_cores, suite_cores
from ttm.training.study.suite.first_weights import first_policy
from ttm.training.study.suite.variants import OURS, OURS_OPTIONS, parse_variant

WIDTH, INPUTS = 32, 9
VARIANTS = [parse_variant(text, OURS_OPTIONS) for text in (OURS, *NAMES)]


@pytest.mark.parametrize(("width", "inputs"), [(32, 9), (128, 17)])
def test_all_have_as_many_parameters_as_ours(width: int, inputs: int) -> None:
    cores = suite_cores(VARIANTS[0], VARIANTS, width, inputs)
    sizes = {label: num_parameters(core, width, inputs) for label, core in cores.items()}
    assert all(abs(size - sizes[OURS]) <= TOLERANCE * sizes[OURS] for size in sizes.values()), sizes


def test_a_size_that_ours_is_given_holds_for_the_others() -> None:
    ours = parse_variant(OURS, (*OURS_OPTIONS, "mlp_size=200"))
    others = [each for each in VARIANTS if each.core == "ttm"]
    cores = suite_cores(ours, [ours, *others[1:]], 128, 17)
    assert num_parameters(cores["ttm"], 128, 17) == pytest.approx(
        num_parameters(cores[OURS], 128, 17), rel=TOLERANCE
    )
    assert num_parameters(cores[OURS], 128, 17) > 415_000


def test_first_weights_of_equal_name_and_shape_are_equal(seeing: Path) -> None:
    """All around the core is the same for all, and so is what the cores have in common."""
    seen = load_checkpoint(seeing)[0]
    sizes = seen.config.width, seen.num_tokens
    cores, sources = suite_cores(VARIANTS[0], VARIANTS, *sizes), source_cores(VARIANTS[0], *sizes)
    first = {
        label: first_policy(seen, core, sources, seed=3).state_dict()
        for label, core in cores.items()
    }
    shared: dict[tuple[str, str], list[str]] = {}
    for label, found in first.items():
        around = {name: value for name, value in found.items() if not name.startswith("core.")}
        assert around.keys() == {n for n in first["ttm"] if not n.startswith("core.")}
        assert all(torch.equal(value, first["ttm"][name]) for name, value in around.items())
        for source in ("ttm", "lstm"):
            for name, value in found.items():
                other = first[source].get(name)
                if name.startswith("core.") and other is not None and other.shape == value.shape:
                    assert torch.equal(value, other), f"{label} and {source} differ in {name}"
                    shared.setdefault((label, source), []).append(name)
    assert any("process" in name for name in shared["ours", "ttm"])
    assert any("read" in name for name in shared["transformer", "lstm"])
    assert first["none"].keys() == first["ttm"].keys()
    assert all(torch.equal(first["none"][name], first["ttm"][name]) for name in first["ttm"])
    other_seed = first_policy(seen, cores["ttm"], sources, seed=4).state_dict()
    kept = {name for name in other_seed if torch.equal(other_seed[name], first["ttm"][name])}
    assert {n.split(".")[0] for n in first["ttm"].keys() - kept} == {"core", "action_head"}
    vision = {
        name: value for name, value in seen.state_dict().items() if name.startswith("vision.")
    }
    assert all(torch.equal(value, first["ours"][name]) for name, value in vision.items())


def test_shared_weights_keep_the_spread_that_each_core_draws(seeing: Path) -> None:
    seen = load_checkpoint(seeing)[0]
    sizes = seen.config.width, seen.num_tokens
    cores, sources = suite_cores(VARIANTS[0], VARIANTS, *sizes), source_cores(VARIANTS[0], *sizes)
    for label, core in cores.items():
        alone = first_policy(seen, core, [], seed=0).state_dict()
        shared = first_policy(seen, core, sources, seed=0).state_dict()
        for name, value in alone.items():
            if value.is_floating_point() and value.numel() >= 256 and value.std() > 0:
                ratio = float(shared[name].std() / value.std())
                assert 0.8 < ratio < 1.25, f"{label}: {name}"
