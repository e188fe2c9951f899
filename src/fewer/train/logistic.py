r"""The best linear classifier for given features: a convex problem, solved to its minimum.

With standardised inputs x, weights W, intercepts b and n rows,

.. math:: \min_{W, b} \; -\frac1n \sum_i \log \operatorname{softmax}(W x_i + b)_{y_i}
    + \frac{\lambda}{2} \lVert W \rVert^2

The penalty keeps the weights finite where a plane separates the classes. It is the one that does
best in cross-validation, since on small data nothing matters more; where rows are many it is a
token one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn

from fewer.data import Moments, Source, read_blocks
from fewer.data.moments import rows_on
from fewer.validation import split_rows

__all__ = ["fit_classifier", "fits"]

# penalties that are tried, as multiples of 1 / rows, so that 1 is a normal prior on each weight
PENALTIES = (100.0, 10.0, 1.0, 0.1, 0.01)
TOKEN = PENALTIES[-1]
PLENTY = 100  # rows a weight: with more, the penalty makes no difference
FOLDS, FOLDS_LARGE = 5, 0.2
LARGE = 5_000_000  # rows times weights: beyond, one split has to do
RESIDENT_BYTES = 2 * 2**30
ROUGH, FINE = 1e-4, 1e-7  # largest entry of the gradient at the end
STEPS = 1000
SEED = 0  # of the folds: the problem itself has no luck


def fits(source: Source, k: int) -> bool:
    """Whether k columns of all rows fit into memory."""
    limit = source.memory_limit
    room = RESIDENT_BYTES if limit is None else min(RESIDENT_BYTES, limit // 2)
    return 8 * source.shape[0] * k <= room


def fit_classifier(
    source: Source,
    columns: np.ndarray,
    stats: Moments,
    codes: Tensor,
    classes: int,
    *,
    ridge: float = 0.0,
    groups: NDArray | None = None,
    device: torch.device | None = None,
) -> nn.Linear:
    """Linear map from these columns, in their own units, to the logits of the classes.

    Parameters
    ----------
    source : Source
        The rows; missing inputs take their column's mean.
    columns : ndarray of int
        Which columns to read.
    stats : Moments
        Of the rows.
    codes : Tensor of int64 (n)
        The class of each row, from 0.
    classes : int
        Number of classes.
    ridge : float, default=0.0
        Penalty on squared weights of standardised inputs; 0 lets cross-validation choose.
    groups : array of length n, default=None
        Rows with the same label stay together in the cross-validation.
    device : torch.device, default=None
        Where to compute; it must have float64.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from fewer.data import moments
    >>> from fewer.data.source import array_source
    >>> X, y = load_iris(return_X_y=True)
    >>> source = array_source(X)
    >>> line = fit_classifier(source, np.array([2, 3]), moments(source), torch.tensor(y), 3)
    >>> logits = line(torch.tensor(X[:, [2, 3]]))
    >>> round(nn.functional.cross_entropy(logits, torch.tensor(y)).item(), 2)
    0.07
    """
    center = torch.from_numpy(stats.mean[columns])
    spread = torch.from_numpy(np.sqrt(stats.variance[columns]))
    spread = torch.where(spread > 0, spread, 1.0)
    rows = _Rows(
        (_read(source, columns, device) - center.to(device)).nan_to_num_(nan=0.0)
        / spread.to(device),
        codes.to(device),
        classes,
    )
    n, weights = len(codes), len(columns) * (classes - 1)
    penalty = ridge or _chosen(rows, n, weights, groups) / n
    W, b = _solved(rows, penalty, None, FINE)
    linear = nn.utils.skip_init(nn.Linear, len(columns), classes, dtype=torch.float64)
    with torch.no_grad():
        weight = W.T.cpu() / spread
        linear.weight.copy_(weight)
        linear.bias.copy_(b.cpu() - weight @ center)
    return linear


@dataclass(frozen=True, eq=False)
class _Rows:
    """Standardised inputs and classes of some rows."""

    x: Tensor  # n x k
    codes: Tensor
    classes: int

    def some(self, index: NDArray[np.int64]) -> "_Rows":
        at = torch.from_numpy(index).to(self.x.device)
        return _Rows(self.x[at], self.codes[at], self.classes)

    def loss(self, W: Tensor, b: Tensor) -> float:
        return float(nn.functional.cross_entropy(self.x @ W + b, self.codes))

    def slope(self, W: Tensor, b: Tensor) -> tuple[float, Tensor, Tensor]:
        """Mean loss and its gradient."""
        logs = torch.log_softmax(self.x @ W + b, dim=1)
        value = float(nn.functional.nll_loss(logs, self.codes))
        gap = logs.exp_()
        gap[torch.arange(len(gap), device=gap.device), self.codes] -= 1
        gap /= len(gap)
        return value, self.x.T @ gap, gap.sum(0)


def _read(source: Source, columns: np.ndarray, device: torch.device | None) -> Tensor:
    """These columns of all rows, on the device."""
    chosen = torch.as_tensor(columns)
    there = device is not None and device.type == "cuda"
    found = torch.empty(source.shape[0], len(columns), dtype=torch.float64, device=device)
    for rows, x in rows_on(source, found.device) if there else read_blocks(source):
        found[rows] = x[:, chosen.to(x.device)].to(found.device)
    return found


def _chosen(rows: _Rows, n: int, weights: int, groups: NDArray | None) -> float:
    """The penalty with the least loss on rows left out, as a multiple of 1 / rows."""
    if n >= PLENTY * weights or n < FOLDS:
        return TOKEN if n >= FOLDS else 1.0
    share = FOLDS_LARGE if n * weights > LARGE else FOLDS
    losses = np.zeros(len(PENALTIES))
    splits = split_rows(n, share, SEED, groups)
    for fold in range(len(splits)):
        held = splits.held_rows(fold)
        train = rows.some(splits.train_rows(fold))
        out = rows.some(held)
        start = None
        for at, penalty in enumerate(PENALTIES):  # each starts where the one before it ended
            start = _solved(train, penalty / len(train.codes), start, ROUGH)
            losses[at] += out.loss(*start) * len(held)
    return PENALTIES[int(losses.argmin())]


def _solved(
    rows: _Rows, penalty: float, start: Sequence[Tensor] | None, least: float
) -> tuple[Tensor, Tensor]:
    """Weights (k x classes) and intercepts at the minimum, by L-BFGS."""
    k, m, device = rows.x.shape[1], rows.classes, rows.x.device
    if start is None:
        counts = torch.bincount(rows.codes, minlength=m).double()
        log_shares = (counts + 1).log()
        start = torch.zeros(k, m, dtype=torch.float64), log_shares - log_shares.mean()

    def parts(flat: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
        both = torch.from_numpy(flat).to(device)
        return both[: k * m].reshape(k, m), both[k * m :]

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        W, b = parts(flat)
        value, to_W, to_b = rows.slope(W, b)
        value += penalty / 2 * float(W.square().sum())
        gradient = torch.cat([(to_W + penalty * W).flatten(), to_b])
        return value, gradient.cpu().numpy()

    first = torch.cat([start[0].flatten().cpu(), start[1].cpu()]).numpy()
    # memory of 20 steps: with correlated features, 10 take half as many steps again
    options = {"maxiter": STEPS, "maxfun": 2 * STEPS, "gtol": least, "ftol": 0.0, "maxcor": 20}
    found = minimize(objective, first, jac=True, method="L-BFGS-B", options=options)
    return parts(found.x)
