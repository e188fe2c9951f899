"""Reconstruction from k numbers computed from all features: bounds for panels of k features."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from fewer._checks import check_number, check_whole
from fewer._threads import entry_point
from fewer.constraints import check_k
from fewer.data import Moments, RowView, Source
from fewer.data.factored import Matrix
from fewer.data.moments import summarize
from fewer.estimators.selector import RowEstimator
from fewer.nn import MeasuredDecoder, build_decoder
from fewer.nn.decoder import hidden_widths, linear_layer
from fewer.reconstructor import Reconstructor
from fewer.search.eigen import largest_eigenvectors, leading_eigenvectors
from fewer.train.device import pick_device, seeded
from fewer.train.optimize import Adam, KeepBest

__all__ = ["AutoencoderBound", "PCABound"]

ENOUGH = 20  # rows below which none are held out


@dataclass(eq=False, repr=False)
class Bound(RowEstimator):
    """Base of the bounds, which reconstruct rows but choose no features (no ``transform``)."""

    k: int = 10

    @entry_point
    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from the rows of X.

        Parameters
        ----------
        X : array, sparse matrix, table, path or source of shape (n, n_features)
            Rows to learn from; as input, NaN counts as its column's mean.
        y : ignored
        """
        X = self._validated(X, reset=True)
        self._check_options(X.shape[1])
        source, stats = self._opened(X)
        net, scale = self._learn(source, stats, self._rng())
        mean = torch.from_numpy(stats.mean)
        self.autoencoder_ = MeasuredDecoder(
            net.double(),
            fill=mean,
            center=mean,
            scale=torch.full_like(mean, scale),
            out_center=mean,
            out_scale=torch.tensor(scale, dtype=torch.float64),
        ).eval()
        return self

    def _check_options(self, d: int) -> None:
        check_k(self.k, d)

    @abstractmethod
    def _learn(
        self, source: Source, stats: Moments, rng: np.random.RandomState
    ) -> tuple[nn.Module, float]:
        """A network for rows less their mean, divided by a scale; and that scale."""

    def _reconstructor(self) -> Reconstructor:
        self._check_fitted("autoencoder_")
        d = self.n_features_in_
        return Reconstructor(np.arange(d), self.autoencoder_, d, self._names())


class PCABound(Bound):
    """Bound of every linear panel: reconstruct rows from their k leading principal components.

    Parameters
    ----------
    k : int, default=10
        Number of components.

    Attributes
    ----------
    components_ : ndarray of shape (k, n_features)
        Orthonormal directions, the one of largest variance first.
    eigenvalues_ : ndarray of shape (k,)
        The variance along each.
    residual_ : float
        Sum over all features of the variance left unexplained on the training rows: the sum of
        all other eigenvalues. No k features leave less to a linear decoder.
    autoencoder_ : fewer.nn.MeasuredDecoder
        Whole rows in, whole rows out.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X = load_iris().data
    >>> bound = PCABound(k=2).fit(X)
    >>> round(bound.residual_, 3), round(bound.score(X), 3)
    (0.101, 0.978)
    """

    def _learn(
        self, source: Source, stats: Moments, rng: np.random.RandomState
    ) -> tuple[nn.Module, float]:
        C = summarize(source).matrix
        self.eigenvalues_, vectors = principal_axes(C, self.k)
        self.components_ = vectors.T
        self.residual_ = max(0.0, float(C.trace() - self.eigenvalues_.sum()))
        return projection(self.components_), 1.0


