"""The result of `fewer.select`: chosen features, a decoder for the rest, and its scores."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewer import storage
from fewer._checks import join_names
from fewer._display import Tabular, draw_bars
from fewer._stored import ANY, require_array
from fewer._tables import Table
from fewer.cells import SETTINGS as CELLS
from fewer.cells import cells_like, noise_of
from fewer.checks import Check, check_rows
from fewer.data import Source, read_all
from fewer.data.source import array_source
from fewer.errors import InputError, warn
from fewer.estimate import Estimate, Score
from fewer.evidence import STORED as STORED_EVIDENCE
from fewer.evidence import Evidence, Examined, check_evidence
from fewer.joint import JointCovariance, TrainingStatistics, check_joint, check_statistics
from fewer.labels import check_aligned, is_missing, named_columns
from fewer.nn import build_decoder
from fewer.nn.decoder import LINKS
from fewer.reconstructor import (
    QUANTILE_LEVELS,
    Filling,
    Reconstructor,
    bound_paths,
    impute,
    like_table,
    sample_size,
)
from fewer.report import brief, write
from fewer.report.summarise import error_note, network_note, rank_candidates, substitutes
from fewer.reproduce import toml_of
from fewer.rows import Rows, read_partial, read_rows
from fewer.target import STORED as STORED_TARGET
from fewer.target import Target

__all__ = ["Leaderboard", "Panel", "Score"]

_LINK = frozenset({None, *LINKS})
# the JSON of a saved panel; see `fewer._stored.misfit`
STORED: dict[Any, Any] = {
    "settings": {"decoder": ANY, "predictor?": ANY, "rows?": int},
    "indices": [int],
    "d": int,
    "names": ([str], None),
    "held_out": float,
    "estimates?": {str: [(float, int, None)]},
    "leaderboard": [
        {
            "strategy": str,
            "error": float,
            "seconds": float,
            "price?": (float, None),
            "worst?": (float, None),
            "estimated?": bool,
        }
    ],
    "link": _LINK,
    "target?": (None, STORED_TARGET),
    "evidence?": STORED_EVIDENCE,
}
ARRAYS = ("quantiles", "difficulty", "noise", "shares")  # of the reconstructor
KEPT = {"joint": JointCovariance, "statistics": TrainingStatistics}  # of the training rows
READING = (CELLS, "missing")  # of the settings: what new rows must be read like


class Leaderboard(list[dict[str, Any]], Tabular):
    """All candidates, the winner first; a list of dicts that prints as a table.

    An error marked ~ is estimated from the first fold, after which the candidate was dropped; its
    "estimated" is True. With ``robust_to``, "worst missing" is the error with the worst features of
    the panel missing.

    Examples
    --------
    >>> Leaderboard([{"strategy": "greedy", "error": 0.25, "seconds": 0.1}])
    strategy  held-out error  ratio  seconds
    greedy              0.25  1.000     0.10
    """

    def table(self) -> Table:
        """The candidates as text, with the ratio of each error to the winner's."""
        ranked = rank_candidates(self)
        columns = {
            "strategy": [row["strategy"] for row in ranked],
            "held-out error": [f"{row['mark']}{row['error']:.6g}" for row in ranked],
            "ratio": [row["ratio_text"] for row in ranked],
        }
        if any(row["worst"] is not None for row in ranked):
            errors = [row["worst"] for row in ranked]
            columns["worst missing"] = ["" if e is None else f"{e:.6g}" for e in errors]
        columns["seconds"] = [f"{row['seconds']:.2f}" for row in ranked]
        rows = list(zip(*columns.values(), strict=True))
        return Table(tuple(columns), rows, tuple(range(1, len(columns))))

    def columns(self) -> dict[str, list[Any]]:
        """The candidates as columns of values; see also `to_frame`."""
        ranked = rank_candidates(self)
        names = ["strategy", "error", "ratio", "seconds"]
        if any(row["worst"] is not None for row in ranked):
            names.insert(3, "worst")
        return {name: [row[name] for row in ranked] for name in names}

    def plot(self, axes: Any = None) -> Any:
        """Draw the held-out error of each candidate as a bar.

        Parameters
        ----------
        axes : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib Axes
        """
        found = self.columns()
        names = found["strategy"]
        return draw_bars(axes, names, found["error"], "held-out error", grey=names[1:])

    note: str | None = None  # what the errors are, and whether a network beats a linear decoder

    def __repr__(self) -> str:
        return str(self.table()) + ("" if self.note is None else f"\n{self.note}")


