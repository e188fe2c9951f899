"""Bad input, wherever it is given: one line of ours that names the value and the remedy."""

import pickle

import numpy as np
import pytest
from sklearn import exceptions
from sklearn.utils import check_random_state as sklearn_check_random_state

import fewer
from fewer import baselines
from fewer._checks import check_random_state
from fewer.data import open
from fewer.errors import InputError, translate_sklearn_errors

X = np.random.default_rng(0).normal(size=(60, 6))
y = np.arange(60) % 3
TEXT = [["a", "b"], ["c", "d"], ["e", "f"]]


@pytest.fixture(scope="module")
def panel():
    return fewer.select(X, 2, random_state=0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (X[:2], "2 sample.*minimum of 3 is required; give more rows"),
        (X[:0], "0 sample.*give more rows"),
        (X[:, :0], "0 feature.*give at least one column"),
        (X[0], r"got 1D array instead; Reshape your data to rows by features"),
        (X[None], "dim 3.*give rows by features"),
        (None, "got scalar array instead; .*give a table or a path"),
        (X + 1j, "Complex data not supported; give real numbers"),
        (TEXT, "drop text, or encode it as numbers"),
        ([[1, 2], [3], [4, 5]], "give rows of the same length"),
    ],
)
def test_data_that_select_cannot_use(data, message):
    with pytest.raises(InputError, match=message) as caught:
        fewer.select(data, 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategies": 3}, "strategies=3: use 'auto' or some of search"),
        ({"strategies": "search"}, "strategies='search': .* as a list"),
        ({"strategies": []}, r"strategies=\[\]"),
        ({"random_state": "a"}, "'a' is not a valid random seed; use a whole number"),
        ({"random_state": -1}, "use a whole number from 0 to"),
        ({"row_groups": 3}, r"row_groups has shape \(\); give 60 labels"),
        ({"row_groups": [None] * 30 + ["a"] * 30}, "row_groups of row 0 is None; give every row"),
        ({"row_groups": np.where(np.arange(60) < 59, 1.0, np.nan)}, "row_groups of row 59 is"),
        ({"validation": [1, 2]}, "validation is an array of int64 .* give 60 times True or False"),
        ({"validation": None}, "validation=None must be a fraction"),
        ({"time_limit": True}, "time_limit=True must be a number of seconds"),
        ({"time_limit": float("nan")}, "time_limit=nan must be a number of seconds"),
        ({"scale": ["standard"]}, "is not valid; use 'standard' or 'none'"),
        ({"decoder": None}, "decoder=None: hidden widths"),
        ({"device": 3}, "device='3' cannot be used here"),
    ],
)
def test_options_that_select_cannot_use(options, message):
    with pytest.raises(InputError, match=message):
        fewer.select(X, 2, **options)


def test_numpy_numbers_are_numbers():
    assert fewer.select(X, np.int64(2), validation=np.int64(3), random_state=0).k == 2


@pytest.mark.parametrize("k", [0, -1, True, 2.0, [2], float("nan"), 7])
def test_k_is_refused_in_the_same_words_everywhere(k):
    said = set()
    for use in (
        lambda: fewer.select(X, k),
        lambda: fewer.ColumnSubset(k).fit(X),
        lambda: fewer.ConcreteAutoencoder(k).fit(X),
        lambda: baselines.MaxVariance(k).fit(X),
        lambda: baselines.PCABound(k).fit(X),
    ):
        with pytest.raises(InputError, match=r"^k=") as caught:
            use()
        said.add(str(caught.value))
    assert len(said) == 1


