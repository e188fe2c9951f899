"""The artefact: chosen features, the decoder that reconstructs the rest, how well it did."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_array
from torch import nn

from fewer._tables import Table
from fewer.data import (
    Source,
    as_array,
    as_source,
    check_values,
    is_source_like,
    match_columns,
    moments,
    open_source,
    read_all,
)
from fewer.errors import InputError, translate_sklearn_errors
from fewer.estimators._measured import like_table, read_measured
from fewer.estimators._selector import decode
from fewer.evidence import Evidence, Examined
from fewer.imputation import bound_paths, bounded, impute
from fewer.nn import MeasuredDecoder, build_decoder
from fewer.report import brief, write
from fewer.report.summarise import rank_candidates
from fewer.storage import (
    damaged_where_unfit,
    describe_record,
    read_folder,
    require,
    restore_decoder,
    restore_parameters,
    restore_record,
    write_folder,
)
from fewer.target import Target
from fewer.train.explained import explained_variance

__all__ = ["Leaderboard", "Panel", "Score"]

# quantiles of held-out residuals that a panel keeps for its prediction intervals
LEVELS = (0.005, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.995)


class Score(float):
    """1 - SSE / SST over all entries, with the mean squared error of each feature.

    Examples
    --------
    >>> score = Score(0.9, errors=np.array([0.1, 0.2]))
    >>> score > 0.8, score.errors
    (True, array([0.1, 0.2]))
    """

    errors: NDArray[np.float64]

    def __new__(cls, value: float, errors: NDArray[np.float64]) -> "Score":
        """Make a number that also carries the errors."""
        self = super().__new__(cls, value)
        self.errors = errors
        return self


class Leaderboard(list[dict[str, Any]]):
    """Every candidate that was compared, the winner first; a list of dicts that prints as a table.

    The error of a network that was given up after the first of several folds is estimated from
    that fold.

    Examples
    --------
    >>> Leaderboard([{"strategy": "greedy", "error": 0.25, "seconds": 0.1}])
    strategy  held-out error  ratio  seconds
    greedy              0.25  1.000     0.10
    """

    def table(self) -> Table:
        """The candidates as text, with the ratio of each error to the winner's."""
        rows = [
            (
                row["strategy"],
                f"{row['error']:.6g}",
                f"{row['ratio']:.3f}",
                f"{row['seconds']:.2f}",
            )
            for row in rank_candidates(self)
        ]
        return Table(("strategy", "held-out error", "ratio", "seconds"), rows, (1, 2, 3))

    def __repr__(self) -> str:
        return str(self.table())


