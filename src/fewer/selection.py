"""Candidates from every strategy, compared on held-out rows; the best becomes the panel."""

import time
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer.candidates.checks import check_data, check_options, warn_about_k
from fewer.candidates.clock import Clock
from fewer.candidates.comparison import Candidate, Comparison
from fewer.candidates.evidence import describe_data, describe_options, gather
from fewer.candidates.final import FinalColumns
from fewer.candidates.held_rows import HeldScore, held_rows, held_score
from fewer.candidates.kept import KeptChoices
from fewer.candidates.lines import LinearComparison
from fewer.candidates.networks import NetworkComparison
from fewer.candidates.prediction import TargetComparison
from fewer.candidates.rivals import HeldOutRivals
from fewer.candidates.scaling import Scaling, in_units, inputs_in_units, scaled_folds
from fewer.candidates.shortlist import shortlist
from fewer.candidates.strategies import Strategies
from fewer.candidates.wanted import Wanted, read_target
from fewer.constraints import resolve
from fewer.data import RowView, ScaledSource, Source, as_source, moments, without_empty
from fewer.distributed import is_rank0, joined, on_rank0, open_together, shared_seed
from fewer.errors import warn
from fewer.evidence import Evidence
from fewer.panel import Leaderboard, Panel, Target
from fewer.reconstructor import Reconstructor
from fewer.storage import describe_parameters
from fewer.train import Checkpoint, TrainingConfig, nodes_for
from fewer.train.checkpoint import stored_seed
from fewer.train.device import float64_device, pick_device
from fewer.train.folds import ScaledFold, scaled_fold, whole_fold

__all__ = ["select"]

