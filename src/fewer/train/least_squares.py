"""The best linear decoder for given features, exactly."""

import numpy as np
import torch
from torch import Tensor, nn

from fewer.data import Covariance, Moments, Source, read_blocks
from fewer.data.moments import rows_on
from fewer.data.source import shard_of_rank
from fewer.distributed import all_or_raise, all_reduce, shard_bounds
from fewer.search.objective import solve_normal

__all__ = ["fit_linear", "solve_normal"]

GRAM_BYTES = 256 * 2**20


def fit_linear(
    source: Source,
    columns: np.ndarray,
    stats: Moments,
    *,
    targets: Tensor | None = None,
    ridge: float = 0.0,
    summary: Covariance | None = None,
    device: torch.device | None = None,
) -> nn.Linear:
    """Least squares from some columns to all columns (or to ``targets``), in float64.

    Minimises, for each target, the mean squared residual over its observed rows plus
    ``ridge`` times the squared weights; the intercept is free. Missing inputs take their
    column's mean. Where rows are missing from some targets each of those is solved by itself.
    The sums are taken on ``device``; without targets a covariance there (``summary``) has them.

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
    k, m = len(chosen), len(middle)
    n = source.shape[0]
    if targets is None and summary is not None and summary.matrix.device.type == "cuda":
        cross = summary.matrix[chosen.to(summary.matrix.device)]
        gram = cross[:, chosen.to(cross.device)]
    else:
        gram, cross = _sums(source, chosen, center, targets, middle, device)
    weight = solve_normal(gram, cross, ridge).T.cpu()
    bias = middle - weight @ center[chosen]
    if targets is None and stats.has_missing:
        partial = np.flatnonzero(stats.observed < n)
        step = max(1, GRAM_BYTES // (8 * (k + 1) ** 2))
        for start in range(0, len(partial), step):
            part = torch.from_numpy(partial[start : start + step])
            weight[part], bias[part] = _solve_partial(source, chosen, part, center, ridge)
    # not initialised: that would draw from the caller's random numbers
    linear = nn.utils.skip_init(nn.Linear, k, m, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
    return linear


def _sums(
    source: Source,
    chosen: Tensor,
    center: Tensor,
    targets: Tensor | None,
    middle: Tensor,
    device: torch.device | None,
) -> tuple[Tensor, Tensor]:
    """Mean products of the chosen columns with each other and with what is predicted."""
    home = torch.device("cpu") if device is None or device.type != "cuda" else device
    chosen, center, middle = chosen.to(home), center.to(home), middle.to(home)
    gram = torch.zeros(len(chosen), len(chosen), dtype=torch.float64, device=home)
    cross = torch.zeros(len(chosen), len(middle), dtype=torch.float64, device=home)
    n = source.shape[0]
    part = shard_of_rank(source)
    mine = None if targets is None else targets[slice(*shard_bounds(n))]

    def add() -> None:
        for rows, x in read_blocks(part) if home.type == "cpu" else rows_on(part, home):
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
    # each target has its own rows, so its own Gram matrix and its own intercept
    k = len(chosen)
    grams = torch.zeros(len(part), k, k, dtype=torch.float64)
    crosses = torch.zeros(len(part), k, dtype=torch.float64)
    z_sums = torch.zeros(len(part), k, dtype=torch.float64)
    t_sums = torch.zeros(len(part), dtype=torch.float64)
    counts = torch.zeros(len(part), dtype=torch.float64)
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
            for at in range(len(part)):
                grams[at].addmm_((z * seen[:, at, None]).T, z)

    all_or_raise(add)
    all_reduce(grams, crosses, z_sums, t_sums, counts)
    weights = torch.zeros(len(part), k, dtype=torch.float64)
    for at in range(len(part)):
        mean_z, mean_t = z_sums[at] / counts[at], t_sums[at] / counts[at]
        gram = grams[at] / counts[at] - torch.outer(mean_z, mean_z)
        cross = crosses[at] / counts[at] - mean_z * mean_t
        weights[at] = solve_normal(gram, cross[:, None], ridge)[:, 0]
    mean_z = z_sums / counts[:, None]
    intercept = center[part] + t_sums / counts - (weights * (center[chosen] + mean_z)).sum(1)
    return weights, intercept