class Panel:
    """k chosen features and all that is needed to reconstruct the others from them.

    Made by `fewer.select`; kept with `save` and `Panel.load`.

    Attributes
    ----------
    features : list
        Names of the chosen features in column order, or their numbers where X had no names.
    indices : ndarray of int
        Their column numbers, ascending.
    names : list of str or None
        Names of all features.
    held_out : Score
        How well held-out rows were reconstructed: rows on which neither features were chosen nor
        the decoder fitted, but which did choose between the strategies (and penalties) of the
        leaderboard. That makes it too good by a little; rows of your own that `select` never saw
        (``panel.score(test)``) have the last word.
    leaderboard : Leaderboard
        Every candidate with its strategy, held-out error, seconds and features.
    settings : dict
        How the panel was made.
    evidence : fewer.evidence.Evidence or None
        What `select` knew: gains, substitutes, rivals, some held-out rows; None where the panel
        was saved by a version that did not keep it.
    target : fewer.target.Target or None
        What it predicts besides, where it was made with ``target=``; ``target.held_out`` is the
        accuracy, or R squared, on the held-out rows.

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
    ...     fewer.Panel.load(folder + "/iris").features == panel.features
    True
    """

    def __init__(
        self,
        *,
        indices: NDArray[np.int64],
        decoder: MeasuredDecoder,
        names: Sequence[str] | None,
        d: int,
        held_out: Score,
        quantiles: NDArray[np.float64],
        leaderboard: Leaderboard,
        settings: dict[str, Any],
        target: Target | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        self.indices = np.asarray(indices, dtype=np.int64)
        self.names = None if names is None else [str(name) for name in names]
        self.d = d
        self.held_out = held_out
        self.leaderboard = leaderboard
        self.settings = settings
        self.target = target
        self.evidence = evidence
        self._decoder = decoder.double().eval()
        self._decoder.known = torch.from_numpy(self.indices)
        self._quantiles = quantiles  # len(LEVELS) x d, of truth minus reconstruction

    @property
    def k(self) -> int:
        """Number of chosen features."""
        return len(self.indices)

    @property
    def features(self) -> list[Any]:
        """Names of the chosen features in column order, or their numbers."""
        if self.names is None:
            return self.indices.tolist()
        return [self.names[j] for j in self.indices]

    def reconstruct(
        self,
        measured: Any,
        *,
        interval: float | None = None,
        out: str | os.PathLike[str] | None = None,
    ) -> Any:
        """All features from the k measured ones, in the units of the data.

        The measured ones come back as they were measured.

        Parameters
        ----------
        measured : array or sparse matrix of shape (n, k), table, path or source
            The chosen features in column order; or a table, or a file with one, that has their
            names (their column numbers, where the data had no names) in any order, among other
            columns. NaN stands for "not measured" and takes the training mean. Any path or
            source that `fewer.data.open` takes.
        interval : float, default=None
            Also give bounds that hold this share of values, such as 0.9, from held-out residuals;
            NaN for a chosen feature that was not measured.
        out : path, default=None
            Write all features into this file (.npy, .csv, .tsv, .parquet, .feather, .h5, .h5ad)
            block by block, so that neither side needs to fit into memory. Columns of the input
            that are no features, such as identifiers, come along in tables. Bounds go into two
            more files: all.csv, all.lower.csv, all.upper.csv.

        Returns
        -------
        array of shape (n, d), or a table where one came in; with ``interval`` three of them:
        reconstruction, lower bound, upper bound; with ``out`` their paths
        """
        if out is not None:
            impute(self, measured, out, interval=interval)
            path = Path(out)
            return path if interval is None else (path, *bound_paths(path))
        names = None if self.names is None else np.array(self.names, dtype=object)
        values = read_measured(measured, self.indices, names)
        rebuilt = decode(self._decoder, values)
        if interval is None:
            return like_table(rebuilt, names, measured)
        bounds = bounded(rebuilt, values, self.indices, self._bounds(interval))
        return tuple(like_table(part, names, measured) for part in (rebuilt, *bounds))

    def predict(self, measured: Any) -> NDArray:
        """The target from the k measured values: a class or a number for each row.

        Parameters
        ----------
        measured : array or sparse matrix of shape (n, k), table, path or source
            As for `reconstruct`.

        Examples
        --------
        >>> import fewer
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> panel = fewer.select(X, 2, target=y, strategies=["search"], validation=0.2)
        >>> panel.predict(X[:3, panel.indices])
        array([0, 0, 0])
        """
        return self._predictor().predict(self._values(measured))

    def predict_proba(self, measured: Any) -> NDArray:
        """Probability of each of ``target.classes`` from the k measured values."""
        return self._predictor().probabilities(self._values(measured))

    def _predictor(self) -> Target:
        if self.target is None:
            raise InputError(
                "this panel reconstructs features and predicts no target; make one with "
                "fewer.select(..., target=...)"
            )
        return self.target

    def _values(self, measured: Any) -> NDArray:
        names = None if self.names is None else np.array(self.names, dtype=object)
        return read_measured(measured, self.indices, names)

    def _bounds(self, interval: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        real = isinstance(interval, (int, float, np.integer, np.floating))
        if not real or not 0 < interval <= 0.99:
            raise InputError(f"interval={interval!r} must be above 0 and at most 0.99")
        tail = (1 - interval) / 2
        found = []
        for level in (tail, 1 - tail):
            at = int(np.clip(np.searchsorted(LEVELS, level), 1, len(LEVELS) - 1))
            share = (level - LEVELS[at - 1]) / (LEVELS[at] - LEVELS[at - 1])
            below, above = self._quantiles[at - 1], self._quantiles[at]
            found.append(below + share * (above - below))
        # what was measured is known
        for bound in found:
            bound[self.indices] = 0.0
        return found[0], found[1]

    def score(self, X: Any) -> Score:
        """1 - SSE / SST over all observed entries of whole rows; ``.errors`` by feature.

        Parameters
        ----------
        X : array, sparse matrix, table, path or source of shape (n, d)
            Whole rows; they are reconstructed from their chosen features alone. Any path or
            source that `fewer.data.open` takes.
        """
        source = open_source(self._whole(X))
        return Score(*explained_variance(self._decoder, source, self.indices))

    def examine(self, X: Any) -> Examined:
        """Look at how whole rows are reconstructed: score, variances, and some of the rows.

        Parameters
        ----------
        X : array, sparse matrix, table, path or source of shape (n, d)
            As for `score`.

        Examples
        --------
        >>> import fewer
        >>> from sklearn.datasets import load_iris
        >>> X = load_iris().data
        >>> panel = fewer.select(X, 2, random_state=0)
        >>> seen = panel.examine(X)
        >>> seen.n, seen.rows.shape, seen.score == panel.score(X)
        (150, (150, 4), True)
        """
        source = open_source(self._whole(X))
        n = source.shape[0]
        some = np.unique(np.linspace(0, n - 1, min(n, Evidence.sample_size(self.d))).astype(int))
        rows = source.rows(some, torch.float64)
        stats = moments(source)
        return Examined(
            Score(*explained_variance(self._decoder, source, self.indices)),
            n,
            np.where(stats.constant, 0.0, stats.variance),
            rows.numpy().astype(np.float32),
            decode(self._decoder, rows[:, self.indices].numpy()).astype(np.float32),
        )

    def _whole(self, X: Any) -> Any:
        if is_source_like(X):
            return match_columns(as_source(X), self.names, self.d, "the panel")
        if hasattr(X, "columns") and self.names is not None:
            have = {str(name): name for name in X.columns}
            missing = [name for name in self.names if name not in have]
            if missing:
                raise InputError(
                    f"X lacks {len(missing)} of the panel's {self.d} features: "
                    f"{', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}"
                )
            X = X[[have[name] for name in self.names]]  # other columns may hold anything
        with translate_sklearn_errors():
            X = check_array(
                as_array(X), accept_sparse="csr", dtype="numeric", ensure_all_finite=False
            )
        if X.shape[1] != self.d:
            raise InputError(f"X has {X.shape[1]} columns; the panel was made for {self.d}")
        check_values(X, None if self.names is None else np.array(self.names))
        return X

    def transform(self, X: Any) -> Any:
        """Keep the chosen columns of whole rows."""
        whole = self._whole(X)
        if isinstance(whole, Source):
            return read_all(whole, self.indices)
        part = whole[:, self.indices]
        values = part.toarray() if sparse.issparse(part) else part
        names = None if self.names is None else np.array(self.features, dtype=object)
        return like_table(values, names, X)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the panel into a folder: safetensors and JSON, never pickle.

        With its evidence go up to 200 of the rows that were held out, which reports draw from. To
        keep them to yourself: ``panel.evidence = panel.evidence.without_rows()``.
        """
        meta = {
            "d": self.d,
            "names": self.names,
            "indices": self.indices.tolist(),
            "features": self.features,
            "held_out": float(self.held_out),
            "leaderboard": list(self.leaderboard),
            "settings": self.settings,
            "link": self._decoder.link,
            "target": None if self.target is None else self.target.describe(),
        }
        tensors = {f"decoder.{name}": part for name, part in self._decoder.state_dict().items()}
        tensors["errors"] = torch.from_numpy(self.held_out.errors)
        tensors["quantiles"] = torch.from_numpy(self._quantiles)
        if self.target is not None:
            state = self.target.decoder.state_dict()
            tensors |= {f"target.{name}": part for name, part in state.items()}
        if self.evidence is not None:
            meta["evidence"], arrays = describe_record(self.evidence, "evidence")
            tensors |= arrays
        write_folder(path, meta, tensors, kind="panel")

    @classmethod
    def load(cls, path: str | os.PathLike[str], **functions: Any) -> "Panel":
        """Read a folder that `save` wrote; its outputs are identical.

        Parameters
        ----------
        path : path
            The folder.
        **functions
            ``decoder=...``, where that was a function, which folders do not hold.
        """
        meta, tensors = read_folder(path, kind="panel")
        require(meta, {"settings": dict, "indices": list, "d": int}, path)
        settings = meta["settings"]
        with damaged_where_unfit(path):
            options = restore_parameters({"decoder": settings["decoder"]}, functions, ())
            net: nn.Module = build_decoder(
                options["decoder"],
                len(meta["indices"]),
                meta["d"],
                activation=settings.get("activation", "leaky_relu"),
                dropout=settings.get("dropout", 0.0),
                norm=settings.get("norm"),
            )
            decoder = restore_decoder(net, "decoder", tensors, meta["link"])
            target = None
            if meta.get("target") is not None:
                spec = restore_parameters({"decoder": settings["predictor"]}, functions, ())
                k = len(meta["indices"])
                target = Target.restored(meta["target"], spec["decoder"], k, tensors)
            return cls(
                indices=np.array(meta["indices"], dtype=np.int64),
                decoder=decoder,
                names=meta["names"],
                d=meta["d"],
                held_out=Score(meta["held_out"], tensors["errors"].numpy()),
                quantiles=tensors["quantiles"].numpy(),
                leaderboard=Leaderboard(meta["leaderboard"]),
                settings=settings,
                target=target,
                evidence=_evidence(meta, tensors),
            )

    def report(
        self,
        path: str | os.PathLike[str],
        data: Any = None,
        *,
        title: str | None = None,
        image_shape: tuple[int, int] | str | None = "auto",
    ) -> Path:
        """Write what there is to know about the panel as one HTML page that needs no network.

        Parameters
        ----------
        path : path
            The file to write, such as "panel.html".
        data : array, table, path or source of shape (n, d), default=None
            Rows of your own to judge the panel by, besides those that `select` held out.
        title : str, default=None
            Heading of the page.
        image_shape : (int, int), "auto" or None, default="auto"
            Height and width where rows are images; "auto" reads it from names such as pixel_3_14.

        Returns
        -------
        Path
            The file.

        Examples
        --------
        >>> import tempfile
        >>> import fewer
        >>> from sklearn.datasets import load_iris
        >>> X = load_iris(as_frame=True).data
        >>> panel = fewer.select(X, 2, random_state=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     panel.report(folder + "/iris.html").name
        'iris.html'
        """
        return write(self, path, data, title=title, image_shape=image_shape)

    def _repr_html_(self) -> str:
        return brief(self)

    def __repr__(self) -> str:
        shown = ", ".join(str(name) for name in self.features[:6])
        more = ", ..." if self.k > 6 else ""
        return (
            f"<Panel of {self.k} of {self.d} features, {float(self.held_out):.1%} of the variance "
            f"of held-out rows: {shown}{more}>"
        )


def _evidence(meta: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Evidence | None:
    if "evidence" not in meta:
        return None
    return restore_record(Evidence, meta["evidence"], tensors, "evidence")
