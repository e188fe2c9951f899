"""A penalty for each feature: measurement errors of known variance."""

from itertools import combinations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fewer.constraints import resolve
from fewer.errors import InputError
from fewer.search import greedy, search, swap
from fewer.search.dependence import dependence
from fewer.search.exchange import Exchange, swap_losses, whole_exchange
from fewer.search.greedy import nested
from fewer.search.objective import residual
from fewer.search.substitutes import substitutes


@pytest.fixture(scope="module", params=["signal", "estimate"])
def problem(request) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The covariance of the signal, or its estimate from few noisy rows, which is indefinite."""
    rng = np.random.default_rng(0)
    loadings = rng.normal(size=(12, 4))
    signal = loadings @ loadings.T + 0.05 * np.eye(12)
    noise = rng.uniform(0.1, 6.0, size=12)
    noise[[3, 10]] = 60.0  # of the best panel without noise
    if request.param == "signal":
        return signal, noise
    noise = np.minimum(noise, 6.0)
    rows = rng.multivariate_normal(np.zeros(12), signal + np.diag(noise), size=30)
    measured = np.cov(rows.T)
    noise = np.minimum(noise, 0.95 * np.diag(measured))
    return measured - np.diag(noise), noise


def unexplained(S: NDArray[np.float64], noise: NDArray[np.float64], panel: list[int]) -> float:
    inner = S[np.ix_(panel, panel)] + np.diag(noise[panel])
    return float(
        np.trace(S) + noise.sum() - np.trace(S[:, panel] @ np.linalg.solve(inner, S[panel]))
    )


def test_residual_is_what_the_noisy_features_leave_of_the_signal(problem) -> None:
    S, noise = problem
    assert residual(S, [1, 4, 7], noise) == pytest.approx(unexplained(S, noise, [1, 4, 7]))
    assert residual(S, [1, 4], np.full(12, 0.3)) - 12 * 0.3 == pytest.approx(
        residual(S, [1, 4], 0.3)
    )


def test_search_finds_the_best_of_all_panels(problem) -> None:
    S, noise = problem
    best = min(combinations(range(12), 4), key=lambda panel: unexplained(S, noise, list(panel)))
    assert search(S, 4, ridge=noise).indices.tolist() == list(best)
    rules = resolve(None, 12, 4, costs=np.ones(12), budget=4)  # which are not enumerated
    assert search(S, rules, ridge=noise, seed=0).indices.tolist() == list(best)
    assert search(S, 4).indices.tolist() != list(best)


def test_greedy_and_swaps_take_what_lowers_it_most(problem) -> None:
    S, noise = problem
    path = greedy(S, 5, ridge=noise)
    taken: list[int] = []
    for pick, error in zip(path.order.tolist(), path.errors, strict=True):
        left = {j: unexplained(S, noise, [*taken, j]) for j in set(range(12)) - set(taken)}
        assert pick == min(left, key=lambda j: left[j])
        assert error == pytest.approx(left[pick])
        taken.append(pick)
    found = swap(S, [0, 1, 2], 3, ridge=noise)
    assert found.objective == pytest.approx(unexplained(S, noise, found.indices.tolist()))
    panel = found.indices.tolist()
    for out, into in ((i, j) for i in panel for j in set(range(12)) - set(panel)):
        other = [into if one == out else one for one in panel]
        assert unexplained(S, noise, other) >= found.objective - 1e-9


def test_gains_stay_right_after_swaps(problem) -> None:
    """Also of features whose own signal is estimated to be less than nothing."""
    S, noise = (torch.from_numpy(part) for part in problem)
    for state in (
        whole_exchange(S, noise, torch.tensor([[0, 5, 9]])),
        Exchange(S, S @ S, float((S.diagonal() + noise).sum()), noise, torch.tensor([[0, 5, 9]])),
    ):
        for place, new in enumerate([3, 2, 11, 7]):
            i, j = torch.tensor([place % 3]), torch.tensor([new])
            state.swap(i, j, state.gains()[:, place % 3, new], torch.tensor([True]))
        fresh = whole_exchange(S, noise, state.S)
        torch.testing.assert_close(state.gains(), fresh.gains(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(state.objective, fresh.objective)
        assert float(state.objective) == pytest.approx(unexplained(*problem, [2, 7, 11]))


def test_groups_are_taken_whole(problem) -> None:
    S, noise = problem
    pairs = [[2 * at, 2 * at + 1] for at in range(6)]
    rules = resolve(None, 12, 2, groups=pairs)

    def members(units: tuple[int, ...]) -> list[int]:
        return [feature for unit in units for feature in pairs[unit]]

    best = min(
        combinations(range(6), 2),
        key=lambda p: unexplained(S, noise, members(p)),
    )
    found = search(S, rules, ridge=noise, seed=0)
    assert found.indices.tolist() == sorted(members(best))
    assert found.objective == pytest.approx(unexplained(S, noise, found.indices.tolist()))


def test_what_else_is_known_of_a_panel(problem) -> None:
    S, noise = problem
    panel = np.array([1, 4, 7])
    whole = unexplained(S, noise, [1, 4, 7])
    for part in combinations(range(12), 3):
        gains = nested(S, part, noise)[1].sum()
        assert np.trace(S) + noise.sum() - gains == pytest.approx(unexplained(S, noise, list(part)))
    without = dependence(S, panel, ridge=noise).sum(axis=1)
    assert without[0] == pytest.approx(unexplained(S, noise, [4, 7]) - whole)
    losses = swap_losses(S, panel, noise)
    assert losses[2, 3] == pytest.approx(max(0, unexplained(S, noise, [1, 4, 3]) - whole), rel=1e-5)
    best, lost = substitutes(
        torch.from_numpy(S), panel, resolve(None, 12, 3), ridge=torch.from_numpy(noise), count=1
    )
    assert lost[0, 0] == pytest.approx(unexplained(S, noise, [int(best[0, 0]), 4, 7]) - whole)


@pytest.mark.parametrize("bad", [np.ones(3), -np.ones(12), np.full(12, np.nan), -1.0])
def test_bad_penalties_are_refused(problem, bad) -> None:
    with pytest.raises(InputError, match="ridge"):
        greedy(problem[0], 2, ridge=bad)


def test_a_signal_that_is_no_covariance_is_refused_only_without_noise() -> None:
    S = np.array([[-0.1, 0.0], [0.0, 1.0]])
    with pytest.raises(InputError, match="negative"):
        greedy(S, 1)
    assert greedy(S, 1, ridge=[0.5, 0.5]).order.tolist() == [1]
