"""Panels that predict a target."""

import threading
import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris

import fewer
from fewer import _threads
from fewer.constraints import resolve
from fewer.errors import FewerWarning, InputError
from fewer.selection.api import _independent
from fewer.selection.context import TimeBudget
from fewer.selection.target import read_target
from fewer.train import refine

CPU = {"random_state": 0, "device": "cpu", "validation": 0.2}


@pytest.fixture(scope="module")
def tumours():
    """A table with a text column to predict; every fourth row is kept for testing."""
    data = load_breast_cancer(as_frame=True)
    table = data.data.copy()
    table["diagnosis"] = np.where(data.target == 0, "malignant", "benign")
    test = np.arange(len(table)) % 4 == 0
    return table[~test].reset_index(drop=True), table[test].reset_index(drop=True)


@pytest.fixture(scope="module")
def panel(tumours):
    return fewer.select(tumours[0], 4, target="diagnosis", **CPU)


def test_classes_from_few_features(tumours, panel):
    test = tumours[1]
    assert panel.k == 4
    assert "diagnosis" not in panel.names
    found = panel.predict(test[panel.features[::-1]])
    assert (found == test["diagnosis"]).mean() > 0.9
    assert panel.target.held_out > 0.9
    chances = panel.predict_proba(test[panel.features])
    assert panel.target.classes.tolist() == ["benign", "malignant"]
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    np.testing.assert_array_equal(panel.target.classes[chances.argmax(axis=1)], found)


def test_the_other_features_are_still_reconstructed(tumours, panel):
    rebuilt = panel.reconstruct(tumours[1][panel.features])
    assert list(rebuilt.columns) == panel.names
    assert panel.score(tumours[1].drop(columns="diagnosis")) > 0.3


def test_the_leaderboard_compares_with_and_without_the_target(panel):
    names = {row["strategy"] for row in panel.leaderboard}
    simple = {"ANOVA", "mutual information", "mRMR", "tree importance", "L1 penalty"}
    searches = {"search", "search, without target", "search, target and features"}
    assert names == searches | simple | {"gradient"}
    errors = [row["error"] for row in panel.leaderboard]
    assert errors == sorted(errors)


def test_truth_that_is_missing_or_new(tumours, panel):
    measured, truth = tumours[1][panel.features], tumours[1]["diagnosis"]
    some = truth.where(truth.index % 2 == 0)  # NaN in every other row
    plain = panel.score_target(measured[::2], truth[::2])
    for lacking in (some, np.ma.array(truth.to_numpy(), mask=some.isna()), some.tolist()):
        assert panel.score_target(measured, lacking) == plain
    with pytest.warns(FewerWarning, match=r"never seen \('cyst'; it knows 'benign', 'malignant'\)"):
        found = panel.score_target(measured, ["cyst", *truth[1:]])
    right = panel.predict(measured) == truth
    assert found == pytest.approx(right[1:].sum() / len(right))
    with pytest.raises(InputError, match="the truth is missing in every row"):
        panel.score_target(measured, [None] * len(truth))


def test_knowing_the_target_helps():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 12)) * np.r_[np.full(10, 5.0), 0.5, 0.5]
    y = X[:, 10] - X[:, 11] > 0  # two quiet features decide
    found = fewer.select(X, 2, target=y, scale="none", strategies=["search"], **CPU)
    assert found.indices.tolist() == [10, 11]
    assert found.target.held_out > 0.9
    assert found.predict(X[:5, [10, 11]]).dtype == bool


