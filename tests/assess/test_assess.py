"""Choices scored on held-out rows, against plain scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import StandardScaler

import fewer
from fewer.assess import compare, curve, inspect, score_features
from fewer.assess.scoring import Rows
from fewer.baselines import MaxVariance, PivotedQR
from fewer.errors import FewerWarning, InputError

X = load_digits().data[:, 16:48] + 0.01 * np.random.default_rng(0).normal(size=(1797, 32))
GROUPS = np.arange(len(X)) // 10


@pytest.fixture(scope="module")
def rows():
    return Rows(X, "standard", None, 0, "cpu")


def plain_scores(rows, model, columns):
    """Explained variance and standard error by scikit-learn's regression, fold by fold."""
    sums = []
    for fold in rows.covariances.folds:
        train, held = X[fold.train_rows], X[fold.held_rows]
        scaler = StandardScaler().fit(train)
        a, b, middle = (scaler.transform(part) for part in (train, held, X.mean(axis=0)[None]))
        guess = model(a, b, columns)
        sums.append([((guess - b) ** 2).sum(), ((b - middle) ** 2).sum()])
    wrong, total = np.array(sums).T
    without = [1 - np.delete(wrong, at).sum() / np.delete(total, at).sum() for at in range(5)]
    # of 5 folds, 1 / 5 + 1 / 4 of the variance, since they share training rows
    return 1 - wrong.sum() / total.sum(), (4 * np.var(without) * (1 / 5 + 1 / 4) * 5) ** 0.5


def regression(train, held, columns):
    return LinearRegression().fit(train[:, columns], train).predict(held[:, columns])


def components(train, held, k):
    pca = PCA(k).fit(train)
    return pca.inverse_transform(pca.transform(held))


def test_explained_variance_is_that_of_plain_regression(rows):
    columns = np.array([1, 5, 12, 20, 30])
    found = rows.estimate([columns] * 5)
    expected = plain_scores(rows, regression, columns)
    assert found.value == pytest.approx(expected[0], abs=1e-9)
    assert found.standard_error == pytest.approx(expected[1], rel=1e-6)
    listed = score_features(X, columns, random_state=0, device="cpu")
    assert listed.explained_variance_standardized == found.value
    assert listed.standard_error_standardized == found.standard_error
    assert listed.protocol == "5 folds, seed 0, each feature standardised"
    in_units = 1 - listed.errors.sum() / listed.variances.sum()
    assert listed.explained_variance == pytest.approx(in_units)
    np.testing.assert_allclose(listed.variances, X.var(axis=0))


def test_the_reference_is_plain_pca(rows):
    found = compare(X, 6, methods=["greedy"], random_state=0, device="cpu")
    reference = next(row for row in found.rows if row["method"].startswith("PCA"))
    value, error = plain_scores(rows, components, 6)
    assert reference["explained_variance"] == pytest.approx(value, abs=1e-9)
    assert reference["standard_error"] == pytest.approx(error, rel=1e-6)
    path = curve(X, [1, 2, 4, 6], random_state=0, device="cpu")
    assert path.pca[-1] == pytest.approx(value, abs=1e-9)


def test_rows_of_a_group_stay_on_one_side():
    grouped = Rows(X, "none", GROUPS, 0, "cpu")
    for fold in grouped.covariances.folds:
        held, train = fold.held_rows, fold.train_rows
        assert len(np.intersect1d(GROUPS[held], GROUPS[train])) == 0
        assert len(held) + len(train) == len(X)


def test_a_few_groups_of_rows_are_no_test_against_chance():
    people = np.arange(len(X)) % 6
    options = {"row_groups": people, "random_state": 0, "device": "cpu"}
    path = curve(X, [2, 4], **options)
    assert (path.few_groups, path.noise, path.rules()["noise"]) == (6, None, None)
    card = fewer.score([3, 10, 18], X, draws=20, permutations=19, **options)
    assert [row["p_value"] for row in card.contributions] == [None] * 3
    options["row_groups"] = GROUPS
    assert curve(X, [2, 4], **options).few_groups is None
    card = fewer.score([3, 10, 18], X, draws=20, permutations=19, **options)
    assert all(row["p_value"] is not None for row in card.contributions)


