"""Summarise a panel as a dictionary: all numbers and text of the report."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fewer._checks import join_names
from fewer.errors import InputError
from fewer.evidence import Evidence, Examined
from fewer.reproduce import python_of

# the metric that the panel was chosen for comes first; "equal" exists only for scaled features
METRICS = {"equal": "features standardised", "units": "in the units of the data"}
REFERENCES = {
    "panel": ("This panel", ""),
    "pca": ("PCA (reference)", "{k} components, each a combination of all {d} features"),
    "greedy": ("Greedy selection", "one feature at a time, linear decoder"),
    "random": ("Random selection", "mean of {draws} draws, linear decoder"),
}
SAME = "the same predictor"
# baselines of a target: role, colour, label and note
BASELINES = {
    "panel": ("panel", "panel", "This panel", ""),
    "one_network": (
        "panel",
        "panel",
        "This panel, one network",
        "the fair comparison for the baselines below",
    ),
    "all": ("all", "pca", "All features", f"{SAME}, with everything measured"),
    "label_free": ("label_free", "greedy", "Chosen without the target", SAME),
    "random": ("random", "random", "Random selection", f"mean of 3 draws, {SAME}"),
    "constant": ("constant", "random", "Constant", "the same prediction for all rows"),
}
VISIBLE = 5e-4  # smallest difference between scores that a reader would notice
MOST_CLASSES = 20  # of a confusion matrix that is written as a table
MISTAKES = 5
HEAVY = 0.3  # of the squared error in one percent of the rows
RECONSTRUCTED = 0.5  # R² from which a feature counts as reconstructed
MOST_RATIO = 1000  # of errors that is shown
ESTIMATED = "~"  # marks errors of candidates that were not measured on all folds
SHOWN_ELSEWHERE = ("network_gain", "costs", "groups", "tails")  # of the settings
WEAK = 0.05  # p-value from which a contribution may be chance
PIXEL = re.compile(r".*?(\d+)\D+(\d+)\Z")


class Reported(Protocol):
    """What a report reads of a panel."""

    held_out: Any
    estimates: dict[str, Any]
    settings: dict[str, Any]
    target: Any
    evidence: Evidence | None

    @property
    def leaderboard(self) -> Any: ...
    @property
    def k(self) -> int: ...
    @property
    def d(self) -> int: ...
    @property
    def names(self) -> list[str] | None: ...
    @property
    def indices(self) -> NDArray[np.int64]: ...
    @property
    def features(self) -> list[Any]: ...
    def examine(self, X: Any, truth: Any = None) -> Examined: ...
    def check(self, rows: Any) -> Any: ...


def summarise(
    panel: Reported,
    data: Any = None,
    *,
    title: str | None = None,
    image_shape: tuple[int, int] | str | None = "auto",
    rows: bool = True,
    truth: Any = None,
) -> dict[str, Any]:
    """Summarise a panel for its report; the parameters are those of `fewer.report.write`."""
    known = panel.evidence
    if known is not None and not rows:
        known = known.without_rows()
    source = {} if known is None else known.source
    names = [
        name if name.strip() else f"(column {j})"
        for j, name in enumerate(panel.names or map(str, range(panel.d)))
    ]
    given = None if data is None else panel.examine(data, truth)
    seen: Any = known if given is None else given  # an `Evidence`, an `Examined` or None
    errors = panel.held_out.errors if known is None else known.errors
    nothing = np.zeros((0, panel.d), dtype=np.float32)
    standardised = None if known is None else known.explained.get("equal", {}).get("panel")
    return {
        "title": title or _title(panel, source.get("path")),
        "k": panel.k,
        "d": panel.d,
        "named": panel.names is not None,
        "names": names,
        "explained": float(panel.held_out),
        "standardised": standardised,
        "spending": spending_sentence(panel.settings),
        "tails": _tails(panel, standardised),
        "heavy": tails_sentence(panel.settings),
        "robust": " ".join(
            sentence
            for sentence in (
                robust_sentence(panel.leaderboard, panel.settings.get("robust_to")),
                missing_sentence(panel.settings),
            )
            if sentence
        ),
        "standard_errors": {name: one[1] for name, one in panel.estimates.items()},
        "expected": _expected(panel),
        "protocol": panel.settings.get("protocol"),
        "where": "the additional rows" if given is not None else "held-out rows",
        "given": None if given is None else _given(panel, given, standardised is not None),
        "target": _target(panel.target, known),
        "check": None if data is None else _check(panel, data),
        "held_rows": None if known is None else known.source.get("held"),
        "bars": [] if known is None else _bars(known, panel),
        "chosen": _chosen(known, panel, names),
        "gains_by": gains_by(panel),
        "surrogate": _by_surrogate(panel),
        "features": _features(
            panel.indices,
            errors if given is None else given.score.errors,
            None if seen is None else seen.variance,
        ),
        "sample": {
            "true": seen.rows if seen is not None and rows else nothing,
            "predicted": seen.reconstructed if seen is not None and rows else nothing,
        },
        "platform": "platform" in panel.settings,
        "curve": None if known is None else _curve(known),
        "size": None if known is None or known.size is None else _size(known.size, panel),
        "stability": None if known is None else _stability(known, panel, names),
        "chance": None if known is None else _chance(known, panel),
        "contributions": None if known is None else _contributions(known, panel, names),
        "coverage": None if known is None else _coverage(known, names),
        "correlation": None if known is None else _correlation(known, names),
        "history": {} if known is None else known.history,
        "leaderboard": rank_candidates(panel.leaderboard),
        "errors": error_note(panel.leaderboard, panel.settings, panel.target),
        "network": network_note(panel.settings.get("network_gain")),
        "image_shape": _image_shape(panel, image_shape),
        "provenance": _provenance(known, panel),
        "settings": {
            name: _platform_text(value) if name == "platform" else _setting_text(value)
            for name, value in (panel.settings | _seed_as_given(known)).items()
            if name not in SHOWN_ELSEWHERE
        },
        "call": None if known is None else python_of(known),
        "command": None if known is None else known.command,
    }


def _given(panel: Reported, found: Examined, standardised: bool) -> dict[str, Any]:
    """Scores of the additional rows, in the units of those of the held-out rows."""
    score = found.standardised if standardised else found.score
    target, scores = panel.target, []
    if found.target is not None:
        parts = [(one.name, one.kind) for one in target.parts]
        own = found.target if parts else {target.name: found.target}
        scores = [
            {"name": name or "the target", "kind": kind.metric, "score": own[name]}
            for name, kind in parts or [(target.name, target.kind)]
        ]
    return {
        "explained": math.nan if score is None else float(score),
        "error": None if score is None else score.standard_error,
        "rows": found.n,
        "target": scores,
    }


def _check(panel: Reported, data: Any) -> dict[str, Any] | None:
    """What a check of the additional rows finds, and how they drift from batch to batch."""
    try:
        found = panel.check(data)
    except InputError:  # a panel that was saved without statistics, or rows of another kind
        return None
    drift = found.drift
    return {
        "findings": [str(one) for one in found.findings],
        "unusual": int((found.p < 0.01).sum()),
        "rows": found.rows,
        "drift": None
        if drift is None
        else {
            "labels": drift.labels,
            "rows": drift.rows,
            "unusual": drift.unusual.tolist(),
            "lines": {str(drift.features[j]): drift.shift[:, j].tolist() for j in drift.movers},
        },
    }


def _title(panel: Reported, path: str | None) -> str:
    """The size of the panel and, if known, the name of the data."""
    size = f"{panel.k} of {panel.d:,} features"
    return size if not path else f"{size} of {PurePath(path).name}"


def _target(target: Any, known: Evidence | None) -> dict[str, Any] | None:
    if target is None:
        return None
    about = {} if known is None else known.target
    scores = about.get("scores", {})
    name = target.name or "the target"
    several = about.get("parts", [])
    same = "one network" if "one_network" in scores else SAME
    return {
        "name": name,
        "kind": target.kind.metric,
        "note": target.kind.metric_note,
        "score": float(target.held_out),
        "error": target.standard_error,
        "rows": about.get("rows"),
        # the bars and figures are of predictions as they are, the score is corrected for the choice
        "corrected": scores.get("panel", -1.0) > float(target.held_out) + VISIBLE,
        "bars": [
            {
                "role": role,
                "colour": colour,
                "label": label,
                "note": note.replace(SAME, same),
                "score": scores[name],
            }
            for name, (role, colour, label, note) in BASELINES.items()
            if name in scores
        ],
        "parts": [_predicted(part) for part in several or [about | {"name": name}]],
        "several": [
            {
                "name": part["name"],
                "metric": part["metric"],
                "score": part["score"],
                "weight": part["weight"],
            }
            for part in several
        ],
        "classes": not several and "confusion" in about,
        "tradeoff": about.get("tradeoff"),
    }


def _predicted(about: dict[str, Any]) -> dict[str, Any]:
    """What was predicted of one target."""
    return {
        "name": about["name"],
        "confusion": _confusion(about),
        "true": about.get("true", []),
        "predicted": about.get("predicted", []),
        "survival": about.get("survival"),
        "rank_error": about.get("rank_error"),
        "accuracy": about.get("accuracy"),
    }


def _confusion(about: dict[str, Any]) -> dict[str, Any] | None:
    """Counts by true and predicted class, how well each is told, and the usual mistakes."""
    if "confusion" not in about:
        return None
    counts, classes = np.array(about["confusion"]), about["classes"]
    rows, guessed, right = counts.sum(axis=1), counts.sum(axis=0), counts.diagonal()
    shares = counts / np.maximum(rows[:, None], 1)
    wrong = np.where(np.eye(len(counts), dtype=bool), 0, counts)
    most = np.argsort(-wrong, axis=None, kind="stable")[:MISTAKES]
    return {
        "classes": classes,
        "counts": counts.tolist(),
        "shares": shares.tolist(),
        "small": len(classes) <= MOST_CLASSES,
        "each": [  # rare classes first, which hardly count in the accuracy
            {
                "name": classes[i],
                "rows": int(rows[i]),
                "recall": float(right[i] / rows[i]) if rows[i] else None,
                "precision": float(right[i] / guessed[i]) if guessed[i] else None,
            }
            for i in np.argsort(rows, kind="stable")
        ],
        "mistakes": [
            {"true": classes[i], "predicted": classes[j], "count": int(wrong[i, j])}
            for i, j in (divmod(int(at), len(classes)) for at in most)
            if wrong[i, j]
        ],
    }


def _bars(known: Evidence, panel: Reported) -> list[dict[str, Any]]:
    """For each metric, the panel and its references."""
    places = {"k": panel.k, "d": f"{panel.d:,}", "draws": known.source.get("draws", 1)}
    return [
        {
            "metric": METRICS[metric],
            "rows": [
                {
                    "role": role,
                    "label": label,
                    "note": note.format(**places),
                    "explained": known.explained[metric][role],
                    "error": (known.standard_errors or {}).get(metric, {}).get(role),
                }
                for role, (label, note) in REFERENCES.items()
                if role in known.explained[metric]
            ],
        }
        for metric in METRICS
        if known.explained.get(metric)
    ]


def _chosen(known: Evidence | None, panel: Reported, names: Sequence[str]) -> list[dict[str, Any]]:
    if known is None:
        return [{"name": names[j], "column": int(j)} for j in panel.indices]
    found, cumulative = [], known.gains.cumsum()
    at = {int(j): place for place, j in enumerate(panel.indices)}
    costs, groups = (panel.settings.get(name) for name in ("costs", "groups"))
    for place, j in enumerate(known.order):
        substitute = int(known.substitutes[place, 0]) if known.substitutes.shape[1] else -1
        found.append(
            {
                "rank": place + 1,
                "cost": None if costs is None else costs[at[int(j)]],
                "group": None if groups is None else groups[at[int(j)]],
                "name": names[j],
                "column": int(j),
                "gain": float(known.gains[place]),
                "cumulative": float(cumulative[place]),
                "represents": int(known.represents[place]),
                "related": [
                    {"name": names[other], "correlation": float(correlation)}
                    for other, correlation in zip(
                        known.related[place], known.related_correlation[place], strict=True
                    )
                    if other >= 0
                ],
                "without": None if known.without is None else float(known.without[place]),
                "dependents": [] if known.dependents is None else _dependents(known, place, names),
                "others": _others(known, place, names),
                "substitute": names[substitute] if substitute >= 0 else None,
                "loss": float(known.losses[place, 0]) if substitute >= 0 else None,
            }
        )
    return found


def _dependents(known: Evidence, place: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """Features that lose most without the chosen feature at this place, and the R² they lose."""
    assert known.dependents is not None
    assert known.dependent_losses is not None
    pairs = zip(known.dependents[place], known.dependent_losses[place], strict=True)
    return [{"name": names[j], "loss": float(loss)} for j, loss in pairs if j >= 0 and loss > 0.01]


def _others(known: Evidence, place: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """The second and third best substitutes."""
    pairs = zip(known.substitutes[place, 1:3], known.losses[place, 1:3], strict=True)
    return [{"name": names[j], "loss": float(loss)} for j, loss in pairs if j >= 0]


def _features(chosen: Any, errors: NDArray[Any], variance: NDArray[Any] | None) -> dict[str, Any]:
    """Root mean squared error, standard deviation and R² per feature."""
    known = np.full(len(errors), np.nan) if variance is None else variance.astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        r2 = np.where(known > 0, 1.0 - errors / known, np.nan)
    mask = np.isin(np.arange(len(errors)), chosen)
    others = r2[~mask & np.isfinite(r2)]
    return {
        "error": np.sqrt(np.maximum(errors, 0.0)),
        "std": np.sqrt(np.maximum(known, 0.0)),
        "r2": r2,
        "chosen": mask,
        "others": others,
        "median": float(np.median(others)) if len(others) else None,
        "good": int((others >= RECONSTRUCTED).sum()),
        "threshold": RECONSTRUCTED,
        "constant": 0 if variance is None else int((~np.isfinite(r2)).sum()),
    }


def _curve(known: Evidence) -> dict[str, Any] | None:
    sizes = known.curve.get("k", [])
    metric = next((name for name in METRICS if known.curve.get(name)), None)
    if metric is None or len(sizes) < 2:
        return None
    return {"k": sizes, "lines": known.curve[metric], "metric": METRICS[metric]}


def _expected(panel: Reported) -> tuple[float, float] | None:
    """The 90% interval of the score of as many new rows as were held out."""
    score = next(panel.estimates[name] for name in METRICS if name in panel.estimates)
    found: tuple[float, float] | None = None
    if score.units is not None:
        found = score.interval(0.9, new_rows=score.units)
    return found


def _size(size: dict[str, Any], panel: Reported) -> dict[str, Any]:
    """How k was chosen: a sentence, and the curve with one standard error either way."""
    mean, error = np.array(size["explained_variance"]), np.nan_to_num(_errors(size))
    return {
        "chosen": size["chosen"],
        "k": size["k"],
        "mean": mean.tolist(),
        "low": (mean - error).tolist(),
        "high": (mean + error).tolist(),
        "pca": size["pca"],
        "sentence": size_sentence(size, None if panel.target is None else panel.target.name),
        "target": None if panel.target is None else panel.target.name or "the target",
    }


def size_sentence(size: dict[str, Any], target: str | None = None) -> str:
    """How k was chosen, from `Evidence.size`; for ``target``, if there is one."""
    k, of = size["chosen"], target
    if size["pca"] is None and of is None:
        of = "the target"
    others = "others" if of is None else of
    if size["rule"] == "given":
        reason = "as requested"
    elif size["rule"] != "auto":
        level, what = float(size["rule"].split()[1]), "the variance" if of is None else of
        reason = f"the fewest features that explain {level:.0%} of {what} on held-out rows"
    elif of is None and size["noise"] is not None and size["noise"] <= size["one_standard_error"]:
        reason = "additional features explain others no better than permuted columns do"
    else:
        reason = "the fewest features within one standard error of the best score"
    if size["rule"] == "given":
        return f"k = {k}: {reason}.{_other_rules(size, others)}"
    at = size["k"].index(k)
    error = _errors(size)[at]
    reached = f"{size['explained_variance'][at]:.1%}"
    reached += "" if np.isnan(error) else f" ± {error:.1%}"
    return f"k = {k}: {reason}. The nested path that decides this explains {reached} at k = {k}."


def _other_rules(size: dict[str, Any], others: str) -> str:
    """What rules suggest for k, where it was given."""
    most, noise = size["k"][-1], size["noise"]
    found = (
        f" Rules for k, up to {most}: {size['one_standard_error']} is the smallest within one "
        f"standard error of the best score, the elbow is at {size['elbow']}, and "
    )
    if "few_groups" in size:
        few = size["few_groups"]
        return found + f"{few} groups of rows are too few to test additional features for chance."
    if noise is None:
        return found + f"even after {most}, additional features explain {others} beyond chance."
    return found + f"after {noise}, additional features explain {others} no better than chance."


def spending_sentence(settings: dict[str, Any]) -> str | None:
    """What a panel costs, and of how many groups its features are."""
    parts = []
    groups = settings.get("groups")
    if groups:
        named = {label for label in groups if label}
        alone = sum(1 for label in groups if not label)
        parts.append(
            f"{len(groups)} features of {len(named)} group{'s' if len(named) != 1 else ''}"
            + (f" and {alone} without" if alone else "")
        )
    if settings.get("cost") is not None:
        paid = f"total cost {settings['cost']:g}"
        paid += "" if settings.get("budget") is None else f" of a budget of {settings['budget']:g}"
        parts.append(paid + (", each group paid once" if groups else ""))
    limits = settings.get("limits", ())
    for limit in limits:
        if limit["cost"] or limit["least"]:
            most = "" if limit["most"] is None else f"at most {limit['most']:g}"
            least = f"at least {limit['least']:g}" if limit["least"] else ""
            bounds = " and ".join(part for part in (least, most) if part)
            parts.append(f"{limit['name']}: {limit['sum']:g} ({bounds})")
    others = [limit for limit in limits if not (limit["cost"] or limit["least"])]
    if others:
        most = ", ".join(f"{n:g}" for n in sorted({limit["most"] for limit in others}))
        of = f"each of {len(others)} sets" if len(others) > 1 else repr(others[0]["name"])
        parts.append(f"at most {most} of {of}")
    return "; ".join(parts) or None


def _tails(panel: Reported, standardised: float | None) -> dict[str, Any] | None:
    """What is explained without few rows, in the metric of the first number of the report."""
    tails: dict[str, Any] | None = panel.settings.get("tails")
    metric = "units" if standardised is None else "equal"
    return tails if tails and tails.get("metric", "equal") == metric else None


def tails_sentence(settings: dict[str, Any]) -> str | None:
    """Whether few held-out rows have most of the error, and the numbers without them."""
    tails = settings.get("tails")
    if not tails or tails["share"] < HEAVY:
        return None
    remedy = '; if they are right, loss="huber" (--loss huber) lets them count less'
    return (
        f"Heavy tails: 1% of the held-out rows account for {tails['share']:.0%} of the squared "
        f"error. Without them, {tails['trimmed']:.1%} of the variance is explained instead of "
        f"{tails['explained']:.1%} ({METRICS[tails.get('metric', 'equal')]}); the median error of "
        f"a row is {tails['median_error'] / tails['mean_error']:.2g} times the mean. Look for "
        f"wrong values with fewer inspect{'' if settings.get('loss') == 'huber' else remedy}."
    )


def robust_sentence(board: Sequence[dict[str, Any]], m: int | None) -> str | None:
    """What a panel that tolerates missing features costs and gains, against the best without."""
    if not m or not board or board[0].get("worst") is None:
        return None
    own, what = board[0], "feature" if m == 1 else f"{m} features"
    others = [row for row in board[1:] if row.get("worst") is not None]
    found = (
        f"Held-out error {own['error']:.4g} with all features present, {own['worst']:.4g} with the "
        f"worst {what} missing"
    )
    if not own["strategy"].endswith(f"robust to {m}"):
        return f"{found}; no panel was found that tolerates missing features better."
    if not others:
        return f"{found}."
    plain = min(others, key=lambda row: row["error"])
    return (
        f"{found}; the best panel without robust_to has {plain['error']:.4g} and "
        f"{plain['worst']:.4g} "
        f"({own['error'] / plain['error'] - 1:+.1%} and {own['worst'] / plain['worst'] - 1:+.1%})."
    )


def missing_sentence(settings: dict[str, Any]) -> str | None:
    """How a network was prepared for missing inputs, and both errors."""
    about = settings.get("expect_missing")
    if not about:
        return None
    error, dropped = about["error"], about["error_dropped"]
    how = "with such inputs dropped" if dropped < error else "on complete inputs"
    return (
        f"With {about['rate']:.1%} of the measured values missing, the held-out error is "
        f"{dropped:.4g} for a network trained with such inputs dropped and {error:.4g} for one "
        f"trained on complete inputs; this one was trained {how}."
    )


def _stability(known: Evidence, panel: Reported, names: Sequence[str]) -> dict[str, Any] | None:
    """How often each chosen feature is chosen again from half of the rows, and a sentence."""
    if known.stability is None:
        return None
    about = known.stability
    low, high = about["cluster_interval"]
    often = sum(share >= about["threshold"] for share in about["frequency"])
    return {
        "frequency": about["frequency"],
        "sentence": f"Selection was repeated on {about['subsamples']} halves of the rows, for "
        f"{_model(panel)}: {often} of the {panel.k} features {'is' if often == 1 else 'are'} "
        f"chosen again in at least {about['threshold']:.0%} of them. The stability index, with "
        f"interchangeable features counted as one, is {about['cluster_index']:.2f} (95% interval "
        f"{low:.2f} to {high:.2f}); "
        "1 means always the same features, 0 no more agreement than by chance."
        + (
            f" At most {about['false_bound']:.2g} of the features chosen so often are "
            "expected to be false selections, if rows are independent."
            if about["false_bound"] < often
            else ""
        ),
        "clusters": [
            {"names": [names[j] for j in part["features"]], "frequency": part["frequency"]}
            for part in about.get("clusters", [])
        ],
    }


def _coverage(known: Evidence, names: Sequence[str]) -> dict[str, Any] | None:
    """How many held-out values of each feature are in their 90% intervals."""
    if known.coverage is None or not np.isfinite(known.coverage).any():
        return None
    at = np.flatnonzero(np.isfinite(known.coverage))
    shares = known.coverage[at].astype(float)
    low, high = np.quantile(shares, [0.05, 0.95])
    worst = int(at[shares.argmin()])
    return {
        "shares": shares.tolist(),
        "sentence": "90% prediction intervals, calibrated on other rows, contain "
        f"{shares.mean():.1%} of the held-out values; of most features between {low:.0%} and "
        f"{high:.0%}, least of {names[worst]} ({shares.min():.0%}).",
    }


def _chance(known: Evidence, panel: Reported) -> dict[str, Any] | None:
    """The panel against random panels of the same size."""
    if known.significance is None:
        return None
    about = known.significance
    better = float(np.mean(np.array(about["random"]) < about["panel"]))
    return {
        "random": about["random"],
        "panel": about["panel"],
        "sentence": f"With {_model(panel)}, these features do better than {better:.0%} of "
        f"{len(about['random'])} random panels of the same size (p = {about['p_value']:.3g}), of "
        f"which the median explains {np.median(about['random']):.1%} of {_explained(panel)}. Here "
        "the features are the same on all folds and were chosen on all rows, which favours them.",
    }


def _model(panel: Reported) -> str:
    return "a linear decoder" if panel.target is None else f"a linear map to {_name(panel)}"


def _explained(panel: Reported) -> str:
    return "the variance" if panel.target is None else f"the variance of {_name(panel)}"


def _name(panel: Reported) -> str:
    return str(panel.target.name or "the target")


def gains_by(panel: Reported) -> str:
    """How gains are measured: the rows and, where it is not the panel's own decoder, the model."""
    if _by_surrogate(panel):
        return "on held-out rows, by a surrogate of the network"
    network = panel.target is None and panel.settings.get("decoder", "linear") != "linear"
    return "on all rows, by a linear decoder" if network else "on all rows"


