"""Candidates from every strategy, compared on held-out rows; the best becomes the panel."""

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_array, check_random_state
from torch import Tensor, nn

from fewer.constraints import resolve
from fewer.data import (
    RowSubset,
    ScaledSource,
    Source,
    as_array,
    check_values,
    covariance,
    moments,
    open_source,
)
from fewer.errors import InputError, warn
from fewer.estimators._storage import describe_parameters
from fewer.nn import MeasuredDecoder, make_loss
from fewer.panel import LEVELS, Leaderboard, Panel, Score
from fewer.search import greedy, residual, search
from fewer.strategies import Choose, Strategies
from fewer.train import GradientSettings, fit_linear, nodes_for
from fewer.train.device import float64_device, pick_device, seeded
from fewer.train.explained import explained_variance
from fewer.train.folds import Fold, ScaledFold, make_folds, scaled_fold, split_rows
from fewer.train.problem import prepare
from fewer.train.refit import refit_decoder

__all__ = ["select"]

STRATEGIES = ("search", "closed_form", "gradient")
FOLDS = 5
FEW_ROWS = 100  # a feature: with fewer rows than this times k, folds and penalties are tried
RIDGES = (1e-3, 1e-2, 1e-1)  # shares of the mean variance
DECODER_RIDGES = (0.0, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1)
MOST_RESIDUALS = 4000  # rows kept for prediction intervals


@dataclass
class _Candidate:
    """A strategy at work: how it chooses columns from the rows of a fold."""

    strategy: str
    choose: Choose
    panels: list[NDArray[np.int64]] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    ridge: float = 0.0
    seconds: float = 0.0

    @property
    def error(self) -> float:
        return float(np.mean(self.errors)) if self.errors else float("inf")


