"""Selectors trained against the exact decoder."""

import numpy as np
import pytest
import torch

from fewer.data import covariance
from fewer.data.source import array_source
from fewer.search import greedy, residual
from fewer.train import closed_form, fit_closed_form
from fewer.train.closed_form import Products, _residual_and_gradient


def matrix(d=12, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(200, 5)) @ rng.normal(size=(5, d)) + 0.3 * rng.normal(size=(200, d))
    return covariance(array_source(X)).matrix


@pytest.mark.parametrize("fixed", [[], [3, 7]])
def test_the_gradient_agrees_with_autograd_in_float64(fixed):
    C = matrix().double()
    C /= C.diagonal().mean()
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(2, 3, 12, generator=generator, dtype=torch.float64)
    M = torch.softmax(raw, dim=-1).requires_grad_()
    taken = torch.eye(12, dtype=torch.float64)[fixed].expand(2, -1, -1)
    whole = torch.cat([M, taken], dim=1)
    A = whole @ C @ whole.mT + 1e-4 * torch.eye(whole.shape[1], dtype=torch.float64)
    Q = whole @ C @ C @ whole.mT
    exact = C.trace() - torch.linalg.solve(A, Q).diagonal(dim1=1, dim2=2).sum(1)
    exact.sum().backward()
    found, gradient = _residual_and_gradient(
        Products(C.float()), M.detach().float(), torch.tensor(fixed, dtype=torch.int64), 1e-4
    )
    assert torch.allclose(found, exact.detach(), rtol=1e-4)
    error = (gradient.double() - M.grad).abs().max() / M.grad.abs().max()
    assert error < 1e-3


def test_as_good_as_greedy_on_digits(digits):
    C = covariance(array_source(digits[0])).matrix
    found = fit_closed_form(C, 10, starts=3, seed=0)
    left = [residual(C, choice) for choice in found.features]
    assert min(left) < residual(C, greedy(C, 10).panel())
    assert all(len(set(choice)) == 10 for choice in found.features.tolist())
    assert len({tuple(sorted(choice)) for choice in found.features.tolist()}) > 1
    assert found.history[-1]["mean_max_probability"] > 0.9
    # the last loss is the mean residual of a nearly decided selector
    assert found.history[-1]["loss"] == pytest.approx(left[0] / 64, rel=0.1)


def test_included_and_forbidden_features():
    C = matrix()
    allowed = np.ones(12, dtype=bool)
    allowed[[0, 1, 2]] = False
    found = fit_closed_form(C, 5, include=np.array([2, 4]), allowed=allowed, steps=150)
    choice = found.features[0]
    assert choice[:2].tolist() == [2, 4]
    assert not {0, 1} & {*choice.tolist()}
    assert len(set(choice.tolist())) == 5
    assert torch.softmax(found.logits[0], dim=1)[:2].argmax(dim=1).tolist() == [2, 4]
    everything = fit_closed_form(C, 2, include=np.array([2, 4]))
    assert everything.features.tolist() == [[2, 4]]


def test_costs_push_expensive_features_out():
    C = torch.eye(6, dtype=torch.float64) * torch.tensor([9.0, 8, 7, 6, 5, 4])
    plain = fit_closed_form(C, 2, steps=300)
    assert sorted(plain.features[0].tolist()) == [0, 1]
    costs = np.array([100.0, 1, 1, 1, 1, 1])
    dear = fit_closed_form(C, 2, steps=300, costs=costs, cost_weight=0.1)
    assert sorted(dear.features[0].tolist()) == [1, 2]


def test_copies_and_constants_do_no_harm():
    C = matrix()
    C = torch.cat([torch.cat([C, C], 1), torch.cat([C, C], 1)])  # every feature twice
    C[5] = C[:, 5] = 0.0
    found = fit_closed_form(C, 4, steps=200)
    assert len(set(found.features[0].tolist())) == 4
    assert torch.isfinite(found.logits).all()


def test_units_and_seeds():
    C = matrix()
    first, again, scaled = (fit_closed_form(c, 4, steps=100, seed=3) for c in (C, C, C * 1e6))
    assert torch.equal(first.logits, again.logits)
    assert first.features.tolist() == scaled.features.tolist()
    assert not torch.equal(first.logits, fit_closed_form(C, 4, steps=100, seed=4).logits)


def test_starts_are_trained_in_halves_where_memory_is_short(monkeypatch):
    plain, sizes = closed_form._residual_and_gradient, []

    def short(times, M, fixed, ridge, failed=None):
        sizes.append(len(M))
        if len(M) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(times, M, fixed, ridge, failed)

    C = matrix()
    alone = fit_closed_form(C, 3, steps=30, seed=1)
    monkeypatch.setattr(closed_form, "_residual_and_gradient", short)
    found = fit_closed_form(C, 3, starts=3, steps=30, seed=0)
    assert found.logits.shape == (3, 3, len(C))
    assert found.features.shape == (3, 3)
    assert set(sizes) == {3, 2, 1}
    np.testing.assert_array_equal(found.features[2], alone.features[0])
    monkeypatch.setattr(closed_form, "_residual_and_gradient", lambda *_: short(0, [1, 2], 0, 0))
    with pytest.raises(torch.OutOfMemoryError):
        fit_closed_form(C, 3, steps=30)