def test_numbers(tmp_path):
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    panel = fewer.select(X[:350], 4, target=y[:350], strategies=["search"], **CPU)
    truth, found = y[350:].to_numpy(), panel.predict(X[350:][panel.features])
    assert 1 - ((found - truth) ** 2).sum() / ((truth - truth.mean()) ** 2).sum() > 0.4
    assert panel.target.held_out > 0.3
    two = fewer.select(X, 3, target=np.c_[y, -2 * y], strategies=["search"], **CPU)
    assert two.predict(X[:7][two.features]).shape == (7, 2)
    with pytest.raises(InputError, match="is of kind 'number', not of classes"):
        panel.predict_proba(X[:2][panel.features])
    panel.save(tmp_path / "p")
    again = fewer.Panel.load(tmp_path / "p")
    np.testing.assert_array_equal(
        again.predict(X[panel.features]), panel.predict(X[panel.features])
    )


def test_a_network_as_predictor_is_saved(tumours, tmp_path):
    some = tumours[0].iloc[:, 20:]
    panel = fewer.select(some, 3, target="diagnosis", decoder=(8,), strategies=["search"], **CPU)
    panel.save(tmp_path / "p")
    again = fewer.Panel.load(tmp_path / "p")
    measured = tumours[1][panel.features]
    np.testing.assert_array_equal(again.predict_proba(measured), panel.predict_proba(measured))
    assert again.target.classes.tolist() == ["benign", "malignant"]
    assert again.target.name == "diagnosis"
    assert again.target.held_out == panel.target.held_out
    pd.testing.assert_frame_equal(again.reconstruct(measured), panel.reconstruct(measured))


def test_swaps_find_what_only_a_network_can_use():
    """The class is the product of the signs of two features, which no linear map sees."""
    random = np.random.default_rng(0)
    X = random.normal(size=(1500, 8))
    X[:, 2:6] += 0.5 * X[:, [0]]  # related to one of them
    y = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
    options = CPU | {"strategies": ["search"]}
    panel = fewer.select(X[:800], 2, target=y[:800], decoder=(16,), **options)
    assert panel.indices.tolist() == [0, 1]
    assert panel.leaderboard[0]["strategy"] == "search, network swaps"
    assert (panel.predict(X[1200:, :2]) == y[1200:]).mean() > 0.9
    # what was asked for, without the norms that training used
    layers = [type(layer).__name__ for layer in panel.target.decoder.net]
    assert layers == ["Linear", "LeakyReLU", "Linear"]


def test_units_do_not_matter(tumours):
    table = tumours[0].copy()
    options = {"target": "diagnosis", "strategies": ["search"], **CPU}
    one = fewer.select(table, 3, **options)
    table["mean area"] *= 1e6
    two = fewer.select(table, 3, **options)
    assert one.features == two.features
    np.testing.assert_array_equal(
        one.predict(tumours[0][one.features]), two.predict(table[one.features])
    )


def test_the_constraints_hold(tumours):
    table = tumours[0].iloc[:, 14:]
    names = [c for c in table.columns if c != "diagnosis"]
    costs = {name: 1 + at % 3 for at, name in enumerate(names)}
    wishes = {
        "include": [names[3]],
        "exclude": names[10:14],
        "costs": costs,
        "budget": 7,
        "groups": [names[5:8]],
    }
    panel = fewer.select(table, None, target="diagnosis", strategies=["search"], **wishes, **CPU)
    resolve(names, 16, None, **wishes).check(panel.indices)


