"""What is equal for all variants: the number of parameters, and the first weights they share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ttm.policy import Policy, UserError, load_checkpoint
from ttm.policy.cores.registry import NAMES
from ttm.policy.spec import SHIPPED, checkpoint_path
from ttm.training.sequence_model import TOLERANCE, split_sight
from ttm.training.study.suite import (
    OURS_OPTIONS,
    Variant,
    first_policy,
    parse_variant,
    source_cores,
    suite_cores,
)
from ttm.training.study.suite_report import OURS

Weights = dict[str, torch.Tensor]
KEPT = ("vision.", "language.", "normalizer.")
VARIANTS = [parse_variant(text) for text in (OURS, *NAMES)]
SIGHTED = [
    parse_variant(text)
    for text in (
        "ours sight_tokens=0",
        "lstm sight_tokens=6",
        "none sight_tokens=3",
        "transformer window=64 sight_tokens=6",
    )
]


@pytest.fixture(scope="module")
def seen(seeing: Path) -> Policy:
    return load_checkpoint(seeing)[0]


@pytest.fixture(scope="module")
def shipped() -> Policy:
    return load_checkpoint(checkpoint_path(SHIPPED))[0]


@pytest.mark.parametrize("name", ["seen", "shipped"])
def test_all_have_as_many_parameters_as_ours(name: str, request: pytest.FixtureRequest) -> None:
    policy, variants = request.getfixturevalue(name), [*VARIANTS, *SIGHTED]
    cores = suite_cores(VARIANTS[0], variants, policy)
    sizes = {v.label: v.num_parameters(cores[v.label], policy) for v in variants}
    assert all(abs(size - sizes[OURS]) <= TOLERANCE * sizes[OURS] for size in sizes.values()), sizes


@pytest.mark.parametrize("variant", [VARIANTS[0], *SIGHTED], ids=lambda each: each.label)
def test_the_parameters_of_core_and_sight_memory_are_those_of_the_policy(
    variant: Variant, seen: Policy
) -> None:
    config = suite_cores(VARIANTS[0], [variant], seen)[variant.label]
    policy = first_policy(seen, config, [], 0, variant.sight)
    parts = [part for part in (policy.core, policy.sight) if part is not None]
    found = sum(value.numel() for part in parts for value in part.parameters())
    assert found == variant.num_parameters(config, seen)
    assert (policy.sight is not None) == (variant.sight > 0)


def test_a_size_that_ours_is_given_holds_for_the_others(shipped: Policy) -> None:
    ours = Variant(OURS, "ttm", *split_sight((*OURS_OPTIONS, "mlp_size=200")))
    others = [each for each in VARIANTS if each.core == "ttm"]
    cores = suite_cores(ours, [ours, *others[1:]], shipped)
    wanted = ours.num_parameters(cores[OURS], shipped)
    assert others[1].num_parameters(cores["ttm"], shipped) == pytest.approx(wanted, rel=TOLERANCE)
    assert cores[OURS].mlp_size == 200  # type: ignore[attr-defined]
    assert wanted < 390_000


def first_weights(seen: Policy, label: str, seed: int, *, share: bool = True) -> Weights:
    """Return the first weights of a variant, without what it shares with others if not `share`."""
    variant = parse_variant(label)
    config = suite_cores(VARIANTS[0], [variant], seen)[label]
    sources = source_cores(VARIANTS[0], seen) if share else []
    return first_policy(seen, config, sources, seed, variant.sight).state_dict()


@pytest.fixture(scope="module")
def first(seen: Policy) -> dict[str, Weights]:
    """Label -> first weights of seed 3."""
    labels = (
        OURS,
        "ttm",
        "none",
        "lstm",
        "transformer",
        "lstm sight_tokens=6",
        "ttm sight_tokens=6",
    )
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
    kept = {name for name in around if name.startswith(KEPT)}
    assert all(torch.equal(first[OURS][name], seen.state_dict()[name]) for name in kept)


@pytest.mark.parametrize(
    ("one", "other", "part"),
    [
        (OURS, "ttm", "process"),
        ("none", "ttm", "write"),
        ("transformer", "lstm", "read"),
        (OURS, "lstm sight_tokens=6", ""),
        (OURS, "ttm sight_tokens=6", ""),
    ],
)
def test_cores_share_what_has_the_same_name_and_shape(
    first: dict[str, Weights], one: str, other: str, part: str
) -> None:
    shared = common(first[one], first[other], "") - {"sight.sharpness"}  # no chance sets it
    assert any(part in name and name.endswith("weight") for name in shared)
    assert all(torch.equal(first[one][name], first[other][name]) for name in shared)


@pytest.mark.parametrize(("label", "sight"), [("ttm", set()), (OURS, {"sight"})])
def test_the_seed_draws_all_but_vision_and_normalisation(
    first: dict[str, Weights], seen: Policy, label: str, sight: set[str]
) -> None:
    other = first_weights(seen, label, seed=4)
    drawn = {name for name in other if not torch.equal(other[name], first[label][name])}
    tokens = {name.split(".")[0] for name in other if "token" in name.split(".")[0]}
    assert {name.split(".")[0] for name in drawn} == {"core", "action_head"} | tokens | sight
    assert "camera_tokens" in tokens


@pytest.mark.parametrize("label", [OURS, "ttm sight_tokens=6"])
def test_no_tensor_of_a_compared_part_is_the_checkpoints(label: str, shipped: Policy) -> None:
    """Every tensor that is drawn at random, which two seeds show."""
    trained, made = shipped.state_dict(), first_weights(shipped, label, seed=0)
    other = first_weights(shipped, label, seed=1)
    compared = {name for name in made if not name.startswith(KEPT)}
    random = {name for name in compared if not torch.equal(made[name], other[name])}
    parts = {"core", "action_head", "sight", "camera_tokens", "action_token", "language_token"}
    assert {name.split(".")[0] for name in random} == parts | {"proprioception_tokens"}
    assert not {n for n in random & trained.keys() if torch.equal(made[n], trained[n])}
    # What does not depend on the seed is as initialisation sets it: the checkpoint's was trained.
    fixed = {n for n in (compared - random) & trained.keys() if torch.equal(made[n], trained[n])}
    assert fixed == {n for n in fixed if made[n].unique().numel() == 1}


@pytest.mark.parametrize("label", [OURS, "transformer"])
def test_shared_weights_keep_the_spread_that_each_core_draws(
    first: dict[str, Weights], seen: Policy, label: str
) -> None:
    for name, value in first_weights(seen, label, seed=3, share=False).items():
        if value.is_floating_point() and value.numel() >= 256 and value.std() > 0:
            assert 0.8 < float(first[label][name].std() / value.std()) < 1.25, name


def test_a_sight_memory_can_be_given_and_taken() -> None:
    with_it = parse_variant("ttm sight_tokens=3")
    without = parse_variant("ours sight_tokens=0")
    assert (parse_variant(OURS).sight, with_it.sight, without.sight) == (6, 3, 0)
    assert "sight" not in " ".join((*with_it.options, *without.options))
    with pytest.raises(UserError, match="whole number"):
        parse_variant("ttm sight_tokens=few")