def _by_surrogate(panel: Reported) -> bool:
    """Whether gains and losses are those of a surrogate of the network that predicts a target."""
    return panel.target is not None and panel.settings.get("predictor", "linear") != "linear"


def _contributions(known: Evidence, panel: Reported, names: Sequence[str]) -> dict[str, Any] | None:
    """What is lost without each feature, and whether permuted columns would do as well."""
    if known.without is None:
        return None
    tests = None if known.significance is None else known.significance["contributions"]
    few = None if known.significance is None else known.significance.get("few_groups")
    group = " or, in its place, its group" if panel.settings.get("groups") else ""
    model = f"{_model(panel)} refitted"
    if _by_surrogate(panel):
        model = "a surrogate of the network refitted"
    elif panel.settings.get("reconstruct"):
        model = f"linear maps to {_name(panel)} and to all features, by their weights, refitted"
    said = f"Explained variance lost without each feature{group}, with {model}."
    if few is not None:
        said += (
            " Whether that is more than chance is not tested: the test uses one row per group of "
            f"rows, and {few} groups are too few."
        )
    if tests is not None:
        weak = [names[j] for j, p in zip(known.order, tests, strict=True) if p > WEAK]
        share = len(tests) - len(weak)
        what = "features outside the panel" if panel.target is None else _name(panel)
        said += (
            f" {share} of {len(tests)} explain {what} better than the same column does with "
            "permuted rows (p ≤ 0.05)"
        )
        said += f"; not {join_names(weak, 5, quoted=False)}." if weak else "."
        if "groups of rows" in str(panel.settings.get("protocol")):
            said += " The test uses one row per group of rows."
    return {"lost": known.without.tolist(), "p_values": tests, "sentence": said}


