"""The concrete autoencoder as scikit-learn estimators: autoencoder, classifier and regressor."""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor, nn

from fewer._checks import check_choice
from fewer.data import Moments, Source
from fewer.distributed import collective, shared_seed
from fewer.errors import InputError, translate_sklearn_errors
from fewer.estimators.selector import ConstrainedSelector
from fewer.nn import Loss, build_decoder, make_loss
from fewer.train import TrainingConfig, fit_gradient
from fewer.train.assignment import nodes_for
from fewer.train.checkpoint import stored_seed
from fewer.train.closed_form import fit_covariance, fit_surrogate
from fewer.train.config import CLASS_DROPOUT, CLASS_SMOOTHING, TrainingOptions
from fewer.train.device import pick_device
from fewer.train.linear_choice import choose_linear
from fewer.train.refine import MOST_FOR_COVARIANCE, MOST_ON_CUDA, has_covariance
from fewer.train.training_data import check_weights, class_weights

__all__ = ["ConcreteAutoencoder", "ConcreteClassifier", "ConcreteRegressor"]

# options without effect on a selector in closed form, and those without effect on exact decoders
ONLY_GRADIENT = (
    "learning_rate_decay",
    "schedule",
    "anneal",
    "draw",
    "logits",
    "embedding",
    "refit",
)
ONLY_TRAINED = ("batch_size", "learning_rate", "patience", "validation_fraction", "normalize")


def _is_auto(option: Any) -> bool:
    return isinstance(option, str) and option == "auto"


