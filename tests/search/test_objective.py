import numpy as np
import pytest
import torch

from fewer.constraints import resolve
from fewer.data.factored import FactoredCovariance
from fewer.errors import InputError
from fewer.search import greedy, residual, search, swap
from fewer.search.objective import penalty_at, regular_inverse, regular_root, solve_normal, worth
from tests.search.brute import KINDS, explained, instance


def test_it_is_the_squared_error_of_least_squares():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 8)) @ rng.normal(size=(8, 8))
    X -= X.mean(0)
    S = [1, 4, 6]
    B = np.linalg.lstsq(X[:, S], X, rcond=None)[0]
    expected = ((X - X[:, S] @ B) ** 2).sum() / 50
    assert residual(X.T @ X / 50, S) == pytest.approx(expected, rel=1e-9)


def test_with_ridge_it_is_the_penalised_error():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(40, 6))
    C, S, ridge = X.T @ X / 40, [0, 5], 0.3
    B = np.linalg.solve(C[np.ix_(S, S)] + ridge * np.eye(2), C[S])
    expected = ((X - X[:, S] @ B) ** 2).sum() / 40 + ridge * (B**2).sum()
    assert residual(C, S, ridge) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_it_agrees_with_pseudo_inverses(kind, ridge):
    C = instance(kind, 10, 3)
    ridge *= np.trace(C) / 10
    panels = np.array([np.random.default_rng(s).permutation(10)[:6] for s in range(10)])
    expected = np.trace(C) - explained(C, panels, ridge)
    found = [residual(C, panel, ridge) for panel in panels]
    np.testing.assert_allclose(found, expected, atol=1e-7 * np.trace(C))


def test_edges():
    C = np.diag([2.0, 0.0, 1.0])
    assert residual(C, []) == 3.0
    assert residual(C, [1]) == 3.0
    assert residual(C, [0, 1, 2]) == 0.0
    assert residual(torch.eye(3, dtype=torch.float32), [0]) == 2.0


@pytest.mark.parametrize(
    ("C", "words"),
    [
        (np.ones((2, 3)), "shape"),
        (np.zeros((0, 0)), "shape"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "NaN"),
        (np.array([[1.0, 0.5], [-0.5, 1.0]]), "not symmetric"),
        (np.diag([1.0, -1.0]), r"C\[1, 1\] is negative"),
    ],
)
def test_an_invalid_covariance_is_refused(C, words):
    for call in (residual, swap):
        with pytest.raises(InputError, match=words):
            call(C, [0])
    for call in (greedy, search):
        with pytest.raises(InputError, match=words):
            call(C, 1)


@pytest.mark.parametrize("call", [greedy, search])
def test_bad_options_are_refused(call):
    with pytest.raises(InputError, match="ridge=-1"):
        call(np.eye(3), 1, ridge=-1)
    with pytest.raises(InputError, match="k=4 is more"):
        call(np.eye(3), 4)


def test_what_is_nearly_a_copy_adds_nothing():
    # the second feature is the first plus a millionth of the third: rounding, not information
    C = np.array([[1.0, 1.0, 0.0], [1.0, 1 + 1e-12, 1e-6], [0.0, 1e-6, 1.0]])
    assert residual(C, [0, 1]) == pytest.approx(1.0, abs=1e-6)
    # a thousandth of it is information
    C[1, 1], C[1, 2], C[2, 1] = 1 + 1e-6, 1e-3, 1e-3
    assert residual(C, [0, 1]) == pytest.approx(0.0, abs=1e-6)


def test_a_covariance_may_be_zero_or_negative_by_rounding_only():
    assert residual(np.zeros((2, 2)), [0]) == 0
    assert residual(np.diag([1e12, -1e-2]), [0]) == 0
    for C in (np.diag([1e-12, -1e-12]), np.diag([-1.0, -1.0])):
        with pytest.raises(InputError, match="is negative"):
            residual(C, [0])
    # what is behind noise may vary less than nothing, but the measured values may not
    assert residual(np.diag([1.0, -0.1]), [0], [0.0, 0.3]) == pytest.approx(0.2)
    with pytest.raises(InputError, match=r"C\[1, 1\] is negative"):
        residual(np.diag([1.0, -0.1]), [0], [0.0, 0.05])


def test_normal_equations_in_any_units():
    rng = np.random.default_rng(0)
    units = np.array([1.0, 1e3, 1e-3])
    rows = rng.normal(size=(20, 3)) @ rng.normal(size=(3, 3)) * units
    gram, cross = rows.T @ rows, rows.T @ rng.normal(size=(20, 2))
    found = solve_normal(torch.from_numpy(gram), torch.from_numpy(cross))
    np.testing.assert_allclose(found, np.linalg.solve(gram, cross), rtol=1e-8)
    found = solve_normal(torch.from_numpy(gram), torch.from_numpy(cross), 0.7)
    np.testing.assert_allclose(found, np.linalg.solve(gram + 0.7 * np.eye(3), cross), rtol=1e-8)


def test_singular_normal_equations_have_the_shortest_solution():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(20, 2))
    rows = np.column_stack([rows, rows[:, 0], np.zeros(20)])  # a copy, and a constant
    rows[:, :3] /= np.linalg.norm(rows[:, :3], axis=0)
    gram, cross = rows.T @ rows, rows.T @ rng.normal(size=(20, 2))
    found = solve_normal(torch.from_numpy(gram), torch.from_numpy(cross))
    np.testing.assert_allclose(found, np.linalg.pinv(gram, hermitian=True) @ cross, atol=1e-12)