def test_polars_and_row_groups(tumours):
    table = pl.from_pandas(tumours[0])
    panel = fewer.select(
        table,
        2,
        target="diagnosis",
        strategies=["search"],
        row_groups=np.arange(len(table)) // 5,
        **CPU,
    )
    assert set(panel.predict(table[:4][panel.features])) <= {"benign", "malignant"}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_target_may_be_a_column_of_a_file(tumours, tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    if ending == "csv":
        tumours[0].to_csv(path, index=False)
    else:
        tumours[0].to_parquet(path)
    options = {"target": "diagnosis", "strategies": ["search"], **CPU}
    panel = fewer.select(path, 3, **options)
    assert panel.features == fewer.select(tumours[0], 3, **options).features
    assert panel.target.classes.tolist() == ["benign", "malignant"]
    with pytest.raises(InputError, match="diagnosys"):
        fewer.select(path, 3, target="diagnosys")


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("diagnosys", {}, "target='diagnosys' is not among the 31 columns"),
        (np.arange(5.0), {}, "target has 5 values for"),
        (["a"] * 426, {}, "target has one value only"),
        (np.full(426, np.nan), {}, "target is missing in every row"),
        (np.r_[np.inf, np.arange(425.0)], {}, "target of row 0 is infinite"),
        ("diagnosis", {"sample_weight": np.ones(5)}, r"sample_weight has shape \(5,\)"),
        ("diagnosis", {"sample_weight": -np.ones(426)}, "sample_weight of row 0 is -1"),
        ("diagnosis", {"sample_weight": np.zeros(426)}, "sample_weight is zero for every row"),
        ("diagnosis", {"sample_weight": ["a"] * 426}, "sample_weight is not an array of numbers"),
        ("diagnosis", {"class_weight": "equal"}, "class_weight='equal': use 'balanced'"),
        ("diagnosis", {"class_weight": {"mild": 2}}, "class_weight has 'mild'"),
        ("diagnosis", {"class_weight": {"benign": 0}}, "class_weight"),
        (np.arange(426.0), {"class_weight": "balanced"}, "class_weight needs a target of classes"),
        (None, {"class_weight": "balanced"}, "class_weight requires target="),
        (np.repeat([0, 1], [400, 26]), {"validation": "time"}, "are all the same"),
        (
            pd.Series([None] * 142 + ["a", "b"] * 142),
            {"validation": "time"},
            "none of the 71 training rows of fold 1 of 5 has a label",
        ),
        (np.zeros((2, 2, 2)), {}, r"target has shape \(2, 2, 2\)"),
        ([[1], [1, 2]] * 213, {}, "target holds rows of different lengths"),
        ([pd.NA] * 426, {}, "target is missing in every row"),
        ("diagnosis", {"strategies": ["closed_form"]}, "'closed_form' cannot use a target"),
        (
            "diagnosis",
            {"costs": np.ones(30), "cost_weight": 1.0},
            "cost_weight cannot be combined with target",
        ),
    ],
)
def test_bad_targets_are_named(tumours, target, options, words):
    table = tumours[0] if isinstance(target, str) else tumours[0].drop(columns="diagnosis")
    with pytest.raises(InputError, match=words):
        fewer.select(table, 2, target=target, **options)


def gap(values, dtype):
    found = pd.Series(values, dtype=dtype)
    found[3] = None
    return found