@dataclass(eq=False, repr=False, kw_only=True)
class ConcreteEstimator(TrainingOptions, ConstrainedSelector):
    """Base of the concrete estimators; see ConcreteAutoencoder for the options."""

    _auto_decoder: ClassVar[Any] = "linear"
    _auto_loss = "mse"
    _saved: ClassVar[dict[str, str]] = {
        "nodes_": "array",
        "logits_": "tensor",
        "history_": "value",
        "refit_history_": "value",
        "converged_": "value",
        "n_conflicts_": "value",
        "n_swapped_": "optional",  # not known to earlier versions
        "ridge_": "optional",
    }

    decoder: Any = "auto"
    dropout: Any = "auto"  # a fraction
    norm: str | None = "auto"
    loss: Any = "auto"
    solver: str = "auto"
    refine: str | None = "swaps"
    ridge: Any = "auto"
    random_state: Any = None

    def _fit(
        self,
        X: Any,
        targets: Tensor | None = None,
        out: int | None = None,
        weights: np.ndarray | None = None,
    ) -> Self:
        """Train on validated X, to predict the targets, maybe with weights, or X itself."""
        loss = self._loss()
        d = X.shape[1]
        constraints = self._constraints(d)
        source, stats = self._opened(X)
        if loss.check is not None:
            low, high = stats.minimum.min(), stats.maximum.max()
            if targets is not None:
                low, high = targets.min(), targets.max()
            reason = loss.check(float(low), float(high), "X" if targets is None else "y")
            if reason:
                raise InputError(reason)
        config = self._config(nodes_for(constraints, source))
        seed = shared_seed(self.random_state, lambda: stored_seed(self.checkpoint))
        solver = self._solver(config, loss, targets, d)
        check_choice("refine", self.refine, ("swaps", None))
        device = pick_device(config.device)
        common: dict[str, Any] = {"seed": seed, "constraints": constraints}
        common["refine"] = None if self.refine is None else "all"
        exact = config.linear and loss.name == "mse" and targets is None
        swaps = self.refine is not None and config.refit == "scratch"
        if exact and swaps and self._ridge is None and has_covariance(source, device):
            choice = choose_linear(source, stats, constraints, seed=seed, device=device)
            config.ridge, common["refine"] = choice.ridge, choice.trust
        self.ridge_ = config.ridge
        if solver == "gradient":
            if weights is not None:
                common["weights"] = torch.from_numpy(weights / weights.mean())
            fit = fit_gradient(source, stats, config, loss=loss, targets=targets, out=out, **common)
        elif config.linear:
            fit = fit_covariance(source, stats, config, **common)
        else:
            fit = fit_surrogate(source, stats, config, loss=loss, **common)
        self.nodes_ = fit.features
        self.logits_ = fit.logits.numpy()
        self.decoder_ = fit.decoder
        self.history_ = fit.history
        self.refit_history_ = fit.refit_history
        self.converged_ = fit.converged
        self.n_conflicts_ = fit.conflicts
        self.n_swapped_ = fit.n_swapped
        self._fit_more(source, stats, fit.columns)
        self.columns_ = fit.columns  # last, since it marks the estimator as fitted
        return self

    def _fit_more(self, source: Source, stats: Moments, columns: np.ndarray) -> None:
        """Further parts that a subclass fits."""

    def _loss(self) -> Loss:
        loss = make_loss(self._auto_loss if _is_auto(self.loss) else self.loss)
        classifies = self._auto_loss == "cross_entropy"
        if classifies and callable(self.loss):
            return replace(loss, link="softmax")
        if (loss.name == "cross_entropy") != classifies:
            raise InputError(
                f"loss={loss.name!r} does not go with {type(self).__name__}: cross_entropy is "
                "for ConcreteClassifier, and only that"
            )
        return loss

    def _config(self, nodes: int) -> TrainingConfig:
        options = {
            field.name: getattr(self, field.name)
            for field in fields(TrainingConfig)
            if field.name != "k"
        }
        options["ridge"] = self._ridge or 0.0
        return TrainingConfig(**options | self._network_options() | {"k": nodes})

    @property
    def _normalizes_classes(self) -> bool:
        """Whether a network is trained as classes are predicted best: see ``norm``."""
        return False

    def _network_options(self) -> dict[str, Any]:
        """Decoder, dropout and norm, where they are left to us."""
        batch = self._normalizes_classes
        dropout, norm = self.dropout, self.norm
        return {
            "decoder": self._decoder_spec(),
            "dropout": (CLASS_DROPOUT if batch else 0.0) if _is_auto(dropout) else dropout,
            "norm": ("batch" if batch else None) if _is_auto(norm) else norm,
        }

    @property
    def _ridge(self) -> Any:
        """The penalty that was asked for; None if it is to be chosen."""
        return None if _is_auto(self.ridge) else self.ridge

    def _solver(self, config: TrainingConfig, loss: Loss, targets: Tensor | None, d: int) -> str:
        check_choice("solver", self.solver, ("auto", "closed_form", "gradient"))
        fits = targets is None and loss.name == "mse"
        defaults = {field.name: field.default for field in fields(TrainingConfig)}
        unused = ONLY_GRADIENT + (ONLY_TRAINED if config.linear else ())
        idle = [name for name in unused if getattr(self, name) != defaults[name]]
        if self.solver == "closed_form":
            if not fits:
                raise InputError(
                    "solver='closed_form' needs loss='mse' and no target; "
                    "use solver='gradient' for anything else"
                )
            if idle:
                raise InputError(
                    f"{idle[0]}={getattr(self, idle[0])!r} has no effect with "
                    "solver='closed_form'; leave it out, or use solver='gradient'"
                )
        if self.solver != "auto":
            return self.solver
        most = MOST_ON_CUDA if pick_device(config.device).type == "cuda" else MOST_FOR_COVARIANCE
        exact = fits and config.linear and not idle and d <= most
        return "closed_form" if exact else "gradient"

    def feature_groups(self, m: int = 3) -> list[list[Any]]:
        """List the m most likely features of each node, by name or number, the chosen one first.

        Groups are in the order of `get_feature_names_out`. The others are the node's next
        choices, which tend to be related; a node fixed by ``include`` has none.
        """
        self._check_fitted()
        groups = []
        for node in np.argsort(self.nodes_):
            chosen = self.nodes_[node]
            if node >= len(self.logits_):  # bought with the rest of a budget
                node = int(np.argmax(self.logits_[:, chosen]))  # noqa: PLW2901
            logits = self.logits_[node]
            ranked = np.argsort(-logits, kind="stable")
            ranked = ranked[(ranked != chosen) & np.isfinite(logits[ranked])]
            groups.append(np.array([chosen, *ranked])[:m])
        return self._named_groups(groups, m)

    def _decoder_spec(self) -> Any:
        return self._auto_decoder if _is_auto(self.decoder) else self.decoder

    def _bare_decoder(self, out: int) -> nn.Module:
        options = self._network_options()
        spec = options.pop("decoder")
        with torch.random.fork_rng(devices=[]):  # its first weights are replaced anyway
            return build_decoder(
                spec, len(self.columns_), out, activation=self.activation, **options
            )


