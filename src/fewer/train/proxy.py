"""Networks by way of random features: selector in closed form, then the decoder as asked."""

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewer.constraints import Constraints
from fewer.data import Moments, Source, covariance
from fewer.distributed import on_rank0
from fewer.nn import Loss
from fewer.train.assignment import obeying_features
from fewer.train.device import float64_device, pick_device, products, seeded
from fewer.train.eligible import eligible
from fewer.train.fit import Fit
from fewer.train.problem import new_decoder, prepare
from fewer.train.progress import epoch_bar
from fewer.train.random_features import fit_random_features
from fewer.train.refit import refit_decoder
from fewer.train.settings import TrainingConfig

__all__ = ["fit_surrogate"]

STEPS = 600


def fit_surrogate(
    source: Source,
    stats: Moments,
    settings: TrainingConfig,
    *,
    loss: Loss,
    seed: int,
    constraints: Constraints,
    groups: np.ndarray | None = None,
) -> Fit:
    """Choose features against decoders on random features, then train the asked-for decoder.

    Examples
    --------
    >>> from fewer.constraints import resolve
    >>> from fewer.data import moments
    >>> from fewer.data.source import array_source
    >>> from fewer.nn import make_loss
    >>> x = np.random.default_rng(0).normal(size=(300, 1))
    >>> source = array_source(np.hstack([np.abs(x), 2 * x, x**2 / 2]))  # x tells all
    >>> settings = TrainingConfig(k=1, decoder=(16,), epochs=200)
    >>> constraints, mse = resolve(None, 3, 1), make_loss("mse")
    >>> options = {"loss": mse, "seed": 0, "constraints": constraints}
    >>> fit_surrogate(source, moments(source), settings, **options).columns
    array([1])
    """
    logits, history = on_rank0(lambda: _chosen(source, stats, settings, seed, constraints))
    C = (
        None
        if constraints.groups is None
        else covariance(source, device=pick_device(settings.device)).matrix
    )
    features = obeying_features(logits, constraints, C)
    problem = prepare(source, stats, settings, loss, seed, None, None, constraints, groups)
    with products(problem.precision), seeded(seed + 1, problem.device) as generator:
        fresh = new_decoder(problem, settings.k)
        decoder, refit_history = refit_decoder(
            problem, fresh, features, conflicts=0, generator=generator
        )
    settled = float(torch.softmax(logits, dim=1).amax(dim=1).mean())
    wanted = logits.argmax(dim=1).numpy()
    return Fit(
        features,
        constraints.complete(features),
        logits,
        decoder.cpu().double().eval(),
        history,
        refit_history,
        settled >= 0.8,
        int((wanted != features[: len(wanted)]).sum()),
    )


def _chosen(
    source: Source, stats: Moments, settings: TrainingConfig, seed: int, constraints: Constraints
) -> tuple[Tensor, list[dict[str, Any]]]:
    """Logits and history of the selector."""
    steps = STEPS if isinstance(settings.epochs, str) else settings.epochs
    began = time.perf_counter()
    include, allowed = eligible(constraints, stats, settings.k)
    history: list[dict[str, Any]] = []
    with epoch_bar("random features", steps, settings.progress) as bar:

        def note(row: dict[str, Any]) -> bool:
            entry = {"try": 1, "epoch": row["step"], "val_loss": None, **row}
            del entry["step"]
            entry["seconds"] = time.perf_counter() - began
            history.append(entry)
            bar(entry)
            return settings.stops_after(entry)

        found = fit_random_features(
            source,
            settings.k,
            include=include,
            allowed=allowed,
            steps=steps,
            start_temperature=settings.start_temperature,
            end_temperature=settings.end_temperature,
            learning_rate=settings.selector_rate,
            seed=seed,
            device=float64_device(pick_device(settings.device)),
            on_row=note,
        )
    return found.logits[0], history
