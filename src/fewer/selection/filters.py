"""Features ranked by their relation with the target: simple methods that others have to beat."""

import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from fewer.constraints import Constraints
from fewer.kinds import Classes, Numbers
from fewer.selection.context import SelectionContext
from fewer.validation import Fold

__all__ = ["FILTERS", "filter_panel", "rank_features"]

MOST_ROWS = 2000  # that scores are computed from
BINS = 16  # of a feature, and of a number that is predicted
TREES = 50
# of L1 penalties: the weight of errors, the penalty relative to the one that leaves no feature
L1_CLASSES, L1_NUMBERS = 0.01, 0.02
L1_ROUNDS = 300
# only the order of the coefficients counts; from so many values on, an exact one takes too long
L1_TOLERANCE, L1_ROUGHLY, L1_MANY = 1e-4, 0.05, 100_000
TINY = 1e-12

Columns = NDArray[np.int64]
Floats = NDArray[np.float64]


def filter_panel(context: SelectionContext, fold: Fold, name: str) -> Columns:
    """The panel of one of `FILTERS` on the training rows of a fold that have a label."""
    assert context.target is not None
    rows = context.target.rows(fold.train_rows)
    if len(rows) > MOST_ROWS:
        rows = np.sort(np.random.default_rng(context.seed).choice(rows, MOST_ROWS, replace=False))
    x = fold.rows(rows).rows(slice(0, len(rows)), torch.float64)
    x = (x - fold.scaled_mean).nan_to_num_(nan=0.0)
    values = context.target.values[torch.from_numpy(rows)]
    if context.target.kind.name not in (Classes.name, Numbers.name):
        values = context.target.centred(rows)
    rules = context.constraints
    most = rules.most_units + len(rules.include) + 1
    order = rank_features(name, x.numpy(), values.numpy(), context.seed, rules.allowed, most)
    return _obeying(order, rules)


def rank_features(
    name: str,
    x: Floats,
    y: NDArray,
    seed: int = 0,
    allowed: NDArray[np.bool_] | None = None,
    most: int | None = None,
) -> Columns:
    """All features, the best by one of `FILTERS` first; of mRMR, only the first ``most`` are exact.

    ``x`` is centred; ``y`` are class numbers (n) or numbers (n x m).
    """
    scores = FILTERS[name](x, y, seed)
    order = np.argsort(-scores, kind="stable")
    if name != "mRMR":
        return order
    open_ = np.ones(len(scores), dtype=bool) if allowed is None else allowed.copy()
    first = _least_redundant(scores, x, open_, len(scores) if most is None else most)
    return np.concatenate([first, order[~np.isin(order, first)]])


def anova(x: Floats, y: NDArray, seed: int = 0) -> Floats:
    """F statistics: of classes, or of the correlation with numbers, summed over them."""
    if y.ndim == 1:
        found = _between_classes(x, y)
    else:
        unit = x / np.maximum(np.linalg.norm(x, axis=0), TINY)
        target = y - y.mean(axis=0)
        target /= np.maximum(np.linalg.norm(target, axis=0), TINY)
        squared = np.minimum((unit.T @ target) ** 2, 1 - 1e-12)
        found = (squared / (1 - squared)).sum(axis=1)
    return np.nan_to_num(found, nan=0.0)


def _between_classes(x: Floats, codes: NDArray) -> Floats:
    """Variance between classes relative to that inside of them."""
    counts = np.bincount(codes).astype(float)
    hot = np.eye(len(counts))[codes]
    means = hot.T @ x / np.maximum(counts, 1)[:, None]
    total = ((x - x.mean(axis=0)) ** 2).sum(axis=0)
    between = (counts[:, None] * (means - x.mean(axis=0)) ** 2).sum(axis=0)
    present = int((counts > 0).sum())
    inside = np.maximum(total - between, TINY * np.maximum(total, TINY))
    return (between / max(present - 1, 1)) / (inside / max(len(x) - present, 1))


def mutual_information(x: Floats, y: NDArray, seed: int = 0) -> Floats:
    """With the classes or, binned, with each number; features are cut into equally filled bins."""
    cut = _binned(x)
    targets = [y] if y.ndim == 1 else list(_binned(y).T)
    return np.sum([_shared(cut, codes.astype(np.int64)) for codes in targets], axis=0)


def _binned(values: Floats) -> NDArray[np.int64]:
    edges = np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1], axis=0)
    return np.stack(
        [np.searchsorted(edges[:, j], values[:, j]) for j in range(values.shape[1])], axis=1
    )