FOR_TRAINING = 0.75  # of the time limit, where the first choice is to be followed by trainings


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
    progress: Any = False,
    checkpoint: Any = None,
) -> Panel:
    """Choose the best panel that any strategy finds.

    Strategies propose features on training rows; the asked-for decoder is fitted on each proposal
    and compared on held-out rows; the winner is run again, and refitted, on everything. Lines that
    are within 2% on a single held-out part are told apart by the training rows; networks that are
    2% behind on the first of several folds are given up, and of those that are nearer the panels
    from all rows are compared as well, on the same folds. With a linear decoder and fewer than ten
    rows a chosen feature, last swaps lower the held-out error itself. ``panel.held_out`` is the
    winner's score on the held-out rows, which chose it: a little too good. Keep test rows of your
    own where that matters.

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
        always compared.
    validation : float, int or "auto", default="auto"
        Share of rows held out, or number of folds. "auto" is a tenth of the rows, or 5 folds (3
        for a network) where there are fewer than 100 rows a chosen feature.
    row_groups : array of length n, default=None
        Rows with the same label (one patient, one animal) are held out together.
    time_limit : float, default=None
        Seconds for the whole. Strategies and trainings end when it is over, and those that would
        start later are left out; one quick candidate is always finished.
    random_state : int, RandomState or None, default=None
        Fixes the result.
    device : str, default="auto"
        "auto" (CUDA, MPS or CPU), or any torch device.
    progress : bool or callable, default=False
        Say what is going on. A function is called as ``progress(what, share)``, with the share of
        the work that is done.
    checkpoint : path, default=None
        A folder in which choices, and the state of gradient training every minute, are kept until
        the panel is found. After a crash or Ctrl-C the same call goes on from there.

    Returns
    -------
    Panel

    Notes
    -----
    Under ``torchrun`` every process makes this call. Each reads its own part of the rows, rank 0
    searches and prints, and all return the same panel.

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
    with joined(device):
        selection = _Selection(
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
            checkpoint=checkpoint,
        )
        return selection.run()


class _Selection:
    """One call of `select`, step by step."""

    def __init__(self, data: Any, k: int | None, **options: Any) -> None:
        self.options = options
        self.share = 0.0  # of the work that is done
        check_options(options["strategies"], options["time_limit"])
        self.clock = Clock(options["time_limit"])
        self.scaling = Scaling(options["scale"])
        self.wanted: Wanted | None = None
        given = data
        if options["target"] is not None:
            self.wanted, data = read_target(options["target"], data)
        rows = open_together(lambda: as_source(data, least_rows=3))
        self.raw, stats = without_empty(rows, moments(rows))
        self.names = self.raw.names
        self.n, self.d = self.raw.shape
        self.described = describe_data(given, self.raw, stats)
        wishes = options["wishes"]
        check_data(self.raw, stats, self.wanted, options["strategies"], wishes["cost_weight"])
        warn_about_k(k, self.n, self.d, stats)
        self.k, self.constraints = k, resolve(self.names, self.d, k, **wishes)
        self.center, self.scale = self.scaling.of(stats.mean, stats.variance)
        self.seed = shared_seed(options["random_state"], lambda: stored_seed(options["checkpoint"]))
        self.device = pick_device(options["device"])
        self.settings = TrainingConfig(
            k=nodes_for(self.constraints, ScaledSource(self.raw, self.center, self.scale)),
            decoder=options["decoder"],
            device=options["device"],
            cost_weight=self.constraints.cost_weight,
            progress=False,
        )
        self.linear = self.settings.linear
        self.strategies = Strategies(
            self.constraints,
            self.settings,
            float64_device(self.device),
            lambda fold: self._rows(fold, fold.train_index),
            self._labels,
            self.clock,
            kept=self._kept(stats.scale),
        )
        # what decides between candidates, and what rebuilds the other features
        self.line = line = LinearComparison(self._rows, self.constraints)
        self.comparison: Comparison = line
        if self.wanted is not None:
            self.comparison = TargetComparison(
                self._rows,
                self.constraints,
                self.settings,
                self.seed,
                self.wanted,
                self._labels,
                self.clock,
            )
        elif not self.linear:
            self.comparison = NetworkComparison(
                self._rows,
                self.constraints,
                self.settings,
                self.seed,
                self.clock,
                self._labels,
                lambda more: self._held_rows(self.seed + more)[0],
            )
        self.rebuilding = line if self.wanted is not None else self.comparison

    def _kept(self, spread: float) -> KeptChoices | None:
        wanted = self.options["checkpoint"]
        if wanted is None:
            return None
        facts = {"rows": self.n, "features": self.d, "spread": spread, "seed": self.seed}
        asked = {name: self.options[name] for name in ("scale", "strategies", "validation")}
        asked |= {"k": self.k, **self.options["wishes"]}
        options = describe_options(asked)
        return KeptChoices(Checkpoint.of(wanted), facts | options | self.settings.facts())

    def run(self) -> Panel:
        self.held = self._held_rows(self.seed)
        folds = scaled_folds(self.raw, self.held, self.scaling, self.device)
        candidates = self._compared(folds)
        everything = scaled_fold(whole_fold(self.raw, self.device), self.center, self.scale)
        winner, columns = self._final(candidates, folds, everything)
        candidates.sort(key=lambda c: c is not winner)
        if not self.linear and self.wanted is None:
            on_rank0(lambda: _warn_if_linear_is_as_good(winner, folds))
        panel = self._panel(candidates, columns, folds, everything)
        if self.strategies.kept is not None:
            self.strategies.kept.finish()
        return panel

    def _held_rows(self, seed: int) -> list[NDArray[np.int64]]:
        return held_rows(
            self.n,
            self.settings.k,
            self.options["validation"],
            self.options["row_groups"],
            linear=self.linear,
            seed=seed,
        )

    def _compared(self, folds: list[ScaledFold]) -> list[Candidate]:
        """Candidates with their panels and held-out errors, best first."""
        candidates = shortlist(
            self.strategies,
            self.options["strategies"],
            rows=self.n,
            folds=len(folds),
            target=self.wanted,
        )
        steps = (len(candidates) + 1) * len(folds)  # the last are for the choice from all rows
        training = not self.linear or self.wanted is not None
        self.clock.reserve = FOR_TRAINING * (self.clock.limit or 0.0) if training else 0.0
        took = 0.0
        for at, candidate in enumerate(candidates):
            if at and self.clock.late:  # the first is always done
                break
            started = time.perf_counter()
            for part, fold in enumerate(folds):
                which = f", fold {part + 1} of {len(folds)}" if len(folds) > 1 else ""
                self._say(f"{candidate.strategy}{which} ...", (at * len(folds) + part) / steps)
                self.clock.turn(2 * (len(folds) - part))  # half the time is for those to come
                candidate.panels.append(candidate.choose(fold, self.seed))
                if at and self.clock.late:
                    break
                if part == 0 and self.comparison.gives_up(candidate, folds):
                    break
            if len(candidate.panels) < len(folds) and candidate.behind is None:
                break
            chosen = time.perf_counter()
            if candidate.behind is None:
                self.comparison.measure(candidate, folds)
            took = max(took, time.perf_counter() - chosen)
            # the next is to be measured too, and the winner to be fitted on all rows
            self.clock.reserve = took + took / len(folds)
            candidate.seconds = time.perf_counter() - started
            self._say(f"{candidate.strategy}: held-out error {candidate.error:.6g}")
        candidates = [c for c in candidates if c.compared]
        if not self.clock.late:
            self.comparison.settle(candidates, folds)
        again = took if isinstance(self.comparison, NetworkComparison) else 0.0
        self.clock.reserve = again + took / len(folds)  # a last look, and the final fit
        return sorted(candidates, key=lambda c: c.place)

    def _final(
        self, candidates: list[Candidate], folds: list[ScaledFold], everything: ScaledFold
    ) -> tuple[Candidate, NDArray[np.int64]]:
        """The winner, and what it chooses from all rows."""
        final = FinalColumns(
            self.strategies,
            everything,
            self._rows,
            self.held,
            self.seed,
            self._say,
        )
        winner = candidates[0]
        if self.wanted is not None:
            return winner, final.for_target(winner)
        if isinstance(self.comparison, NetworkComparison):
            return final.of_networks(candidates, self.comparison, folds)
        return winner, final.of_line(winner)

    def _panel(
        self,
        candidates: list[Candidate],
        columns: NDArray[np.int64],
        folds: list[ScaledFold],
        everything: ScaledFold,
    ) -> Panel:
        winner = candidates[0]
        decoder = self.rebuilding.fitted(winner, columns, everything)
        held = held_score(winner, folds, self.rebuilding, self.raw)
        names = None if self.names is None else np.array(self.names, dtype=object)
        return Panel(
            Reconstructor(
                columns, in_units(decoder, columns, everything), self.d, names, held.quantiles
            ),
            held_out=held.score,
            leaderboard=on_rank0(lambda: self._leaderboard(candidates)),
            target=self._target(winner, columns, folds, everything),
            evidence=on_rank0(lambda: self._evidence(winner, held, columns, folds, everything)),
            settings=on_rank0(lambda: self._settings(winner)),  # last: how long it all took
        )

    def _evidence(
        self,
        winner: Candidate,
        held: HeldScore,
        columns: NDArray[np.int64],
        folds: list[ScaledFold],
        everything: ScaledFold,
    ) -> Evidence:
        rivals = HeldOutRivals(
            folds=folds,
            panels=winner.panels,
            ridge=winner.ridge,
            final=columns if self.rebuilding is self.line else None,
            source=self.raw,
            constraints=self.constraints,
            comparison=self.line,
            greedy=self.strategies.once("greedy", self.strategies.greedy),
            metrics=("units",) if self.scaling.how == "none" else ("units", "equal"),
            device=self.strategies.device,
            seed=self.seed,
        )
        asked = {"k": self.k, **self.options, **self.options["wishes"]}
        defaults = {name: part.default for name, part in signature(select).parameters.items()}
        options = {
            name: value
            for name, value in asked.items()
            if name in defaults and name != "progress" and value is not defaults[name]
        }
        return gather(
            rivals,
            held,
            everything,
            columns,
            source=self.described,
            options=describe_options(options),
            history=self.strategies.history,
        )

    def _target(
        self,
        winner: Candidate,
        columns: NDArray[np.int64],
        folds: list[ScaledFold],
        everything: ScaledFold,
    ) -> Target | None:
        if self.wanted is None or not isinstance(self.comparison, TargetComparison):
            return None
        decoder = self.comparison.fitted(winner, columns, everything)
        return Target(
            inputs_in_units(decoder, columns, everything).double().eval(),
            self.wanted.classes,
            self.comparison.score(winner, folds),
            self.wanted.name,
            self.wanted.one,
        )

    def _leaderboard(self, candidates: list[Candidate]) -> Leaderboard:
        return Leaderboard(
            {
                "strategy": c.strategy,
                "error": c.error,
                "seconds": c.seconds,
                "price": c.price,
                "ridge": c.ridge,
                "features": [int(j) if self.names is None else self.names[j] for j in c.panels[0]],
            }
            for c in candidates
        )

    def _settings(self, winner: Candidate) -> dict[str, Any]:
        kept = ("decoder", "scale", "strategies", "validation", "time_limit")
        options = {name: self.options[name] for name in kept}
        if self.wanted is not None:
            options |= {"decoder": "linear", "predictor": self.options["decoder"]}
        return describe_parameters(options) | {
            "k": self.constraints.k,
            "rows": self.n,
            "seed": self.seed,
            "winner": winner.strategy,
            "ridge": winner.ridge,
            "seconds": self.clock.seconds,
        }

    def _rows(self, fold: ScaledFold, index: NDArray[np.int64]) -> Source:
        return ScaledSource(RowView(self.raw, index), fold.center, fold.scale)

    def _labels(self, fold: ScaledFold) -> NDArray | None:
        labels = self.options["row_groups"]
        return None if labels is None else np.asarray(labels)[fold.train_index]

    def _say(self, text: str, share: float | None = None) -> None:
        tell = self.options["progress"]
        self.share = self.share if share is None else share
        if not is_rank0():
            return
        if callable(tell):
            tell(text, self.share)
        elif tell:
            print(f"[{self.clock.seconds:6.1f} s] {text}", flush=True)


def _warn_if_linear_is_as_good(winner: Candidate, folds: list[ScaledFold]) -> None:
    panels = zip(folds, winner.panels, strict=True)
    linear = float(np.mean([fold.error(panel) for fold, panel in panels]))
    if linear <= winner.error:
        warn(
            f"the network does not beat a linear decoder: held-out error {winner.error:.4g} "
            f"against {linear:.4g}. Use decoder='linear', which is exact and faster, or give the "
            "network more rows"
        )
