r"""Exact linear decoders for given features: least squares and maximum likelihood.

With standardised inputs x, weights W, intercepts b and n rows, the classifier solves

.. math:: \min_{W, b} \; -\frac1n \sum_i \log \operatorname{softmax}(W x_i + b)_{y_i}
    + \frac{\lambda}{2} \lVert W \rVert^2

The penalty keeps the weights finite where the classes are separable. It is chosen by
cross-validation, or minimal where there are many rows. Other losses are solved in the same way; of
ordered classes j = 0, 1, ... the weights are j w with one vector w (adjacent-category logits).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewer.data import Moments, Source, read_blocks
from fewer.data.moments import Summary, chosen_products, rows_on
from fewer.data.source import shard_of_rank
from fewer.distributed import all_or_raise, all_reduce, shard_bounds, world_size
from fewer.nn import Loss
from fewer.nn.decoder import linear_layer
from fewer.search.objective import solve_normal
from fewer.validation import split_rows

__all__ = ["fit_likelihood", "fit_linear", "fits"]

GRAM_BYTES = 256 * 2**20

# as multiples of 1 / rows, so that 1 is a standard normal prior on each weight
PENALTIES = (100.0, 10.0, 1.0, 0.1, 0.01)
MANY_ROWS = 100  # per weight: with more, the penalty makes no difference
FOLDS, FOLDS_LARGE = 5, 0.2
LARGE = 5_000_000  # rows times weights, beyond which there is a single split
SMALL = 1_000_000  # rows times columns times outputs, which a CPU evaluates in half a millisecond
RESIDENT_BYTES = 2 * 2**30
ROUGH, FINE = 1e-4, 1e-7  # largest entry of the gradient at the end
STEPS = 1000
SEED = 0  # of the folds


def fit_linear(
    source: Source,
    columns: np.ndarray,
    stats: Moments,
    *,
    targets: Tensor | None = None,
    weights: Tensor | None = None,
    ridge: float = 0.0,
    summary: Summary | None = None,
    device: torch.device | None = None,
) -> nn.Linear:
    """Least squares from some columns to all columns (or to ``targets``), in float64.

    Minimises, for each target, the mean squared residual over its observed rows plus ``ridge``
    times the squared weights, without a penalty on the intercept. Missing inputs are replaced by
    the mean; targets with missing values are solved separately. The rows of ``targets`` may have
    ``weights``. The sums are computed on ``device``; without targets, a covariance there
    (``summary``) contains them.

    Examples
    --------
    >>> import numpy as np
    >>> from fewer.data import moments
    >>> from fewer.data.source import array_source
    >>> rows = np.random.default_rng(0).normal(size=(30, 2)) @ np.ones((2, 3))
    >>> source = array_source(rows)
    >>> decoder = fit_linear(source, np.array([0]), moments(source))
    >>> bool(np.allclose(decoder(torch.tensor(rows[:, [0]])).detach().numpy(), rows))
    True
    """
    chosen = torch.as_tensor(columns)
    center = torch.from_numpy(stats.mean)
    middle = center if targets is None else targets.double().mean(0)
    if targets is not None and weights is not None:
        return _weighted_linear(source, chosen, center, targets.double(), weights.double(), ridge)
    if targets is None and summary is not None and summary.matrix.device.type == "cuda":
        cross = summary.matrix[chosen.to(summary.matrix.device)]
        gram = cross[:, chosen.to(cross.device)]
    else:
        gram, cross = _sums(source, chosen, center, targets, middle, device)
    weight = solve_normal(gram, cross, ridge).T.cpu()
    bias = middle - weight @ center[chosen]
    if targets is None and stats.has_missing:
        partial = np.flatnonzero(stats.observed < source.shape[0])
        step = max(1, GRAM_BYTES // (8 * (len(chosen) + 1) ** 2))
        for start in range(0, len(partial), step):
            part = torch.from_numpy(partial[start : start + step])
            weight[part], bias[part] = _solve_partial(source, chosen, part, center, ridge)
    return linear_layer(weight, bias)


def _weighted_linear(
    source: Source, chosen: Tensor, center: Tensor, targets: Tensor, weights: Tensor, ridge: float
) -> nn.Linear:
    """`fit_linear` to targets whose rows have weights."""
    k, m = len(chosen), targets.shape[1]
    both = torch.zeros(k + m, k + m, dtype=torch.float64)  # of inputs and targets
    first = torch.zeros(k + m, dtype=torch.float64)
    part, own = shard_of_rank(source), slice(*shard_bounds(source.shape[0]))
    middle = targets.mean(0)  # any constant: it only keeps numbers small

    def add() -> None:
        for rows, x in read_blocks(part):
            z = (x[:, chosen] - center[chosen]).nan_to_num_(nan=0.0)
            z = torch.cat([z, targets[own][rows] - middle], dim=1)
            weighted = z * weights[own][rows][:, None]
            both.addmm_(weighted.T, z)
            first.add_(weighted.sum(0))

    all_or_raise(add)
    all_reduce(both, first)
    first /= weights.sum()
    moved = both / weights.sum() - torch.outer(first, first)
    weight = solve_normal(moved[:k, :k], moved[:k, k:], ridge).T
    bias = middle + first[k:] - weight @ (center[chosen] + first[:k])
    return linear_layer(weight, bias)


def _sums(
    source: Source,
    chosen: Tensor,
    center: Tensor,
    targets: Tensor | None,
    middle: Tensor,
    device: torch.device | None,
) -> tuple[Tensor, Tensor]:
    """Mean products of the chosen columns with each other and with the targets."""
    home = device if device is not None and device.type == "cuda" else torch.device("cpu")
    chosen, center, middle = chosen.to(home), center.to(home), middle.to(home)
    gram = torch.zeros(len(chosen), len(chosen), dtype=torch.float64, device=home)
    cross = torch.zeros(len(chosen), len(middle), dtype=torch.float64, device=home)
    n = source.shape[0]
    part = shard_of_rank(source)
    mine = None if targets is None else targets[slice(*shard_bounds(n))]

    if targets is None and source.is_sparse and world_size() == 1:
        found = chosen_products(source, chosen.cpu().numpy())
        if found is not None:
            own, both = (each.to(home) / n for each in found)
            inside = center[chosen]
            return own - torch.outer(inside, inside), both - torch.outer(inside, center)

    def add() -> None:
        for rows, x in rows_on(part, home):
            x.sub_(center).nan_to_num_(nan=0.0)
            z = x[:, chosen]
            gram.addmm_(z.T, z)
            cross.addmm_(z.T, x if mine is None else mine[rows].to(home).double() - middle)

    all_or_raise(add)
    all_reduce(gram, cross)
    return gram / n, cross / n


def _solve_partial(
    source: Source, chosen: Tensor, part: Tensor, center: Tensor, ridge: float
) -> tuple[Tensor, Tensor]:
    # every target has its own rows, hence its own Gram matrix and intercept
    m, k = len(part), len(chosen)
    grams, crosses, z_sums, t_sums, counts = (
        torch.zeros(shape, dtype=torch.float64) for shape in [(m, k, k), (m, k), (m, k), (m,), (m,)]
    )
    mine = shard_of_rank(source)

    def add() -> None:
        for _, x in read_blocks(mine):
            x.sub_(center)
            seen = (~torch.isnan(x[:, part])).double()
            x.nan_to_num_(nan=0.0)
            z, t = x[:, chosen], x[:, part]
            crosses.add_(t.T @ z)
            z_sums.add_(seen.T @ z)
            t_sums.add_(t.sum(0))
            counts.add_(seen.sum(0))
            for at in range(m):
                grams[at].addmm_((z * seen[:, at, None]).T, z)

    all_or_raise(add)
    all_reduce(grams, crosses, z_sums, t_sums, counts)
    weights = torch.zeros(m, k, dtype=torch.float64)
    means_z, means_t = z_sums / counts[:, None], t_sums / counts
    for at in range(m):
        gram = grams[at] / counts[at] - torch.outer(means_z[at], means_z[at])
        cross = crosses[at] / counts[at] - means_z[at] * means_t[at]
        weights[at] = solve_normal(gram, cross[:, None], ridge)[:, 0]
    return weights, center[part] + means_t - (weights * (center[chosen] + means_z)).sum(1)


def fits(source: Source, k: int) -> bool:
    """Whether k columns of all rows fit into memory."""
    limit = source.memory_limit
    room = RESIDENT_BYTES if limit is None else min(RESIDENT_BYTES, limit // 2)
    return 8 * source.shape[0] * k <= room


def fit_likelihood(
    source: Source,
    columns: np.ndarray,
    stats: Moments,
    targets: Tensor,
    out: int,
    loss: Loss,
    *,
    ridge: float = 0.0,
    groups: NDArray | None = None,
    weights: Tensor | None = None,
    device: torch.device | None = None,
) -> nn.Linear:
    """Linear map from these columns, in the units of the data, to what the link of a loss takes.

    That is, to the logits of classes (``targets`` are then their numbers), to log rates or to log
    hazards. Missing inputs are replaced by the mean. ``ridge`` is the penalty on squared weights of
    standardised inputs; 0 chooses it by cross-validation, in which rows with the same label in
    ``groups`` stay together. Rows may have ``weights``. ``device`` must support float64.
    """
    center = torch.from_numpy(stats.mean[columns])
    spread = torch.from_numpy(np.sqrt(stats.variance[columns]))
    spread = torch.where(spread > 0, spread, 1.0)
    home = torch.device("cpu") if device is None else device
    if source.shape[0] * len(columns) * out <= SMALL:  # a GPU takes longer to start than to compute
        home = torch.device("cpu")
    x = torch.empty(source.shape[0], len(columns), dtype=torch.float64, device=home)
    for part, block in rows_on(source, home):
        x[part] = block[:, torch.as_tensor(columns, device=home)]
    x.sub_(center.to(home)).nan_to_num_(nan=0.0).div_(spread.to(home))
    share = None if weights is None else (weights.double() / weights.sum()).to(home)
    targets = targets.to(home)
    found = []
    for own, size, take in loss.parts or ((loss, out, None),):  # several are independent
        rows = _Rows(x, targets if take is None else take(targets), size, share, own)
        free = 1 if rows.mix is not None else max(size - 1, 1) if own.link == "softmax" else size
        n = len(targets)
        penalty = ridge or _chosen_penalty(rows, n, len(columns) * free, groups) / n
        W, b = _solved(rows, penalty, None, FINE)
        found.append(((W if rows.mix is None else W @ rows.mix).T.cpu(), b.cpu()))
    weight = torch.cat([W for W, _ in found]) / spread
    return linear_layer(weight, torch.cat([b for _, b in found]) - weight @ center)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Standardised inputs and targets of some rows."""

    x: Tensor  # n x k
    targets: Tensor
    out: int
    share: Tensor | None  # of each row in the mean loss; None is the same for all
    objective: Loss

    @property
    def mix(self) -> Tensor | None:
        """From the free outputs to all: of ordered classes, one is free."""
        if self.objective.name != "ordinal":
            return None
        return torch.arange(self.out, device=self.x.device).to(self.x)[None]

    def some(self, index: NDArray[np.int64]) -> "_Rows":
        at = torch.from_numpy(index).to(self.x.device)
        share = None
        if self.share is not None:
            share = self.share[at] / self.share[at].sum().clamp_min(1e-300)
        return replace(self, x=self.x[at], targets=self.targets[at], share=share)

    def loss(self, W: Tensor, b: Tensor) -> float:
        output = self._outputs(W, b)
        if self._classes:
            return self._mean(torch.log_softmax(output, dim=1))
        return float(self.objective(output, self.targets, self._weights))

    @property
    def _classes(self) -> bool:
        """Whether the loss is the likelihood of classes, ordered or not."""
        return self.objective.name in ("cross_entropy", "ordinal")

    @property
    def _weights(self) -> Tensor | None:
        if self.share is None or self.targets.ndim == 1 or self.objective.whole is not None:
            return self.share
        return self.share[:, None].expand_as(self.targets)

    def _outputs(self, W: Tensor, b: Tensor) -> Tensor:
        mix = self.mix
        return self.x @ W + b if mix is None else (self.x @ W) @ mix + b

    def _mean(self, logs: Tensor) -> float:
        if self.share is None:
            return float(nn.functional.nll_loss(logs, self.targets))
        return -float(self.share @ logs.gather(1, self.targets[:, None])[:, 0])

    def gradient(self, W: Tensor, b: Tensor) -> tuple[float, Tensor, Tensor]:
        """Mean loss and its gradient."""
        if not self._classes:
            output = self._outputs(W, b).requires_grad_()
            with torch.enable_grad():
                found = self.objective(output, self.targets, self._weights)
            (gap,) = torch.autograd.grad(found, output)
            return float(found.detach()), self.x.T @ gap, gap.sum(0)
        logs = torch.log_softmax(self._outputs(W, b), dim=1)
        value = self._mean(logs)
        gap = logs.exp_()
        gap[torch.arange(len(gap), device=gap.device), self.targets] -= 1
        gap *= 1 / len(gap) if self.share is None else self.share[:, None]
        mix = self.mix
        return value, self.x.T @ (gap if mix is None else gap @ mix.T), gap.sum(0)

    def start(self) -> tuple[Tensor, Tensor]:
        """No weights, and intercepts that give a good constant prediction."""
        free = self.out if self.mix is None else 1
        first = torch.zeros(self.x.shape[1], free, dtype=torch.float64)
        if self._classes:
            counts = torch.bincount(self.targets, minlength=self.out).double()
            log_shares = (counts + 1).log()
            return first, (log_shares - log_shares.mean()).cpu()
        mean = torch.zeros(self.out, dtype=torch.float64)
        if self.objective.whole is None:
            mean = self.targets.double().mean(0).cpu()
            mean = mean if self.objective.link is None else self.objective.offset(mean)
        return first, mean


