"""What is equal for all variants: the number of parameters, and the first weights they share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ttm.policy import Policy, UserError, load_checkpoint
from ttm.policy.cores.registry import NAMES
from ttm.policy.spec import SHIPPED, checkpoint_path
from ttm.training.sequence_model import SightSize, num_parameters, split_sight
from ttm.training.study.suite import (
    OURS_OPTIONS,
    TOLERANCE,
    Variant,
    first_policy,
    parse_variant,
    source_cores,
    suite_cores,
)
from ttm.training.study.suite_report import OURS

Weights = dict[str, torch.Tensor]
VARIANTS = [parse_variant(text) for text in (OURS, *NAMES)]


@pytest.mark.parametrize(("width", "inputs"), [(32, 9), (128, 17)])
def test_all_have_as_many_parameters_as_ours(width: int, inputs: int) -> None:
    cores = suite_cores(VARIANTS[0], VARIANTS, width, inputs)
    sizes = {v.label: v.num_parameters(cores[v.label], width, inputs) for v in VARIANTS}
    assert all(abs(size - sizes[OURS]) <= TOLERANCE * sizes[OURS] for size in sizes.values()), sizes


def test_a_size_that_ours_is_given_holds_for_the_others() -> None:
    ours = Variant(OURS, "ttm", *split_sight((*OURS_OPTIONS, "mlp_size=200")))
    others = [each for each in VARIANTS if each.core == "ttm"]
    cores = suite_cores(ours, [ours, *others[1:]], 128, 17)
    wanted = ours.num_parameters(cores[OURS], 128, 17)
    assert num_parameters(cores["ttm"], 128, 17) == pytest.approx(wanted, rel=TOLERANCE)
    assert cores[OURS].mlp_size == 200  # type: ignore[attr-defined]
    assert wanted < 390_000


@pytest.fixture(scope="module")
def seen(seeing: Path) -> Policy:
    return load_checkpoint(seeing)[0]


def first_weights(seen: Policy, label: str, seed: int, *, share: bool = True) -> Weights:
    """Return the first weights of a variant, without what it shares with others if not `share`."""
    sizes = seen.config.width, seen.num_tokens
    config = suite_cores(VARIANTS[0], VARIANTS, *sizes)[label]
    sources = source_cores(VARIANTS[0], *sizes) if share else []
    (sight,) = {each.sight for each in VARIANTS if each.label == label}
    return first_policy(seen, config, sources, seed, sight).state_dict()


@pytest.fixture(scope="module")
def first(seen: Policy) -> dict[str, Weights]:
    """Label -> first weights of seed 3."""
    labels = (OURS, "ttm", "none", "lstm", "transformer")
    return {label: first_weights(seen, label, seed=3) for label in labels}


def common(one: Weights, other: Weights, prefix: str) -> set[str]:
    """Return the names of tensors that both have in the same shape."""
    shared = {name for name in one.keys() & other.keys() if name.startswith(prefix)}
    return {name for name in shared if one[name].shape == other[name].shape}


def test_all_around_the_memories_is_the_same_for_all(
    first: dict[str, Weights], seen: Policy
) -> None:
    around = {name for name in first["ttm"] if not name.startswith("core.")}
    for found in first.values():
        assert {name for name in found if not name.startswith(("core.", "sight."))} == around
        assert all(torch.equal(found[name], first["ttm"][name]) for name in around)
    kept = {name for name in around if not name.startswith("action_head.")}
    assert all(torch.equal(first[OURS][name], seen.state_dict()[name]) for name in kept)


@pytest.mark.parametrize(
    ("one", "other", "part"),
    [(OURS, "ttm", "process"), ("none", "ttm", "write"), ("transformer", "lstm", "read")],
)
def test_cores_share_what_has_the_same_name_and_shape(
    first: dict[str, Weights], one: str, other: str, part: str
) -> None:
    shared = common(first[one], first[other], "core.")
    assert any(part in name and name.endswith("weight") for name in shared)
    assert all(torch.equal(first[one][name], first[other][name]) for name in shared)


@pytest.mark.parametrize(("label", "sight"), [("ttm", set()), (OURS, {"sight"})])
def test_the_seed_draws_core_head_and_sight_memory_alone(
    first: dict[str, Weights], seen: Policy, label: str, sight: set[str]
) -> None:
    other = first_weights(seen, label, seed=4)
    drawn = {name for name in other if not torch.equal(other[name], first[label][name])}
    assert {name.split(".")[0] for name in drawn} == {"core", "action_head"} | sight


@pytest.mark.parametrize("label", [OURS, "ttm sight_tokens=6"])
def test_no_tensor_of_a_compared_part_is_the_checkpoints(label: str) -> None:
    shipped = load_checkpoint(checkpoint_path(SHIPPED))[0]
    sizes = shipped.config.width, shipped.num_encoded
    variant = parse_variant(label)
    cores = suite_cores(VARIANTS[0], [variant], *sizes)
    sources = source_cores(VARIANTS[0], *sizes)
    trained = shipped.state_dict()
    made = first_policy(shipped, cores[variant.label], sources, 0, variant.sight).state_dict()
    compared = {name for name in made if name.startswith(("core.", "action_head.", "sight."))}
    assert {name.split(".")[0] for name in compared} == {"core", "action_head", "sight"}
    assert not {n for n in compared & trained.keys() if torch.equal(made[n], trained[n])}


@pytest.mark.parametrize("label", [OURS, "transformer"])
def test_shared_weights_keep_the_spread_that_each_core_draws(
    first: dict[str, Weights], seen: Policy, label: str
) -> None:
    for name, value in first_weights(seen, label, seed=3, share=False).items():
        if value.is_floating_point() and value.numel() >= 256 and value.std() > 0:
            assert 0.8 < float(first[label][name].std() / value.std()) < 1.25, name


def test_a_sight_memory_can_be_given_and_taken() -> None:
    with_it = parse_variant("ttm sight_tokens=3 sight_cells=8")
    without = parse_variant("ours sight_tokens=0")
    assert (with_it.sight, without.sight) == (SightSize(3, 8), SightSize())
    assert "sight" not in " ".join((*with_it.options, *without.options))
    with pytest.raises(UserError, match="whole number"):
        parse_variant("ttm sight_tokens=few")
    with pytest.raises(UserError, match="at least one cell"):
        parse_variant("ours sight_cells=0")
