r"""Decoders of expected counts: Poisson and negative-binomial regression of every gene.

With x the measured values of a cell (log(1 + counts per target_sum)), t its total and y_g the
counts of gene g,

.. math:: E[y_g] = \mu_g = \frac{t}{\mathrm{target\_sum}} \exp(b_g + w_g \cdot x), \qquad
    \operatorname{Var}[y_g] = \mu_g + \alpha_g \mu_g^2,

with dispersion 0 for Poisson. Since log(1 + rate) is the softplus of the log rate, the decoder is a
linear map with that link, in the same units as a linear panel.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer._checks import check_choice
from fewer.data import RowView, Source, read_blocks
from fewer.data.counts import NormalizedCounts
from fewer.errors import InputError
from fewer.nn import MeasuredDecoder
from fewer.nn.decoder import linear_layer
from fewer.panel import Panel

__all__ = ["with_count_decoder"]

LIKELIHOODS = ("poisson", "nb")
MOST_NUMBERS = 10**8  # counts that are held in memory: of more, some cells are fitted
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)  # on squared weights of whitened inputs
STEPS = 60  # of L-BFGS
MOST_DISPERSION = 100.0


def with_count_decoder(panel: Panel, source: Source, likelihood: str, seed: int) -> Panel:
    """The panel with a decoder of expected counts, and its scores of held-out cells.

    A fifth of the cells is held out; a quarter of the others chooses the penalty; the final decoder
    is fitted on all of them.
    """
    check_choice("likelihood", likelihood, LIKELIHOODS)
    if not isinstance(source, NormalizedCounts):
        raise InputError(f"likelihood={likelihood!r} needs raw counts; name their layer=")
    n, d = source.shape
    draw = np.random.default_rng([seed, 3])
    some = np.sort(draw.permutation(n)[: max(100, MOST_NUMBERS // d)])
    x, y, totals = _read(source, some, panel.indices)
    rates = totals / source.target_sum
    part = draw.permutation(len(some))
    held, tuning, rest = np.split(part, [len(part) // 5, 2 * len(part) // 5])
    scores = {}
    for penalty in PENALTIES:
        model = _Model.fit(x[rest], y[rest], rates[rest], likelihood, penalty)
        scores[penalty] = model.deviance(x[tuning], y[tuning], rates[tuning])[0]
    penalty = max(scores, key=lambda one: scores[one])
    known = np.r_[tuning, rest]
    model = _Model.fit(x[known], y[known], rates[known], likelihood, penalty)
    explained, mean = model.deviance(x[held], y[held], rates[held])
    others = np.setdiff1d(np.arange(d), panel.indices)
    per_total = mean[:, others] / rates[held, None], y[held][:, others] / rates[held, None]
    found = {
        "likelihood": likelihood,
        "penalty": penalty,
        "deviance_explained": explained,
        "correlation": _correlation(*per_total),  # of genes that are not on the panel
        "cells": len(some),
    }
    model = _Model.fit(x, y, rates, likelihood, penalty)
    old = panel.reconstructor
    net = linear_layer(model.weight, model.bias)
    decoder = MeasuredDecoder(net, fill=old.decoder.fill.double(), link="softplus")
    made = Panel(
        replace(old, decoder=decoder, quantiles=None, difficulty=None),
        held_out=panel.held_out,
        leaderboard=panel.leaderboard,
        settings=panel.settings | {"counts": found},
        target=panel.target,
        evidence=panel.evidence,
        estimates=panel.estimates,
        fold_panels=panel.fold_panels,
    )
    if likelihood == "nb":
        made.settings["counts"]["dispersion"] = model.dispersion.tolist()
    return made


def _read(
    source: NormalizedCounts, some: NDArray[np.int64], columns: NDArray[np.int64]
) -> tuple[Tensor, Tensor, Tensor]:
    """Measured values, all counts, and totals of some cells."""
    counts = torch.empty(len(some), source.shape[1], dtype=torch.float32)
    for rows, block in read_blocks(RowView(source.source, some)):
        counts[rows] = block.float()
    x = torch.empty(len(some), len(columns), dtype=torch.float64)
    for rows, block in read_blocks(RowView(source, some)):
        x[rows] = block[:, torch.from_numpy(columns)]
    totals = counts.double().nansum(1)
    if source.totals is not None:
        totals = torch.from_numpy(source.totals[some])
    return x.nan_to_num_(), counts.nan_to_num_(), totals.clamp_min(1e-6)


class _Model:
    """Log rates of all genes, linear in the measured values."""

    def __init__(self, weight: Tensor, bias: Tensor, dispersion: Tensor) -> None:
        self.weight, self.bias, self.dispersion = weight, bias, dispersion

    @classmethod
    def fit(cls, x: Tensor, y: Tensor, rates: Tensor, likelihood: str, penalty: float) -> "_Model":
        """Maximum likelihood with a penalty, on whitened inputs, all genes at once."""
        center = x.mean(0)
        gram = torch.cov(x.T, correction=0).reshape(x.shape[1], x.shape[1])
        level = 1e-6 + 1e-3 * gram.diagonal().mean()
        root = torch.linalg.cholesky(gram + level * torch.eye(len(gram), dtype=torch.float64))
        z = torch.linalg.solve_triangular(root, (x - center).T, upper=False).T
        dispersion = torch.zeros(y.shape[1], dtype=torch.float64)
        start = ((y.double().sum(0) + 0.1) / (rates.sum() + 1e-9)).log()
        zero = torch.zeros(z.shape[1], y.shape[1])
        W, b = _minimised(z, y, rates, dispersion, penalty, zero, start)
        if likelihood == "nb":
            mean = (z @ W + b).exp() * rates[:, None]
            extra = ((y - mean).square() - mean).sum(0) / mean.square().sum(0).clamp_min(1e-12)
            dispersion = extra.clamp(0.0, MOST_DISPERSION)
            W, b = _minimised(z, y, rates, dispersion, penalty, W, b)
        weight = torch.linalg.solve_triangular(root.T, W, upper=True).T
        return cls(weight, b - weight @ center, dispersion)

    def deviance(self, x: Tensor, y: Tensor, rates: Tensor) -> tuple[float, Tensor]:
        """Explained fraction of the deviance from each gene's mean rate, and expected counts."""
        mean = (x @ self.weight.T + self.bias).exp() * rates[:, None]
        usual = (y.double().sum(0) / rates.sum()) * rates[:, None]
        left, total = (_deviance(y.double(), one, self.dispersion) for one in (mean, usual))
        return float(1 - left / total), mean