def select(
    data: Any,
    k: int | None = None,
    *,
    decoder: Any = "linear",
    include: Any = (),
    exclude: Any = (),
    costs: Any = None,
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
    and compared on held-out rows; the winner is run again, and refitted, on everything.

    Parameters
    ----------
    data : array, sparse matrix or table of shape (n, d)
        Rows to learn from; NaN marks missing values.
    k : int, default=None
        How many features to choose; None with ``costs`` and ``budget`` spends the budget.
    decoder : "linear", tuple of int or callable, default="linear"
        What reconstructs: a linear map, a network with hidden layers of these widths, or your own
        ``(k, d) -> torch.nn.Module``.
    include, exclude : lists of names or column numbers, default=()
        Features that are on the panel in any case, and features that must not be.
    costs : mapping from feature to cost, or array, default=None
        What measuring each feature costs.
    budget : float, default=None
        Most that the panel may cost.
    groups : list of lists of features, or a label for each, default=None
        Features that are measured together and count once.
    scale : {"standard", "none"}, default="standard"
        "standard": every feature counts the same, whatever its units. "none": features count by
        their own variance. Results are in the units of the data either way.
    strategies : "auto" or list of {"search", "closed_form", "gradient"}, default="auto"
        Who may propose; "auto" is the search for a linear decoder, and the closed form where
        features are few enough, all three for others. Greedy selection is always compared.
    validation : float, int or "auto", default="auto"
        Share of rows held out, or number of folds. "auto" is 5 folds for a linear decoder with
        fewer than 100 rows a chosen feature, else a tenth of the rows.
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
        wishes={
            "include": include,
            "exclude": exclude,
            "costs": costs,
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
        X = as_array(data)
        self.names = [str(name) for name in X.columns] if hasattr(X, "columns") else None
        X = check_array(
            X,
            accept_sparse=("csr", "csc"),
            dtype="numeric",
            ensure_all_finite=False,
            ensure_min_samples=3,
        )
        check_values(X, None if self.names is None else np.array(self.names))
        self.raw = open_source(X)
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
            progress=False,
        )
        self.linear = self.settings.linear
        self.strategies = Strategies(
            self.rule,
            self.settings,
            float64_device(self.device),
            lambda fold: self._rows(fold, fold.train_index),
            self._left,
        )

    def run(self) -> Panel:
        held = self._held_rows()
        folds = self._folds(held)
        candidates = self._candidates(folds)
        measure = self._linear_errors if self.linear else self._network_errors
        for candidate in candidates:
            if self._late() and any(other.errors for other in candidates):
                break
            started = time.perf_counter()
            self._say(f"{candidate.strategy} ...")
            for fold in folds:
                candidate.panels.append(candidate.choose(fold, self.seed))
            measure(candidate, folds)
            candidate.seconds = time.perf_counter() - started
            self._say(f"{candidate.strategy}: held-out error {candidate.error:.6g}")
        candidates = sorted((c for c in candidates if c.errors), key=lambda c: c.error)
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
        if self.options["scale"] not in ("standard", "none"):
            raise InputError(
                f"scale={self.options['scale']!r} is not known; use 'standard' or 'none'"
            )
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
        if labels is not None and len(labels) != self.n:
            raise InputError(f"row_groups has {len(labels)} labels for {self.n} rows")
        if wanted == "auto":
            few = self.linear and self.n < FEW_ROWS * self.settings.k
            wanted = FOLDS if few else 0.1
        fine = isinstance(wanted, (int, float)) and not isinstance(wanted, bool)
        if not fine or not (2 <= wanted <= self.n if isinstance(wanted, int) else 0 < wanted < 1):
            raise InputError(
                f"validation={wanted!r} must be a share between 0 and 1, or 2 or more folds"
            )
        labels = None if labels is None else np.asarray(labels)
        return split_rows(self.n, wanted, self.seed, labels)

    def _folds(self, held: list[NDArray[np.int64]]) -> list[ScaledFold]:
        """Folds in scaled units; the scaling comes from the training rows of each alone."""
        folds = []
        for fold in make_folds(self.raw, held):
            center, scale = self._scaling(fold.mean.numpy(), fold.train.diagonal().numpy())
            folds.append(scaled_fold(fold, center, scale))
        return folds

    # -- strategies ------------------------------------------------------------------------

    def _candidates(self, folds: list[ScaledFold]) -> list[_Candidate]:
        wanted = self.options["strategies"]
        if wanted == "auto":
            wanted = STRATEGIES
            if self.linear:
                # on wide data a second opinion for every fold takes longer than it is worth
                wanted = STRATEGIES[: 2 if len(folds) * self.d <= 2000 else 1]
        found = [_Candidate("greedy", self.strategies.greedy)]
        if "search" in wanted:
            found.append(_Candidate("search", self.strategies.search))
            if self.linear and len(folds) > 1:
                for ridge in RIDGES:
                    found.append(
                        _Candidate(
                            f"search, ridge {ridge:g}",
                            self.strategies.penalised(ridge),
                            ridge=ridge,
                        )
                    )
        if "closed_form" in wanted:
            found.append(_Candidate("closed form, swaps", self.strategies.closed_form))
            if not self.linear:
                found.append(_Candidate("random features", self.strategies.random_features))
        if "gradient" in wanted:
            found.append(_Candidate("gradient", self.strategies.gradient))
        return found

    # -- comparison ------------------------------------------------------------------------

    def _linear_errors(self, candidate: _Candidate, folds: list[ScaledFold]) -> None:
        """Errors with the decoder penalty that does best over the folds."""
        variance = float(folds[0].train.diagonal().mean())
        penalties = DECODER_RIDGES if len(folds) > 1 else (0.0,)
        table = np.array(
            [
                [fold.error(panel, ridge * variance) for ridge in penalties]
                for fold, panel in zip(folds, candidate.panels, strict=True)
            ]
        )
        best = int(np.argmin(table.mean(axis=0)))
        candidate.errors = table[:, best].tolist()
        candidate.ridge = penalties[best] * variance

    def _network_errors(self, candidate: _Candidate, folds: list[ScaledFold]) -> None:
        for fold, panel in zip(folds, candidate.panels, strict=True):
            decoder = self._train_network(panel, fold)
            part = self._rows(fold, fold.held_index)
            errors = explained_variance(decoder, part, panel)[1]
            candidate.errors.append(float(errors.mean()))

    def _train_network(self, columns: NDArray[np.int64], fold: ScaledFold) -> MeasuredDecoder:
        """A decoder for scaled rows, trained on the training rows of a fold."""
        part = self._rows(fold, fold.train_index)
        settings = replace(self.settings, k=len(columns))
        rule = resolve(None, self.d, len(columns), include=columns)
        problem = prepare(
            part, moments(part), settings, make_loss("mse"), self.seed, None, None, rule
        )
        with seeded(self.seed, problem.device) as generator:
            decoder, _ = refit_decoder(
                problem, nn.Identity(), columns, conflicts=0, generator=generator
            )
        return decoder.cpu().double().eval()

    # -- the winner ------------------------------------------------------------------------

    def _finish(self, candidates: list[_Candidate], folds: list[ScaledFold]) -> Panel:
        winner = candidates[0]
        self._warn_if_linear_is_as_good(candidates, folds)
        everything = self._everything()
        columns = self._final_columns(winner, everything)
        decoder = self._fitted(winner, columns, everything)
        held_out, quantiles = self._held_out(winner, folds)
        board = Leaderboard(
            {
                "strategy": c.strategy,
                "error": c.error,
                "seconds": c.seconds,
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
        )

    def _everything(self) -> ScaledFold:
        """All rows as training rows, none held out."""
        whole = covariance(self.raw)
        fold = Fold(whole.matrix, whole.matrix, whole.mean, np.arange(self.n), np.arange(0))
        return scaled_fold(fold, self.center, self.scale)

    def _final_columns(self, winner: _Candidate, everything: ScaledFold) -> NDArray[np.int64]:
        """The winning strategy on all rows, started from what it found before."""
        if not self.linear:
            return winner.panels[0]
        C = everything.train.to(float64_device(self.device))
        found = winner.choose(everything, self.seed)
        if winner.strategy.startswith("search, ridge"):
            # penalised on purpose, yet never worse than greedy on the rows themselves
            base = greedy(C, self.rule).panel()
            return found if residual(C, found) <= residual(C, base) else base
        # the others minimise the same residual, so on all rows they can work together
        start = [found, *winner.panels]
        return search(C, self.rule, seed=self.seed, time_limit=self._left(), initial=start).indices

    def _fitted(
        self, winner: _Candidate, columns: NDArray[np.int64], fold: ScaledFold
    ) -> MeasuredDecoder:
        """The decoder for scaled rows, fitted on the training rows of a fold."""
        if not self.linear:
            return self._train_network(columns, fold)
        part = self._rows(fold, fold.train_index)
        stats = moments(part)
        linear = fit_linear(part, columns, stats, ridge=winner.ridge)
        return MeasuredDecoder(linear, fill=torch.from_numpy(stats.mean[columns])).eval()

    def _held_out(
        self, winner: _Candidate, folds: list[ScaledFold]
    ) -> tuple[Score, NDArray[np.float64]]:
        """Score and residual quantiles on rows that took no part, in the units of the data."""
        kept: list[Tensor] = []
        values, errors, rows = [], [], []
        quota = max(1, MOST_RESIDUALS // len(folds))
        for fold, panel in zip(folds, winner.panels, strict=True):
            decoder = _in_units(self._fitted(winner, panel, fold), panel, fold).double().eval()
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
        self, candidates: list[_Candidate], folds: list[ScaledFold]
    ) -> None:
        if self.linear:
            return
        panels = min(candidates, key=lambda c: c.error).panels
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

    def _settings(self, winner: _Candidate) -> dict[str, Any]:
        kept = ("decoder", "scale", "strategies", "validation", "time_limit")
        return describe_parameters({name: self.options[name] for name in kept}) | {
            "k": self.rule.k,
            "rows": self.n,
            "seed": self.seed,
            "winner": winner.strategy,
            "ridge": winner.ridge,
            "seconds": time.perf_counter() - self.began,
        }


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