def _errors(size: dict[str, Any]) -> NDArray[np.float64]:
    return np.array([np.nan if e is None else e for e in size["standard_error"]], dtype=float)


def _correlation(known: Evidence, names: Sequence[str]) -> dict[str, Any] | None:
    if len(known.correlation) < 2:
        return None
    shown = [names[j] for j in known.order[: len(known.correlation)]]
    return {"names": shown, "matrix": np.asarray(known.correlation, dtype=float)}


def network_note(gain: dict[str, float] | None) -> str | None:
    """Whether the network beats a linear decoder from the same features."""
    if gain is None:
        return None
    low, high = gain["low"], gain["high"]
    verdict = "beats" if low > 0 else "is worse than" if high < 0 else "does not clearly beat"
    return (
        f"The network {verdict} a linear decoder of the same features: held-out error "
        f"{gain['gain']:.1%} lower (95% interval {low:.1%} to {high:.1%})."
    )


def error_note(board: Sequence[dict[str, Any]], settings: Mapping[str, Any], target: Any) -> str:
    """What the errors of a leaderboard are, and why the first need not be the lowest."""
    features = "mean squared error of the features"
    how = {"standard": ", standardised", "none": " in their units"}.get(
        settings.get("scale", ""), ""
    )
    text = f"Error: {features}{how}, in held-out rows."
    if target is not None:
        loss, name = target.kind.loss_name, target.name or "the target"
        text = f"Error: {loss} of {name} in held-out rows."
        if settings.get("reconstruct"):
            text = (
                f"Error: weighted mean of the {loss} of {name} and the {features}, both in "
                "held-out rows and relative to the lowest."
            )
    if any(row.get("estimated") for row in board):
        text += (
            f" {ESTIMATED}: estimated from the first fold, after which candidates that were far "
            "behind were dropped."
        )
    errors = [row["error"] for row in board]
    if errors and min(errors) < errors[0]:
        text += " The winner has not the lowest, since ties are broken by further comparisons."
    return text