class ConcreteAutoencoder(ConcreteEstimator):
    """Choose the k features from which all others are best reconstructed.

    A selector layer and a decoder are trained jointly; the temperature of the selector decreases
    until each of its k nodes passes a single feature (Abid, Balin and Zou, 2019). The features
    are made distinct, and the decoder is refitted on them. Features are not scaled: standardise
    them first if their units differ.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}

    See Also
    --------
    fewer.PAPER : the settings of the paper, as ``ConcreteAutoencoder(k, **fewer.PAPER)``.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data
    >>> cae = ConcreteAutoencoder(k=10, random_state=0).fit(X[:1400])
    >>> measured = cae.transform(X[1400:])
    >>> measured.shape, cae.inverse_transform(measured).shape
    ((397, 10), (397, 64))
    >>> cae.score(X[1400:]) > 0.5
    True
    """

    @collective
    def fit(self, X: Any, y: Any = None) -> Self:
        """Choose features of X and fit the decoder.

        Parameters
        ----------
        X : array, sparse matrix, table, path or source of shape (n, n_features)
            Training rows, in any form that `fewer.data.open` accepts;
            NaN marks missing values, which do not contribute to the loss.
        y : ignored
        """
        return self._fit(self._validated(X, reset=True))


class SupervisedEstimator(ConcreteEstimator):
    """Base of classifier and regressor: a predictor, and a linear decoder of all features."""

    _auto_decoder = (100,)
    _reconstructs_with = "reconstruction_"
    _saved: ClassVar[dict[str, str]] = ConcreteEstimator._saved | {
        "reconstruction_": "linear decoder"
    }

    def _fit_more(self, source: Source, stats: Moments, columns: np.ndarray) -> None:
        self.reconstruction_ = self._linear_decoder(source, stats, columns, ridge=self.ridge_)

    def _predict_rows(self, X: Any) -> np.ndarray:
        model = self._reconstructor("decoder_")
        return model.decode(model.take(self._validated(X, reset=False)))

    def _predict_measured(self, measured: Any) -> np.ndarray:
        model = self._reconstructor("decoder_")
        return model.decode(model.read(measured))

    def __sklearn_tags__(self) -> Tags:
        """Declare that a target is required."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class ConcreteClassifier(ClassifierMixin, SupervisedEstimator):
    """Choose the k features from which a class is best predicted.

    The decoder is a classifier, trained with cross-entropy. Features are not scaled:
    standardise them first if their units differ.

    Parameters
    ----------
    class_weight : "balanced" or mapping from class to weight, default=None
        Weight of the rows of each class; "balanced" gives all classes the same total weight.
    {parameters}

    Attributes
    ----------
    classes_ : ndarray
        The class labels.
    {attributes}

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ConcreteClassifier(k=2, random_state=0).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.9
    True
    >>> model.predict_measured(model.transform(X[:3]))
    array([0, 0, 0])
    """

    class_weight: Any = None

    _auto_loss = "cross_entropy"
    _saved: ClassVar[dict[str, str]] = SupervisedEstimator._saved | {"classes_": "labels"}

    @property
    def _normalizes_classes(self) -> bool:
        config = TrainingConfig(k=1, decoder=self._auto_decoder)
        if not _is_auto(self.decoder):
            config = TrainingConfig(k=1, decoder=self.decoder)
        network = not config.linear and not callable(self.decoder)
        return network and _is_auto(self.norm) and _is_auto(self.loss) and self.batch_size > 1

    def _loss(self) -> Loss:
        if self._normalizes_classes:
            return make_loss("cross_entropy", smoothing=CLASS_SMOOTHING)
        return super()._loss()

    @collective
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Choose features of X and fit the classifier.

        Parameters
        ----------
        X : array, sparse matrix, table, path or source of shape (n, n_features)
            Training rows, in any form that `fewer.data.open` accepts;
            missing values (NaN) are replaced by the mean of their column.
        y : array of shape (n,)
            One class label per row.
        sample_weight : array of shape (n,), default=None
            Non-negative row weights.
        """
        X, y = self._validated_pair(X, y)
        with translate_sklearn_errors():
            check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                f"y has one class only, {self.classes_.tolist()[0]!r}; a classifier needs at "
                "least 2"
            )
        weights = None if sample_weight is None else check_weights(sample_weight, len(codes))
        if self.class_weight is not None:
            weights = np.ones(len(codes)) if weights is None else weights
            factor = class_weights(self.class_weight, codes, self.classes_, weights)
            weights = weights * factor[codes]
        targets = torch.from_numpy(codes.astype(np.int64))
        return self._fit(X, targets, len(self.classes_), weights)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class, of complete rows; only the chosen features are read."""
        return self._predict_rows(X)

    def predict(self, X: Any) -> np.ndarray:
        """Most likely class, of complete rows; only the chosen features are read."""
        best = self.predict_proba(X).argmax(axis=1)  # raises if not fitted
        return self.classes_[best]

    def predict_proba_measured(self, measured: Any) -> np.ndarray:
        """Probability of each class from the k measured values alone."""
        return self._predict_measured(measured)

    def predict_measured(self, measured: Any) -> np.ndarray:
        """Most likely class from the k measured values alone."""
        best = self.predict_proba_measured(measured).argmax(axis=1)
        return self.classes_[best]


class ConcreteRegressor(RegressorMixin, SupervisedEstimator):
    """Choose the k features from which one or many targets are best predicted.

    Neither features nor targets are scaled: standardise them first if their units differ. The
    loss is the squared error over all targets.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = ConcreteRegressor(k=4, decoder="linear", random_state=0).fit(X[:300], y[:300])
    >>> model.score(X[300:], y[300:]) > 0.4
    True
    """

    _saved: ClassVar[dict[str, str]] = SupervisedEstimator._saved | {"_one_target": "value"}

    @collective
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Choose features of X and fit the predictor.

        Parameters
        ----------
        X : array, sparse matrix, table, path or source of shape (n, n_features)
            Training rows, in any form that `fewer.data.open` accepts;
            missing values (NaN) are replaced by the mean of their column.
        y : array of shape (n,) or (n, m)
            One target or many.
        sample_weight : array of shape (n,), default=None
            Non-negative row weights.
        """
        X, y = self._validated_pair(X, y, multi_output=True, y_numeric=True)
        self._one_target = y.ndim == 1
        with translate_sklearn_errors():
            targets = torch.from_numpy(np.array(y.reshape(len(y), -1), dtype=np.float64))
        weights = None if sample_weight is None else check_weights(sample_weight, len(y))
        return self._fit(X, targets, targets.shape[1], weights)

    def predict(self, X: Any) -> np.ndarray:
        """Targets of complete rows; only the chosen features are read."""
        return self._shaped(self._predict_rows(X))

    def predict_measured(self, measured: Any) -> np.ndarray:
        """Targets from the k measured values alone."""
        return self._shaped(self._predict_measured(measured))

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._one_target else values

    def __sklearn_tags__(self) -> Tags:
        """Declare that several targets are supported."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags
