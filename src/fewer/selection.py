"""Candidates from every strategy, compared on held-out rows; the best becomes the panel."""

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor

from fewer.comparison import Candidate, Comparison, LinearComparison, NetworkComparison
from fewer.constraints import resolve
from fewer.data import RowSubset, ScaledSource, Source, moments, validated
from fewer.errors import InputError, warn
from fewer.estimators._storage import describe_parameters
from fewer.nn import MeasuredDecoder
from fewer.panel import LEVELS, Leaderboard, Panel, Score
from fewer.prediction import TargetComparison, TargetStrategies, Wanted, read_target
from fewer.search import greedy, search
from fewer.search.objective import worth
from fewer.strategies import Choose, Strategies
from fewer.target import Target
from fewer.train import GradientSettings, nodes_for
from fewer.train.device import float64_device, pick_device
from fewer.train.explained import explained_variance
from fewer.train.folds import ScaledFold, make_folds, scaled_fold, split_rows, whole_fold
from fewer.train.held_out_swaps import HeldOut, held_out_swaps

__all__ = ["select"]

STRATEGIES = ("search", "closed_form", "gradient")
FOLDS, NETWORK_FOLDS = 5, 3
FEWEST_FOR_FEATURES = 50  # rows: with fewer, half a batch determines nothing
FEWER_ROWS = 10  # a feature: with fewer, the held-out error itself decides the last swaps
WIDEST_POLISH, POLISH_ROUNDS = 8192, 20
FEW_ROWS = 100  # a feature: with fewer rows than this times k, folds and penalties are tried
RIDGES = (1e-3, 1e-2, 1e-1)  # shares of the mean variance
MOST_RESIDUALS = 4000  # rows kept for prediction intervals


def select(
    data: Any,
    k: int | None = None,
    *,
    decoder: Any = "linear",
    target: Any = None,
    include: Any = (),
    exclude: Any = (),
    costs: Any = None,
    cost_weight: float = 0.0,
    budget: float | None = None,
    groups: Any = None,
    scale: str = "standard",
    strategies: Any = "auto",
    validation: float | int | str = "auto",
    row_groups: Any = None,
    time_limit: float | None = None,
    random_state: Any = None,
    device: str = "auto",
    progress: bool = False,
) -> Panel:
    """Choose the best panel that any strategy finds.

    Strategies propose features on training rows; the asked-for decoder is fitted on each proposal
    and compared on held-out rows; the winner is run again, and refitted, on everything. With a
    linear decoder and fewer than ten rows a chosen feature, last swaps lower the held-out error
    itself.

    Parameters
    ----------
    data : array, sparse matrix, table, path or source of shape (n, d)
        Rows to learn from; NaN marks missing values. Whatever `fewer.data.open` takes.
    k : int, default=None
        How many features to choose; None with ``costs`` and ``budget`` spends the budget.
    decoder : "linear", tuple of int or callable, default="linear"
        What reconstructs: a linear map, a network with hidden layers of these widths, or your own
        ``(k, d) -> torch.nn.Module``.
    target : array of length n or (n, m), or name of a column, default=None
        Choose for predicting this instead: text, whole numbers and booleans are classes,
        fractions are numbers. ``decoder`` is then the predictor (``panel.predict``); the other
        features are reconstructed by a line.
    include, exclude : lists of names or column numbers, default=()
        Features that are on the panel in any case, and features that must not be.
    costs : mapping from feature to cost, or array, default=None
        What measuring each feature costs.
    cost_weight : float, default=0.0
        Trade-off: so much is added to the mean squared error, in scaled units, for each unit of
        cost.
    budget : float, default=None
        Most that the panel may cost.
    groups : list of lists of features, or a label for each, default=None
        Features that are measured together and count once.
    scale : {"standard", "none"}, default="standard"
        "standard": every feature counts the same, whatever its units. "none": features count by
        their own variance. Results are in the units of the data either way.
    strategies : "auto" or list of {"search", "closed_form", "gradient"}, default="auto"
        Who may propose; "auto" is the search for a linear decoder, and the closed form where
        features are few enough, all three for a network. With a network, "search" also improves
        the best proposal by swaps that a stand-in for the network judges. Greedy selection is
        always compared for a linear decoder.
    validation : float, int or "auto", default="auto"
        Share of rows held out, or number of folds. "auto" is a tenth of the rows, or 5 folds (3
        for a network) where there are fewer than 100 rows a chosen feature.
    row_groups : array of length n, default=None
        Rows with the same label (one patient, one animal) are held out together.
    time_limit : float, default=None
        Seconds for the whole; strategies that would start later are left out.
    random_state : int, RandomState or None, default=None
        Fixes the result.
    device : str, default="auto"
        "auto" (CUDA, MPS or CPU), or any torch device.
    progress : bool, default=False
        Say what is going on.

    Returns
    -------
    Panel

    Examples
    --------
    >>> import fewer
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits(as_frame=True).data
    >>> panel = fewer.select(X[:1400], k=10, scale="none", random_state=0)
    >>> panel.features[:3]
    ['pixel_0_5', 'pixel_1_2', 'pixel_2_4']
    >>> panel.reconstruct(X[1400:][panel.features[::-1]]).shape
    (397, 64)
    >>> round(panel.score(X[1400:]), 2)
    0.61
    """
    return _Selection(
        data,
        k,
        decoder=decoder,
        target=target,
        wishes={
            "include": include,
            "exclude": exclude,
            "costs": costs,
            "cost_weight": cost_weight,
            "budget": budget,
            "groups": groups,
        },
        scale=scale,
        strategies=strategies,
        validation=validation,
        row_groups=row_groups,
        time_limit=time_limit,
        random_state=random_state,
        device=device,
        progress=progress,
    ).run()


