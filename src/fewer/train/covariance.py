"""A linear concrete autoencoder by way of its covariance: selector in closed form, then decoder."""

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewer.constraints import Constraints
from fewer.data import Moments, Source, covariance
from fewer.distributed import on_rank0
from fewer.errors import NotConvergedWarning, warn
from fewer.nn import MeasuredDecoder
from fewer.search import residual
from fewer.train.assignment import obeying_features
from fewer.train.closed_form import fit_closed_form
from fewer.train.device import float64_device, pick_device
from fewer.train.eligible import eligible
from fewer.train.fit import Fit
from fewer.train.least_squares import fit_linear
from fewer.train.progress import EpochBar, epoch_bar
from fewer.train.settings import TrainingConfig

__all__ = ["fit_covariance"]

STEPS = 600
SETTLED = 0.8  # mean max probability: with an exact decoder a few undecided nodes do no harm


def fit_covariance(
    source: Source,
    stats: Moments,
    settings: TrainingConfig,
    *,
    seed: int,
    constraints: Constraints,
) -> Fit:
    """Choose features on the covariance of a source and fit the exact linear decoder.

    Of ``settings.n_init`` starts, trained side by side, the one whose choice leaves the smallest
    residual is kept. Where the selectors do not settle they are trained again, from scratch, with
    twice the steps. Each rank sums up its rows, and rank 0 chooses.

    Examples
    --------
    >>> import numpy as np
    >>> from fewer.constraints import resolve
    >>> from fewer.data import moments
    >>> from fewer.data.source import array_source
    >>> source = array_source(np.random.default_rng(0).normal(size=(200, 4)) * [1, 5, 1, 3])
    >>> settings, constraints = TrainingConfig(k=2), resolve(None, 4, 2)
    >>> fit_covariance(source, moments(source), settings, seed=0, constraints=constraints).columns
    array([1, 3])
    """
    summary = covariance(source, device=float64_device(pick_device(settings.device)))
    features, logits, history, stopped = on_rank0(
        lambda: _chosen(summary.matrix, stats, settings, seed, constraints)
    )
    columns = constraints.complete(features)
    decoder = fit_linear(source, columns, stats, ridge=settings.ridge, summary=summary)
    settled = float(torch.softmax(logits, dim=1).amax(dim=1).mean())
    if settled < SETTLED and not stopped:
        warn(
            f"the selector has not settled: mean max probability {settled:.3f} after "
            f"{settings.tries} tries, the last of {history[-1]['epoch']} steps. The features are "
            f"still {len(columns)} distinct ones, but may be poor: raise epochs, or use "
            "fewer.ColumnSubset",
            NotConvergedWarning,
        )
    wanted = logits.argmax(dim=1).numpy()
    return Fit(
        features,
        columns,
        logits,
        MeasuredDecoder(decoder, fill=torch.from_numpy(stats.mean[columns])).eval(),
        history,
        [],
        settled >= SETTLED,
        int((wanted != features[: len(wanted)]).sum()),
    )


def _chosen(
    C: Tensor, stats: Moments, settings: TrainingConfig, seed: int, constraints: Constraints
) -> tuple[np.ndarray, Tensor, list[dict[str, Any]], bool]:
    """Features of the best start, its logits, the history, and whether it was stopped."""
    steps = STEPS if isinstance(settings.epochs, str) else settings.epochs
    began = time.perf_counter()
    include, allowed = eligible(constraints, stats, settings.k)
    history: list[dict[str, Any]] = []
    stopped = False
    for attempt in range(1, settings.tries + 1):
        with epoch_bar(f"try {attempt}", steps, settings.progress) as bar:

            def note(row: dict[str, Any], attempt: int = attempt, bar: EpochBar = bar) -> bool:
                nonlocal stopped
                entry = {
                    "try": attempt,
                    "epoch": row["step"],
                    "temperature": row["temperature"],
                    "loss": row["loss"],
                    "val_loss": None,
                    "mean_max_probability": row["mean_max_probability"],
                    "distinct": row["distinct"],
                    "seconds": time.perf_counter() - began,
                }
                history.append(entry)
                bar(entry)
                stopped = settings.stops_after(entry)
                return stopped

            found = fit_closed_form(
                C,
                settings.k,
                include=include,
                allowed=allowed,
                costs=constraints.costs,
                cost_weight=settings.cost_weight,
                starts=settings.n_init,
                steps=steps,
                learning_rate=settings.closed_form_rate,
                start_temperature=settings.start_temperature,
                end_temperature=settings.end_temperature,
                seed=seed,
                device=C.device,
                on_row=note,
            )
        if stopped or torch.softmax(found.logits, dim=-1).amax(dim=-1).mean() >= SETTLED:
            break
        steps *= 2
    choices = [obeying_features(logits, constraints, C) for logits in found.logits]
    left = [residual(C, constraints.complete(choice), settings.ridge) for choice in choices]
    best = int(np.argmin(left))
    return choices[best], found.logits[best], history, stopped