def _chosen_penalty(rows: _Rows, n: int, weights: int, groups: NDArray | None) -> float:
    """The penalty with the lowest held-out loss, as a multiple of 1 / rows."""
    if n >= MANY_ROWS * weights or n < FOLDS:
        return PENALTIES[-1] if n >= FOLDS else 1.0
    validation = FOLDS_LARGE if n * weights > LARGE else FOLDS
    losses = np.zeros(len(PENALTIES))
    splits = split_rows(n, validation, SEED, groups)
    for fold in range(len(splits)):
        train, out = rows.some(splits.train_rows(fold)), rows.some(splits.held_rows(fold))
        start = None
        for at, penalty in enumerate(PENALTIES):  # each starts from the solution before it
            start = _solved(train, penalty / len(train.targets), start, ROUGH)
            losses[at] += out.loss(*start) * len(out.targets)
    return PENALTIES[int(losses.argmin())]


def _solved(
    rows: _Rows, penalty: float, start: Sequence[Tensor] | None, least: float
) -> tuple[Tensor, Tensor]:
    """Weights (k x free outputs) and intercepts at the minimum, by L-BFGS."""
    from scipy.optimize import minimize  # noqa: PLC0415 (20 MB, which other panels do not need)

    start = rows.start() if start is None else start
    shape, size, device = start[0].shape, start[0].numel(), rows.x.device

    def parts(flat: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
        both = torch.from_numpy(flat).to(device)
        return both[:size].reshape(shape), both[size:]

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        W, b = parts(flat)
        value, to_W, to_b = rows.gradient(W, b)
        value += penalty / 2 * float(W.square().sum())
        gradient = torch.cat([(to_W + penalty * W).flatten(), to_b])
        return value, gradient.cpu().numpy()

    first = torch.cat([start[0].flatten().cpu(), start[1].cpu()]).numpy()
    # maxcor=20: with correlated features, the default of 10 needs 50% more steps
    options = {"maxiter": STEPS, "maxfun": 2 * STEPS, "gtol": least, "ftol": 0.0, "maxcor": 20}
    found = minimize(objective, first, jac=True, method="L-BFGS-B", options=options)
    return parts(found.x)