class _Selection:
    """One call of `select`, step by step."""

    def __init__(self, data: Any, k: int | None, **options: Any) -> None:
        self.began = time.perf_counter()
        self.options = options
        self.wanted: Wanted | None = None
        if options["target"] is not None:
            self.wanted, data = read_target(options["target"], data)
        self.raw = validated(data, least_rows=3)
        self.names = self.raw.names
        self.stats = moments(self.raw)
        self.n, self.d = self.raw.shape
        self._check(k)
        self.rule = resolve(self.names, self.d, k, **options["wishes"])
        self.center, self.scale = self._scaling(self.stats.mean, self.stats.variance)
        self.seed = int(check_random_state(options["random_state"]).randint(2**31 - 1))
        self.device = pick_device(options["device"])
        self.settings = GradientSettings(
            k=nodes_for(self.rule, ScaledSource(self.raw, self.center, self.scale)),
            decoder=options["decoder"],
            device=options["device"],
            cost_weight=self.rule.cost_weight,
            progress=False,
        )
        self.linear = self.settings.linear
        self.strategies = Strategies(
            self.rule,
            self.settings,
            float64_device(self.device),
            lambda fold: self._rows(fold, fold.train_index),
            self._labels,
            self._left,
        )
        # what decides between candidates, and what rebuilds the other features
        line = LinearComparison(self._rows, self.rule)
        self.comparison: Comparison = line
        if self.wanted is not None:
            self.comparison = TargetComparison(
                self._rows, self.rule, self.settings, self.seed, self.wanted
            )
        elif not self.linear:
            self.comparison = NetworkComparison(self._rows, self.rule, self.settings, self.seed)
        self.rebuilding = line if self.wanted is not None else self.comparison

    def run(self) -> Panel:
        held = self._held_rows()
        self._held_folds = held if len(held) > 1 else []
        folds = self._folds(held)
        candidates = self._candidates(folds)
        for candidate in candidates:
            if self._late() and any(other.errors for other in candidates):
                break
            started = time.perf_counter()
            self._say(f"{candidate.strategy} ...")
            for fold in folds:
                candidate.panels.append(candidate.choose(fold, self.seed))
            self.comparison.measure(candidate, folds)
            candidate.seconds = time.perf_counter() - started
            self._say(f"{candidate.strategy}: held-out error {candidate.error:.6g}")
        candidates = [c for c in candidates if c.errors]
        if not self._late():
            self.comparison.settle(candidates, folds)
        candidates.sort(key=lambda c: c.rank)
        return self._finish(candidates, folds)

    # -- preparation -----------------------------------------------------------------------

    def _check(self, k: int | None) -> None:
        wanted = self.options["strategies"]
        if wanted != "auto":
            unknown = [name for name in wanted if name not in STRATEGIES]
            if unknown or not wanted:
                raise InputError(
                    f"strategies={wanted!r}: use 'auto' or some of {', '.join(STRATEGIES)}"
                )
        limit = self.options["time_limit"]
        real = isinstance(limit, (int, float, np.integer, np.floating))
        if limit is not None and not (real and limit > 0):
            raise InputError(f"time_limit={limit!r} must be a number of seconds above 0, or None")
        if self.options["scale"] not in ("standard", "none"):
            raise InputError(
                f"scale={self.options['scale']!r} is not known; use 'standard' or 'none'"
            )
        if self.wanted is not None:
            if len(self.wanted.values) != self.n:
                raise InputError(f"target has {len(self.wanted.values)} values for {self.n} rows")
            if self.options["wishes"]["cost_weight"]:
                raise InputError("cost_weight does not go with target; give costs and a budget")
            if wanted != "auto" and "closed_form" in wanted:
                raise InputError("strategies: 'closed_form' knows no target; use search, gradient")
        empty = np.flatnonzero(self.stats.observed == 0)
        if len(empty):
            shown = ", ".join(str(j) if self.names is None else self.names[j] for j in empty[:5])
            raise InputError(f"{len(empty)} columns hold no value at all: {shown}; drop them")
        if k is not None and not isinstance(k, bool) and isinstance(k, (int, np.integer)):
            rank = int((~self.stats.constant).sum())
            if rank < k <= self.d:
                warn(
                    f"k={k}, but only {rank} of {self.d} features vary: the rest of the panel "
                    "adds nothing"
                )
            elif self.n <= k <= self.d:
                warn(
                    f"k={k} features from {self.n} rows: their rank is at most {self.n - 1}, so "
                    "the choice beyond that rests on the penalty alone; use more rows or a lower k"
                )

    def _scaling(
        self, mean: NDArray[np.float64], variance: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self.options["scale"] == "none":
            return np.zeros(self.d), np.ones(self.d)
        spread = np.sqrt(variance)
        return mean, np.where(spread > 0, spread, 1.0)

    def _rows(self, fold: ScaledFold, index: NDArray[np.int64]) -> Source:
        return ScaledSource(RowSubset(self.raw, index), fold.center, fold.scale)

    def _held_rows(self) -> list[NDArray[np.int64]]:
        wanted, labels = self.options["validation"], self.options["row_groups"]
        if labels is not None:
            labels = np.asarray(labels)
            if len(labels) != self.n:
                raise InputError(f"row_groups has {len(labels)} labels for {self.n} rows")
            if labels.ndim != 1:
                raise InputError(f"row_groups has shape {labels.shape}; give {self.n} labels")
            if len(np.unique(labels)) < 2:
                raise InputError("row_groups has one label only; give at least 2, or leave it out")
        if wanted == "auto":
            few = self.n < FEW_ROWS * self.settings.k
            folds = min(FOLDS if self.linear else NETWORK_FOLDS, self.n)
            wanted = folds if few else 0.1
        fine = isinstance(wanted, (int, float)) and not isinstance(wanted, bool)
        if not fine or not (2 <= wanted <= self.n if isinstance(wanted, int) else 0 < wanted < 1):
            raise InputError(
                f"validation={wanted!r} must be a share between 0 and 1, or from 2 to {self.n} "
                "folds, no more than there are rows"
            )
        return split_rows(self.n, wanted, self.seed, labels)

    def _folds(self, held: list[NDArray[np.int64]]) -> list[ScaledFold]:
        """Folds in scaled units; the scaling comes from the training rows of each alone."""
        folds = []
        for fold in make_folds(self.raw, held, self.device):
            center, scale = self._scaling(fold.mean.numpy(), fold.train.diagonal().numpy())
            folds.append(scaled_fold(fold, center, scale))
        return folds

    # -- strategies ------------------------------------------------------------------------

    def _candidates(self, folds: list[ScaledFold]) -> list[Candidate]:
        """What is to be compared, those that build on others last."""
        known = self.strategies
        if len(self.rule.units) == self.rule.k or len(self.rule.included_units) == self.rule.k:
            return [Candidate("only choice", known.greedy)]
        if self.wanted is not None:
            return self._target_candidates(self.wanted)
        wanted = self.options["strategies"]
        if wanted == "auto":
            # on wide data a second opinion for every fold takes longer than it is worth
            few = 2 if len(folds) * self.d <= 2000 else 1
            wanted = STRATEGIES[:few] if self.linear else STRATEGIES
        choose: dict[str, Choose] = {"greedy": known.greedy} if self.linear else {}
        if "search" in wanted:
            choose["search"] = known.search
            if self.linear and len(folds) > 1:
                choose |= {f"search, ridge {ridge:g}": known.penalised(ridge) for ridge in RIDGES}
        if "closed_form" in wanted:
            choose["closed form, swaps"] = known.closed_form
            if not self.linear and self.n >= FEWEST_FOR_FEATURES:
                choose["random features"] = known.random_features
        if "gradient" in wanted:
            choose["gradient"] = known.gradient
        found = [Candidate(name, known.once(name, how)) for name, how in choose.items()]
        if "search" in wanted and not self.linear:
            found.append(Candidate("search, network swaps", known.for_the_network))
        return found

    def _target_candidates(self, target: Wanted) -> list[Candidate]:
        known, wanted = TargetStrategies(self.strategies, target), self.options["strategies"]
        found = []
        if wanted == "auto" or "search" in wanted:
            found.append(Candidate("search, without target", known.search))
            found.append(Candidate("search", known.for_the_target))
        if wanted == "auto" or "gradient" in wanted:
            found.append(Candidate("gradient", known.gradient))
        return found

    # -- the winner ------------------------------------------------------------------------

    def _finish(self, candidates: list[Candidate], folds: list[ScaledFold]) -> Panel:
        winner = candidates[0]
        self._warn_if_linear_is_as_good(candidates, folds)
        everything = self._everything()
        columns = self._final_columns(winner, everything, candidates)
        decoder = self.rebuilding.fitted(winner, columns, everything)
        held_out, quantiles = self._held_out(winner, folds)
        board = Leaderboard(
            {
                "strategy": c.strategy,
                "error": c.error,
                "seconds": c.seconds,
                "price": c.price,
                "ridge": c.ridge,
                "features": self._named(c.panels[0]),
            }
            for c in candidates
        )
        return Panel(
            indices=columns,
            decoder=_in_units(decoder, columns, everything),
            names=self.names,
            d=self.d,
            held_out=held_out,
            quantiles=quantiles,
            leaderboard=board,
            settings=self._settings(winner),
            target=self._predictor(winner, columns, everything, folds),
        )

    def _predictor(
        self,
        winner: Candidate,
        columns: NDArray[np.int64],
        everything: ScaledFold,
        folds: list[ScaledFold],
    ) -> Target | None:
        if self.wanted is None or not isinstance(self.comparison, TargetComparison):
            return None
        decoder = self.comparison.fitted(winner, columns, everything)
        return Target(
            _inputs_in_units(decoder, columns, everything).double().eval(),
            self.wanted.classes,
            self.comparison.score(winner, folds),
            self.wanted.name,
            self.wanted.one,
        )

    def _everything(self) -> ScaledFold:
        """All rows as training rows, none held out."""
        return scaled_fold(whole_fold(self.raw, self.device), self.center, self.scale)

    def _final_columns(
        self, winner: Candidate, everything: ScaledFold, candidates: list[Candidate]
    ) -> NDArray[np.int64]:
        """The winning strategy on all rows, started from what it found before."""
        if not self.linear or self.wanted is not None:
            return self._compared_columns(winner, everything, candidates)
        C = everything.train.to(float64_device(self.device))
        if winner.strategy == "search":
            left = self._left()
            found = search(C, self.rule, seed=self.seed, time_limit=left, initial=winner.panels)
            return self._polished(found.indices, winner, everything)
        panel = winner.choose(everything, self.seed)
        # penalised or drawn on purpose, yet never worse than greedy on the rows themselves
        base = greedy(C, self.rule).panel()
        better = worth(C, panel, self.rule, 0.0) <= worth(C, base, self.rule, 0.0)
        return self._polished(panel if better else base, winner, everything)

    def _polished(
        self, panel: NDArray[np.int64], winner: Candidate, everything: ScaledFold
    ) -> NDArray[np.int64]:
        """Where rows are about as few as features: swaps that lower the held-out error itself."""
        rule, k = self.rule, len(panel)
        plain = rule.groups is None and rule.budget is None and not rule.cost_weight
        if self.n >= FEWER_ROWS * k or not plain or self.d > WIDEST_POLISH or not self._held_folds:
            return panel
        self._say("swaps on held-out error ...")
        rows = self._rows(everything, everything.train_index)
        mean = torch.from_numpy(moments(rows).mean)
        values = torch.nan_to_num(rows.rows(slice(0, self.n), torch.float64) - mean, nan=0.0)
        left = self._left()
        least = 1e-6 * float(everything.train.diagonal().mean())  # panels may be dependent
        folds = HeldOut.of(values.numpy(), self._held_folds, max(winner.ridge, least))
        return held_out_swaps(
            folds,
            panel,
            POLISH_ROUNDS,
            keep=rule.include,
            shut=rule.exclude,
            deadline=None if left is None else time.monotonic() + left,
        )

    def _compared_columns(
        self, winner: Candidate, everything: ScaledFold, candidates: list[Candidate]
    ) -> NDArray[np.int64]:
        """The panel that was compared; chosen anew on all rows where every fold has its own."""
        if len(winner.panels) == 1 or self._late():
            return winner.panels[0]
        if winner.choose == self.strategies.for_the_network:  # it starts from what others find
            for other in candidates:
                if other is not winner:
                    other.choose(everything, self.seed)
        return winner.choose(everything, self.seed)

    def _held_out(
        self, winner: Candidate, folds: list[ScaledFold]
    ) -> tuple[Score, NDArray[np.float64]]:
        """Score and residual quantiles on rows that took no part, in the units of the data."""
        kept: list[Tensor] = []
        values, errors, rows = [], [], []
        quota = max(1, MOST_RESIDUALS // len(folds))
        for fold, panel in zip(folds, winner.panels, strict=True):
            decoder = (
                _in_units(self.rebuilding.fitted(winner, panel, fold), panel, fold).double().eval()
            )
            held = RowSubset(self.raw, fold.held_index)
            value, error = explained_variance(decoder, held, panel)
            values.append(value)
            errors.append(error)
            rows.append(len(fold.held_index))
            x = held.rows(slice(0, quota), torch.float64)
            with torch.no_grad():
                kept.append(x - decoder(x[:, panel]))
        residuals = torch.cat(kept).numpy()
        weights = np.array(rows) / np.sum(rows)
        score = Score(float(weights @ values), weights @ np.stack(errors))
        return score, np.nanquantile(residuals, LEVELS, axis=0)

    def _warn_if_linear_is_as_good(
        self, candidates: list[Candidate], folds: list[ScaledFold]
    ) -> None:
        if self.linear or self.wanted is not None:
            return
        panels = candidates[0].panels
        linear = float(
            np.mean([fold.error(panel) for fold, panel in zip(folds, panels, strict=True)])
        )
        best = candidates[0].error
        if linear <= best:
            warn(
                f"the network does not beat a linear decoder: held-out error {best:.4g} against "
                f"{linear:.4g}. Use decoder='linear', which is exact and faster, or give the "
                "network more rows"
            )

    # -- small things ----------------------------------------------------------------------

    def _labels(self, fold: ScaledFold) -> NDArray | None:
        labels = self.options["row_groups"]
        return None if labels is None else np.asarray(labels)[fold.train_index]

    def _left(self) -> float | None:
        limit = self.options["time_limit"]
        return None if limit is None else max(0.05, limit - (time.perf_counter() - self.began))

    def _late(self) -> bool:
        limit = self.options["time_limit"]
        return limit is not None and time.perf_counter() - self.began > limit

    def _named(self, columns: NDArray[np.int64]) -> list[Any]:
        return [int(j) if self.names is None else self.names[j] for j in columns]

    def _say(self, text: str) -> None:
        if self.options["progress"]:
            print(f"[{time.perf_counter() - self.began:6.1f} s] {text}", flush=True)

    def _settings(self, winner: Candidate) -> dict[str, Any]:
        kept = ("decoder", "scale", "strategies", "validation", "time_limit")
        options = {name: self.options[name] for name in kept}
        if self.wanted is not None:
            options |= {"decoder": "linear", "predictor": self.options["decoder"]}
        return describe_parameters(options) | {
            "k": self.rule.k,
            "rows": self.n,
            "seed": self.seed,
            "winner": winner.strategy,
            "ridge": winner.ridge,
            "seconds": time.perf_counter() - self.began,
        }


def _inputs_in_units(
    decoder: MeasuredDecoder, columns: NDArray[np.int64], fold: ScaledFold
) -> MeasuredDecoder:
    """Put the scaling of features before a predictor that was fitted on scaled rows."""
    inside, spread = (torch.from_numpy(part)[columns] for part in (fold.center, fold.scale))
    return MeasuredDecoder(
        decoder.net,
        fill=decoder.fill.double() * spread + inside,
        center=decoder.center.double() * spread + inside,
        scale=decoder.scale.double() * spread,
        order=decoder.order,
        out_center=decoder.out_center,
        out_scale=decoder.out_scale,
        offset=decoder.offset,
        link=decoder.link,
    )


def _in_units(
    decoder: MeasuredDecoder, columns: NDArray[np.int64], fold: ScaledFold
) -> MeasuredDecoder:
    """Put the scaling of features around a decoder that was fitted on scaled rows."""
    center, scale = torch.from_numpy(fold.center), torch.from_numpy(fold.scale)
    inside, spread = center[columns], scale[columns]
    return MeasuredDecoder(
        decoder.net,
        fill=decoder.fill.double() * spread + inside,
        center=decoder.center.double() * spread + inside,
        scale=decoder.scale.double() * spread,
        order=decoder.order,
        out_center=decoder.out_center.double() * scale + center,
        out_scale=decoder.out_scale.double() * scale,
    )
