"""Small covariances of several kinds, and the best panel by trying all of them."""

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from fewer.constraints import Constraints

KINDS = ("low rank", "equicorrelated", "duplicates", "constants", "plain", "scales")


def instance(kind: str, d: int, seed: int) -> NDArray[np.float64]:
    """A d x d covariance with the named trouble."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(3 * d, d)) @ rng.normal(size=(d, d))
    if kind == "low rank":
        X = rng.normal(size=(3 * d, 3)) @ rng.normal(size=(3, d)) + 0.3 * X / d
    if kind == "equicorrelated":
        X = rng.normal(size=(3 * d, 1)) + 0.7 * rng.normal(size=(3 * d, d))
    if kind == "duplicates":
        X[:, d // 2 :] = X[:, rng.integers(0, d // 2, d - d // 2)]
    if kind == "constants":
        X[:, rng.choice(d, d // 3, replace=False)] = 1.0
    if kind == "scales":
        X *= 10.0 ** rng.integers(-4, 4, d)
    return np.cov(X.T, bias=True)


def explained(C: NDArray[np.float64], panels: NDArray[np.int64], ridge: float) -> NDArray:
    """What each panel (n x k) explains, by pseudo-inverses of unit-diagonal matrices."""
    rows = C[panels]  # n x k x d
    A = np.take_along_axis(rows, panels[:, None], 2) + ridge * np.eye(panels.shape[1])
    spread = np.diagonal(A, axis1=1, axis2=2)
    scale = np.where(spread > 0, 1 / np.sqrt(np.where(spread > 0, spread, 1)), 0)
    rows = scale[..., None] * rows
    A = scale[..., None] * A * scale[:, None]
    return np.einsum("nij,nid,njd->n", np.linalg.pinv(A, rcond=1e-9, hermitian=True), rows, rows)


def optimum(C: NDArray[np.float64], constraints: Constraints, ridge: float = 0.0) -> float:
    """The lowest residual, prices included, of any panel that obeys the rules."""
    best = -np.inf
    must = set(constraints.included_units.tolist())
    sizes = range(1, constraints.most_units + 1) if constraints.k is None else [constraints.k]
    for size in sizes:
        groups: dict[int, list[NDArray[np.int64]]] = {}
        for units in combinations(range(len(constraints.units)), size):
            if (
                must <= set(units)
                and constraints.unit_costs[list(units)].sum() <= constraints.ceiling
            ):
                panel = np.concatenate([constraints.units[u] for u in units])
                groups.setdefault(len(panel), []).append(panel)
        for panels in groups.values():
            price = np.array([constraints.price(panel) for panel in panels])
            best = max(best, (explained(C, np.array(panels), ridge) - price).max())
    return float(np.trace(C) - best)
