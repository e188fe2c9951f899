r"""Decoders of expected counts: Poisson and negative-binomial regression of every gene.

With x the measured values of a cell (log(1 + counts per target_sum)), t its total and y_g the
counts of gene g,

.. math:: E[y_g] = \mu_g = \frac{t}{\mathrm{target\_sum}} \exp(b_g + w_g \cdot x), \qquad
    \operatorname{Var}[y_g] = \mu_g + \alpha_g \mu_g^2,

with dispersion 0 for Poisson. Since log(1 + rate) is the softplus of the log rate, the decoder is a
linear map with that link, in the same units as a linear panel.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer._checks import check_choice
from fewer.data import RowView, Source, read_blocks
from fewer.data.counts import NormalizedCounts
from fewer.errors import InputError
from fewer.estimate import Score, sums_over_rows
from fewer.evidence import Evidence
from fewer.nn import MeasuredDecoder
from fewer.nn.decoder import linear_layer
from fewer.panel import Panel
from fewer.selection.record import GIVEN_ROWS
from fewer.validation import split_rows

__all__ = ["with_count_decoder"]

LIKELIHOODS = ("poisson", "nb")
MOST_NUMBERS = 10**8  # counts that are held in memory: of more, some cells are fitted
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)  # on squared weights of whitened inputs
HELD_OUT = 0.2  # of the cells, where the genes are the same for every fold
STEPS = 60  # of L-BFGS
MOST_DISPERSION = 100.0


def with_count_decoder(
    panel: Panel,
    source: Source,
    likelihood: str,
    seed: int,
    *,
    validation: Any = "auto",
    batches: NDArray | None = None,
) -> Panel:
    """The panel with a decoder of expected counts, and its scores of held-out cells.

    They are those of the first fold, with the genes that were chosen without it; a quarter of its
    training cells chooses the penalty; the final decoder is fitted on all cells.
    """
    check_choice("likelihood", likelihood, LIKELIHOODS)
    if not isinstance(source, NormalizedCounts):
        raise InputError(f"likelihood={likelihood!r} needs raw counts; name their layer=")
    n, d = source.shape
    draw = np.random.default_rng([seed, 3])
    some = np.sort(draw.permutation(n)[: max(100, MOST_NUMBERS // d)])
    out, columns, which = _first_fold(panel, n, seed, validation, batches)
    some = np.union1d(some, np.flatnonzero(out)[:1])
    y, totals = _counts(source, some)
    rates = totals / source.target_sum
    x = _measured(source, some, columns)
    held, part = np.flatnonzero(out[some]), draw.permutation(np.flatnonzero(~out[some]))
    tuning, rest = np.split(part, [len(part) // 4])
    scores = {}
    for penalty in PENALTIES:
        model = _Model.fit(x[rest], y[rest], rates[rest], likelihood, penalty)
        scores[penalty] = model.deviance(x[tuning], y[tuning], rates[tuning])[0]
    penalty = max(scores, key=lambda one: scores[one])
    known = np.r_[tuning, rest]
    model = _Model.fit(x[known], y[known], rates[known], likelihood, penalty)
    explained, mean = model.deviance(x[held], y[held], rates[held])
    others = np.setdiff1d(np.arange(d), columns)
    per_total = mean[:, others] / rates[held, None], y[held][:, others] / rates[held, None]
    found = {
        "likelihood": likelihood,
        "penalty": penalty,
        "deviance_explained": explained,
        "correlation": _correlation(*per_total),  # of genes that are not on the panel
        "cells": len(some),
        "linear_held_out": float(panel.held_out),  # of least squares on logarithms
    }
    score, variance = _held_out(model.decoder(x[known].mean(0), columns), source, some, held)
    x = _measured(source, some, panel.indices)
    model = _Model.fit(x, y, rates, likelihood, penalty)
    old = panel.reconstructor
    decoder = model.decoder(old.decoder.fill.double(), panel.indices)
    protocol = f"{panel.settings['protocol']}; scored is the decoder of counts{which}"
    made = Panel(
        replace(old, decoder=decoder, quantiles=None, difficulty=None),
        held_out=score,
        leaderboard=panel.leaderboard,
        settings=panel.settings | {"counts": found, "protocol": protocol},
        target=panel.target,
        evidence=partial(_evidence, partial(getattr, panel, "evidence"), score, variance),
        fold_panels=panel.fold_panels,
    )
    made.settings.pop("tails", None)  # of the errors of the linear decoder
    if likelihood == "nb":
        made.settings["counts"]["dispersion"] = model.dispersion.tolist()
    return made


def _first_fold(
    panel: Panel, n: int, seed: int, validation: Any, batches: NDArray | None
) -> tuple[NDArray[np.bool_], NDArray[np.int64], str]:
    """Which cells are held out, the genes chosen without them, and which fold that is, in words."""
    if panel.fold_panels is None or "stages" in panel.settings:  # all folds have the same genes
        splits = split_rows(n, HELD_OUT, seed)
        columns, which = panel.indices, ", on a fifth of all cells"
    else:
        asked = panel.settings["validation"]
        asked = np.asarray(validation) if asked == GIVEN_ROWS else asked
        splits = split_rows(n, asked, seed, batches)
        columns = np.sort(panel.fold_panels[0])
        which = " on the first fold" if len(splits) > 1 else ""
    out = np.ones(n, dtype=bool)
    out[splits.train_rows(0)] = False
    return out, columns, which


def _held_out(
    decoder: MeasuredDecoder,
    source: NormalizedCounts,
    some: NDArray[np.int64],
    held: NDArray[np.int64],
) -> tuple[Score, NDArray[np.float64]]:
    """Explained variance of the logarithms of held-out cells, and the variance of each gene."""
    assert decoder.known is not None
    sums = sums_over_rows(decoder, RowView(source, some[held]), decoder.known.numpy())
    score = sums.score()
    error, ratio = score.standard_error, len(held) / (len(some) - len(held))
    error = None if error is None else error * (1 + ratio) ** 0.5  # see `shared_rows`
    found = Score(
        float(score), score.errors, error, score.degrees, score.sampling_error, score.units
    )
    return found, sums.squares / sums.count


def _evidence(
    make: Callable[[], Evidence], score: Score, variance: NDArray[np.float64]
) -> Evidence:
    """Evidence for the genes, without what is that of a linear decoder of them alone."""
    return replace(
        make().without_rows(),
        errors=score.errors,
        variance=variance,
        explained={},
        standard_errors=None,
        size=None,
        significance=None,
        coverage=None,
    )


def _measured(
    source: NormalizedCounts, some: NDArray[np.int64], columns: NDArray[np.int64]
) -> Tensor:
    """Measured values of some cells."""
    x = torch.empty(len(some), len(columns), dtype=torch.float64)
    for rows, block in read_blocks(RowView(source, some)):
        x[rows] = block[:, torch.from_numpy(columns)]
    return x.nan_to_num_()


def _counts(source: NormalizedCounts, some: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """All counts, and totals, of some cells."""
    counts = torch.empty(len(some), source.shape[1], dtype=torch.float32)
    for rows, block in read_blocks(RowView(source.source, some)):
        counts[rows] = block.float()
    totals = counts.double().nansum(1)
    if source.totals is not None:
        totals = torch.from_numpy(source.totals[some])
    return counts.nan_to_num_(), totals.clamp_min(1e-6)


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

    def decoder(self, fill: Tensor, columns: NDArray[np.int64]) -> MeasuredDecoder:
        """Of logarithms, those of the genes on the panel as measured; ``fill`` where missing."""
        net = linear_layer(self.weight, self.bias)
        known = torch.from_numpy(columns)
        return MeasuredDecoder(net, fill=fill, link="softplus", known=known).double().eval()

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
