"""Held-out rows choose the penalty of a linear decoder, and may prefer greedy selection."""

import numpy as np
import pytest
import torch

from fewer import ColumnSubset
from fewer.constraints import resolve
from fewer.data import moments
from fewer.data.source import array_source
from fewer.search import greedy
from fewer.train.linear_choice import (
    LinearChoice,
    choose_linear,
    difference_of_neighbours,
    effective_rows,
)

CPU = torch.device("cpu")


def rows(n, *, freedom=None, seed=0, more=0):
    """Sixteen columns of four factors, with noise that is normal or has heavy tails."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(4, 16))
    drawn = []
    for size in (n, more):
        shape = (size, 16)
        noise = rng.normal(size=shape) if freedom is None else rng.standard_t(freedom, size=shape)
        drawn.append(rng.normal(size=(size, 4)) @ mix + 0.2 * noise)
    return drawn


def chosen(X, k, **limits):
    source = array_source(X)
    constraints = resolve(None, X.shape[1], k, **limits)
    return choose_linear(source, moments(source), constraints, seed=0, device=CPU)


def test_extreme_values_count_as_fewer_rows():
    light, heavy = (moments(array_source(rows(2000, freedom=f)[0])) for f in (None, 1.0))
    assert effective_rows(light) > 1000
    assert effective_rows(heavy) < 0.2 * effective_rows(light)
    constant = moments(array_source(np.ones((5, 3))))
    assert effective_rows(constant) == 5


def test_many_rows_need_no_folds(monkeypatch):
    monkeypatch.setattr("fewer.train.linear_choice.fold_covariances", None)
    X = rows(600)[0]
    assert chosen(X, 4) == LinearChoice()
    assert chosen(X, 16) == chosen(X, 8, include=range(8)) == LinearChoice()  # nothing to choose


def test_rows_that_resemble_their_neighbours_count_as_fewer():
    few, gaps = rows(12)[0], np.random.default_rng(0).random((600, 16)) < 0.1
    apart = rows(600)[0]
    together = np.repeat(few, 50, axis=0) + 0.01 * apart
    for X, least, most in ((apart, 0.8, 1.2), (together, 0.0, 0.2)):
        for same in (X, np.where(gaps, np.nan, X)):
            source = array_source(same)
            assert least < difference_of_neighbours(source, moments(source)) < most
    # of 12 rows, as it were, none of the folds knows what another holds out
    assert chosen(apart, 4).trust == "all"
    assert chosen(together, 4).trust in ("swaps", "greedy")
    assert (
        difference_of_neighbours(
            array_source(np.ones((3, 2))), moments(array_source(np.ones((3, 2))))
        )
        == 1
    )


def test_penalty_and_veto_pay_where_rows_are_few():
    changes, penalties = [], []
    for seed in range(8):
        train, test = rows(60, freedom=2.0, seed=seed, more=3000)
        fits = [ColumnSubset(6, ridge=r, stall=0, random_state=0).fit(train) for r in ("auto", 0.0)]
        errors = [np.square(model.reconstruct(test) - test).mean() for model in fits]
        changes.append(np.log(errors[0] / errors[1]))
        penalties.append(fits[0].ridge_)
    assert np.mean(changes) < -0.02
    assert max(changes) < 0.05
    assert max(penalties) > 0 == min(penalties)


def test_greedy_selection_where_the_search_does_worse_on_held_out_rows(tmp_path):
    X, new = rows(150, freedom=1.3, seed=15, more=4000)
    assert chosen(X, 5).trust == "greedy"
    model = ColumnSubset(5, random_state=0).fit(X)
    assert model.vetoed_
    assert model.columns_.tolist() == greedy(np.cov(X.T, bias=True), 5).panel().tolist()
    free = ColumnSubset(5, ridge=0.0, random_state=0).fit(X)
    assert not free.vetoed_
    assert free.residual_ < model.residual_
    errors = [np.square(one.reconstruct(new) - new).mean() for one in (model, free)]
    assert errors[0] < 0.95 * errors[1]
    assert model.residual_ == pytest.approx(model.history_[-1]["residual"])
    model.save(tmp_path / "subset")
    assert ColumnSubset.load(tmp_path / "subset").vetoed_


def test_constraints_hold_on_folds():
    X, costs = rows(60, freedom=2.0)[0], 1.0 + np.arange(16) % 3
    limits = {"include": [3], "exclude": [5], "costs": costs, "budget": 9.0}
    model = ColumnSubset(5, random_state=0, **limits).fit(X)
    resolve(None, 16, 5, **limits).check(model.columns_)
    dear = {"costs": costs, "cost_weight": 0.1}
    assert chosen(X, 5, **dear).ridge >= 0
