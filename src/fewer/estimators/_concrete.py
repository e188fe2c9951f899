"""What the three concrete estimators have in common: options, plumbing, saving."""

import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from fewer.data import as_array, blocks, check_values, moments, open_source
from fewer.errors import FileFormatError, InputError, NotFittedError
from fewer.estimators._measured import like_table, read_measured
from fewer.estimators._storage import (
    describe_parameters,
    read_folder,
    restore_parameters,
    write_folder,
)
from fewer.nn import MeasuredDecoder, build_decoder, make_loss
from fewer.train import GradientSettings, fit_gradient

__all__ = ["ConcreteEstimator"]

ONLY_FOR_TRAINING = ("loss", "schedule", "on_epoch")


class ConcreteEstimator(SelectorMixin, BaseEstimator):
    """Base of the concrete estimators; see ConcreteAutoencoder for the options."""

    _auto_decoder: Any = "linear"
    _auto_loss = "mse"

    def __init__(
        self,
        k: int = 10,
        *,
        decoder: Any = "auto",
        loss: Any = "auto",
        activation: str = "leaky_relu",
        dropout: float = 0.0,
        norm: str | None = None,
        epochs: int | str = "auto",
        batch_size: int = 256,
        learning_rate: float | str = "auto",
        learning_rate_decay: float = 1.0,
        selector_learning_rate: float | str = "auto",
        schedule: Any = "exponential",
        start_temperature: float = 3.0,
        end_temperature: float = 0.1,
        anneal: str = "step",
        draw: str = "batch",
        logits: str = "direct",
        embedding: int | None = None,
        stop_probability: float = 0.99,
        tries: int = 3,
        patience: int | None = None,
        validation_fraction: float = 0.1,
        n_init: int = 1,
        refit: str = "scratch",
        refit_epochs: int | str = "auto",
        ridge: float = 0.0,
        normalize: bool = True,
        device: str = "auto",
        precision: str = "auto",
        random_state: Any = None,
        progress: bool = False,
        on_epoch: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.k = k
        self.decoder = decoder
        self.loss = loss
        self.activation = activation
        self.dropout = dropout
        self.norm = norm
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.learning_rate_decay = learning_rate_decay
        self.selector_learning_rate = selector_learning_rate
        self.schedule = schedule
        self.start_temperature = start_temperature
        self.end_temperature = end_temperature
        self.anneal = anneal
        self.draw = draw
        self.logits = logits
        self.embedding = embedding
        self.stop_probability = stop_probability
        self.tries = tries
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.n_init = n_init
        self.refit = refit
        self.refit_epochs = refit_epochs
        self.ridge = ridge
        self.normalize = normalize
        self.device = device
        self.precision = precision
        self.random_state = random_state
        self.progress = progress
        self.on_epoch = on_epoch

    # -- fitting ---------------------------------------------------------------------------

    def _fit(self, X: Any, targets: Tensor | None = None, out: int | None = None) -> Self:
        """Train on validated X; the subclasses say what is to be predicted."""
        settings = self._settings()
        loss = make_loss(self._auto_loss if self.loss == "auto" else self.loss)
        if (loss.name == "cross_entropy") != (self._auto_loss == "cross_entropy"):
            raise InputError(
                f"loss={loss.name!r} does not go with {type(self).__name__}: cross_entropy is "
                "for ConcreteClassifier, and only that"
            )
        d = X.shape[1]
        if settings.k > d:
            raise InputError(
                f"k={settings.k} is more than the n_features={d} of X; choose k from 1 to {d}"
            )
        source = open_source(X)
        stats = moments(source)
        _refuse_empty(stats.observed, getattr(self, "feature_names_in_", None))
        if loss.check is not None and targets is None:
            reason = loss.check(float(stats.minimum.min()), float(stats.maximum.max()))
            if reason:
                raise InputError(reason)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        fit = fit_gradient(source, stats, settings, loss=loss, seed=seed, targets=targets, out=out)
        self.nodes_ = fit.features
        self.logits_ = fit.logits.numpy()
        self.decoder_ = fit.decoder
        self.history_ = fit.history
        self.refit_history_ = fit.refit_history
        self.converged_ = fit.converged
        self.n_conflicts_ = fit.conflicts
        return self

    def _settings(self) -> GradientSettings:
        names = [field.name for field in fields(GradientSettings)]
        options = {name: getattr(self, name) for name in names}
        if isinstance(self.decoder, str) and self.decoder == "auto":
            options["decoder"] = self._auto_decoder
        return GradientSettings(**options)

    def _validated(self, X: Any, *, reset: bool) -> Any:
        X = validate_data(self, as_array(X), reset=reset, **_checks(reset))
        check_values(X, getattr(self, "feature_names_in_", None))
        return X

    def _validated_pair(self, X: Any, y: Any, **checks: Any) -> tuple[Any, np.ndarray]:
        if y is None:
            raise InputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: "
                "give one value for each row"
            )
        X, y = validate_data(self, as_array(X), as_array(y), **_checks(reset=True), **checks)
        check_values(X, getattr(self, "feature_names_in_", None))
        return X, y

    # -- the choice ------------------------------------------------------------------------

    @property
    def _columns(self) -> np.ndarray:
        self._check_fitted()
        return np.sort(self.nodes_)

    def _get_support_mask(self) -> np.ndarray:
        self._check_fitted()
        mask = np.zeros(self.n_features_in_, dtype=bool)
        mask[self.nodes_] = True
        return mask

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the chosen features, in column order."""
        self._check_fitted()
        return super().get_feature_names_out(input_features)

    def transform(self, X: Any) -> Any:
        """Keep the chosen columns of X, in column order: what a user would measure."""
        self._check_fitted()
        X = as_array(X)
        if not sparse.issparse(X) and not hasattr(X, "columns"):
            check_values(np.asarray(X))
        return super().transform(X)

    def feature_groups(self, m: int = 3) -> list[list[Any]]:
        """List the m likeliest features of each node, likeliest first.

        Groups are in the order of `get_feature_names_out`, each led by the chosen feature; the
        rest are those that the node would take in its stead, so they tend to be related.

        Parameters
        ----------
        m : int, default=3
            How many features of each node.

        Returns
        -------
        list of k lists
            Of names where X had them, else of column numbers.
        """
        self._check_fitted()
        d = self.n_features_in_
        if isinstance(m, bool) or not isinstance(m, (int, np.integer)) or not 1 <= m <= d:
            raise InputError(f"m={m!r} must be a whole number from 1 to {d}")
        names = getattr(self, "feature_names_in_", None)
        groups = []
        for node in np.argsort(self.nodes_):
            chosen = self.nodes_[node]
            ranked = np.argsort(-self.logits_[node], kind="stable")
            group = [chosen, *ranked[ranked != chosen]][:m]
            groups.append([int(j) if names is None else str(names[j]) for j in group])
        return groups

    # -- from measured values --------------------------------------------------------------

    def inverse_transform(self, measured: Any) -> Any:
        """Reconstruct all features from the k measured ones.

        Parameters
        ----------
        measured : array of shape (n, k) or table
            The chosen features in column order, as `transform` gives them; or a pandas or
            polars table that has their names, in any order. NaN stands for "not measured" and
            takes the training mean.

        Returns
        -------
        array of shape (n, n_features), or a table where one came in
        """
        self._check_fitted()
        names = getattr(self, "feature_names_in_", None)
        values = read_measured(measured, self._columns, names)
        return like_table(_decode(self._reconstructor, values), names, measured)

    @property
    def _reconstructor(self) -> MeasuredDecoder:
        return self.decoder_

    def _predict_rows(self, X: Any) -> np.ndarray:
        """Output of the decoder for whole rows."""
        self._check_fitted()
        X = self._validated(X, reset=False)
        return _decode(self.decoder_, _take_columns(X, self._columns))

    def _decode_measured(self, measured: Any) -> np.ndarray:
        """Output of the decoder for measured values."""
        names = getattr(self, "feature_names_in_", None)
        return _decode(self.decoder_, read_measured(measured, self._columns, names))

    # -- keeping ---------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator into a folder: safetensors and JSON, never pickle.

        Functions given as options (decoder, loss, ...) are not stored; `load` takes them again.
        """
        self._check_fitted()
        names = getattr(self, "feature_names_in_", None)
        meta = {
            "class": type(self).__name__,
            "parameters": describe_parameters(self.get_params(deep=False)),
            "n_features_in": int(self.n_features_in_),
            "feature_names_in": None if names is None else [str(name) for name in names],
            "nodes": self.nodes_.tolist(),
            "history": self.history_,
            "refit_history": self.refit_history_,
            "converged": self.converged_,
            "n_conflicts": self.n_conflicts_,
            "decoder": _outline(self.decoder_),
            **self._extra_meta(),
        }
        tensors = {"logits": torch.from_numpy(self.logits_)}
        for prefix, module in self._modules().items():
            tensors |= {f"{prefix}.{name}": part for name, part in module.state_dict().items()}
        write_folder(path, meta, tensors)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **functions: Any) -> Self:
        """Read a folder that `save` wrote; its outputs are identical.

        Parameters
        ----------
        path : path
            The folder.
        **functions
            Options that were functions, which folders do not hold, such as ``decoder=...``.
        """
        meta, tensors = read_folder(path)
        if meta["class"] != cls.__name__:
            raise FileFormatError(f"{path} holds a {meta['class']}; use {meta['class']}.load")
        optional = ONLY_FOR_TRAINING
        self = cls(**restore_parameters(meta["parameters"], functions, optional))
        self.n_features_in_ = meta["n_features_in"]
        if meta["feature_names_in"] is not None:
            self.feature_names_in_ = np.array(meta["feature_names_in"], dtype=object)
        self.nodes_ = np.array(meta["nodes"], dtype=np.int64)
        self.logits_ = tensors["logits"].numpy()
        self.history_ = meta["history"]
        self.refit_history_ = meta["refit_history"]
        self.converged_ = meta["converged"]
        self.n_conflicts_ = meta["n_conflicts"]
        try:
            net = self._bare_decoder(meta["decoder"]["out"])
            self.decoder_ = _filled(net, "decoder", tensors, meta["decoder"])
            self._restore_extra(meta, tensors)
        except (KeyError, RuntimeError) as error:
            raise FileFormatError(
                f"the tensors in {path} do not fit its description ({error}); save it again"
            ) from error
        return self

    def _bare_decoder(self, out: int) -> nn.Module:
        settings = self._settings()
        return build_decoder(
            settings.decoder,
            len(self.nodes_),
            out,
            activation=settings.activation,
            dropout=settings.dropout,
            norm=settings.norm,
        )

    def _modules(self) -> dict[str, MeasuredDecoder]:
        return {"decoder": self.decoder_}

    def _extra_meta(self) -> dict[str, Any]:
        return {}

    def _restore_extra(self, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        pass

    # -- scikit-learn ----------------------------------------------------------------------

    def _check_fitted(self) -> None:
        if not hasattr(self, "nodes_"):
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted yet; call fit(X) first, "
                "or load a saved one"
            )
        check_is_fitted(self)

    def __sklearn_tags__(self) -> Tags:
        """Say that sparse input and missing values are welcome."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags


def _checks(reset: bool) -> dict[str, Any]:
    # infinities are refused by check_values, which says where they are
    return {
        "accept_sparse": ("csr", "csc"),
        "dtype": "numeric",
        "ensure_all_finite": False,
        "ensure_min_samples": 2 if reset else 1,
    }


def _take_columns(X: Any, columns: np.ndarray) -> np.ndarray:
    part = X[:, columns]
    return part.toarray() if sparse.issparse(part) else part


@torch.no_grad()
def _decode(decoder: MeasuredDecoder, measured: np.ndarray) -> np.ndarray:
    out = np.float32 if measured.dtype == np.float32 else np.float64
    parts = []
    for rows in blocks(len(measured), max(measured.shape[1], 1024)):
        values = torch.from_numpy(np.array(measured[rows], dtype=np.float64))
        parts.append(decoder(values).numpy().astype(out, copy=False))
    return np.concatenate(parts)


def _outline(decoder: MeasuredDecoder) -> dict[str, Any]:
    with torch.no_grad():
        out = decoder(decoder.fill[None]).shape[1]
    return {"out": out, "link": decoder.link}


def _filled(
    net: nn.Module, prefix: str, tensors: dict[str, Tensor], outline: dict[str, Any]
) -> MeasuredDecoder:
    state = {
        name.removeprefix(f"{prefix}."): part
        for name, part in tensors.items()
        if name.startswith(f"{prefix}.")
    }
    decoder = MeasuredDecoder(
        net.double(),
        fill=state["fill"].clone(),
        out_center=torch.zeros_like(state["out_center"]),
        link=outline["link"],
    )
    decoder.load_state_dict(state)
    return decoder.eval()


def _refuse_empty(observed: np.ndarray, names: np.ndarray | None) -> None:
    empty = np.flatnonzero(observed == 0)
    if len(empty):
        shown = ", ".join(str(j) if names is None else repr(str(names[j])) for j in empty[:5])
        more = ", ..." if len(empty) > 5 else ""
        raise InputError(
            f"{len(empty)} columns hold no value at all, only NaN: {shown}{more}; drop them"
        )
