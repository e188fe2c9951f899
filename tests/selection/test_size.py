"""How many features: scores of every k, and what k="auto" and Reach choose."""

import numpy as np
import pytest
import torch

import fewer
from fewer.assess import curve
from fewer.constraints import resolve
from fewer.data.open import as_source
from fewer.errors import InputError
from fewer.estimate import held_out_squares, ratio_of_sums, shared_rows
from fewer.report.summarise import summarise
from fewer.selection.size import elbow, size_path
from fewer.validation import fold_covariances, split_rows


def planted(k=4, n=150, seed=0):
    """k sources, each with a precise measurement and five noisy ones, and columns of noise."""
    random = np.random.default_rng(seed)
    sources = random.normal(size=(n, k))
    noisy = 0.8 * np.repeat(sources, 5, axis=1) + 0.6 * random.normal(size=(n, 5 * k))
    precise = sources + 0.05 * random.normal(size=(n, k))
    return np.hstack([precise, noisy, random.normal(size=(n, k))])


def covariances(X, folds=4, scale="standard"):
    return fold_covariances(as_source(X), split_rows(len(X), folds, 0), scale)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_one_factorisation_scores_every_size(ridge):
    X = planted()
    X[:, 7] = X[:, 3]  # a copy, which adds nothing
    fold = covariances(X).folds[1]
    order = np.array([5, 3, 7, 20, 0, 11])
    found = fold.path_residuals(order, ridge)
    for size in (1, 2, 3, 6):
        columns = order[:size]
        expected = fold.residuals(columns, fold.decoder(columns, ridge))
        expected[columns] = 0.0
        torch.testing.assert_close(found[size - 1], expected, rtol=1e-5, atol=1e-7)


def test_scores_are_those_of_the_panels_of_each_fold():
    X = planted(n=600)
    folds = covariances(X)
    path = size_path(folds, resolve(None, 28, 3), [1, 3], torch.device("cpu"))
    fold = folds.folds[2]
    first = fewer.ColumnSubset(1, random_state=0).fit(fold.rows(fold.train_rows)).columns_
    assert path.wrong[2, 0] / fold.n_held == pytest.approx(28 * fold.error(first), abs=1e-9)
    middle = (X.mean(axis=0) - fold.center) / fold.scale
    held = fold.rows(fold.held_rows).rows(slice(0, 200), torch.float64).numpy()
    assert path.total[2] == pytest.approx(((held - middle) ** 2).sum())
    assert path.mean[0] == pytest.approx(1 - path.wrong[:, 0].sum() / path.total.sum())
    assert path.r2[1].mean() == pytest.approx(path.mean[1], abs=0.02)
    wrong, squares = [], [part[9] for part in held_out_squares(folds.folds)]
    for fold in folds.folds:
        one = fewer.ColumnSubset(1, random_state=0).fit(fold.rows(fold.train_rows)).columns_
        wrong.append(fold.n_held * float(fold.residuals(one, fold.decoder(one, 0.0))[9]))
    total = np.array(
        [part / fold.scale[9] ** 2 for part, fold in zip(squares, folds.folds, strict=True)]
    )
    expected = ratio_of_sums(np.array(wrong), total, shared_rows(folds.folds))
    assert path.r2[0, 9] == pytest.approx(expected.value)
    assert path.r2_error[0, 9] == pytest.approx(expected.standard_error)


def test_an_elbow_is_where_the_curve_bends():
    assert elbow([1, 2, 3, 4, 5, 6], [0.2, 0.5, 0.8, 0.82, 0.84, 0.86]) == 3
    assert elbow([4, 8], [0.3, 0.4]) == 4


@pytest.mark.parametrize("n", [100, 1000])
def test_auto_finds_the_planted_number(n):
    X = planted(n=n)
    panel = fewer.select(X, "auto", strategies=["search"], random_state=0)
    assert panel.indices.tolist() == [0, 1, 2, 3]
    assert panel.settings["k_rule"] == "auto"
    about = summarise(panel)
    assert about["size"]["sentence"].startswith("k = 4: additional features explain others no")
    assert "k='auto'" in about["call"]
    assert curve(X, range(1, 12), random_state=0).noise == 4


def test_auto_finds_what_a_target_needs():
    """The target is made of two of the columns; of some rows it is not known."""
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 24))
    y = X[:, 3] - X[:, 8] + 0.1 * random.normal(size=200)
    y[::10] = np.nan
    assert curve(X[:22], range(1, 6), target=y[:22], random_state=0).noise == 2  # more columns
    panel = fewer.select(X, "auto", target=y, strategies=["search"], random_state=0)
    assert panel.indices.tolist() == [3, 8]
    assert panel.evidence.size["noise"] == 2
    assert "within one standard error" in summarise(panel)["size"]["sentence"]
    few = fewer.select(X, fewer.Reach(0.3), target=y, strategies=["search"], random_state=0)
    assert few.k == 1
    with pytest.raises(InputError, match="no panel explains 100% of the target of held-out"):
        fewer.select(X, fewer.Reach(0.9999), target=y, random_state=0)


def test_groups_of_rows_that_repeat_are_not_taken_for_signal():
    """Columns that are independent, with each row ten times: only its group is new."""
    random = np.random.default_rng(0)
    X = np.repeat(random.normal(size=(40, 12)), 10, axis=0)
    groups = np.repeat(np.arange(40), 10)
    assert curve(X, range(1, 6), row_groups=groups, random_state=0).noise == 0


def test_reach_chooses_as_few_as_explain_that_much(tmp_path):
    X = planted(k=2, n=120)
    panel = fewer.select(X, fewer.Reach(0.7), strategies=["search"], random_state=0)
    found = curve(X, range(1, 10), random_state=0)
    assert panel.k == found.smallest_k(0.7)
    panel.report(tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text()
    assert f"k = {panel.k}: the fewest features that explain 70%" in text
    assert "k=fewer.Reach(0.7)" in text
    panel.save(tmp_path / "p")
    assert fewer.Panel.load(tmp_path / "p").evidence.size == panel.evidence.size


def test_groups_and_included_features_count():
    X = planted(k=2, n=100)
    panel = fewer.select(X, "auto", include=[13], exclude=[0], strategies=["search"],
                         groups=[[1, 12], [3, 4]], validation=0.3, random_state=0)  # fmt: skip
    assert {1, 12, 13} <= set(panel.indices)
    assert 0 not in panel.indices


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": "many"}, "k='many': give a number, 'auto' or fewer.Reach"),
        (
            {"k": "auto", "target": np.arange(150) % 2, "reconstruct": 0.5},
            "cannot be combined with reconstruct",
        ),
        ({"k": "auto", "costs": np.ones(28), "budget": 3}, "cannot be combined with budget"),
        ({"k": fewer.Reach(0.999)}, "Lower the level, or give k"),
    ],
)
def test_impossible_sizes_are_refused(options, message):
    X = planted()
    X[:, 5:] = np.random.default_rng(1).normal(size=(150, 23))
    with pytest.raises(InputError, match=message):
        fewer.select(X, exclude=[27], random_state=0, **options)


def test_a_level_is_a_fraction():
    with pytest.raises(InputError, match="level=90 must be a number above 0 and below 1"):
        fewer.Reach(90)
