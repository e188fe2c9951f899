"""The two bounds: k numbers made of all features."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.decomposition import PCA

from fewer import ColumnSubset
from fewer.baselines import AutoencoderBound, PCABound
from fewer.baselines._bounds import squared_error
from fewer.errors import InputError, NotFittedError


def test_pca_leaves_the_tail_of_the_eigenvalues(digits):
    train, test = digits
    bound = PCABound(k=7).fit(train)
    values = np.linalg.eigvalsh(np.cov(train.T, bias=True))[::-1]
    assert bound.residual_ == pytest.approx(values[7:].sum())
    np.testing.assert_allclose(bound.eigenvalues_, values[:7])
    left = ((bound.reconstruct(train) - train) ** 2).sum() / len(train)
    assert left == pytest.approx(bound.residual_)
    reference = PCA(7).fit(train)
    expected = reference.inverse_transform(reference.transform(test))
    np.testing.assert_allclose(bound.reconstruct(test), expected, atol=1e-8)
    spread = ((test - test.mean(axis=0)) ** 2).sum()
    assert bound.score(test) == pytest.approx(1 - ((expected - test) ** 2).sum() / spread)


def test_no_panel_does_better_on_the_rows_of_the_fit(digits):
    for k in (1, 5, 20):
        panel = ColumnSubset(k, random_state=0, stall=0).fit(digits[0])
        assert PCABound(k).fit(digits[0]).residual_ < panel.residual_


def test_as_many_components_as_features_reconstruct_everything(digits):
    rows = digits[0][:100]
    assert PCABound(k=64).fit(rows).residual_ == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(PCABound(k=64).fit(rows).reconstruct(rows), rows, atol=1e-8)


def curved(n=600, seed=0):
    """One number t a row, bent into four columns: a line in no direction."""
    t = np.random.default_rng(seed).uniform(-1, 1, size=n)
    return np.column_stack([np.cos(3 * t), np.sin(3 * t), t, t**2])


def test_a_network_encodes_a_curve_in_one_number():
    train, test = curved(), curved(seed=1)
    linear = PCABound(k=1).fit(train).score(test)
    options = {"hidden": (32,), "epochs": 100, "learning_rate": 1e-2, "device": "cpu"}
    bound = AutoencoderBound(k=1, random_state=0, **options).fit(train)
    assert linear < 0.7
    assert bound.score(test) > 0.95
    assert bound.history_[0]["epoch"] == 0
    assert min(row["val_loss"] for row in bound.history_) < 0.2 * bound.history_[0]["val_loss"]


def test_never_behind_pca_on_the_held_out_rows(digits):
    # a learning rate that spoils the start
    options = {"epochs": 3, "learning_rate": 10.0, "device": "cpu", "random_state": 0}
    bound = AutoencoderBound(k=5, **options).fit(digits[0])
    linear = PCABound(k=5).fit(digits[0])
    assert bound.history_[-1]["val_loss"] > bound.history_[0]["val_loss"]
    assert bound.score(digits[1]) == pytest.approx(linear.score(digits[1]), abs=0.01)


def test_better_than_pca_on_digits(digits):
    bound = AutoencoderBound(k=5, epochs=60, device="cpu", random_state=0).fit(digits[0])
    assert bound.score(digits[1]) > PCABound(k=5).fit(digits[0]).score(digits[1]) + 0.03


def test_stops_when_patience_runs_out(digits):
    options = {"epochs": 50, "learning_rate": 10.0, "device": "cpu", "random_state": 0}
    bound = AutoencoderBound(k=3, patience=2, **options).fit(digits[0][:200])
    assert len(bound.history_) < 10


def test_seeds_repeat(digits):
    options = {"epochs": 2, "device": "cpu"}
    one, two, other = (
        AutoencoderBound(k=3, random_state=seed, **options).fit(digits[0][:200]).score(digits[1])
        for seed in (0, 0, 1)
    )
    assert one == two != other


@pytest.mark.parametrize("kind", [PCABound, AutoencoderBound])
def test_missing_values_and_sparse_rows(kind, digits):
    options = {} if kind is PCABound else {"epochs": 3, "device": "cpu", "random_state": 0}
    train, test = digits[0][:300], digits[1][:50].copy()
    dense = kind(4, **options).fit(train)
    thin = kind(4, **options).fit(sparse.csr_array(train))
    back = thin.reconstruct(sparse.csr_array(test))
    np.testing.assert_allclose(back, dense.reconstruct(test), atol=1e-6)
    gaps = train.copy()
    gaps[np.random.default_rng(0).random(gaps.shape) < 0.05] = np.nan
    holed = kind(4, **options).fit(gaps)
    assert 0.3 < holed.score(test) < dense.score(test) + 0.02
    test[0, 30] = np.nan
    assert np.isfinite(holed.reconstruct(test)).all()


def test_missing_entries_are_not_part_of_the_loss():
    import torch

    x = torch.tensor([[1.0, float("nan")], [3.0, 2.0]])
    zero = torch.nn.Linear(2, 2)
    for parameter in zero.parameters():
        torch.nn.init.zeros_(parameter)
    assert squared_error(zero, x).item() == pytest.approx((1 + 9 + 4) / 3)


def test_bad_input(digits):
    rows = digits[0][:50]
    with pytest.raises(NotFittedError, match="PCABound is not fitted yet"):
        PCABound().score(rows)
    with pytest.raises(InputError, match="k=65 is more than the n_features=64"):
        PCABound(k=65).fit(rows)
    for options, message in [
        ({"epochs": 0}, "epochs=0 must be a whole number"),
        ({"learning_rate": 0.0}, r"learning_rate=0\.0 must be a number above 0"),
        ({"validation_fraction": 0.95}, r"validation_fraction=0\.95 must be .* at most 0\.9"),
        ({"hidden": (0,)}, "hidden widths must be whole numbers"),
        ({"patience": 1.5}, r"patience=1\.5 must be a whole number"),
    ]:
        with pytest.raises(InputError, match=message):
            AutoencoderBound(k=2, device="cpu", **options).fit(rows)
    empty = rows.copy()
    empty[:, 3] = np.nan
    with pytest.raises(InputError, match="columns without any value"):
        PCABound(k=2).fit(empty)
