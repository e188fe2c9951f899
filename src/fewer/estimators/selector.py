"""Base classes of all estimators: input validation, feature selection, reconstruction, saving."""

import inspect
import os
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data
from torch import Tensor, nn

from fewer import storage
from fewer._checks import check_observed, check_random_state, check_whole
from fewer._stored import ANY
from fewer.constraints import Constraints, resolve
from fewer.data import Moments, Source, moments, read_all
from fewer.data.columns import check_range, check_values, match_columns
from fewer.data.open import as_source, is_source_like
from fewer.data.source import array_source
from fewer.data.tables import as_array
from fewer.distributed import open_together
from fewer.errors import FileFormatError, InputError, NotFittedError, translate_sklearn_errors
from fewer.estimators._parameters import SHARED
from fewer.nn import MeasuredDecoder
from fewer.nn.decoder import LINKS
from fewer.reconstructor import Reconstructor
from fewer.train import fit_linear
from fewer.train.device import pick_device

__all__ = ["ConstrainedSelector", "FeatureSelector", "RowEstimator"]

ONLY_FOR_TRAINING = ("loss", "schedule", "on_epoch")
# the JSON of a saved estimator; see `fewer._stored.misfit`
STORED: dict[Any, Any] = {
    "class": str,
    "parameters": {str: ANY},
    "n_features_in": int,
    "feature_names_in?": ([str], None),
    "columns": list,
    "decoder": {"out": int, "link": frozenset({None, *LINKS})},
}
# what fitted attributes may be, by name
VALUES: dict[Any, Any] = {
    "nodes?": [int],
    "order?": [int],
    "residuals?": [float],
    "history?": [{str: (float, bool, str, None)}],
    "refit_history?": [{str: (float, bool, str, None)}],
    "converged?": bool,
    "n_conflicts?": int,
    "ridge?": float,
    "residual?": float,
    "one_target?": bool,
    "n_iter?": (int, None),
    "objective?": (float, None),
}