def test_inverses_are_precise_and_leave_empty_places_alone():
    A = torch.tensor([[[4.0, 1, 0], [1, 3, 0], [0, 0, 0]]], dtype=torch.float64)
    full = torch.tensor([[True, True, False]])
    wanted = torch.eye(3, dtype=torch.float64)
    wanted[:2, :2] = torch.linalg.inv(A[0, :2, :2])
    torch.testing.assert_close(regular_inverse(A, full, 0.0)[0], wanted, rtol=1e-9, atol=1e-12)
    P, R = regular_root(A, full, 0.0)
    torch.testing.assert_close(R[0] @ R[0].T, P[0])


def test_the_first_column_that_is_not_finite_is_named():
    C = np.eye(6)
    C[2, 2], C[4, 4] = np.nan, np.inf
    with pytest.raises(InputError, match="NaN or infinite entries in column 2"):
        residual(C, [0])


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_symmetry_is_judged_relative_to_the_variances(scale):
    C = instance("plain", 12, 0)
    C /= C.diagonal().max()
    rounded = C.copy()
    rounded[0, 1] += 1e-9
    assert residual(scale * rounded, [0, 1]) == pytest.approx(scale * residual(C, [0, 1]))
    wrong = C.copy()
    wrong[0, 1] += 1e-3
    with pytest.raises(InputError, match="not symmetric"):
        residual(scale * wrong, [0, 1])


def test_normal_equations_with_columns_that_do_not_vary_or_depend():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 3)) * [1e-5, 1.0, 1e5]
    Y = rng.normal(size=(30, 2))
    gram, cross = torch.from_numpy(X.T @ X), torch.from_numpy(X.T @ Y)
    wanted = np.linalg.lstsq(X, Y)[0]
    np.testing.assert_allclose(solve_normal(gram, cross), wanted, rtol=1e-8)
    wanted = np.linalg.solve(X.T @ X + 0.3 * np.eye(3), X.T @ Y)
    np.testing.assert_allclose(solve_normal(gram, cross, 0.3), wanted, rtol=1e-5)
    zero = np.column_stack([X, np.zeros(30), X[:, 1]])
    gram, cross = torch.from_numpy(zero.T @ zero), torch.from_numpy(zero.T @ Y)
    found = solve_normal(gram, cross).numpy()
    np.testing.assert_array_equal(found[3], 0.0)
    np.testing.assert_allclose(found[1], found[4])  # copies share
    np.testing.assert_allclose(zero @ found, X @ np.linalg.lstsq(X, Y)[0], rtol=1e-6, atol=1e-9)


def test_penalties_of_places_that_are_empty_are_zero():
    ridge = torch.tensor([0.1, 0.2, 0.3])
    found = penalty_at(ridge, torch.tensor([[2, 3], [0, 1]]))
    torch.testing.assert_close(found, torch.tensor([[0.3, 0.0], [0.1, 0.2]]))
    assert penalty_at(0.5, torch.tensor([2, 3])) == 0.5


def test_worth_adds_the_price_of_a_panel():
    C = np.diag([3.0, 2.0, 1.0])
    rules = resolve(None, 3, 2, costs=[1.0, 2.0, 4.0], cost_weight=0.5)
    assert worth(torch.from_numpy(C), [0, 2], rules, 0.0) == pytest.approx(2 + 0.5 * 3 * 5)


def test_rows_that_are_not_finite_are_refused():
    rows = torch.ones(2, 4).double()
    rows[1, 2] = torch.inf
    with pytest.raises(InputError, match="the rows have NaN or infinite values"):
        greedy(FactoredCovariance(rows), 1)


def test_asymmetry_is_rounding_up_to_a_millionth_of_each_row():
    C = np.diag([100.0, 90, 80, 70])
    for share, good in ((0.7, True), (1.4, False)):
        C[0, 1] = share * 1e-6 * 4 * 100
        if good:
            assert residual(C, [0]) == pytest.approx(240)
        else:
            with pytest.raises(InputError, match="not symmetric"):
                residual(C, [0])


def test_a_column_with_gaps_is_named():
    C = np.eye(5)
    C[2, 2] = np.nan
    with pytest.raises(InputError, match="entries in column 2"):
        residual(C, [0])


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_solutions_in_small_and_large_units(scale):
    random = np.random.default_rng(3)
    rows = random.normal(size=(30, 3))
    rows = np.column_stack([rows, rows[:, 0] + rows[:, 1]])
    gram, cross = scale * rows.T @ rows, scale * rows.T @ random.normal(size=(30, 2))
    unit = np.sqrt(gram.diagonal())
    correlation = gram / unit / unit[:, None]
    wanted = np.linalg.pinv(correlation, hermitian=True) @ (cross / unit[:, None]) / unit[:, None]
    found = solve_normal(torch.from_numpy(gram), torch.from_numpy(cross))
    np.testing.assert_allclose(found, wanted, rtol=1e-8)
    C = torch.from_numpy(gram)
    assert residual(C, [0, 1, 3]) == pytest.approx(residual(C, [0, 1]), rel=1e-6)
    assert residual(C, [0, 1]) > 0.1 * scale
