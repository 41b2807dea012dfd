"""What trainings and studies share: the loop, its batches, sizes of cores, schedule, interruption."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from torch import Tensor, nn

from ttm.policy import UserError
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.training.options import Budget, OptimizerConfig
from ttm.training.runtime import Interruption
from ttm.training.sequence_model import SequenceModel, fit, study_core


def squared(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = (model(x) - 1).square().mean()
    return loss


def test_fit_reports_now_and_then_and_at_the_end_and_learns() -> None:
    torch.manual_seed(0)
    model, batch = nn.Linear(2, 1), (torch.ones(4, 2),)
    reports = list(fit(model, [batch] * 25, squared, learning_rate=0.03, report_every=10))
    assert [report.steps for report in reports] == [10, 20, 25]
    assert reports[-1].loss < 0.5 * reports[0].loss
    assert 0 < reports[0].seconds < reports[1].seconds < reports[2].seconds


def test_fit_says_nothing_twice_and_nothing_of_no_batches() -> None:
    model, batch = nn.Linear(2, 1), (torch.ones(4, 2),)
    assert [
        r.steps for r in fit(model, [batch] * 4, squared, learning_rate=0.1, report_every=2)
    ] == [2, 4]
    assert list(fit(model, [], squared, learning_rate=0.1)) == []


def test_fit_ends_when_the_loss_is_not_finite() -> None:
    model, batch = nn.Linear(2, 1), (torch.ones(4, 2),)
    bad = (torch.full((4, 2), torch.nan),)
    training = fit(model, [batch, batch, bad, batch], squared, learning_rate=0.1, report_every=2)
    assert next(training).steps == 2
    with pytest.raises(UserError, match="not finite in step 3"):
        next(training)


def test_fit_ends_when_the_gradient_alone_is_not_finite_be_it_at_the_last_step() -> None:
    def root(model: nn.Module, x: Tensor) -> Tensor:
        value: Tensor = (0 * model(x)).abs().sum().sqrt()  # 0, with an infinite slope
        return value

    with pytest.raises(UserError, match="gradient is not finite in step 1;"):
        list(fit(nn.Linear(2, 1), [(torch.ones(4, 2),)], root, learning_rate=0.1))


def test_fit_trains_in_training_mode_whatever_happens_in_between() -> None:
    model, modes = nn.Linear(2, 1), []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        modes.append(model.training)
        return squared(model, x)

    for _ in fit(model, [(torch.ones(4, 2),)] * 4, loss, learning_rate=0.1, report_every=2):
        model.eval()
    assert modes == [True] * 4


def test_fit_follows_a_schedule() -> None:
    asked: list[int] = []

    def rate(step: int) -> float:
        asked.append(step)
        return 0.1 if step == 1 else 0.0

    model, batch = nn.Linear(2, 1), (torch.ones(4, 2),)
    weights = [
        model.weight.tolist()
        for _ in fit(model, [batch] * 3, squared, learning_rate=rate, report_every=1)
    ]
    assert weights[0] != weights[1] == weights[2]
    assert asked[-3:] == [0, 1, 2]


def test_fit_reports_the_newest_loss_and_the_mean_since_the_last_report() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)

    def loss(model: nn.Module, target: Tensor) -> Tensor:
        value: Tensor = (model(torch.zeros(1, 1)) + target).sum()
        return value

    batches = [(torch.tensor(float(n)),) for n in range(5)]
    reports = list(fit(model, batches, loss, learning_rate=0.1, report_every=2))
    assert [(r.loss, r.mean_loss) for r in reports] == [(1.0, 0.5), (3.0, 2.5), (4.0, 4.0)]


def test_fit_clips_gradients() -> None:
    model = nn.Linear(2, 1)
    norms = [
        model.weight.grad.norm()  # type: ignore[union-attr]
        for _ in fit(
            model, [(torch.full((4, 2), 1e6),)] * 2, squared, learning_rate=0.1, report_every=1
        )
    ]
    assert max(norms) <= 1


def test_a_study_s_sizes_are_taken_where_a_core_has_them() -> None:
    common, own = {"num_layers": 3, "window": 9}, {"ttm": {"memory_size": 5}}
    machine = study_core("ttm", common, own, ["process_size=2"])
    assert machine == TokenTuringConfig(num_layers=3, memory_size=5, process_size=2)
    assert study_core("none", common, own) == TokenTuringConfig(num_layers=3, memory=False)
    with pytest.raises(UserError, match="core lstm: the core has no option 'window'"):
        study_core("lstm", common, own, ["window=3"])


def test_a_sequence_model_is_causal_and_its_embedding_of_scale_1() -> None:
    torch.manual_seed(0)
    model = SequenceModel(
        study_core("tlb", {"process_size": 2}, {}), num_symbols=50, num_classes=3, width=64
    )
    assert 0.9 < model.embedding.weight.std() < 1.1
    symbols = torch.randint(50, (2, 9))
    changed = symbols.clone()
    changed[:, 6] += 1 - 2 * (symbols[:, 6] == 49).long()
    scores, others = model(symbols), model(changed)
    assert scores.shape == (2, 9, 3)
    assert torch.equal(scores[:, :6], others[:, :6])
    assert not torch.equal(scores[:, 6:], others[:, 6:])
    assert model.num_parameters == sum(p.numel() for p in model.parameters())


def test_scores_are_made_of_all_output_tokens() -> None:
    torch.manual_seed(0)
    config = TokenTuringConfig(memory_size=4, process_size=3, num_layers=1, num_heads=2, mlp_size=8)
    model, symbols = SequenceModel(config, 5, 2, width=8), torch.randint(5, (2, 6))
    outputs, _ = model.core(model.embedding(symbols).unsqueeze(2))
    assert outputs.shape == (2, 6, 3, 8)
    torch.testing.assert_close(model(symbols), model.head(sum(outputs.unbind(2)) / 3))


def test_a_budget_ends_with_its_steps_or_its_minutes_whichever_is_first() -> None:
    budget = Budget(steps=10, minutes=1)
    assert budget.progress(5, 0) == 0.5
    assert budget.progress(5, 45) == 0.75
    assert budget.progress(9, 59) < 1
    assert budget.progress(10, 0) == 1
    assert budget.progress(0, 61) == 1


def test_one_limit_is_enough() -> None:
    assert Budget(steps=4).progress(1, 1e9) == 0.25
    assert Budget(minutes=2).progress(10**9, 60) == 0.5


def test_the_rate_rises_to_the_peak_and_falls_to_the_floor() -> None:
    schedule = OptimizerConfig(warmup_steps=10, floor=0.1)
    rates = [schedule.learning_rate(1.0, step, step / 1000) for step in range(1001)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0, abs=1e-3)
    assert rates.index(max(rates)) == 9
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[500] == pytest.approx(0.55)
    assert rates[1000] == pytest.approx(0.1)


def test_a_short_training_warms_up_in_its_first_twentieth() -> None:
    schedule = OptimizerConfig()
    assert schedule.learning_rate(1.0, 4, 0.05) > 0.98


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_noted_and_the_second_acts_as_always(
    number: signal.Signals, code: int
) -> None:
    before = signal.getsignal(number)
    with Interruption() as interruption:
        assert interruption.exit_code == 0
        os.kill(os.getpid(), number)
        assert interruption.signal_number == number
        assert interruption.exit_code == code
        assert signal.getsignal(number) == before


def test_handlers_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