def _shared(cut: NDArray[np.int64], codes: NDArray[np.int64]) -> Floats:
    classes = int(codes.max()) + 1
    joint = np.stack(
        [
            np.bincount(column * classes + codes, minlength=BINS * classes) / len(codes)
            for column in cut.T
        ]
    ).reshape(-1, BINS, classes)
    apart = joint.sum(axis=2, keepdims=True) * joint.sum(axis=1, keepdims=True)
    ratio = np.where(joint > 0, joint / np.maximum(apart, 1e-300), 1.0)
    found: Floats = (joint * np.log(ratio)).sum(axis=(1, 2))
    return found


def tree_importance(x: Floats, y: NDArray, seed: int = 0) -> Floats:
    """Mean decrease of impurity in extremely randomised trees."""
    from sklearn.ensemble import (  # noqa: PLC0415 (slow to load)
        ExtraTreesClassifier,
        ExtraTreesRegressor,
    )

    kind = ExtraTreesClassifier if y.ndim == 1 else ExtraTreesRegressor
    target = y if y.ndim == 1 else (y - y.mean(axis=0)) / np.maximum(y.std(axis=0), TINY)
    fitted = kind(TREES, random_state=seed).fit(
        x, target[:, 0] if target.shape[1:] == (1,) else target
    )
    found: Floats = fitted.feature_importances_
    return found


def l1_coefficients(x: Floats, y: NDArray, seed: int = 0) -> Floats:
    """Size of the coefficients of standardised features under an L1 penalty.

    Those of linear support vector machines, one for each class, or of a regression on all numbers.
    """
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 (slow to load)
    from sklearn.linear_model import MultiTaskLasso  # noqa: PLC0415
    from sklearn.svm import LinearSVC  # noqa: PLC0415

    spread = x.std(axis=0)
    unit = (x - x.mean(axis=0)) / np.where(spread > TINY, spread, np.inf)
    if y.ndim == 1:
        model = LinearSVC(
            penalty="l1",
            dual=False,
            C=L1_CLASSES,
            tol=L1_TOLERANCE if x.size < L1_MANY else L1_ROUGHLY,
            max_iter=L1_ROUNDS,
            random_state=seed,
        )
        target = y
    else:
        target = (y - y.mean(axis=0)) / np.maximum(y.std(axis=0), TINY)
        least = L1_NUMBERS * float(np.linalg.norm(unit.T @ target / len(x), axis=1).max())
        model = MultiTaskLasso(alpha=max(least, TINY), max_iter=L1_ROUNDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found: Floats = np.abs(model.fit(unit, target).coef_).sum(axis=0)
    return found


def _least_redundant(scores: Floats, x: Floats, open_: NDArray[np.bool_], most: int) -> Columns:
    """Greedy order by relevance over the mean correlation with the features before."""
    unit = x / np.maximum(np.linalg.norm(x, axis=0), TINY)
    rest, order = np.zeros(len(scores)), []
    for count in range(min(int(open_.sum()), most)):
        value = scores if not count else scores / np.maximum(rest / count, 1e-3)
        pick = int(np.where(open_, value, -np.inf).argmax())
        open_[pick] = False
        order.append(pick)
        rest += np.abs(unit[:, pick] @ unit)
    return np.array(order, dtype=np.int64)


def _obeying(order: Columns, constraints: Constraints) -> Columns:
    """The first features in this order that make a panel, with those that must be included."""
    if constraints.limits:
        scores = np.zeros(len(constraints.units))
        units = constraints.unit_of[order]
        np.maximum.at(scores, units[units >= 0], 1 / (1 + np.flatnonzero(units >= 0)))
        panel = constraints.best(scores)
        return order[:0] if panel is None else panel
    taken = list(constraints.included_units)
    paid = float(constraints.unit_costs[taken].sum())
    count = len(constraints.units) if constraints.k is None else constraints.k
    for unit in dict.fromkeys(constraints.unit_of[order].tolist()):
        if unit < 0 or unit in taken or len(taken) >= count:
            continue
        spare = 0.0
        if constraints.k is not None and constraints.budget is not None:
            # what is left must be enough for the cheapest others
            others = np.sort(np.delete(constraints.unit_costs, [*taken, unit]))
            spare = float(others[: count - len(taken) - 1].sum())
        if paid + constraints.unit_costs[unit] + spare <= constraints.ceiling:
            taken.append(unit)
            paid += float(constraints.unit_costs[unit])
    return constraints.features(taken)


FILTERS: dict[str, Callable[[Floats, NDArray, int], Floats]] = {
    "ANOVA": anova,
    "mutual information": mutual_information,
    "mRMR": anova,  # its relevance; see `_least_redundant`
    "tree importance": tree_importance,
    "L1 penalty": l1_coefficients,
}
