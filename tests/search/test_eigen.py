"""Eigenvectors: exact where the matrix is small, good enough where it is wide."""

import numpy as np
import pytest
import torch

from fewer.data.factored import FactoredCovariance
from fewer.search import eigen
from fewer.search.eigen import largest_eigenvectors, leading_eigenvectors, smallest_eigenvectors


def test_both_ends_of_the_spectrum():
    M = np.diag([3.0, 1.0, 2.0])
    values, vectors = largest_eigenvectors(M, 2)
    np.testing.assert_allclose(values, [3, 2])
    np.testing.assert_allclose(abs(vectors), [[1, 0], [0, 0], [0, 1]], atol=1e-12)
    values, vectors = smallest_eigenvectors(M, 2)
    np.testing.assert_allclose(values, [1, 2])
    np.testing.assert_allclose(abs(vectors), [[0, 0], [1, 0], [0, 1]], atol=1e-12)


def test_scaled_features_have_other_axes():
    axes = leading_eigenvectors(torch.eye(3).double(), 1, scale=torch.tensor([1.0, 3, 2]).double())
    np.testing.assert_allclose(abs(axes.ravel()), [0, 1, 0], atol=1e-12)


def test_few_axes_of_a_wide_matrix():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 2100)) * np.linspace(3, 0.1, 60)[:, None]
    C = torch.from_numpy(rows.T @ rows / 60)
    axes = leading_eigenvectors(C, 5)
    assert axes.shape == (2100, 5)
    torch.testing.assert_close(axes.T @ axes, torch.eye(5).double())
    kept = float((axes * (C @ axes)).sum())
    best = np.square(np.linalg.svd(rows, compute_uv=False)[:5]).sum() / 60
    assert 0.999 * best < kept <= best * (1 + 1e-9)


def test_few_rows_have_the_axes_of_their_covariance():
    rng = np.random.default_rng(1)
    rows = torch.from_numpy(rng.normal(size=(4, 9)))
    scale = torch.linspace(0.5, 2.0, 9).double()
    factored = FactoredCovariance(rows)
    axes = leading_eigenvectors(factored, 3, scale=scale)
    exact = leading_eigenvectors(rows.T @ rows, 3, scale=scale)
    torch.testing.assert_close(axes @ axes.T, exact @ exact.T)
    turned = (rows * scale) @ axes  # the largest variance first
    assert (turned.square().sum(0).diff() < 0).all()
    more = leading_eigenvectors(factored, 7)  # beyond the rank: any orthogonal ones
    torch.testing.assert_close(more.T @ more, torch.eye(7).double())
    torch.testing.assert_close((rows @ more[:, 4:]), torch.zeros(4, 3).double())
    again = leading_eigenvectors(factored, 7)
    torch.testing.assert_close(more, again, rtol=0, atol=0)


def test_the_unit_of_few_rows_does_not_matter():
    rows = torch.from_numpy(np.random.default_rng(2).normal(size=(4, 9)))
    axes = leading_eigenvectors(FactoredCovariance(rows), 3)
    torch.testing.assert_close(leading_eigenvectors(FactoredCovariance(1e-12 * rows), 3), axes)
    nothing = leading_eigenvectors(FactoredCovariance(0 * rows), 2)
    torch.testing.assert_close(nothing.T @ nothing, torch.eye(2).double())
    one = leading_eigenvectors(FactoredCovariance(rows[:1]), 2)
    torch.testing.assert_close(one.T @ one, torch.eye(2).double())
    torch.testing.assert_close(abs(rows[0] @ one[:, 0]), torch.linalg.norm(rows[0]))


@pytest.mark.parametrize(("wide", "count"), [(2000, 3), (150, 3), (100, 12)])
def test_axes_are_exact_unless_they_are_few_of_a_wide_matrix(wide, count, monkeypatch):
    monkeypatch.setattr(eigen, "WIDE", wide)
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(300, 150))  # no gaps between eigenvalues: iteration is imprecise here
    C = rows.T @ rows
    exact = np.linalg.eigh(C)[1][:, ::-1][:, :count]
    axes = leading_eigenvectors(torch.from_numpy(C), count).numpy()
    np.testing.assert_allclose(axes @ axes.T, exact @ exact.T, atol=1e-9)


def test_rows_of_a_lower_rank_than_their_number():
    rng = np.random.default_rng(4)
    rows = torch.from_numpy(rng.normal(size=(6, 2)) @ rng.normal(size=(2, 9)))
    for scale in (1.0, 1e-150):
        axes = leading_eigenvectors(FactoredCovariance(scale * rows), 5)
        torch.testing.assert_close(axes.T @ axes, torch.eye(5).double())
        exact = torch.linalg.svd(rows)[2][:2].T
        torch.testing.assert_close(axes[:, :2] @ axes[:, :2].T, exact @ exact.T)


def test_axes_have_the_signs_of_the_rows_they_come_from():
    rows = torch.diag(torch.tensor([3.0, 2.0, 1.0])).double()
    axes = leading_eigenvectors(FactoredCovariance(rows), 3)
    left = torch.from_numpy(largest_eigenvectors((rows @ rows.T).numpy(), 3)[1])
    torch.testing.assert_close(axes, left)  # of a diagonal matrix both are the same


def test_few_axes_of_a_wide_matrix_in_other_units(monkeypatch):
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(40, 150)) * np.linspace(3, 0.1, 40)[:, None]
    scale = torch.linspace(0.2, 3, 150).double()
    C = torch.from_numpy(rows.T @ rows)
    monkeypatch.setattr(eigen, "WIDE", 100)
    axes = leading_eigenvectors(C, 4, scale=scale, device=torch.device("cpu"))
    plain = leading_eigenvectors(C, 4, scale=scale)
    scaled = (scale[:, None] * C * scale).numpy()
    torch.testing.assert_close(axes, plain)
    torch.testing.assert_close(axes.T @ axes, torch.eye(4).double())
    kept = float(np.trace(axes.numpy().T @ scaled @ axes.numpy()))
    best = np.linalg.eigvalsh(scaled)[-4:].sum()
    assert 0.999 * best < kept <= best * (1 + 1e-9)
    turned = np.diag(axes.numpy().T @ scaled @ axes.numpy())
    assert (np.diff(turned) < 0).all()