def test_pivots_of_the_covariance_are_those_of_the_rows():
    found = compare(
        X, 5, methods=["pivoted QR", "variance"], scale="none", random_state=0, device="cpu"
    )
    chosen = {row["method"]: row["features"] for row in found.rows}
    train = X[Rows(X, "none", None, 0, "cpu").covariances.folds[0].train_rows]
    assert chosen["pivoted QR"] == PivotedQR(5).fit(train).columns_.tolist()
    assert chosen["variance"] == MaxVariance(5).fit(train).columns_.tolist()


def test_folds_tell_how_stable_a_choice_is():
    twins = np.hstack([X, X + 1e-9 * np.random.default_rng(1).normal(size=X.shape)])
    found = compare(twins, 4, methods=["search", "random"], folds=3, scale="none",
                    random_state=0, device="cpu")  # fmt: skip
    by = {row["method"]: row for row in found.rows}
    assert by["search"]["overlap"] < 1  # either twin will do
    assert by["search"]["standard_error"] > 0
    assert by["search"]["explained_variance"] > by["random"]["explained_variance"]


def test_a_choice_is_made_without_the_held_out_rows():
    """Rows that are held out can be anything: what is chosen stays the same."""
    few = X[:, [1, 2, 3, 4, 5, 10, 11, 12, 13, 17]]  # pixels that vary in every fold
    held = Rows(few, "standard", None, 0, "cpu").covariances.folds[0].held_rows
    other = few.copy()
    other[held] = np.random.default_rng(3).permuted(few[held], axis=1)
    options = {"strategies": ["search"], "random_state": 0, "device": "cpu"}
    pair = [
        compare(data, 3, methods=["search"], random_state=0, device="cpu") for data in (few, other)
    ]
    one, two = ({row["method"]: row["features"] for row in found.rows} for found in pair)
    assert one == two
    first, second = (fewer.select(data, 3, **options).fold_panels[0] for data in (few, other))
    assert first.tolist() == second.tolist()


def test_a_curve_is_nested_and_honest():
    found = curve(X, [2, 4, 8, 16], random_state=0, device="cpu")
    assert np.diff(found.explained_variance).min() > 0
    assert found.smallest_k(0.99) is None
    assert found.folds == 5
    assert not found.exact
    assert all(0 < error < 0.05 for error in found.standard_error)
    assert found.r2.shape == (4, 32)
    noise = np.random.default_rng(0).normal(size=(60, 40))
    flat = curve(noise, [10, 20], exact=False, random_state=0, device="cpu")
    assert (
        flat.explained_variance[1] < 0.6
    )  # twenty of forty unrelated features explain only themselves
    assert flat.noise == 0  # and permuted columns would do as well