@pytest.mark.parametrize("dtype", [object, "string", "category"])
def test_rows_without_a_label_only_help_the_reconstruction(tumours, dtype):
    X, y = tumours[0].drop(columns="diagnosis"), tumours[0]["diagnosis"]
    options = {"strategies": ["search"], "row_groups": np.arange(len(X)) // 10, **CPU}
    one = fewer.select(X, 2, target=gap(y, dtype), **options)
    assert one.target.classes.tolist() == ["benign", "malignant"]
    # their label, if they have one, makes no difference
    other = y.copy()
    other[3] = "neither"
    weight = np.ones(len(X))
    weight[3] = 0
    two = fewer.select(X, 2, target=gap(other, object), sample_weight=weight, **options)
    assert one.features == two.features
    assert one.target.held_out == two.target.held_out
    np.testing.assert_allclose(
        one.predict_proba(X[one.features]), two.predict_proba(X[two.features]), atol=1e-6
    )


def test_labels_of_some_rows(tumours):
    X, y = tumours[0].drop(columns="diagnosis"), tumours[0]["diagnosis"].copy()
    y[np.random.default_rng(0).random(len(y)) < 0.7] = None
    options = {"strategies": ["search"], **CPU}
    panel = fewer.select(X, 3, target=y, **options)
    test = tumours[1]
    assert (panel.predict(test[panel.features]) == test["diagnosis"]).mean() > 0.85
    assert 10 < panel.evidence.target["rows"] < 45
    assert panel.evidence.source["held"] == 85  # the features are scored on all
    network = fewer.select(X.iloc[:, 20:], 3, target=y, decoder=(8,), **options)
    assert (network.predict(test[network.features]) == test["diagnosis"]).mean() > 0.85
    flags = pd.Series(y == "benign", dtype="boolean")
    flags[3] = pd.NA
    found = fewer.select(X, 2, target=flags, **options)
    assert found.target.classes.dtype == bool


def test_weights_are_repeated_rows():
    """A row of weight 3 is three rows, for linear predictors of classes and numbers."""
    random = np.random.default_rng(0)
    X = random.normal(size=(120, 6))
    codes = (X[:, 0] + 0.5 * X[:, 1] + random.normal(size=120) > 0).astype(int)
    values = X[:, 2] - X[:, 3] + random.normal(size=120)
    weight = random.integers(1, 4, size=120)
    labels = np.arange(120) // 2
    again = np.repeat(np.arange(120), weight)
    for target in (codes, values):
        options = {"strategies": ["search"], "scale": "none", "random_state": 0}
        options |= {"row_groups": labels, "validation": 0.25}
        one = fewer.select(X, 2, target=target, sample_weight=weight, **options)
        options["row_groups"] = labels[again]
        two = fewer.select(X[again], 2, target=target[again], **options)
        assert one.features == two.features
        assert one.target.held_out == pytest.approx(two.target.held_out, abs=1e-6)
        for row, other in zip(one.leaderboard, two.leaderboard, strict=True):
            # the penalty of a classifier depends on the number of rows
            close = 1e-9 if target is values else 0.1
            assert row["error"] == pytest.approx(other["error"], rel=close)
        if target is values:
            np.testing.assert_allclose(
                one.predict(X[:, one.indices]), two.predict(X[:, two.indices]), atol=1e-8
            )


def test_rare_classes_count_when_balanced():
    random = np.random.default_rng(0)
    X = random.normal(size=(600, 6))
    y = np.where(X[:, 0] + 0.7 * random.normal(size=600) > 1.6, "rare", "common")
    options = {"strategies": ["search"], **CPU}
    rare = y[400:] == "rare"
    found = []
    for weight in (None, "balanced", {"rare": 30}):
        panel = fewer.select(X[:400], 2, target=y[:400], class_weight=weight, **options)
        found.append((panel.predict(X[400:, panel.indices])[rare] == "rare").mean())
    assert found[0] + 0.2 < found[1]
    assert found[0] + 0.2 < found[2]


def test_rare_classes_and_targets_among_the_features_are_named(tumours):
    X, y = tumours[0].drop(columns="diagnosis"), tumours[0]["diagnosis"].copy()
    y[0] = "unknown"
    with pytest.warns(FewerWarning, match="with a single row: 'unknown'"):
        fewer.select(X, 2, target=y, strategies=["search"], **CPU)
    with pytest.warns(FewerWarning, match="feature 'mean area' is equal to the target"):
        fewer.select(X, 2, target=X["mean area"], strategies=["search"], **CPU)
    codes = X.assign(code=(tumours[0]["diagnosis"] == "benign").astype(int))
    with pytest.warns(FewerWarning, match="feature 'code' is equal to the target"):
        fewer.select(codes, 1, target=codes["code"], strategies=["search"], **CPU)


def test_numbers_in_a_text_file_are_numbers(tumours, tmp_path):
    table = tumours[0].drop(columns="diagnosis").assign(code=np.arange(len(tumours[0])) % 3)
    table["size"] = 2 * table["mean radius"] + 0.5
    table.to_csv(tmp_path / "t.csv", index=False)
    options = {"strategies": ["search"], **CPU}
    size = fewer.select(tmp_path / "t.csv", 2, target="size", **options)
    assert size.target.classes is None
    assert size.target.held_out > 0.99
    assert fewer.select(
        tmp_path / "t.csv", 2, target="code", **options
    ).target.classes.tolist() == [
        0,
        1,
        2,
    ]
    table.loc[5, "size"] = np.nan
    table["code"] = table["code"].astype("Int64").mask(table.index == 7)
    table.to_csv(tmp_path / "t.csv", index=False)
    size = fewer.select(tmp_path / "t.csv", 2, target="size", **options)
    assert size.target.held_out > 0.99
    code = fewer.select(tmp_path / "t.csv", 2, target="code", **options)
    assert code.target.classes.tolist() == [0, 1, 2]


def test_several_numeric_targets_count_equally_whatever_their_units():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    Y = np.c_[X[:, 0] + 0.1 * rng.normal(size=200), 1e6 * rng.normal(size=200)]
    for seed in range(3):
        panel = fewer.select(X, 1, target=Y, strategies=["search"], validation=5, random_state=seed)
        assert panel.features == [0]


def test_targets_that_make_no_sense():
    X = np.random.default_rng(0).normal(size=(60, 4))
    for target, words in [
        ([1, "a"] * 30, "target mixes int and str"),
        (np.full(60, 0.5), "target has one value only"),
        (np.arange(60).astype("datetime64[D]"), "target is of type datetime64"),
        ([["a", "b"]] * 60, "2 columns that are not numbers"),
    ]:
        with pytest.raises(InputError, match=words):
            fewer.select(X, 2, target=target)
    table = pd.DataFrame(X, columns=["a", "y", "y", "b"])
    with pytest.raises(InputError, match="target='y' is 2 times among the 4 columns"):
        fewer.select(table, 1, target="y")


def test_whole_numbers_that_look_like_a_quantity_are_named():
    random = np.random.default_rng(0)
    ages, codes = random.integers(18, 90, 2000), np.arange(2000) % 26
    for target, looks in [(ages, True), (np.arange(60), True), (codes, False), (codes[:200], True)]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            read_target(target, None)
        assert ["different whole numbers" in str(one.message) for one in found] == [True] * looks
    with warnings.catch_warnings(action="error"):
        assert read_target(ages, None, "number")[0].classes is None
        assert len(read_target(ages, None, "class")[0].classes) == 72


def test_a_name_needs_a_table_and_a_target_a_panel(tumours):
    numbers = tumours[0].drop(columns="diagnosis")
    with pytest.raises(InputError, match="names a column, but the data are not a table"):
        fewer.select(numbers.to_numpy(), 2, target="diagnosis")
    plain = fewer.select(numbers, 2, strategies=["search"], **CPU)
    with pytest.raises(InputError, match="has no target"):
        plain.predict(numbers[plain.features])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside anndata
@pytest.mark.filterwarnings("ignore:The .mode.chained_assignment. option")
def test_the_target_is_a_column_of_obs():
    anndata = pytest.importorskip("anndata")
    flowers = load_iris()
    kinds = np.array(["setosa", "versicolor", "virginica"])[flowers.target]
    labels = [f"flower {i}" for i in range(150)]
    cells = anndata.AnnData(flowers.data, obs=pd.DataFrame({"kind": kinds}, index=labels))
    panel = fewer.select(cells, 2, target="kind", strategies=["search"], random_state=0)
    assert panel.target.held_out > 0.9
    assert list(panel.target.classes) == ["setosa", "versicolor", "virginica"]
    assert panel.target.name == "kind"
    with pytest.raises(
        InputError, match=r"target='batch' cannot be read as .* the obs columns are"
    ):
        fewer.select(cells, 2, target="batch")


def test_sets_and_intervals_cover_what_they_say(tmp_path):
    random = np.random.default_rng(0)
    X = random.normal(size=(1500, 5))
    score = X[:, 0] + X[:, 1] + 1.5 * random.normal(size=1500)
    codes, numbers = np.digitize(score, [-1.5, 1.5]), np.c_[score, 10 * score] ** 3
    options = {"strategies": ["search"], "random_state": 0, "device": "cpu", "validation": 5}
    panel = fewer.select(X[:500], 2, target=codes[:500], **options)
    new, truth = X[500:, panel.indices], codes[500:]
    panel.save(tmp_path / "p")
    for one in (panel, fewer.Panel.load(tmp_path / "p")):
        sizes = []
        for coverage in (0.8, 0.9, 0.97):
            sets = one.predict_set(new, coverage)
            assert abs(sets[np.arange(1000), truth].mean() - coverage) < 0.06
            sizes.append(sets.sum(axis=1).mean())
            assert sets.any(axis=1).all()
        assert sizes == sorted(sizes)
    several = fewer.select(X[:500], 2, target=numbers[:500], **options)
    found, lower, upper = several.predict(X[500:, several.indices], interval=0.9)
    inside = (lower <= numbers[500:]) & (numbers[500:] <= upper)
    np.testing.assert_allclose(inside.mean(axis=0), 0.9, atol=0.04)
    assert (found > lower).all()
    single = fewer.select(X[:500], 2, target=score[:500], **options)
    assert [part.shape for part in single.predict(X[:3, single.indices], interval=0.5)] == [
        (3,)
    ] * 3
    with pytest.raises(InputError, match="interval is for numbers"):
        panel.predict(new, interval=0.9)
    with pytest.raises(InputError, match=r"coverage=0\.999 needs more than the 500 held-out"):
        panel.predict_set(new, 0.999)
    with pytest.raises(InputError, match="coverage=2"):
        panel.predict_set(new, 2)


def test_many_rows_are_also_searched_in_their_own_units(monkeypatch):
    monkeypatch.setattr("fewer.selection.strategies.MANY_ROWS", 300)
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 8)) * [9, 9, 9, 1, 1, 1, 1, 1]
    X[:, 0] += X[:, 1]
    y, options = X[:, 0] > 0, {"strategies": ["search"], **CPU}
    boards = [fewer.select(X[:n], 3, target=y[:n], **options).leaderboard for n in (200, 400)]
    name = "search, without target, unscaled"
    found = [{row["strategy"]: row["features"] for row in board} for board in boards]
    assert name not in found[0]
    assert found[1][name] == [0, 1, 2]
    plain = fewer.select(X, 3, target=y, scale="none", **options).leaderboard
    assert name not in [row["strategy"] for row in plain]