def rank_candidates(board: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each candidate of a leaderboard with the ratio of its error to the winner's."""
    best = board[0]["error"] if board else 0.0
    ratios = [
        row["error"] / best if best else (1.0 if row["error"] == best else math.inf)
        for row in board
    ]
    return [
        {
            "strategy": row["strategy"],
            "error": row["error"],
            "mark": ESTIMATED if row.get("estimated") else "",
            "ratio": ratio,
            # nothing to compare with where the winner is right but for rounding
            "ratio_text": f"{ratio:.3f}" if ratio <= MOST_RATIO else f">{MOST_RATIO}",
            "seconds": row["seconds"],
            "price": row.get("price") or 0.0,
            "worst": row.get("worst"),
        }
        for row, ratio in zip(board, ratios, strict=True)
    ]


def _image_shape(panel: Reported, given: Any) -> tuple[int, int] | None:
    shape = _shape_from_names(panel.names or ()) if given == "auto" else given
    if shape is None:
        return None
    try:
        height, width = (int(side) for side in shape)
    except (TypeError, ValueError) as error:
        raise InputError(f"image_shape={given!r}; use (height, width), 'auto' or None") from error
    if height < 1 or width < 1 or height * width != panel.d:
        raise InputError(
            f"image_shape={given!r} has {height * width} pixels, but there are {panel.d} features"
        )
    return height, width


def _shape_from_names(names: Sequence[str]) -> tuple[int, int] | None:
    """Height and width where names end in row and column numbers, in reading order."""
    found = [PIXEL.match(name) for name in names]
    if len(found) < 4 or not all(found):
        return None
    places = np.array([[int(part) for part in match.groups()] for match in found if match])
    places -= places.min(axis=0)
    height, width = (int(side) + 1 for side in places.max(axis=0))
    inorder = places[:, 0] * width + places[:, 1]
    return (height, width) if np.array_equal(inorder, np.arange(height * width)) else None


def _provenance(known: Evidence | None, panel: Reported) -> list[tuple[str, str]]:
    if known is None:
        return [("Rows", f"{panel.settings.get('rows', 0):,}"), ("Features", f"{panel.d:,}")]
    source = known.source
    found = [("Data", str(source.get("path") or source["kind"]))]
    if source.get("path"):
        found.append(("Format", source["kind"]))
    found += [
        ("Rows", f"{source['rows']:,}"),
        ("Features", f"{source['columns']:,}"),
        ("Missing values", f"{source['missing']:.2%}" if source["missing"] else "none"),
    ]
    # older folders call them left_out
    ignored = source.get("metadata_columns") or source.get("left_out")
    if ignored:
        found.append(("Ignored columns", ", ".join(ignored)))
    if source.get("held"):
        folds = source.get("folds", 1)
        turns = f"all, by {folds}-fold cross-validation"
        found.append(("Rows held out", turns if folds > 1 else f"{source['held']:,}"))
    return [
        *found,
        ("Created", known.created.replace("T", " ").replace("+00:00", " UTC")),
        ("Software", f"fewer {known.version}"),
    ]


def _seed_as_given(known: Evidence | None) -> dict[str, Any]:
    """The seed that the user gave; the one in the settings is drawn from it."""
    given = None if known is None else known.options.get("random_state")
    return {"seed": given} if isinstance(given, int) else {}


def _platform_text(platform: dict[str, Any]) -> str:
    """What was said of the instrument; its calibration is no text."""
    shown = (name for name in platform if name != "calibration")
    return ", ".join(f"{name.replace('_', ' ')} {_setting_text(platform[name])}" for name in shown)


def _setting_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict) and "function" in value:
        return f"function {value['function']}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    return str(value)


def substitutes(panel: Reported) -> list[dict[str, Any]]:
    """For each chosen feature: what is lost without it, what depends on it, and its substitutes."""
    if panel.evidence is None:
        raise InputError("this panel was saved without evidence; recreate it with fewer select")
    found = []
    for row in summarise(panel, image_shape=None)["chosen"]:
        first = {"name": row["substitute"], "loss": row["loss"]}
        best = [] if row["substitute"] is None else [first]
        others = [{"feature": o["name"], "loss": o["loss"]} for o in best + row["others"]]
        dependents = [{"feature": o["name"], "r2": o["loss"]} for o in row["dependents"][:3]]
        found.append(
            {
                "feature": row["name"],
                "lost_without": row["without"],
                "dependents": dependents,
                "substitutes": others,
            }
        )
    return found
