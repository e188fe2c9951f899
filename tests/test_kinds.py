"""Losses and scores of kinds of target, against their definitions."""

import numpy as np
import pytest
import torch
from sklearn.metrics import d2_absolute_error_score, d2_tweedie_score

from fewer.kinds import Part, Several, concordance, make_kind, survival_by_risk
from fewer.nn.losses import cox_loss, ordinal_entries

RANDOM = np.random.default_rng(0)


def efron(hazard, time, event):
    """The textbook formula, event by event."""
    total = 0.0
    for t in np.unique(time[event == 1]):
        dead = np.flatnonzero((time == t) & (event == 1))
        risk, own = np.exp(hazard[time >= t]).sum(), np.exp(hazard[dead]).sum()
        for number in range(len(dead)):
            total += np.log(risk - number / len(dead) * own)
        total -= hazard[dead].sum()
    return total / event.sum()


@pytest.mark.parametrize("times", [4, 1000])
def test_the_partial_likelihood_is_efrons(times):
    hazard = RANDOM.normal(size=60)
    time, event = RANDOM.integers(times, size=60).astype(float), RANDOM.integers(2, size=60)
    target = torch.tensor(np.c_[time, event], dtype=torch.float64)
    output = torch.tensor(hazard)[:, None]
    assert cox_loss(output, target).item() == pytest.approx(efron(hazard, time, event), rel=1e-9)
    moved = cox_loss(output + 700, target).item()  # of which the exponential overflows
    assert moved == pytest.approx(efron(hazard, time, event), rel=1e-6)


def test_weights_of_times_count_rows_without_ties():
    time = RANDOM.permutation(30).astype(float)
    target = torch.tensor(np.c_[time, RANDOM.integers(2, size=30)])
    output, weights = torch.tensor(RANDOM.normal(size=(30, 1))), torch.ones(30)
    weights[::3] = 0.0
    kept = weights > 0
    expected = cox_loss(output[kept], target[kept]).item()
    assert cox_loss(output, target, weights).item() == pytest.approx(expected)


def test_a_batch_without_events_has_no_loss():
    output = torch.zeros(5, 1, requires_grad=True)
    value = cox_loss(output, torch.tensor([[1.0, 0.0]] * 5))
    value.backward()
    assert value.item() == 0
    assert not output.grad.any()


def test_concordance_by_pairs():
    time, event = RANDOM.integers(9, size=40).astype(float), RANDOM.integers(2, size=40)
    hazard = RANDOM.integers(5, size=40).astype(float)
    right = known = 0.0
    for i in range(40):
        for j in range(40):
            later = time[j] > time[i] or (time[j] == time[i] and not event[j])
            if event[i] and later:
                known += 1
                right += (hazard[i] > hazard[j]) + 0.5 * (hazard[i] == hazard[j])
    found = concordance(torch.tensor(np.c_[time, event]), torch.tensor(hazard))
    assert found == pytest.approx(right / known)
    assert np.isnan(concordance(torch.tensor([[1.0, 0.0]]), torch.tensor([1.0])))


def test_scores_are_those_of_scikit_learn():
    counts = RANDOM.poisson(3, size=200).astype(float)
    rates = np.exp(RANDOM.normal(1, 0.5, size=200))
    found = make_kind("count", 1).score(
        torch.tensor(rates)[:, None], torch.tensor(counts)[:, None], None
    )
    assert found == pytest.approx(d2_tweedie_score(counts, rates, power=1))
    levels = RANDOM.integers(4, size=200)
    chances = torch.softmax(torch.tensor(RANDOM.normal(size=(200, 4))), dim=1)
    kind = make_kind("ordinal", 4, np.arange(4))
    found = kind.score(chances, torch.tensor(levels), None)
    guess = kind.predict(chances.numpy())
    assert found == pytest.approx(d2_absolute_error_score(levels, guess))
    assert (chances.numpy().cumsum(1)[np.arange(200), guess] >= 0.5).all()


def test_the_loss_of_ordered_classes_grows_with_the_distance():
    output = torch.log(torch.tensor([[0.7, 0.1, 0.1, 0.1]]))
    each = [ordinal_entries(output, torch.tensor([at])).item() for at in range(4)]
    assert each == sorted(each)
    assert len(set(each)) == 4
    smooth = ordinal_entries(output, torch.tensor([0]), smoothing=0.1).item()
    log = np.log(0.7) * 0.9 + np.log(0.1) * 0.1
    assert smooth == pytest.approx(each[0] + np.log(0.7) - log, rel=1e-5)


def test_responses_are_centred_and_know_the_order():
    time = torch.arange(1.0, 31).double()
    survival = torch.stack([time, torch.ones(30).double()], dim=1)
    found = make_kind("survival", 1).response(survival, None)[:, 0]
    assert (found.diff() < 0).all()  # events that come early are more than expected
    for kind, values in [
        (make_kind("survival", 1), survival),
        (make_kind("count", 1), torch.tensor(RANDOM.poisson(2, size=(30, 1)).astype(float))),
        (make_kind("ordinal", 3, np.arange(3)), torch.arange(30) % 3),
    ]:
        weights = torch.full((30,), 1 / 30, dtype=torch.float64)
        for one in (None, weights):
            response = kind.response(values, one)
            assert response.mean(0).abs().max() < 1e-9
            assert response.std(0).item() == pytest.approx(1, abs=0.05)


def test_several_targets_count_by_their_weights_whatever_their_units():
    values = torch.tensor(np.c_[np.arange(60) % 2, 1e6 * RANDOM.normal(size=60)])
    parts = [Part("a", make_kind("class", 2, np.array(["u", "v"])), 1.0)]
    parts.append(Part("b", make_kind("number", 1), 3.0))
    several = Several.of(parts).fitted(values, None)
    response = several.response(values, None)
    assert response[:, :2].square().mean(0).sum().item() == pytest.approx(0.25)
    assert response[:, 2].square().mean().item() == pytest.approx(0.75)
    fixed = several.constant(values, None).expand(60, -1)
    assert several.error(fixed, values, None) == pytest.approx(1)
    assert several.score(fixed, values, None) == pytest.approx(0.25 * 0.5, abs=0.01)


def test_curves_of_survival_fall_from_one():
    values = torch.tensor(np.c_[RANDOM.exponential(size=90), RANDOM.integers(2, size=90)])
    curves = survival_by_risk(values, torch.tensor(RANDOM.normal(size=90)))
    assert list(curves) == ["low", "medium", "high"]
    for times, alive in curves.values():
        assert times[0] == 0
        assert alive[0] == 1
        assert (np.diff(alive) <= 1e-12).all()
        assert (np.diff(times) > 0).all()