def _minimised(
    z: Tensor, y: Tensor, rates: Tensor, dispersion: Tensor, penalty: float, W: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    W, b = W.double().clone().requires_grad_(), b.double().clone().requires_grad_()
    offset = rates.log()[:, None]
    y = y.double()
    # the curvature of a gene is about its mean count, so steps are scaled by its root
    scale = (y.mean(0) + 0.01).rsqrt()
    V, a = (W.detach() / scale).requires_grad_(), (b.detach() / scale).requires_grad_()
    solver = torch.optim.LBFGS([V, a], max_iter=STEPS, line_search_fn="strong_wolfe")

    def closure() -> Any:
        solver.zero_grad()
        w = V * scale
        eta = (z @ w + a * scale + offset).clamp_max(30.0)
        rate = eta.exp()
        poisson = rate - y * eta
        size = dispersion * rate
        wide = (y + 1 / dispersion.clamp_min(1e-8)) * torch.log1p(size) - y * eta
        loss = torch.where(dispersion > 1e-8, wide, poisson).sum(0).div(len(z)).sum()
        loss = loss + 0.5 * penalty * (w.square().sum(0) * y.mean(0)).sum()
        loss.backward()
        return loss

    solver.step(closure)
    return (V * scale).detach(), (a * scale).detach()


def _deviance(y: Tensor, mean: Tensor, dispersion: Tensor) -> float:
    """Of Poisson or negative-binomial counts, summed over cells and genes."""
    mean = mean.clamp_min(1e-12)
    log = torch.where(y > 0, y * (y.clamp_min(1e-12) / mean).log(), 0.0)
    size = dispersion.clamp_min(1e-8)
    ratio = ((1 + size * y) / (1 + size * mean)).log()
    wide = log - (y + 1 / size) * ratio
    return 2 * float(torch.where(dispersion > 1e-8, wide, log - (y - mean)).sum())


def _correlation(a: Tensor, b: Tensor) -> float:
    """Median over genes of the correlation over cells, of genes that vary."""
    a, b = a.double() - a.double().mean(0), b.double() - b.double().mean(0)
    spread = (a.square().sum(0) * b.square().sum(0)).sqrt()
    return float(((a * b).sum(0) / spread.clamp_min(1e-12))[spread > 0].median())
