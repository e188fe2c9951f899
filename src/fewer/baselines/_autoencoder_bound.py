"""What k numbers computed from all features can hold for a non-linear decoder."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fewer._checks import check_number, check_whole
from fewer.baselines._bound import Bound
from fewer.baselines._eigen import largest_eigenvectors
from fewer.baselines._pca_bound import projection
from fewer.data import Moments, RowView, Source, covariance
from fewer.errors import InputError
from fewer.nn import build_decoder
from fewer.nn.decoder import hidden_widths
from fewer.train.adam import Adam
from fewer.train.device import pick_device, seeded
from fewer.train.folds import split_rows
from fewer.train.stopping import KeepBest

__all__ = ["AutoencoderBound", "PrincipalAutoencoder"]

ENOUGH = 20  # rows below which none are held out


class PrincipalAutoencoder(nn.Module):
    """An autoencoder that starts as principal component analysis.

    Encoder and decoder are each a linear map plus a network, whose last layer starts at 0.

    Parameters
    ----------
    components : ndarray of shape (k, d)
        The linear maps at the start.
    hidden : sequence of int
        Widths of the decoder's hidden layers; the encoder has them in reverse.

    Examples
    --------
    >>> net = PrincipalAutoencoder(np.array([[1.0, 0.0]]), (5,))
    >>> net(torch.tensor([[3.0, 4.0]])).detach()
    tensor([[3., 0.]])
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
        """Bring back n x d rows."""
        code = self.encoder(x) + self.bend_in(x)
        return self.decoder(code) + self.bend_out(code)


class AutoencoderBound(Bound):
    """Bound of panels with a non-linear decoder: an autoencoder with a bottleneck of k numbers.

    It starts as principal component analysis and keeps the state with the lowest error on
    held-out rows, so it is never behind `PCABound` there. As any trained network it is an
    estimate of the bound, not a proof.

    Parameters
    ----------
    k : int, default=10
        Width of the bottleneck.
    hidden : int or sequence of int, default=None
        Hidden widths of the decoder, mirrored in the encoder; None is one layer of 3k / 2, as in
        the paper on concrete autoencoders. () is linear.
    epochs : int, default=100
        Most passes over the rows; the learning rate falls to 0 along half a cosine.
    batch_size : int, default=256
        Rows in a gradient step.
    learning_rate : float, default=0.003
        Adam's, at the start.
    validation_fraction : float, default=0.1
        Share of rows held out to choose the best state; none are with fewer than 20 rows.
    patience : int, default=30
        Stop after so many epochs without a better held-out error.
    device : str, default="auto"
        "auto" (CUDA, MPS or CPU), or any torch device.
    random_state : int, RandomState or None, default=None
        Fixes the result.

    Attributes
    ----------
    autoencoder_ : fewer.nn.MeasuredDecoder
        Whole rows in, whole rows out.
    history_ : list of dict
        A row for each epoch, the start being epoch 0: mean squared error on held-out rows.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data
    >>> bound = AutoencoderBound(k=5, epochs=5, random_state=0).fit(X[:1400])
    >>> bound.reconstruct(X[1400:]).shape
    (397, 64)
    """

    history_: list[dict[str, Any]]

    def __init__(
        self,
        k: int = 10,
        *,
        hidden: int | Sequence[int] | None = None,
        epochs: int = 100,
        batch_size: int = 256,
        learning_rate: float = 3e-3,
        validation_fraction: float = 0.1,
        patience: int = 30,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.k = k
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.device = device
        self.random_state = random_state

    def _check_options(self, d: int) -> None:
        super()._check_options(d)
        for name in ("epochs", "batch_size", "patience"):
            check_whole(name, getattr(self, name))
        check_number("learning_rate", self.learning_rate, above=0)
        check_number("validation_fraction", self.validation_fraction)
        if self.validation_fraction > 0.9:
            raise InputError(
                f"validation_fraction={self.validation_fraction!r} must be at most 0.9"
            )

    def _learn(
        self, source: Source, stats: Moments, rng: np.random.RandomState
    ) -> tuple[nn.Module, float]:
        device = pick_device(self.device)
        hidden = hidden_widths(3 * self.k // 2 if self.hidden is None else self.hidden)
        n, seed = source.shape[0], int(rng.randint(2**31 - 1))
        out = n >= ENOUGH and self.validation_fraction > 0
        held = split_rows(n, float(self.validation_fraction), seed)[0] if out else np.arange(n)
        kept = np.setdiff1d(np.arange(n), held) if out else held
        part = RowView(source, kept)
        components = largest_eigenvectors(covariance(part).matrix.numpy(), self.k)[1].T
        with seeded(seed, device) as generator:
            net = PrincipalAutoencoder(components, hidden).to(device)
            train, valid = (self._rows(source, index, stats).to(device) for index in (kept, held))
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
    """Mean squared error over the observed entries; the network sees 0 for the others.

    Examples
    --------
    >>> squared_error(nn.Identity(), torch.tensor([[1.0, float("nan")]]))
    tensor(0.)
    """
    seen = ~torch.isnan(x)
    filled = torch.where(seen, x, 0.0)
    error = torch.where(seen, net(filled) - filled, 0.0)
    return error.square().sum() / seen.sum().clamp_min(1)
