"""Bad options and rows get one clear error that names the value and the remedy."""

import numpy as np
import pytest

from fewer.baselines import AEFS, MCFS, PFA, UDFS, Greedy, LaplacianScore, MaxVariance
from fewer.errors import FewerError, InputError
from tests.baselines.test_common import SELECTORS, fresh

GOOD = np.random.default_rng(0).normal(size=(40, 6))


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize(
    ("k", "message"),
    [
        (0, "k=0 must be a whole number of at least 1"),
        (7, "k=7 is more than the n_features=6 of X; choose k from 1 to 6"),
        (2.5, r"k=2\.5 must be a whole number"),
        (True, "k=True must be a whole number"),
        ("ten", "k='ten' must be a whole number"),
    ],
)
def test_k(name, k, message):
    with pytest.raises(InputError, match=message):
        fresh(name).set_params(k=k).fit(GOOD)


def test_no_k_and_no_budget():
    with pytest.raises(InputError, match="k=None must be a whole number"):
        MaxVariance(k=None).fit(GOOD)
    with pytest.raises(InputError, match="k and budget are both None"):
        Greedy(k=None).fit(GOOD)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (LaplacianScore(2, n_neighbors=0), "n_neighbors=0 must be a whole number of at least 1"),
        (LaplacianScore(2, n_neighbors=40), "n_neighbors=40 needs at least 41 rows, but X has"),
        (MCFS(2, n_neighbors=50), "n_samples=40; give more rows, or lower n_neighbors"),
        (UDFS(2, n_neighbors=50), "n_neighbors=50 needs at least 51 rows"),
        (UDFS(2, n_neighbors=2.0), r"n_neighbors=2\.0 must be a whole number"),
        (LaplacianScore(2, width="wide"), "width='wide' is not valid; use 'mean', 'self-tuning'"),
        (LaplacianScore(2, width=0), "width=0 must be a number above 0"),
        (MCFS(2, width=-1.0), r"width=-1\.0 must be a number above 0"),
        (MCFS(2, width=None), "width=None must be a number above 0"),
        (MCFS(2, n_clusters=0), "n_clusters=0 must be a whole number of at least 1"),
        (UDFS(2, n_clusters="many"), "n_clusters='many' must be a whole number"),
        (UDFS(2, gamma=-1.0), r"gamma=-1\.0 must be a number of at least 0"),
        (UDFS(2, gamma=np.inf), "gamma=inf must be a number of at least 0"),
        (UDFS(2, gamma="auto"), "gamma='auto' must be a number of at least 0"),
        (UDFS(2, ridge=0.0), r"ridge=0\.0 must be a number above 0"),
        (UDFS(2, max_iter=0), "max_iter=0 must be a whole number of at least 1"),
        (AEFS(2, alpha=-0.1), r"alpha=-0\.1 must be a number of at least 0"),
        (AEFS(2, beta=np.nan), "beta=nan must be a number of at least 0"),
        (AEFS(2, hidden=0), "hidden=0 must be a whole number of at least 1"),
        (AEFS(2, device="abacus"), "device='abacus' cannot be used here"),
        (PFA(2, n_components=0), "n_components=0 must be a whole number of at least 1"),
        (PFA(2, n_components=1.5), r"n_components=1\.5 must be a fraction of variance up to 1\.0"),
        (PFA(2, n_components=-0.5), r"n_components=-0\.5 must be a number above 0"),
    ],
)
def test_options(model, message):
    with pytest.raises(InputError, match=message):
        model.fit(GOOD)


@pytest.mark.parametrize("name", SELECTORS)
def test_rows(name):
    infinite = GOOD.copy()
    infinite[3, 2] = np.inf
    with pytest.raises(FewerError, match="row 3, column 2 is inf"):
        fresh(name).fit(infinite)
    empty = GOOD.copy()
    empty[:, 4] = np.nan
    with pytest.raises(
        FewerError, match=r"columns without any value, only NaN \(1\): 4; drop them"
    ):
        fresh(name).set_params(k=2).fit(empty)
