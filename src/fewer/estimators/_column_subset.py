"""Choose k features by searching their covariance matrix."""

import time
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from fewer.constraints import Constraints, resolve
from fewer.data import Moments, Source
from fewer.data.factored import Matrix
from fewer.data.moments import summarize
from fewer.distributed import collective, on_rank0, shared_seed
from fewer.errors import InputError, warn
from fewer.estimators.selector import ConstrainedSelector
from fewer.search import greedy, search
from fewer.search.exchange import swap_losses
from fewer.search.objective import worth
from fewer.train.device import pick_device
from fewer.train.linear_choice import LinearChoice, choose_linear

__all__ = ["ColumnSubset"]


@dataclass(eq=False, repr=False, kw_only=True)
class ColumnSubset(ConstrainedSelector):
    """Choose the k features from which a linear map reconstructs all others best.

    Greedy selection on the covariance matrix, followed by swaps until none helps and by tabu
    search from perturbed panels until it stops improving. For linear decoders, this finds lower
    errors than any gradient method, in seconds. Features are not scaled: standardise them first
    if their units differ.

    Parameters
    ----------
    {constraints}
    ridge : float or "auto", default="auto"
        Penalty on squared weights of the decoder, in units of variance, in the search and in the
        final decoder. "auto" is 0 with many rows. With few rows (fewer than 100 per chosen
        feature), or if a few extreme values make up much of the variance, it is chosen on
        held-out rows, which also decide whether the search beats greedy selection.
    starts : int, default=None
        Number of panels improved in parallel; None uses the whole processor.
    stall : int, default=None
        Rounds without progress after which the search ends; 0 for greedy and swaps only. None is
        6, fewer on very large problems, and 0 if ``ridge`` is "auto" and there are fewer than
        10 rows per chosen feature.
    time_limit : float, default=None
        Seconds after which the search ends with the best panel so far.
    {device}
    random_state : int, RandomState or None, default=None
        Seed; the result is reproducible unless ``time_limit`` was reached.

    Attributes
    ----------
    columns_ : ndarray of int
        The chosen columns, ascending.
    decoder_ : fewer.nn.MeasuredDecoder
        Maps k measured values, in column order and in the units of X, to all features.
    ridge_ : float
        The penalty used.
    vetoed_ : bool
        Whether the features are those of greedy selection, because it did better on held-out rows.
    residual_ : float
        Unexplained variance, summed over all features.
    order_, residuals_ : ndarrays
        The chosen columns, most useful first, and the residual after each: a greedy nested
        panel for every smaller k.
    swap_losses_ : ndarray of shape (k, n_features)
        Increase of the residual when a chosen feature is replaced by another.
    history_ : list of dict
        One row per improvement: seconds, residual.
    n_features_in_, feature_names_in_
        As in every scikit-learn estimator.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data
    >>> subset = ColumnSubset(k=10, random_state=0).fit(X[:1400])
    >>> subset.get_support(indices=True)
    array([ 5, 10, 20, 21, 26, 35, 42, 44, 45, 61])
    >>> subset.inverse_transform(subset.transform(X[1400:])).shape
    (397, 64)
    """

    _saved: ClassVar[dict[str, str]] = {
        "ridge_": "value",
        "vetoed_": "optional",  # not known to earlier versions
        "residual_": "value",
        "order_": "array",
        "residuals_": "array",
        "history_": "value",
        "swap_losses_": "tensor",
    }

    ridge: float | str = "auto"
    starts: int | None = None
    stall: int | None = None
    time_limit: float | None = None
    device: str = "auto"
    random_state: Any = None

    @collective
    def fit(self, X: Any, y: Any = None) -> Self:
        """Choose features of X and fit the decoder.

        Parameters
        ----------
        X : array, sparse matrix, table, path or source of shape (n, n_features)
            Training rows, in any form that `fewer.data.open` accepts;
            NaN marks missing values (see `fewer.data.covariance`).
        y : ignored
        """
        X = self._validated(X, reset=True)
        constraints = self._constraints(X.shape[1])
        source, stats = self._opened(X)
        if X.shape[0] <= (constraints.k or 0) and self.ridge == 0:
            warn(
                f"k={constraints.k} features from {X.shape[0]} rows, so rank at most "
                f"{X.shape[0] - 1}: any such panel fits these rows perfectly; use ridge='auto', "
                "more rows or a lower k"
            )
        seed = shared_seed(self.random_state)
        summary = summarize(source, pick_device(self.device))
        C = summary.matrix
        choice = self._choice(source, stats, constraints, seed)
        self.ridge_, self.vetoed_ = choice.ridge, choice.trust == "greedy"
        stall = 0 if self.stall is None and choice.trust == "swaps" else self.stall
        found = on_rank0(lambda: self._searched(C, constraints, stall, seed))
        columns = found.pop("columns")
        for name, value in found.items():
            setattr(self, name, value)
        self.decoder_ = self._linear_decoder(
            source, stats, columns, ridge=self.ridge_, summary=summary
        )
        self.columns_ = columns  # last, since it marks the estimator as fitted
        return self

    def _searched(
        self, C: Matrix, constraints: Constraints, stall: int | None, seed: int
    ) -> dict[str, Any]:
        """Fitted attributes."""
        began = time.perf_counter()
        if self.vetoed_:
            columns = greedy(C, constraints).panel()
            value = worth(C, columns, constraints, self.ridge_)
            trace = [(0.0, value)]
        else:
            found = search(
                C,
                constraints,
                ridge=self.ridge_,
                starts=self.starts,
                stall=stall,
                time_limit=self.time_limit,
                seed=seed,
            )
            columns, value, trace = found.indices, found.objective, found.trace
            began += found.elapsed
        lead, d = time.perf_counter() - began, constraints.d
        others = np.setdiff1d(np.arange(d), columns)
        path = greedy(C, resolve(None, d, len(columns), exclude=others), ridge=self.ridge_)
        return {
            "columns": columns,
            "residual_": value - constraints.price(columns),
            "history_": [{"seconds": lead + at, "residual": left} for at, left in trace],
            "order_": path.order,
            "residuals_": path.errors,
            "swap_losses_": swap_losses(C, columns, self.ridge_),
        }

    def _choice(
        self, source: Source, stats: Moments, constraints: Constraints, seed: int
    ) -> LinearChoice:
        """The penalty, and whether to trust the search."""
        if not isinstance(self.ridge, str):
            return LinearChoice(self.ridge)
        if self.ridge != "auto":
            raise InputError(f"ridge={self.ridge!r} is not valid; use a number or 'auto'")
        device = pick_device(self.device)
        return choose_linear(source, stats, constraints, seed=seed, device=device)

    def feature_groups(self, m: int = 3) -> list[list[Any]]:
        """List each chosen feature, by name or number, with its m - 1 best substitutes."""
        self._check_fitted()
        return self._named_groups(
            [np.argsort(losses, kind="stable")[:m] for losses in self.swap_losses_], m
        )