class RowEstimator(BaseEstimator):
    """Base of all estimators that are fitted on rows and reconstruct rows."""

    n_features_in_: int
    # parts of docstrings that subclasses share, written there as {name}
    _shared_texts: ClassVar[dict[str, str]] = SHARED

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__doc__:
            cls.__doc__ = inspect.cleandoc(cls.__doc__)
            for name, shared in cls._shared_texts.items():
                cls.__doc__ = cls.__doc__.replace(f"{{{name}}}", shared)

    def _validated(self, X: Any, *, reset: bool) -> Any:
        if not reset:
            return self._checked(X, reset=False)
        # drop the state of an earlier fit, whose columns may not exist in these features
        fitted = [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]
        for name in (*fitted, "_one_target"):
            self.__dict__.pop(name, None)
        return open_together(lambda: self._checked(X, reset=True), self._names)

    def _names(self) -> Any:
        return getattr(self, "feature_names_in_", None)

    def _checked(self, X: Any, reset: bool) -> Any:
        if is_source_like(X):  # values are checked as they are read
            source = as_source(X, least_rows=2 if reset else 1)
            if not reset:
                name = type(self).__name__
                return match_columns(source, self._names(), self.n_features_in_, name)
            self.n_features_in_ = source.shape[1]
            if source.names is not None:
                self.feature_names_in_ = np.array(source.names, dtype=object)
            return source
        with translate_sklearn_errors():
            X = validate_data(
                self,
                as_array(X),
                reset=reset,
                accept_sparse=("csr", "csc"),
                dtype="numeric",
                ensure_all_finite=False,  # infinities are refused below, saying where they are
                ensure_min_samples=2 if reset else 1,
            )
        check_values(X, self._names())
        return X

    def _opened(self, X: Any) -> tuple[Source, Moments]:
        """Source and moments of validated rows; every column must have an observed value."""
        source = array_source(X)
        stats = moments(source, pick_device(getattr(self, "device", "cpu")))
        check_observed(stats.observed, self._names())
        check_range(stats, self._names())
        return source, stats

    def _rng(self) -> np.random.RandomState:
        return check_random_state(getattr(self, "random_state", None))

    @abstractmethod
    def _reconstructor(self) -> Reconstructor:
        """The fitted columns and decoder."""

    def reconstruct(self, X: Any) -> np.ndarray:
        """Reconstruct complete rows from their k values alone."""
        model = self._reconstructor()
        return model.decode(model.take(self._validated(X, reset=False)))

    def score(self, X: Any, y: Any = None) -> float:
        """1 - SSE / SST over all observed entries: 1 is perfect, 0 as good as the means of X.

        Parameters
        ----------
        X : array, sparse matrix, table, path or source of shape (n, n_features)
            Complete rows; they are reconstructed from their k values alone.
        y : ignored
        """
        model = self._reconstructor()
        return float(model.score(self._validated(X, reset=False)))

    def _check_fitted(self, attribute: str, otherwise: str = "") -> None:
        if not hasattr(self, attribute):
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted yet; call fit(X) first{otherwise}"
            )

    def __sklearn_tags__(self) -> Tags:
        """Declare that sparse input and missing values are supported."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags


@dataclass(eq=False, repr=False)
class FeatureSelector(SelectorMixin, RowEstimator):
    """Base of all estimators: k chosen columns and a decoder that starts from them.

    A subclass sets ``columns_``, ascending, and ``decoder_`` in ``fit``. Estimators are
    dataclasses: the fields of ``__init__`` are the parameters that scikit-learn sees.

    Examples
    --------
    >>> import fewer
    >>> from fewer.estimators import FeatureSelector
    >>> issubclass(fewer.ColumnSubset, FeatureSelector)
    True
    """

    k: int | None = 10
    columns_: np.ndarray = field(init=False)
    decoder_: MeasuredDecoder = field(init=False)
    _reconstructs_with = "decoder_"  # the attribute that holds the decoder of all features
    # further fitted attributes, and how `save` stores each of them
    _saved: ClassVar[dict[str, str]] = {}

    def _validated_pair(self, X: Any, y: Any, **checks: Any) -> tuple[Any, np.ndarray]:
        if y is None:
            raise InputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: "
                "give one value per row"
            )
        if isinstance(y, Tensor):
            y = as_array(y)
        with translate_sklearn_errors():
            y = validate_data(self, y=y, **checks)  # before X, since this resets feature names
        X = self._validated(X, reset=True)
        if len(y) != X.shape[0]:
            raise InputError(
                f"y has {len(y)} values for the {X.shape[0]} rows of X; give one per row"
            )
        return X, y

    def _linear_decoder(
        self, source: Source, stats: Moments, columns: np.ndarray, **options: Any
    ) -> MeasuredDecoder:
        linear = fit_linear(source, columns, stats, **options)
        return MeasuredDecoder(linear, fill=torch.from_numpy(stats.mean[columns])).eval()

    # -- selection -------------------------------------------------------------------------

    def _get_support_mask(self) -> np.ndarray:
        self._check_fitted()
        mask = np.zeros(self.n_features_in_, dtype=bool)
        mask[self.columns_] = True
        return mask

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the chosen features, in column order."""
        self._check_fitted()
        return super().get_feature_names_out(input_features)

    def _named_groups(self, groups: list[np.ndarray], m: Any) -> list[list[Any]]:
        check_whole("m", m, 1, self.n_features_in_)
        names = self._names()
        return [[int(j) if names is None else str(names[j]) for j in group] for group in groups]

    def transform(self, X: Any) -> Any:
        """Keep the chosen columns of X, in column order."""
        self._check_fitted()
        X = as_array(X)
        checked = self._validated(X, reset=False)
        if isinstance(checked, Source):
            return read_all(checked, self.columns_)
        # scikit-learn keeps a table a table where set_output asks for one
        return super().transform(X if hasattr(X, "columns") else checked)

    # -- reconstruction --------------------------------------------------------------------

    def _reconstructor(self, decoder: str | None = None) -> Reconstructor:
        """The chosen columns with one of the fitted decoders."""
        self._check_fitted()
        fitted = getattr(self, decoder or self._reconstructs_with)
        return Reconstructor(self.columns_, fitted, self.n_features_in_, self._names())

    def inverse_transform(self, measured: Any) -> Any:
        """Reconstruct all features from the k measured ones.

        Parameters
        ----------
        measured : array or sparse matrix of shape (n, k), table, path or source
            The chosen features in column order, as `transform` returns them; or a table, or a
            path or source of one, with these columns (by name, or by number if X had no names) in
            any order and possibly others. NaN means "not measured" and is replaced by the
            training mean.

        Returns
        -------
        array of shape (n, n_features), or a table if the input is one
        """
        return self._reconstructor().reconstruct(measured)

    # -- storage ---------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted estimator to a folder of safetensors and JSON files, never pickle.

        Options that are functions (decoder, loss, ...) are not stored; pass them to `load` again.
        """
        self._check_fitted()
        names, options = self._names(), self.get_params(deep=False)
        if "checkpoint" in options:  # a path of this machine
            options["checkpoint"] = None
        with torch.no_grad():
            out = self.decoder_(self.decoder_.fill[None]).shape[1]
        meta: dict[str, Any] = {
            "class": type(self).__name__,
            "parameters": storage.describe_parameters(options),
            "n_features_in": int(self.n_features_in_),
            "feature_names_in": None if names is None else [str(name) for name in names],
            "columns": self.columns_.tolist(),
            "decoder": {"out": out, "link": self.decoder_.link},
        }
        tensors: dict[str, Tensor] = {}
        for name, kind in {"decoder_": "decoder", **self._saved}.items():
            key, value = name.strip("_"), getattr(self, name, None)
            if isinstance(value, MeasuredDecoder):
                tensors |= {f"{key}.{part}": one for part, one in value.state_dict().items()}
            elif kind == "tensor":
                tensors[key] = torch.from_numpy(value)
            elif kind == "labels":
                meta[key], meta[f"{key}_dtype"] = storage.describe_labels(np.asarray(value))
            else:
                meta[key] = value.tolist() if isinstance(value, np.ndarray) else value
        storage.write_folder(path, meta, tensors)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **functions: Any) -> Self:
        """Load an estimator written by `save`; its outputs are identical.

        Parameters
        ----------
        path : path
            The folder.
        **functions
            Options that were functions, such as ``decoder=...``, since functions are not stored.
        """
        meta, tensors = storage.read_folder(path)
        storage.require(meta, STORED, path)
        if meta["class"] != cls.__name__:
            raise FileFormatError(f"{path} holds a {meta['class']}; use {meta['class']}.load")
        storage.require(meta, VALUES, path)
        unknown = sorted(set(meta["parameters"]) - set(cls._get_param_names()))
        if unknown:
            raise FileFormatError(
                f"{path} has options that {cls.__name__} does not know: {', '.join(unknown)}; "
                "save it again, or load it with the version of fewer that wrote it"
            )
        options = storage.restore_parameters(meta["parameters"], functions, ONLY_FOR_TRAINING)
        if "keep_measured" in cls._get_param_names():
            options.setdefault("keep_measured", False)  # as in earlier versions
        self = cls(**options)
        d = self.n_features_in_ = meta["n_features_in"]
        self.columns_ = storage.restore_columns(meta["columns"], d, path)
        with storage.damaged_where_unfit(path, tensors):
            names, out = meta.get("feature_names_in"), meta["decoder"]["out"]
            if names is not None:
                self.feature_names_in_ = np.array(names, dtype=object)
            if names is not None and len(names) != d:
                raise ValueError(f"{len(names)} names for {d} features")
            storage.require_weights(
                self._decoder_spec(), len(self.columns_), out, tensors, "decoder"
            )
            net = self._bare_decoder(out)
            self.decoder_ = storage.restore_decoder(
                net, "decoder", tensors, meta["decoder"]["link"]
            )
            if self._reconstructs_with == "decoder_" and getattr(self, "keep_measured", False):
                self.decoder_.known = torch.from_numpy(self.columns_)
            for name, kind in cls._saved.items():
                if kind != "optional" or meta.get(name.strip("_")) is not None:
                    setattr(self, name, self._restored(name.strip("_"), kind, meta, tensors))
            if out != (len(self.classes_) if hasattr(self, "classes_") else out):
                raise ValueError(f"{out} outputs for {len(self.classes_)} classes")
            if self._reconstructs_with == "decoder_" and out != d:
                raise ValueError(f"{out} outputs for {d} features")
        return self

    def _restored(self, key: str, kind: str, meta: dict[str, Any], tensors: Any) -> Any:
        d = self.n_features_in_
        if kind == "linear decoder":
            storage.require_weights("linear", len(self.columns_), d, tensors, key)
            net = nn.Linear(len(self.columns_), d)
            return storage.restore_decoder(net, key, tensors, None)
        if kind == "tensor":
            array = tensors[key].numpy()
            if array.ndim not in (1, 2) or array.shape[-1] != d or np.isnan(array).any():
                raise ValueError(f"{key} has the shape {array.shape} for {d} features, or NaN")
            return array
        if kind == "labels":
            return storage.restore_labels(meta[key], meta[f"{key}_dtype"])
        found = np.array(meta[key]) if kind == "array" else meta[key]
        if key in ("nodes", "order") and not all(0 <= j < d for j in meta[key]):
            raise ValueError(f"{key} has numbers that are not columns")
        return found

    def _decoder_spec(self) -> Any:
        """The layers of the decoder; see `fewer.nn.build_decoder`."""
        return "linear"

    def _bare_decoder(self, out: int) -> nn.Module:
        """The network whose weights are loaded from a folder."""
        return nn.Linear(len(self.columns_), out)

    def _check_fitted(self, attribute: str = "columns_", otherwise: str = "") -> None:
        super()._check_fitted(attribute, otherwise or ", or load a saved one")


@dataclass(eq=False, repr=False, kw_only=True)
class ConstrainedSelector(FeatureSelector):
    """Base of estimators whose panels can be constrained."""

    include: Any = ()
    exclude: Any = ()
    costs: Any = None
    cost_weight: float = 0.0
    budget: float | None = None
    groups: Any = None

    def _constraints(self, d: int) -> Constraints:
        """The constraints with names resolved to columns."""
        names = self._names()
        return resolve(
            None if names is None else [str(name) for name in names],
            d,
            self.k,
            include=self.include,
            exclude=self.exclude,
            costs=self.costs,
            budget=self.budget,
            groups=self.groups,
            cost_weight=self.cost_weight,
        )