def test_k_as_text():
    with pytest.raises(InputError, match="k='3': give a number, 'auto' or"):
        fewer.select(X, "3")
    with pytest.raises(InputError, match="k='3' must be a whole number"):
        fewer.ColumnSubset("3").fit(X)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.reconstruct(X[:0, :2]), "measured has no rows"),
        (lambda p: p.reconstruct(X[0, :3]), "measured has 3 values; give the 2 chosen"),
        (lambda p: p.reconstruct([["a", "b"]]), "could not convert string to float: 'a'; drop"),
        (lambda p: p.reconstruct(X[:2, :2], interval="a"), "interval='a' must be above 0"),
        (lambda p: p.score(X[:0]), "0 sample.*give more rows"),
        (lambda p: p.transform(X[0]), "Reshape your data"),
        (lambda p: p.save(None), "path=None must be the name of a folder"),
        (lambda p: fewer.Panel.load(None), "path=None must be the name of a folder"),
    ],
)
def test_what_a_panel_cannot_use(panel, call, message):
    with pytest.raises(InputError, match=message):
        call(panel)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fewer.ColumnSubset(2).fit(X[:1]), "1 sample.*give more rows"),
        (lambda: fewer.ColumnSubset(2, random_state="a").fit(X), "use a whole number from 0"),
        (lambda: fewer.ConcreteAutoencoder(2, norm="x").fit(X), "norm='x' is not valid"),
        (lambda: fewer.ConcreteAutoencoder(2, activation="x").fit(X), "activation='x' is not"),
        (
            lambda: fewer.ConcreteClassifier(2).fit(X, y[:4]),
            "4 .* 60 rows of X; give one per row",
        ),
        (
            lambda: fewer.ConcreteClassifier(2).fit(X, X[:, 0]),
            "type: continuous; give classes",
        ),
        (lambda: fewer.ConcreteRegressor(2).fit(X, ["a"] * 60), "could not convert string"),
        (lambda: fewer.ConcreteRegressor(2).fit(X, np.full(60, np.nan)), "drop rows without a"),
        (lambda: baselines.PFA(2).fit(X[:1]), "1 sample.*give more rows"),
        (lambda: baselines.RandomSubset(2, random_state="a").fit(X), "use a whole number from 0"),
        (lambda: open(None), "rows cannot be read from NoneType"),
        (lambda: open([]), r"shape \(0,\)"),
    ],
)
def test_what_estimators_and_sources_cannot_use(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_masked_values_are_missing():
    mask = np.zeros(X.shape, dtype=bool)
    mask[::7, 3] = mask[5::9, 0] = True
    masked = np.ma.masked_array(X + 100 * mask, mask)
    gaps = np.where(mask, np.nan, X)
    ours, theirs = (
        fewer.select(data, 2, strategies=["search"], validation=0.2, random_state=0)
        for data in (masked, gaps)
    )
    assert ours.features == theirs.features
    np.testing.assert_array_equal(
        ours.reconstruct(masked[:, ours.indices]), theirs.reconstruct(gaps[:, ours.indices])
    )
    assert ours.score(masked) == theirs.score(gaps)
    one, two = (fewer.ColumnSubset(2, random_state=0).fit(data) for data in (masked, gaps))
    np.testing.assert_array_equal(one.inverse_transform(X[:, :2]), two.inverse_transform(X[:, :2]))
    hidden = np.arange(60) == 7
    panels = [
        fewer.select(X, 2, target=target, strategies=["search"], validation=0.2, random_state=0)
        for target in (np.ma.masked_array(y + 1e3 * hidden, hidden), np.where(hidden, np.nan, y))
    ]
    assert panels[0].target.held_out == panels[1].target.held_out


def test_unknown_errors_are_passed_on_in_one_line():
    with pytest.raises(InputError, match=r"^one two$"), translate_sklearn_errors():
        raise ValueError("one\n two")
    with pytest.raises(InputError, match=r"^mine$"), translate_sklearn_errors():
        raise InputError("mine")


def test_errors_that_are_also_those_of_scikit_learn():
    assert issubclass(fewer.errors.NotFittedError, exceptions.NotFittedError)
    assert issubclass(fewer.errors.NotFittedError, fewer.errors.FewerError)
    assert issubclass(fewer.errors.NotConvergedWarning, exceptions.ConvergenceWarning)
    assert issubclass(fewer.errors.NotConvergedWarning, fewer.errors.FewerWarning)
    error = pickle.loads(pickle.dumps(fewer.errors.NotFittedError("fit it")))
    assert type(error) is fewer.errors.NotFittedError
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fewer.errors.nothing  # noqa: B018


def test_random_states_are_those_of_scikit_learn():
    for given in (3, np.int64(3)):
        mine, theirs = check_random_state(given), sklearn_check_random_state(given)
        assert mine.randint(2**31) == theirs.randint(2**31)
    own = np.random.RandomState(0)
    assert check_random_state(own) is own
    assert check_random_state(None) is sklearn_check_random_state(None)
    for bad in (1.5, "a", -1, 2**32, np.random.default_rng(0)):
        with pytest.raises(InputError, match=r"random_state=.*use a whole number from 0"):
            check_random_state(bad)
