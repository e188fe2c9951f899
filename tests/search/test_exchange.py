import numpy as np
import pytest
import torch

from fewer.search import residual
from fewer.search.exchange import Exchange, WholeExchange, best_swap
from tests.search.brute import KINDS, instance

PANELS = torch.tensor([[0, 3, 5, 7], [1, 2, 12, 8], [12, 4, 12, 9]])  # 12 marks an empty place


def exchange(C, whole, ridge, S=PANELS):
    C = torch.as_tensor(C)
    if whole:
        return WholeExchange(C, ridge, S)
    return Exchange(C, C @ C, float(C.trace()), ridge, S)


def value(C, places, ridge):
    return residual(C, [s for s in places.tolist() if s < len(C)], ridge)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_every_gain_is_the_fall_of_the_residual(kind, whole, share):
    C = instance(kind, 12, 2)
    C /= np.trace(C)
    ridge = share / 12
    state = exchange(C, whole, ridge)
    gains = state.gains()
    for b, S in enumerate(PANELS):
        before = value(C, S, ridge)
        for i in range(4):
            for j in range(12):
                if j in S:
                    assert gains[b, i, j] == -torch.inf
                    continue
                after = S.clone()
                after[i] = j
                gain = before - value(C, after, ridge)
                # a panel with a duplicate is inverted with a trace of ridge
                assert gains[b, i, j] == pytest.approx(
                    gain, abs=1e-4 if kind == "duplicates" else 1e-7
                )


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_updates_equal_a_fresh_start(whole, ridge):
    C = instance("plain", 12, 4)
    state = exchange(C, whole, ridge)
    for step in range(12):
        gain, i, j = best_swap(state.gains())
        moves = torch.tensor([True, step % 3 > 0, step % 2 > 0])
        before = state.S.clone()
        state.swap(i, j, gain, moves)
        assert torch.equal(state.S[~moves], before[~moves])
        fresh = exchange(C, whole, ridge, state.S)
        for name in ("Z", "e", "f", "objective", "losses"):
            torch.testing.assert_close(
                getattr(state, name), getattr(fresh, name), rtol=1e-6, atol=1e-6
            )
        assert torch.equal(state.shut[:, :12], fresh.shut[:, :12])


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_swap_is_that_of_all_gains(kind):
    state = exchange(instance(kind, 12, 3), False, 0.0)
    fixed = torch.zeros(3, 4, dtype=torch.bool)
    fixed[0, 2], fixed[1, :] = True, True  # nothing may leave the second panel
    shut = torch.zeros(3, 12, dtype=torch.bool)
    shut[2, :6] = True
    for _ in range(4):
        wanted = [part.clone() for part in best_swap(state.gains(fixed, shut))]
        found = gain, i, j = state.best(fixed, shut)
        for part, other in zip(found, wanted, strict=True):
            assert torch.equal(part[[0, 2]], other[[0, 2]])
        assert gain[1] == -torch.inf
        state.swap(i, j, gain, gain > -torch.inf)


def test_candidates_suffice():
    """Walking over some columns gives the gains that all columns would give."""
    C = torch.as_tensor(instance("plain", 12, 6))
    pick = torch.tensor([1, 2, 4, 7, 9, 10])
    S = torch.tensor([[0, 3, 5]])
    part = Exchange(C[pick][:, pick], (C @ C)[pick][:, pick], float(C.trace()), 0.0, S)
    whole = WholeExchange(C, 0.0, pick[S])
    every = torch.tensor([True])
    for _ in range(3):
        torch.testing.assert_close(part.gains(), whole.gains()[:, :, pick], rtol=1e-6, atol=1e-6)
        gain, i, j = best_swap(part.gains())
        part.swap(i, j, gain, every)
        whole.swap(i, pick[j], gain, every)
    torch.testing.assert_close(part.objective, whole.objective)


def test_fixed_places_and_excluded_candidates():
    C = instance("plain", 12, 8)
    fixed = torch.zeros(3, 4, dtype=torch.bool)
    fixed[:, 1] = True
    shut = torch.zeros(3, 12, dtype=torch.bool)
    shut[:, 11] = True
    gains = exchange(C, False, 0.0).gains(fixed, shut)
    assert (gains[:, 1] == -torch.inf).all()
    assert (gains[:, :, 11] == -torch.inf).all()
    assert torch.isfinite(gains[:, 0, 10]).all()