def principal_axes(C: Matrix, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues of a covariance, descending, and their vectors (d x count)."""
    if isinstance(C, Tensor):
        return largest_eigenvectors(C.numpy(), count)
    vectors = leading_eigenvectors(C, count)
    return (vectors * (C @ vectors)).sum(0).numpy(), vectors.numpy()


def projection(components: np.ndarray) -> nn.Sequential:
    """Linear encoder to the components and linear decoder back, both d x k."""
    weight = torch.from_numpy(np.ascontiguousarray(components, dtype=np.float64))
    return nn.Sequential(linear_layer(weight), linear_layer(weight.T))


class PrincipalAutoencoder(nn.Module):
    """An autoencoder that starts as principal component analysis.

    Encoder and decoder are each a linear map plus a network, whose last layer starts at 0.
    """

    def __init__(self, components: np.ndarray, hidden: Sequence[int]) -> None:
        super().__init__()
        k, d = components.shape
        self.encoder, self.decoder = projection(components).float()
        self.bend_in = build_decoder(tuple(reversed(hidden)), d, k)
        self.bend_out = build_decoder(tuple(hidden), k, d)
        for network in (self.bend_in, self.bend_out):
            last = network[-1] if isinstance(network, nn.Sequential) else network
            for parameter in last.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruct n x d rows."""
        code = self.encoder(x) + self.bend_in(x)
        return self.decoder(code) + self.bend_out(code)


@dataclass(eq=False, repr=False, kw_only=True)
class AutoencoderBound(Bound):
    """Bound of panels with a non-linear decoder: an autoencoder with a bottleneck of k numbers.

    It starts as principal component analysis and keeps the state with the lowest error on
    held-out rows, so it is never worse than `PCABound` there. It estimates the bound, but does
    not prove it.

    Parameters
    ----------
    k : int, default=10
        Width of the bottleneck.
    hidden : int or sequence of int, default=None
        Hidden widths of the decoder, mirrored in the encoder; None is one layer of 3k / 2, as in
        the paper on concrete autoencoders. () is linear.
    epochs : int, default=100
        Maximum number of passes over the rows; the learning rate falls to 0 along half a cosine.
    batch_size : int, default=256
        Rows in a gradient step.
    learning_rate : float, default=0.003
        Adam's, at the start.
    validation_fraction : float, default=0.1
        Fraction of rows held out to choose the best state; none with fewer than 20 rows.
    patience : int, default=30
        Stop after this many epochs without a lower held-out error.
    {device}
    random_state : int, RandomState or None, default=None
        Seed.

    Attributes
    ----------
    autoencoder_ : fewer.nn.MeasuredDecoder
        Whole rows in, whole rows out.
    history_ : list of dict
        Mean squared error on held-out rows per epoch, starting with epoch 0.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data
    >>> bound = AutoencoderBound(k=5, epochs=5, random_state=0).fit(X[:1400])
    >>> bound.reconstruct(X[1400:]).shape
    (397, 64)
    """

    hidden: int | Sequence[int] | None = None
    epochs: int = 100
    batch_size: int = 256
    learning_rate: float = 3e-3
    validation_fraction: float = 0.1
    patience: int = 30
    device: str = "auto"
    random_state: Any = None

    def _check_options(self, d: int) -> None:
        super()._check_options(d)
        for name in ("epochs", "batch_size", "patience"):
            check_whole(name, getattr(self, name))
        check_number("learning_rate", self.learning_rate, above=0)
        check_number("validation_fraction", self.validation_fraction, most=0.9)

    def _learn(
        self, source: Source, stats: Moments, rng: np.random.RandomState
    ) -> tuple[nn.Module, float]:
        device = pick_device(self.device)
        hidden = hidden_widths(3 * self.k // 2 if self.hidden is None else self.hidden)
        n, seed = source.shape[0], int(rng.randint(2**31 - 1))
        out = n >= ENOUGH and self.validation_fraction > 0
        held = fitted = np.arange(n)
        if out:
            count = max(1, min(round(self.validation_fraction * n), n - 1))
            held = np.sort(np.random.default_rng(seed).permutation(n)[:count])
            fitted = np.setdiff1d(fitted, held)
        part = RowView(source, fitted)
        components = principal_axes(summarize(part).matrix, self.k)[1].T
        with seeded(seed, device) as generator:
            net = PrincipalAutoencoder(components, hidden).to(device)
            train, valid = (self._rows(source, index, stats).to(device) for index in (fitted, held))
            self.history_ = self._train(net, train, valid, generator)
        for row in self.history_:
            row["val_loss"] *= stats.scale**2  # in the units of X
        return net.cpu(), stats.scale

    @staticmethod
    def _rows(source: Source, index: np.ndarray, stats: Moments) -> Tensor:
        rows = source.rows(index, torch.float64)
        return rows.sub_(torch.from_numpy(stats.mean)).div_(stats.scale).float()

    def _train(
        self, net: nn.Module, train: Tensor, valid: Tensor, generator: torch.Generator
    ) -> list[dict[str, Any]]:
        optimizer = Adam((net.parameters(), self.learning_rate))
        best = KeepBest(self.patience)
        history: list[dict[str, Any]] = []
        for epoch in range(self.epochs + 1):
            if epoch:  # the start is a candidate too
                share = (epoch - 1) / self.epochs
                optimizer.rates[0] = self.learning_rate * (1 + math.cos(math.pi * share)) / 2
                for rows in torch.randperm(len(train), generator=generator).split(self.batch_size):
                    optimizer.zero_grad()
                    squared_error(net, train[rows]).backward()
                    optimizer.step()
            with torch.no_grad():
                error = squared_error(net, valid).item()
            history.append({"epoch": epoch, "val_loss": error})
            if best.seen(error, net):
                break
        best.restore(net)
        return history


def squared_error(net: nn.Module, x: Tensor) -> Tensor:
    """Mean squared error over the observed entries; the network sees 0 for the others."""
    seen = ~torch.isnan(x)
    filled = torch.where(seen, x, 0.0)
    error = torch.where(seen, net(filled) - filled, 0.0)
    return error.square().sum() / seen.sum().clamp_min(1)