def test_few_rows_are_held_out_in_folds(tumours):
    """A tenth of 427 rows says little of a predictor, though they are many for two features."""
    options = {"target": "diagnosis", "strategies": ["search"], "random_state": 0, "device": "cpu"}
    for decoder, wanted in (("linear", 5), ((4,), 3)):
        panel = fewer.select(tumours[0], 2, decoder=decoder, **options)
        assert len(panel.fold_panels) == wanted


def test_few_groups_of_rows_are_held_out_in_folds(tumours):
    rows = pd.concat([tumours[0]] * 3, ignore_index=True)
    options = {"target": "diagnosis", "strategies": ["search"], "random_state": 0, "device": "cpu"}
    options |= {"decoder": "linear"}
    for count, wanted in ((30, 5), (150, 1)):  # of 1281 rows, for 2 features
        panel = fewer.select(rows, 2, row_groups=np.arange(len(rows)) % count, **options)
        assert len(panel.fold_panels) == wanted


def test_all_searches_with_a_target_read_the_rows_of_a_fold_once(tumours, monkeypatch):
    read, weights = [], {"benign": 1.0, "malignant": 2.0}
    products = refine.target_products

    def counted(source, *arguments):
        read.append(source.shape[0])
        return products(source, *arguments)

    monkeypatch.setattr(refine, "target_products", counted)
    options = CPU | {"strategies": ["search"], "decoder": "linear", "class_weight": weights}
    panel = fewer.select(tumours[0], 4, target="diagnosis", **options)
    n = len(tumours[0])
    # of the only fold, where there are three searches with two weights of the features
    assert len(panel.leaderboard) == 3
    assert read.count(n - round(n / 5)) == 1


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_scores_do_not_wait_for_a_gpu(kind, monkeypatch):
    """What trains on a GPU runs beside the scores; on a CPU, they would share its cores."""
    monkeypatch.setattr(_threads, "_allowed", lambda: 2)
    context = SimpleNamespace(device=torch.device(kind), budget=TimeBudget(None))
    both = threading.Barrier(2, timeout=20 if kind == "cuda" else 0.01)

    def step(name):
        try:
            both.wait()
        except threading.BrokenBarrierError:
            return name, "alone"
        return name, "beside"

    found = _independent(context, [partial(step, "scores"), partial(step, "training")])
    how = "beside" if kind == "cuda" else "alone"
    assert found == [("scores", how), ("training", how)]


def test_a_target_of_other_rows_is_refused(tumours):
    X, y = tumours[0].drop(columns="diagnosis"), tumours[0]["diagnosis"]
    n, label = len(X), y.iloc[0]
    same = y[y == label].iloc[:9]
    with pytest.raises(InputError, match=f"target has 9 values for {n} rows"):
        fewer.select(X, 1, target=same)
    for target in (y[::-1], {"a": y, "b": y[::-1]}, y.to_frame()[::-1]):
        with pytest.raises(InputError, match="of the data in another order"):
            fewer.select(X, 1, target=target)
    read_target(y[::-1].to_numpy(), X)
    read_target(y.reset_index(drop=True).rename(lambda row: row + n), X)  # other labels


def test_the_truth_may_be_a_column_of_the_rows(tumours):
    table = tumours[0].iloc[:, -5:]
    panel = fewer.select(table, 1, target="diagnosis", strategies=["search"], **CPU)
    for rows in (table, pl.from_pandas(table)):
        assert panel.score_target(rows, "diagnosis") == panel.score_target(
            table, table["diagnosis"]
        )
    with pytest.raises(InputError, match="truth='diag' is not among the 5 columns"):
        panel.score_target(table, "diag")
    with pytest.raises(InputError, match="names a column, but the data are not a table"):
        panel.score_target(table[panel.features].to_numpy(), "diagnosis")


def test_the_leaderboard_of_linear_predictors_has_measured_errors():
    X, y = load_iris(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(X))[:110]
    seeded = {"random_state": 0, "device": "cpu", "decoder": "linear", "target": y[rows]}
    board = fewer.select(X[rows], 2, **seeded).leaderboard
    assert not any(row["estimated"] for row in board)
    assert "~" not in str(board)
    assert [row["error"] for row in board] == sorted(row["error"] for row in board)
    listed = next(row["error"] for row in board if row["strategy"] == "ANOVA")
    alone = fewer.select(X[rows], 2, strategies=["filters"], **seeded).leaderboard
    assert listed == next(row["error"] for row in alone if row["strategy"] == "ANOVA")


def test_errors_that_are_estimated_from_one_fold_are_marked(monkeypatch):
    monkeypatch.setattr("fewer.selection.compare_predictors.SOON_TRAINED", 0)
    X, y = load_iris(return_X_y=True)
    board = fewer.select(X, 1, target=y, decoder="linear", random_state=0).leaderboard
    lines = {
        row["strategy"]: line for row, line in zip(board, str(board).split("\n")[1:], strict=False)
    }
    assert {row["estimated"] for row in board} == {True, False}
    assert all(("~" in lines[row["strategy"]]) == row["estimated"] for row in board)
    assert "~: estimated from the first fold" in board.note