def test_a_curve_for_a_target(tmp_path):
    """Three columns make the target: after them, nothing is gained."""
    random = np.random.default_rng(5)
    Z = random.normal(size=(300, 10))
    y = Z[:, [2, 5, 7]] @ [3.0, 2.0, 1.5] + random.normal(size=300)
    found = curve(Z, range(1, 7), target=y, random_state=0, device="cpu")
    assert found.order[:3] == [2, 5, 7]
    assert found.r2.shape == (6, 1)
    guess = cross_val_predict(LinearRegression(), Z[:, [2, 5, 7]], y, cv=5)
    left = ((guess - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert found.explained_variance[2] == pytest.approx(1 - left, abs=0.01)
    assert found.explained_variance[5] - found.explained_variance[2] < 0.01
    assert found.rules()["one_standard_error"] == 3
    assert found.pca is None
    assert found.rules()["noise"] == 3
    assert "pca" not in found.write(tmp_path / "c.csv").read_text()
    assert found.write(tmp_path / "c.svg").read_text().startswith("<?xml")
    with pytest.raises(InputError, match="exact=True cannot be combined with a target"):
        curve(Z, [3], target=y, exact=True)


def test_missing_and_empty_columns(tmp_path):
    table = pd.DataFrame(X.copy(), columns=[f"p{j}" for j in range(32)])
    table.iloc[::5, 3] = np.nan
    table["blank"] = np.nan
    with pytest.warns(FewerWarning, match=r"without any value were ignored \(1\): 'blank'"):
        found = curve(table, [4], random_state=0, device="cpu")
    assert 0.2 < found.explained_variance[0] < 1
    assert found.write(tmp_path / "c.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: curve(X, []), "give at least one number of features"),
        (
            lambda: curve(X, [99]),
            "k=99 must be a whole number from 1 to 32, the number",
        ),
        (lambda: curve(X, [3], folds=1), "folds=1 must be a whole number of at least 2"),
        (lambda: compare(X, 3, folds=1), "folds=1 must be a whole number of at least 2"),
        (lambda: curve(X, [3], scale="big"), "scale='big' is not valid"),
        (lambda: curve(X, [3], row_groups=[1, 2]), "row_groups has 2 labels for 1797 rows"),
        (lambda: curve(X, [3], row_groups=np.ones(len(X))), "row_groups has a single label"),
        (lambda: compare(X, 3, methods=["luck"]), "methods='luck' is not valid; use 'select' or"),
        (lambda: compare(X, 3, panels={"mine": []}), "the list of features is empty"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_a_sample_of_many_rows_suggests_k(monkeypatch):
    monkeypatch.setattr("fewer.assess.inspection.SMALL_DATA", 0)
    whole = inspect(fewer.data.open(X))
    monkeypatch.setattr("fewer.assess.inspection.MAX_ROWS", 900)
    some = inspect(fewer.data.open(X))
    assert (whole.sampled_rows, some.sampled_rows) == (1797, 900)
    for level, size in some.sizes.items():
        assert size["pca"] <= size["features"]
        assert abs(size["features"] - whole.sizes[level]["features"]) <= 2
    assert some.suggested_k == some.sizes[0.9]["features"]
    assert not some.exact
    assert 0.9 <= some.explained_variance < 0.95
    assert 0 < some.standard_error < 0.05


def test_wide_data_are_inspected_without_a_covariance():
    random = np.random.default_rng(0)
    wide = random.normal(size=(60, 3)) @ random.normal(size=(3, 300))
    found = inspect(wide + 0.1 * random.normal(size=wide.shape))
    assert found.suggested_k == 3
    assert found.covariance_memory == 60 * 300 * 8


def test_every_command_has_the_same_number(tmp_path, monkeypatch):
    """inspect, select, curve, compare and score: one panel, one share, one standard error."""
    monkeypatch.setattr("fewer.selection.strategies.SMALL", 0)  # searches only, to be quick
    data = fewer.data.open(X[:200, ::3])
    seen = inspect(data)
    k = seen.suggested_k
    panel = fewer.select(data, k, random_state=0)
    panel.save(tmp_path / "panel")
    loaded = fewer.Panel.load(tmp_path / "panel")
    one, known = panel.estimates["equal"], panel.evidence
    assert 0 < one.standard_error < 0.05
    at = curve(data, [k], random_state=0)
    rows = compare(data, k, methods=["select"], panels={"mine": loaded}, random_state=0).rows
    reference = next(row for row in rows if not row["features"])
    assert reference["explained_variance"] == pytest.approx(known.explained["equal"]["pca"])
    assert reference["standard_error"] == pytest.approx(known.standard_errors["equal"]["pca"])
    card = fewer.score(loaded, data, draws=5, permutations=0, random_state=0)
    found = [
        (seen.explained_variance, seen.standard_error),
        (
            panel.evidence.explained["equal"]["panel"],
            panel.evidence.standard_errors["equal"]["panel"],
        ),
        (loaded.estimates["equal"].value, loaded.estimates["equal"].standard_error),
        (at.explained_variance[0], at.standard_error[0]),
        (card.explained_variance, card.standard_error),
        *((row["explained_variance"], row["standard_error"]) for row in rows if row["features"]),
    ]
    assert len(found) == 7
    np.testing.assert_allclose(found, [one[:2]] * 7, rtol=1e-9)
    protocol = "5 folds, seed 0, each feature standardised"
    said = [seen.protocol, panel.settings["protocol"], at.protocol, card.protocol]
    assert said == [protocol] * 4
    # on the report's curve, and for the same features given as a list of one's own
    assert known.curve["equal"]["panel"][-1] == pytest.approx(one.value, abs=1e-3)
    assert card.made_here
    assert not fewer.score(panel.features, data, draws=2, permutations=0).made_here


@pytest.mark.parametrize("validation", ["auto", 0.3])
def test_references_have_the_same_number_everywhere(validation):
    """Of a single held-out part too, with a standard error over its rows."""
    rows, options = X[:150, 2:40:4], {"random_state": 0, "validation": validation}
    known = fewer.select(rows, 3, strategies=["search"], **options).evidence
    found = {
        row["method"].removesuffix(" (reference)").lower(): row
        for row in compare(rows, 3, methods=["greedy", "random"], **options).rows
    }
    for role, row in found.items():
        assert row["explained_variance"] == pytest.approx(known.explained["equal"][role])
        assert row["standard_error"] == pytest.approx(known.standard_errors["equal"][role])
        assert 0 < row["standard_error"] < 0.2
    assert known.standard_errors["units"]["random"] > 0


def test_columns_ignored_by_name_are_described(tmp_path):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=list("abc"))
    frame["day"], frame["site"] = np.arange(60) // 20, "here"
    frame.to_csv(tmp_path / "x.csv", index=False)
    said = inspect(tmp_path / "x.csv", ignore=["a", "day", "site"]).ignored
    assert said == {
        "a": "identifier: a different number in each row",
        "day": "numbers with 3 distinct values: a possible --target",
        "site": "text with 1 distinct value",
    }


@pytest.mark.usefixtures("no_panel_inspected")
def test_an_inspection_finds_what_a_user_should_know(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 5)), columns=list("abcde"))
    frame.insert(0, "row", np.arange(7, 47))
    frame["label"] = "x"
    frame.loc[3:12, "b"] = np.nan
    frame["c"], frame["d"] = 1.0, np.nan
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=10)
    for limit in (None, 10_000):
        found = inspect(tmp_path / "x.parquet", ignore=["label"], memory_limit=limit)
        assert (found.rows, found.features) == (40, 4)
        assert list(found.ignored) == ["label", "row", "d"]
        assert found.missing == {"b": 0.25}
        assert found.constant == ["c"]
        assert found.values == (frame[["a", "b", "e"]].min().min(), frame[list("abce")].max().max())
        assert (found.memory, found.covariance_memory) == (40 * 4 * 4, 16 * 8)
    assert "6.2% missing" in str(found)
    assert "1 constant (never chosen): c" in str(found)


def test_an_inspection_of_sparse_and_streamed_rows(tmp_path):
    matrix = sparse.random_array((50, 4), density=0.2, rng=np.random.default_rng(0), format="csr")
    assert inspect(matrix).sparse
    np.save(tmp_path / "x.npy", matrix.toarray())
    found = inspect(tmp_path / "x.npy", memory_limit=1000)
    assert (found.streamed, found.dtype, found.values[0]) == (True, "float64", 0.0)
    assert "50 rows, 4 features (float64), read in blocks" in str(found)