class Panel:
    """k chosen features and a decoder that reconstructs the others from them.

    Returned by `fewer.select`; see `save` and `Panel.load`.

    Attributes
    ----------
    features : list
        Names of the chosen features in column order, or their numbers if X had no names.
    indices : ndarray of int
        Their column numbers, ascending.
    k, d : int
        Number of chosen features, and of all features.
    names : list of str or None
        Names of all features.
    held_out : Score
        Explained variance on held-out rows, in the units of the data, with its standard error
        (``panel.held_out.standard_error``). Features are chosen and the decoder is fitted without
        the rows of the fold; strategy and penalty are those that do best on the other folds, so
        the score is free of selection bias.
    estimates : dict of Estimate
        The same per metric, each with ``value``, ``standard_error`` and ``degrees`` of freedom:
        "units" as above and, unless features were left unscaled, "equal", with equal weight for
        every feature. ``settings["protocol"]`` describes how rows were held out.
    leaderboard : Leaderboard
        Every candidate with its strategy, held-out error, seconds and features.
    settings : dict
        Options and protocol of the selection.
    evidence : fewer.evidence.Evidence or None
        Gains, substitutes, reference panels, some held-out rows; computed on first access. None
        for a panel saved by a version that did not store it.
    target : Target or None
        The predictor of a panel with a target; ``target.held_out`` is the accuracy, R²,
        D² or concordance on the held-out rows.
    reconstructor : fewer.reconstructor.Reconstructor
        The columns, their decoder, the names and the quantiles of held-out residuals.

    Examples
    --------
    >>> import tempfile
    >>> import fewer
    >>> from sklearn.datasets import load_iris
    >>> X = load_iris(as_frame=True).data
    >>> panel = fewer.select(X[::2], k=2, random_state=0)
    >>> panel.reconstruct(X[1::2][panel.features]).shape
    (75, 4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     panel.save(folder + "/iris")
    ...     fewer.Panel.load(folder + "/iris").report(folder + "/iris.html").name
    'iris.html'
    """

    def __init__(
        self,
        reconstructor: Reconstructor,
        *,
        held_out: Score,
        leaderboard: Leaderboard,
        settings: dict[str, Any],
        target: Target | None = None,
        evidence: Evidence | Callable[[], Evidence] | None = None,
        editor: Any = None,
        estimates: dict[str, Estimate] | None = None,
        fold_panels: list[NDArray[np.int64]] | None = None,
    ) -> None:
        self.reconstructor = reconstructor
        self.held_out = held_out
        self.estimates = estimates or {"units": held_out.estimate()}
        self.fold_panels = fold_panels  # that were scored, one per fold; not saved
        self._leaderboard = leaderboard
        self.settings = settings
        self.target = target
        self._evidence = evidence
        self.editor = editor  # what makes a changed panel; None without the data
        # measured values are returned unchanged, unless their noise is known
        known = torch.from_numpy(reconstructor.columns) if reconstructor.noise is None else None
        reconstructor.decoder.double().eval().known = known
        if reconstructor.joint is not None:  # missing ones are predicted from the others
            for part in (reconstructor, target):
                if part is not None:
                    part.decoder.precision = reconstructor.joint.precision

    @property
    def leaderboard(self) -> Leaderboard:
        """Every candidate with its strategy, held-out error, seconds and features."""
        errors = error_note(self._leaderboard, self.settings, self.target)
        network = network_note(self.settings.get("network_gain"))
        self._leaderboard.note = errors if network is None else f"{errors}\n{network}"
        return self._leaderboard

    @property
    def k(self) -> int:
        """Number of chosen features."""
        return len(self.reconstructor.columns)

    @property
    def d(self) -> int:
        """Number of all features."""
        return self.reconstructor.n_features

    @property
    def indices(self) -> NDArray[np.int64]:
        """Column numbers of the chosen features, ascending."""
        return self.reconstructor.columns

    @cached_property
    def names(self) -> list[str] | None:
        """Names of all features."""
        names = self.reconstructor.names
        return None if names is None else names.tolist()

    @property
    def features(self) -> list[Any]:
        """Names of the chosen features in column order, or their numbers."""
        return self.reconstructor.features

    @property
    def evidence(self) -> Evidence | None:
        """Data behind the panel, computed on first access."""
        if callable(self._evidence):
            self._evidence = self._evidence()
        return self._evidence

    @evidence.setter
    def evidence(self, value: Evidence | Callable[[], Evidence] | None) -> None:
        self._evidence = value

    def __getstate__(self) -> dict[str, Any]:
        # copies and pickles hold the evidence, not the data that it would be computed from
        return vars(self) | {"_evidence": self.evidence, "editor": None}

    def reconstruct(
        self,
        measured: Any,
        *,
        interval: float | None = None,
        out: str | os.PathLike[str] | None = None,
        denoise: bool = True,
    ) -> Any:
        """Reconstruct all features from the k measured ones, which are returned unchanged.

        Panels that were made with ``noise`` reconstruct what is behind it, of the measured
        features too; with ``denoise=False`` those are returned as measured.

        Parameters
        ----------
        measured : array or sparse matrix of shape (n, k), table, path or source; or a single row
            The chosen features in column order; or a table, or anything that `fewer.data.open`
            accepts, with these columns (by name, or by number if the data had no names) in any
            order and possibly others. A row may be a dict or a pandas Series keyed by name, or k
            values in column order; rows may be a list of dicts. Of a gene panel an AnnData, or the
            path of an .h5ad file, is read by `fewer.anndata.open_cells` in the units of the
            panel; anything else must be in these units. NaN or None means "not measured":
            the value is predicted from the measured ones (best linear prediction). Panels saved by
            builds before version 0.1.0 use the training mean.
        interval : float, default=None
            Also return prediction intervals with this coverage, such as 0.9, from held-out
            residuals. They are wider if chosen features were not measured, which then have bounds
            too.
        out : path, default=None
            Write all features to this file (.npy, .csv, .tsv, .parquet, .feather, .h5, .h5ad)
            in chunks, so neither input nor output needs to fit into memory. Tables keep columns
            that are not features, such as identifiers. Bounds go to two more files: all.csv,
            all.lower.csv, all.upper.csv.
        denoise : bool, default=True
            Whether measured features, too, are replaced by what is expected behind their noise,
            where that is known (``fewer.select(..., noise=...)``).

        Returns
        -------
        array of shape (n, d), or a table, dict, Series, row or list of dicts like the input; with
        ``interval``, three of them: reconstruction, lower bound, upper bound; with ``out``, their
        paths

        Examples
        --------
        >>> import fewer
        >>> from sklearn.datasets import load_iris
        >>> X = load_iris(as_frame=True).data
        >>> panel = fewer.select(X, k=2, strategies=["search"], random_state=0)
        >>> row = panel.reconstruct({"sepal width (cm)": 3.5, "petal length (cm)": None})
        >>> {name: round(value, 1) for name, value in row.items()}
        {'sepal length (cm)': 5.7, 'sepal width (cm)': 3.5, ...}
        """
        if out is None:
            rows, names = self._read(measured), self.reconstructor.names
            parts = self.reconstructor.parts(rows.values, interval, denoise=denoise)
            found = [rows.like(part, names) for part in parts]
            return found[0] if interval is None else tuple(found)
        filling = Filling(interval, replace_measured=denoise)
        impute(self.reconstructor, cells_like(self, measured), out, filling)
        path = Path(out)
        return path if interval is None else (path, *bound_paths(path))

    def impute(
        self,
        rows: Any,
        *,
        interval: float | None = None,
        use_all: bool = False,
        replace_measured: bool = False,
        allow_absent: bool = False,
        strict: bool = False,
        out: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Fill in missing values, and keep measured ones.

        Parameters
        ----------
        rows : array of shape (n, d) or (n, k), table, path, source, dict, Series or list of dicts
            The panel's features and any others; NaN or None means "not measured".
        interval : float, default=None
            Also return prediction intervals, as in `reconstruct`; the bounds of a measured value
            are the value itself.
        use_all : bool, default=False
            Predict from every measured feature, not only those of the panel.
        replace_measured : bool, default=False
            Replace measured values of features outside the panel by their reconstruction.
        allow_absent : bool, default=False
            Predict panel features for which the data has no column, instead of raising an error.
        strict : bool, default=False
            Raise an error, and write nothing, if `check` finds a problem.
        out : path, default=None
            Write to this file, as in `reconstruct`.

        Returns
        -------
        array of shape (n, d), or a table, dict, Series or list of dicts like the input; with
        ``interval``, three of them: values, lower bound, upper bound; with ``out``, their paths

        Examples
        --------
        >>> import fewer
        >>> from sklearn.datasets import load_iris
        >>> X = load_iris(as_frame=True).data
        >>> panel = fewer.select(X[::2], k=2, strategies=["search"], random_state=0)
        >>> new = X[1::2].copy()
        >>> new.iloc[0, :2] = np.nan
        >>> filled = panel.impute(new, use_all=True)
        >>> bool(filled.notna().all(axis=None)), bool((filled == new)[1:].all(axis=None))
        (True, True)
        """
        filling = self._filling(interval, use_all, replace_measured, allow_absent)
        refuse = self._refuse if strict else None
        rows = cells_like(self, rows)
        whole = read_partial(self.reconstructor, rows, allow_absent)
        given = rows if whole is None else whole.values
        done = impute(self.reconstructor, given, out, filling, check=refuse)
        if out is not None:
            path = Path(out)
            return path if interval is None else (path, *bound_paths(path))
        like = partial(like_table, given=rows) if whole is None else whole.like
        parts = [like(part, self.reconstructor.names) for part in done.values]
        return parts[0] if interval is None else tuple(parts)

    def _refuse(self, values: NDArray) -> None:
        found = check_rows(self.reconstructor, values)
        if not found.ok:
            raise InputError(f"{found.summary()}; fix the rows, or omit strict")

    def _filling(
        self, interval: float | None, use_all: bool, replace_measured: bool, allow_absent: bool
    ) -> Filling:
        known = self.evidence if use_all else None
        factors = None if known is None else known.factors
        return Filling(interval, use_all, replace_measured, allow_absent, factors)

    def predict(self, measured: Any, *, interval: float | None = None) -> Any:
        """Predict the target from the k measured values.

        Parameters
        ----------
        measured : array or sparse matrix of shape (n, k), table, path, source, or a single row
            As for `reconstruct`.
        interval : float, default=None
            For numbers and counts: also return conformal prediction intervals with this coverage,
            such as 0.9, calibrated on held-out rows. For classes, see `predict_set`.

        Returns
        -------
        array of length n, or (n, m) for several numbers; for a single row, its prediction; with
        ``interval``, three of them: prediction, lower bound, upper bound
            Classes, numbers, mean counts, median ordered classes, or log hazards (a higher hazard
            means an earlier event). For several targets, dictionaries from their names to these.
        """
        target, rows = self._predictor(), self._read_to_predict(measured)
        if interval is None:
            return rows.first(target.predict(rows.values))
        return tuple(rows.first(part) for part in target.bounds(rows.values, interval))

    def predict_set(self, measured: Any, coverage: float = 0.9) -> Any:
        """Predict sets of classes that contain the true class with this coverage.

        Conformal prediction: a class is in the set of a row if its probability is at least the
        ``1 - coverage`` quantile of the probabilities of the true classes of held-out rows. The
        most likely class is always in the set.

        Parameters
        ----------
        measured : array or sparse matrix of shape (n, k), table, path or source
            As for `reconstruct`.
        coverage : float, default=0.9
            Fraction of new rows whose set contains the true class, provided that they are
            exchangeable with the training rows.

        Returns
        -------
        array of bool (n, number of classes), in the order of ``target.classes``
            For several targets, a dictionary of them.

        Examples
        --------
        >>> import fewer
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> options = {"strategies": ["search"], "validation": 5, "random_state": 0}
        >>> panel = fewer.select(X[::2], 2, target=y[::2], **options)
        >>> sets = panel.predict_set(X[1::2, panel.indices], coverage=0.9)
        >>> bool(sets[np.arange(75), y[1::2]].mean() > 0.85)
        True
        """
        rows = self._read_to_predict(measured)
        return rows.first(self._predictor().sets(rows.values, coverage))

    def predict_proba(self, measured: Any) -> Any:
        """Probability of each of ``target.classes`` from the k measured values.

        For several targets, a dictionary with those that are classes.
        """
        target, rows = self._predictor(), self._read_to_predict(measured)
        return rows.first(target.probabilities(rows.values))

    def score_target(self, measured: Any, truth: Any) -> Any:
        """Score the predictions of the target: accuracy, R², D² or concordance.

        Parameters
        ----------
        measured : array or sparse matrix of shape (n, k), table, path or source
            As for `reconstruct`.
        truth : array, or anything that `select` accepts as ``target=``
            True values, or the name of a column that holds them (a list of names for several
            targets, or for time and event). Rows without one (None, NaN) do not count; classes that
            the panel has never seen count as wrong, ordered ones with the largest possible error,
            with a warning.

        Returns
        -------
        float; for several targets, a dictionary of them
            NaN for R² and D², which compare with a constant, if all true values are the same.

        Examples
        --------
        >>> import fewer
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> panel = fewer.select(X[::2], 2, target=y[::2], strategies=["search"], random_state=0)
        >>> panel.score_target(X[1::2, panel.indices], y[1::2]) > 0.9
        True
        """
        predictor = self._predictor()
        names = [truth] if isinstance(truth, str) else []
        if isinstance(truth, (list, tuple)) and predictor.kind.width > 1:
            names = list(truth) if all(isinstance(name, str) for name in truth) else []
        if names:
            parts = {part.name: part.kind for part in predictor.parts}
            numbers = [one for one in names if parts.get(one, predictor.kind).classes is None]
            found, _ = named_columns(names, measured, "truth", numbers)
            truth = found if len(names) > 1 else found[names[0]]
        else:
            check_aligned(truth, measured, "the truth")
        return predictor.score(self.reconstructor.read(cells_like(self, measured)), truth)

    def _read(self, measured: Any) -> Rows:
        """Measured values of the chosen features; of cells, in the units of a gene panel."""
        return read_rows(self.reconstructor, cells_like(self, measured))

    def _read_to_predict(self, measured: Any) -> Rows:
        rows = self._read(measured)
        empty = np.flatnonzero(np.isnan(rows.values).all(axis=1))
        if len(empty):
            which = "row has" if len(empty) == 1 else "rows have"
            warn(
                f"{len(empty):,} {which} none of the {self.k} measured features (the first is row "
                f"{empty[0]}): predicted is what is expected where nothing is known"
            )
        return rows

    def _match(self, X: Any) -> Any:
        """Complete rows in the order of the training data; cells as in `_read`."""
        rows = cells_like(self, X)
        if rows is not X and "platform" in self.settings:
            raise InputError(
                "a panel for a platform reads only its own genes of these cells; compare "
                "panel.reconstruct with what the others read in full"
            )
        return self.reconstructor.match(rows)

    def _predictor(self) -> Target:
        if self.target is None:
            raise InputError(
                "this panel reconstructs features and has no target; create one with "
                "fewer.select(..., target=...)"
            )
        return self.target

    # -- changed panels --------------------------------------------------------------------

    def without(self, *features: Any) -> "Panel":
        """Return a new panel without some features, with a refitted decoder.

        ``held_out`` is its score; ``leaderboard`` compares its held-out error with that of this
        panel ("before"), both with fixed features and decoders fitted on the other folds.
        Features that are measured together are removed together. `select` keeps the necessary
        data in memory; for a loaded panel, call ``fewer.attach(panel, X)`` first.

        Parameters
        ----------
        *features : names or column numbers
            Features of the panel.

        Examples
        --------
        >>> import fewer
        >>> from sklearn.datasets import load_wine
        >>> X = load_wine(as_frame=True).data
        >>> panel = fewer.select(X, 4, strategies=["search"], random_state=0)
        >>> smaller = panel.without(panel.features[0])
        >>> smaller.k, smaller.held_out < panel.held_out
        (3, True)
        >>> [row["strategy"] for row in smaller.leaderboard]
        ['without', 'before']
        """
        return self._read_alike(self._edited().without(features))

    def swap(self, out: Any, into: Any) -> "Panel":
        """Return a new panel with one feature replaced by another; see `without`.

        Parameters
        ----------
        out, into : name or column number
            The feature to remove and the one to add, each with its group. The constraints of the
            panel apply: an ``into`` that is excluded or exceeds the budget raises an error.
        """
        return self._read_alike(self._edited().swap(out, into))

    def extend(self, k: int) -> "Panel":
        """Return a new panel of k features: those of this one and the best additional ones.

        Parameters
        ----------
        k : int
            Number of features (or groups of features), more than this panel has.
        """
        return self._read_alike(self._edited().extend(k))

    def shrink(self, k: int) -> "Panel":
        """Return a new panel with the best k features of this one.

        For a network, they are found by leaving out, one after the other, what a surrogate of it
        misses least on held-out rows.

        Parameters
        ----------
        k : int
            Number of features (or groups of features), fewer than this panel has.
        """
        return self._read_alike(self._edited().shrink(k))

    def _edited(self) -> Any:
        self._check_changeable()
        if self.editor is None:
            raise InputError(
                "this panel has no data to edit it with (it was loaded or copied, or the data "
                "are too large to keep); attach some: fewer.attach(panel, X)"
            )
        return self.editor

    def _check_changeable(self) -> None:
        """Refuse a panel whose decoder is for exactly its own features."""
        if "platform" in self.settings:
            raise InputError(
                "this panel is calibrated for its own genes on a platform and cannot be changed; "
                "choose again with select_genes(..., platform=...)"
            )
        if "counts" in self.settings:
            likelihood = self.settings["counts"]["likelihood"]
            raise InputError(
                "the decoder of this panel is a regression of counts on its own genes, which is "
                "not refitted for others; choose again with "
                f"select_genes(..., likelihood={likelihood!r}), where include= and exclude= name "
                "genes"
            )

    def _read_alike(self, changed: "Panel") -> "Panel":
        """A changed panel that reads new rows as this one does."""
        for name in READING:
            if name in self.settings:
                changed.settings[name] = self.settings[name]
        cells = changed.settings.get(CELLS, {})
        shares = self.reconstructor.shares
        changed.reconstructor = replace(changed.reconstructor, shares=shares)
        if "panel_share" in cells:  # of the genes of this panel
            changed.settings[CELLS] = {k: v for k, v in cells.items() if k != "panel_share"}
        return changed

    def score(self, X: Any) -> Score:
        """Return the explained variance, 1 - SSE / SST over all observed entries.

        ``.errors`` has the mean squared error per feature.

        Where the noise of features is known, both sums are of what is behind it: the expected
        squares of the noise are subtracted. Where it is counting noise, it is estimated from the
        counts of these rows, which may be deeper or less deep than the training rows.

        Parameters
        ----------
        X : array, sparse matrix, table, path or source of shape (n, d)
            Complete rows; they are reconstructed from their chosen features alone. An AnnData or
            .h5ad file is read as in `reconstruct`.
        """
        source = array_source(self._match(X))
        return self.reconstructor.score(source, noise=noise_of(self, source))

    def examine(self, X: Any, truth: Any = None) -> Examined:
        """Score complete rows, and reconstruct some of them as examples; see `Examined`.

        ``truth`` is as for `score_target`; by default, the columns of a table that the target was
        read from.
        """
        if truth is None and self.target is not None:
            truth = _truth_in(X, self.target)
        source = array_source(self._match(X))
        n = source.shape[0]
        some = np.unique(np.linspace(0, n - 1, min(n, sample_size(self.d))).astype(int))
        rows = source.rows(some, torch.float64).numpy()
        noise = noise_of(self, source)
        measured, signal = self.reconstructor.variances(source, noise)
        varies = measured > 0
        equal = np.divide(1.0, measured, out=np.zeros(self.d), where=varies)
        scored = None
        if truth is not None:
            table = hasattr(X, "columns")
            scored = self.score_target(X if table else read_all(source, self.indices), truth)
        return Examined(
            self.reconstructor.score(source, noise=noise),
            n,
            signal,
            rows.astype(np.float32),
            self.reconstructor.decode(rows[:, self.indices]).astype(np.float32),
            self.reconstructor.score(source, equal, noise) if varies.any() else None,
            scored,
        )

    def check(self, rows: Any, *, batches: Any = 10) -> Check:
        """Check whether new rows look like the training rows.

        Per feature of the panel: missing values, range, shifts, changed units, stuck sensors,
        codes for missing values, swapped columns. Per row: the distance from the training rows
        with a p-value, and the expected error. About one in a hundred files of clean rows has a
        finding.

        Parameters
        ----------
        rows : array of shape (n, k), table, path, source, or a single row
            The measured features, as for `reconstruct`.
        batches : int or array of n labels, default=10
            Batches in which drift is measured: a number of contiguous batches, or one label per
            row, such as the day.

        Returns
        -------
        fewer.assess.Check

        Examples
        --------
        >>> import fewer
        >>> from sklearn.datasets import load_wine
        >>> X = load_wine(as_frame=True).data
        >>> panel = fewer.select(X[::2], 4, strategies=["search"], random_state=0)
        >>> panel.check(X[1::2]).summary()
        '89 rows look like those that the panel was made from'
        """
        values = self._read(rows).values
        return check_rows(self.reconstructor, values, batches)

    def transform(self, X: Any) -> Any:
        """Keep the chosen columns of complete rows."""
        whole = self._match(X)
        values = self.reconstructor.take(whole)
        if self.names is None or isinstance(whole, Source):
            return values
        return like_table(values, np.array(self.features, dtype=object), X)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the panel to a folder of safetensors and JSON files, never pickle.

        The evidence includes up to 200 held-out rows as examples for reports. To omit them, set
        ``panel.evidence = panel.evidence.without_rows()``.
        """
        decoder = self.reconstructor.decoder
        meta = {
            "d": self.d,
            "names": self.names,
            "indices": self.indices.tolist(),
            "features": self.features,
            "held_out": float(self.held_out),
            "estimates": {metric: list(one) for metric, one in self.estimates.items()},
            "leaderboard": list(self.leaderboard),
            "settings": self.settings,
            "link": decoder.link,
            "target": None if self.target is None else self.target._describe(),
        }
        tensors = {f"decoder.{name}": part for name, part in decoder.state_dict().items()}
        tensors["errors"] = torch.from_numpy(self.held_out.errors)
        for name in ARRAYS:
            if (array := getattr(self.reconstructor, name)) is not None:
                tensors[name] = torch.from_numpy(array)
        for name in KEPT:
            record = getattr(self.reconstructor, name)
            if record is not None:
                meta[name], arrays = storage.describe_record(record, name)
                tensors |= arrays
        if self.target is not None:
            state = self.target.decoder.state_dict()
            tensors |= {f"target.{name}": part for name, part in state.items()}
            if self.target.misses is not None:
                tensors["misses"] = torch.from_numpy(self.target.misses)
        if self.evidence is not None:
            meta["evidence"], arrays = storage.describe_record(self.evidence, "evidence")
            tensors |= arrays
        storage.write_folder(path, meta, tensors, kind="panel")

    @classmethod
    def load(cls, path: str | os.PathLike[str], **functions: Any) -> "Panel":
        """Load a panel written by `save`; its outputs are identical.

        Parameters
        ----------
        path : path
            The folder.
        **functions
            ``decoder=...`` if it was a function, since functions are not stored.
        """
        meta, tensors = storage.read_folder(path, kind="panel")
        storage.require(meta, STORED, path)
        settings, d = meta["settings"], meta["d"]
        indices = storage.restore_columns(meta["indices"], d, path, "indices")
        # decoder= of `select`, which is the predictor of a panel with a target
        own = "decoder" if meta.get("target") is None else "predictor"
        specs = dict.fromkeys(("decoder", own), "linear")
        if own in settings:
            stored = {"decoder": settings[own]}
            specs[own] = storage.restore_parameters(stored, functions, ())["decoder"]
        with storage.damaged_where_unfit(path, tensors):
            k, errors = len(indices), tensors["errors"].numpy()
            require_array("errors", errors, (d,), "f")
            names = None if meta["names"] is None else np.array(meta["names"], dtype=object)
            if names is not None and len(names) != d:
                raise ValueError(f"{len(names)} names for {d} features")
            storage.require_weights(specs["decoder"], k, d, tensors, "decoder")
            net = build_decoder(
                specs["decoder"],
                k,
                d,
                activation=settings.get("activation", "leaky_relu"),
                dropout=settings.get("dropout", 0.0),
                norm=settings.get("norm"),
            )
            target = None
            if meta.get("target") is not None:
                target = Target._restore(meta["target"], specs["predictor"], k, tensors)
            evidence = None
            if "evidence" in meta:
                evidence = storage.restore_record(Evidence, meta["evidence"], tensors, "evidence")
                check_evidence(evidence, indices, d)
            kept: dict[str, Any] = {
                name: storage.restore_record(kind, meta[name], tensors, name)
                for name, kind in KEPT.items()
                if name in meta
            }
            if "joint" in kept:
                check_joint(kept["joint"], indices, d)
            if "statistics" in kept:
                check_statistics(kept["statistics"], k)
            levels = len(QUANTILE_LEVELS)
            shapes: list[tuple[int | None, ...]] = [(levels, d), (None, 2), (d,), (d,)]
            for name, shape in zip(ARRAYS, shapes, strict=True):
                if name in tensors:
                    kept[name] = tensors[name].numpy()
                    require_array(name, kept[name], shape, "f")
            table = kept.get("difficulty")
            if table is not None and not (len(table) and (table[:, 1] > 0).all()):
                raise ValueError("difficulty is not a table of distances and factors")
            decoder = storage.restore_decoder(net, "decoder", tensors, meta["link"])
            estimates = _restore_estimates(meta, evidence)
            score = estimates["units"]
            return cls(
                Reconstructor(indices, decoder, d, names, **kept, estimated="platform" in settings),
                held_out=Score(meta["held_out"], errors, *score[1:]),
                leaderboard=Leaderboard(meta["leaderboard"]),
                settings=settings,
                target=target,
                evidence=evidence,
                estimates=estimates,
            )

    def substitutes(self) -> list[dict[str, Any]]:
        """Return what is lost without each feature of the panel, and what could replace it.

        Returns
        -------
        list of dict
            Per feature: the explained variance lost without it, the features that depend on it
            most, and its substitutes with the loss of each; as printed by `fewer substitutes`.

        Examples
        --------
        >>> import fewer
        >>> from sklearn.datasets import load_iris
        >>> X = load_iris(as_frame=True).data
        >>> panel = fewer.select(X, 2, strategies=["search"], random_state=0)
        >>> [(row["feature"], row["substitutes"][0]["feature"]) for row in panel.substitutes()][0]
        ('petal length (cm)', 'petal width (cm)')
        """
        return substitutes(self)

    def to_config(self) -> str:
        """Return the options that reproduce the panel, as TOML for ``fewer select --config``.

        Python objects, such as arrays, appear as comments. The report contains the Python call,
        and ``fewer export PANEL --to python`` prints it.

        Examples
        --------
        >>> import fewer
        >>> from sklearn.datasets import load_iris
        >>> panel = fewer.select(load_iris().data, 2, strategies=["search"], random_state=0)
        >>> print(panel.to_config())
        # data = ...  (it was an object in Python: give a file or a column)
        k = 2
        strategies = ["search"]
        seed = 0
        """
        return toml_of(self.evidence)

    def report(
        self,
        path: str | os.PathLike[str],
        data: Any = None,
        *,
        title: str | None = None,
        image_shape: tuple[int, int] | str | None = "auto",
        rows: bool = True,
        truth: Any = None,
    ) -> Path:
        """Write a report on the panel as one HTML page that works offline.

        Parameters
        ----------
        path : path
            The file to write, such as "panel.html".
        data : array, table, path or source of shape (n, d), default=None
            Additional rows to evaluate, such as a test set.
        title : str, default=None
            Title of the page.
        image_shape : (int, int), "auto" or None, default="auto"
            Height and width if rows are images; "auto" infers it from names such as pixel_3_14.
        rows : bool, default=True
            Whether the page may contain rows of the data or only statistics.
        truth : array, or anything that `select` accepts as ``target=``, default=None
            True values of the target in the additional rows; by default, the columns of a table
            that it was read from.

        Returns
        -------
        Path
            The file.
        """
        return write(self, path, data, title=title, image_shape=image_shape, rows=rows, truth=truth)

    def _repr_html_(self) -> str:
        return brief(self)

    def _about_target(self) -> str:
        if self.target is None:
            return ""
        score, metric = self.target.held_out, self.target.kind.metric
        return f", {metric} of {self.target.name or 'the target'} on held-out rows {score:.3f}"

    def __repr__(self) -> str:
        shown = join_names(self.features, 6, quoted=False)
        return (
            f"<Panel of {self.k} of {self.d} features{self._about_target()}, explained variance "
            f"on held-out rows {self.held_out.text()}: {shown}>"
        )


def _truth_in(table: Any, target: Target) -> Any:
    """Names of the columns of a table that a target was read from; None without any value."""
    have = list(getattr(table, "columns", ()))
    if not target.columns or any(have.count(name) != 1 for name in target.columns):
        return None
    for name in target.columns:
        if all(is_missing(value) for value in np.asarray(table[name], dtype=object).tolist()):
            return None
    return target.columns[0] if len(target.columns) == 1 else list(target.columns)


def _restore_estimates(meta: dict[str, Any], evidence: Evidence | None) -> dict[str, Estimate]:
    """Estimates of a saved panel; without standard errors if an earlier version saved it."""
    if "estimates" not in meta:
        known = {} if evidence is None else evidence.explained
        old = {metric: Estimate(roles["panel"]) for metric, roles in known.items() if roles}
        return old | {"units": Estimate(meta["held_out"])}
    found = {metric: Estimate(*parts) for metric, parts in meta["estimates"].items()}
    fine = all(isinstance(one.value, float) for one in found.values())
    if "units" not in found or not fine or found["units"].value != meta["held_out"]:
        raise ValueError("the estimates do not fit the score on held-out rows")
    return found
