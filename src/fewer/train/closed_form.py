"""Concrete autoencoders whose decoder is solved in closed form at every step.

With a linear decoder and squared error, the best decoder for a draw M of the selector (k x d) is
known, so only the selector is trained, and only the covariance C is needed:

    minimise  tr C - tr((M C M' + p I)^-1 M C C M')  over the logits,  M ~ Concrete(logits, T).

A step costs two products of a k x d with a d x d matrix, whatever the number of rows; of wide data,
whose covariance is X' X with few rows X, four of a k x d matrix with X.

Where k features leave next to nothing unexplained, as where a few features have nearly all of the
variance, this residual falls by orders of magnitude while the selector settles, and its gradient
with it: to Adam, which remembers the first gradients, the last ones are nothing, and p and float32
hide what they are about. There its logarithm is minimised, which has the same optimum, in float64
and with a thousandth of p.

For nonlinear decoders, random features replace the trained network. Every step draws a random
layer Phi = [relu(u R + c), u] of the k selected values u, solves ridge regression from Phi to the
targets on one half of a batch, and backpropagates the loss on the other half through the solution.
Targets are the leading principal components of the rows, which carry nearly all of the squared
error in a fraction of the columns.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fewer.errors
from fewer.constraints import Constraints, resolve
from fewer.cuda import RecordedStep
from fewer.data import Moments, Source
from fewer.data.batches import Batches
from fewer.data.factored import FactoredCovariance, Matrix
from fewer.data.moments import summarize
from fewer.distributed import on_rank0
from fewer.errors import warn
from fewer.nn import Loss, MeasuredDecoder, gumbel_noise, relaxed_choice
from fewer.nn.schedule import Schedule, exponential
from fewer.search import greedy, residual
from fewer.search.eigen import leading_eigenvectors
from fewer.train.assignment import distinct_features, eligible, obeying_features
from fewer.train.config import TrainingConfig
from fewer.train.device import float64_device, pick_device, products, seeded
from fewer.train.linear import fit_linear
from fewer.train.linear_choice import Trust
from fewer.train.network import EpochBar, epoch_bar, fit_decoder, stops_after
from fewer.train.optimize import Adam
from fewer.train.refine import refined, searched
from fewer.train.training_data import Fit, new_decoder, prepare

__all__ = ["SelectorFit", "fit_closed_form", "fit_covariance", "fit_random_features"]

REPORT_EVERY = 10
STEPS = 600
SETTLED = 0.8  # mean max probability: with an exact decoder a few undecided nodes do no harm

FINE = 0.05  # of the variance: where greedy selection leaves less, the logarithm is minimised
FINE_RIDGE = 1e-3  # of the usual penalty, there
EXHAUSTED = 1e-14  # of the variance: less than that is rounding

SMALL_STEP = 2**20  # logits: a GPU takes longer to start the kernels of a step than to run them

Row = dict[str, Any]
Backward = Callable[[float | Tensor, Tensor | None, Tensor | None], Tensor]
OnRow = Callable[[Row], bool | None]


@dataclass(frozen=True)
class SelectorFit:
    """Trained selectors of several starts, before any decoder is fitted.

    Attributes
    ----------
    logits : Tensor (starts, k, d)
        Learned log alpha; -inf where a feature was not allowed.
    features : array (starts, k)
        Distinct features, one for each node.
    history : list of dict
        Of the first start, every ten steps: step, temperature, loss, mean_max_probability and
        distinct.

    Examples
    --------
    >>> fit = fit_closed_form(torch.diag(torch.tensor([1.0, 9.0, 4.0])), k=2, starts=3, steps=100)
    >>> fit.logits.shape, fit.features.shape
    (torch.Size([3, 2, 3]), (3, 2))
    """

    logits: Tensor
    features: np.ndarray
    history: list[Row]


def fit_closed_form(
    C: Matrix,
    k: int,
    *,
    include: np.ndarray | None = None,
    allowed: np.ndarray | None = None,
    costs: np.ndarray | None = None,
    cost_weight: float = 0.0,
    starts: int = 1,
    steps: int = 600,
    learning_rate: float = 0.2,
    start_temperature: float = 3.0,
    end_temperature: float = 0.05,
    noise: float = 1.0,
    ridge: float = 1e-4,
    seed: int = 0,
    device: torch.device | str | None = None,
    on_row: OnRow | None = None,
) -> SelectorFit:
    """Train selectors against the exact linear decoder, on a covariance matrix alone.

    Parameters
    ----------
    C : Tensor (d, d)
        Covariance; that of wide data may be given as a `FactoredCovariance`.
    k : int
        Number of features to choose, including those of ``include``.
    include, allowed : array of int, array of bool (d), default=None
        Features that must be in the panel, and a mask of those that may be chosen.
    costs, cost_weight : array of float (d), float, default=None, 0.0
        Cost of each feature, and what a unit of cost adds to the mean squared residual.
    starts : int, default=1
        Number of selectors, trained together from different random logits.
    steps, learning_rate : int, float, default=600, 0.2
        Of Adam on the logits.
    start_temperature, end_temperature : float, default=3.0, 0.05
        The temperature decreases exponentially from the first to the second.
    noise : float, default=1.0
        Factor of the Gumbel noise; values below 1 explore less and converge sooner.
    ridge, seed : float, int, default=1e-4, 0
        Penalty p as a fraction of the mean variance, and the seed of random numbers.
    device : torch.device, default=None
        Where to compute; None is where C is. If its memory is too small, fewer starts are trained
        at a time; if a single one does not fit, it is trained on the CPU, with a warning.
    on_row : callable, default=None
        Called with each row of the history; training stops when it returns True.

    Examples
    --------
    >>> import torch
    >>> fit = fit_closed_form(torch.diag(torch.tensor([1.0, 9.0, 4.0, 0.1])), k=2, steps=200)
    >>> sorted(fit.features[0].tolist())
    [1, 2]
    """

    def train(starts: int, seed: int, device: torch.device, on_row: OnRow | None) -> SelectorFit:
        d = len(C)
        variance = float(C.diagonal().double().mean()) or 1.0
        here = C.cpu() if device.type == "cpu" else C  # a full GPU has no room for a quotient
        dtype = torch.float64 if fine else torch.float32
        times = Products(_in_units(here, variance, dtype).to(device))  # one learning rate fits all
        penalty = ridge * (FINE_RIDGE if fine else 1.0)
        fixed, forbidden = _included_and_forbidden(d, include, allowed, device)
        forbidden = nn.functional.pad(forbidden, (0, times.width - d), value=True)
        generator = torch.Generator(device).manual_seed(seed)
        shape = starts, k - len(fixed), times.width
        logits = 0.01 * torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        logits.masked_fill_(forbidden, -torch.inf)
        prices = None
        if costs is not None and cost_weight:
            # the loss here is the residual of all d features together, over variance
            prices = torch.zeros(times.width, device=device, dtype=dtype)
            prices[:d] = torch.tensor(costs * (cost_weight * d / variance), device=device)
        unit, least = variance / d, EXHAUSTED * times.trace

        def backward(T: float | Tensor, rows: Tensor | None, failed: Tensor | None) -> Tensor:
            M = relaxed_choice(logits, T, gumbel_noise(logits, generator).mul_(noise)).to(dtype)
            loss, grad = _residual_and_gradient(times, M, fixed, penalty, failed)
            if prices is not None:
                grad = grad + prices
            if fine:
                grad = grad / loss.clamp_min(least)[:, None, None]
            # the gradient of the softmax, which is 0 where M is 0
            logits.grad = (M * (grad - (grad * M).sum(-1, keepdim=True)) / T).float()
            return loss[0]

        temperature = exponential(start_temperature, end_temperature, steps)
        training = _Training(backward, logits, learning_rate, generator)
        history = training.run(fixed, temperature, steps, unit, on_row)
        return _finished(logits[..., :d], fixed, history)

    home = torch.device(device or C.device)
    fine = _leaves_little(C, k, include, allowed)
    return _within_memory(train, starts, seed, float64_device(home) if fine else home, on_row)


def _leaves_little(
    C: Matrix, k: int, include: np.ndarray | None, allowed: np.ndarray | None
) -> bool:
    """Whether k features can explain nearly all of the variance, by greedy selection."""
    d, total = len(C), float(C.trace())
    nothing = np.arange(0)
    shut = nothing if allowed is None else np.flatnonzero(~allowed)
    must = nothing if include is None else include
    constraints = resolve(None, d, k, include=must, exclude=np.setdiff1d(shut, must))
    return total > 0 and float(greedy(C, constraints).errors[-1]) < FINE * total


class _Training:
    """Training of logits (starts x free nodes x d), in place.

    ``backward`` takes a temperature, the next of ``rows``, if any, and sets the gradient; where it
    must not wait for the GPU, it counts what failed. Small steps are recorded as a CUDA graph; ten
    of them in which something failed are repeated one by one.
    """

    def __init__(
        self,
        backward: Backward,
        logits: Tensor,
        learning_rate: float,
        generator: torch.Generator,
        rows: Iterator[Tensor] | None = None,
    ) -> None:
        self.backward, self.logits, self.rows, self.generator = backward, logits, rows, generator
        self.optimizer = Adam(([logits], learning_rate))
        self.rates = [torch.tensor(learning_rate, device=logits.device)]
        zero = partial(torch.zeros, (), device=logits.device)
        self.T, self.loss, self.failed = zero(), zero(), zero()
        group = self.optimizer.groups[0]
        moments = [*group["exp_avgs"], *group["exp_avg_sqs"], *group["state_steps"]]
        self.state = [logits.detach(), *moments]
        self.batch: Tensor | None = None  # of rows
        self.recorded: RecordedStep | None = None
        if logits.is_cuda and logits.numel() <= SMALL_STEP:
            state = [*self.state, self.loss, self.failed]
            self.recorded = RecordedStep(self._step, state, logits.device, [generator])

    def run(
        self,
        fixed: Tensor,
        temperature: Schedule,
        steps: int,
        unit: float,
        on_row: OnRow | None,
    ) -> list[Row]:
        """Train for so many steps; the history of the first start, with losses times ``unit``."""
        history: list[Row] = []
        steps = steps if self.logits.shape[1] else 0
        for start in range(0, steps, REPORT_EVERY):
            some = [temperature(at) for at in range(start, min(start + REPORT_EVERY, steps))]
            loss = self._replayed(some) if self.recorded is not None else self._one_by_one(some)
            now = self.logits.detach()[0]
            probability = torch.softmax(now, dim=-1).amax(dim=-1)
            row = {
                "step": start + len(some),
                "temperature": some[-1],
                "loss": loss * unit,
                "mean_max_probability": float(probability.sum() + len(fixed))
                / (len(now) + len(fixed)),
                "distinct": len(now.argmax(dim=-1).unique()) + len(fixed),
            }
            history.append(row)
            if on_row is not None and on_row(row):
                break
        return history

    def _one_by_one(self, temperatures: list[float]) -> float:
        for T in temperatures:
            loss = self.backward(T, None if self.rows is None else next(self.rows), None)
            self.optimizer.step()
        return float(loss.detach())

    def _step(self) -> None:
        self.loss.copy_(self.backward(self.T, self.batch, self.failed).detach())
        self.optimizer.step(self.rates)

    def _replayed(self, temperatures: list[float]) -> float:
        assert self.recorded is not None
        before, drawn = [part.clone() for part in self.state], self.generator.get_state()
        for T in temperatures:
            self.T.fill_(T)
            if self.rows is not None:
                x = next(self.rows)
                self.batch = torch.empty_like(x) if self.batch is None else self.batch
                self.batch.copy_(x)
            self.recorded()
        if not self.failed:
            return float(self.loss)
        with torch.no_grad():
            for part, value in zip(self.state, before, strict=True):
                part.copy_(value)
        self.generator.set_state(drawn)
        self.failed.zero_()
        return self._one_by_one(temperatures)


def _within_memory(
    train: Callable[[int, int, torch.device, OnRow | None], SelectorFit],
    starts: int,
    seed: int,
    device: torch.device,
    on_row: OnRow | None,
) -> SelectorFit:
    try:
        return train(starts, seed, device, on_row)
    except torch.OutOfMemoryError:
        if starts == 1 and device.type == "cpu":
            raise
    torch.cuda.empty_cache()  # after the handler, which would keep the tensors alive
    if starts == 1:
        warn(f"the closed form does not fit into the memory of {device}; using the CPU")
        return train(1, seed, torch.device("cpu"), on_row)
    half = starts // 2
    one = _within_memory(train, starts - half, seed, device, on_row)
    two = _within_memory(train, half, seed + 1, device, None)
    logits = torch.cat([one.logits, two.logits])
    return SelectorFit(logits, np.concatenate([one.features, two.features]), one.history)


def _included_and_forbidden(
    d: int, include: np.ndarray | None, allowed: np.ndarray | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Features of the fixed nodes, and a mask of those that the free nodes may not take."""
    fixed = torch.as_tensor([] if include is None else include, dtype=torch.int64, device=device)
    forbidden = torch.zeros(d, dtype=torch.bool, device=device)
    if allowed is not None:
        forbidden |= ~torch.as_tensor(allowed, device=device)
    forbidden[fixed] = True
    return fixed, forbidden


def _in_units(C: Matrix, variance: float, dtype: torch.dtype) -> Matrix:
    """C / variance, some rows at a time: in float32, no second matrix in float64."""
    if isinstance(C, FactoredCovariance):
        return FactoredCovariance((C.rows / variance**0.5).to(dtype))
    found = torch.empty(C.shape, dtype=dtype, device=C.device)
    for own, rows in zip(found.chunk(8), C.chunk(8), strict=True):
        own.copy_(rows / variance)
    return found


class Products:
    """Products with a covariance; those in float32 on CUDA in tf32, six times as fast.

    There, matrices are padded to whole cache lines, without which tf32 is slow. Where precision
    matters, both factors are split into two parts of eleven bits each.
    """

    def __init__(self, C: Matrix) -> None:
        self.trace = C.diagonal().sum()
        self.C = C
        self.split = False
        if isinstance(C, Tensor) and C.is_cuda and C.dtype == torch.float32:
            self.split, extra = True, -len(C) % 64
            self.C = nn.functional.pad(C, (0, extra, 0, extra)) if extra else C
            self.high, self.low = _two_parts(self.C)
        self.width = len(self.C)

    def __call__(self, M: Tensor) -> Tensor:
        """M C (M is m x width) in the precision of C."""
        if not self.split:
            return M @ self.C
        high, low = _two_parts(M)
        with products("tf32"):
            return (high @ self.high).addmm_(high, self.low).addmm_(low, self.high)

    def roughly(self, M: Tensor) -> Tensor:
        """M C, to three digits on CUDA."""
        with products("tf32" if self.split else "float32"):
            return M @ self.C


def _two_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """The leading eleven bits of each number, which is all that tf32 reads, and the rest."""
    high = (x.view(torch.int32) & -0x2000).view(torch.float32)
    return high, x - high


def _residual_and_gradient(
    times: Products, M: Tensor, fixed: Tensor, ridge: float, failed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Residual of every start and its gradient with respect to the free rows of M.

    With A = M C M' + p I, Q = M C C M' and P = A^-1 the residual is tr C - tr P Q, and its
    gradient -2 (P M C C - P Q P M C). The k x k inverse needs float64 and a unit diagonal.
    """
    starts, free, d = M.shape
    MC = times(M.reshape(-1, d)).view(starts, free, d)
    if len(fixed):
        taken = nn.functional.one_hot(fixed, d).to(M).expand(starts, -1, -1)
        M = torch.cat([M, taken], dim=1)
        MC = torch.cat([MC, times.C[fixed].expand(starts, -1, -1)], dim=1)
    A = (MC @ M.mT).double()
    Q = (MC @ MC.mT).double()
    A = (A + A.mT) / 2
    A.diagonal(dim1=1, dim2=2).add_(ridge)
    P = _inverse(A, failed)
    residual = times.trace - (P * Q).sum(dim=(1, 2))
    PQP = (P @ Q @ P)[:, :free].to(M.dtype)
    PMC = P[:, :free].to(M.dtype) @ MC
    grad = times.roughly(PMC.reshape(-1, d)).view(starts, free, d).sub_(PQP @ MC).mul_(-2)
    return residual, grad


def _inverse(A: Tensor, failed: Tensor | None = None) -> Tensor:
    """Inverses of positive matrices that float32 rounding may have made slightly indefinite.

    With ``failed``, to which failures are added, nothing is done about them.
    """
    scale = A.diagonal(dim1=1, dim2=2).clamp_min(1e-30).rsqrt()
    A = scale[..., None] * A * scale[:, None]
    jitter = 0.0
    while True:
        factor, failures = torch.linalg.cholesky_ex(A)
        if failed is not None:
            failed += failures.ne(0).sum()
            break
        if not failures.any():
            break
        jitter = max(1e-7, 10 * jitter)
        A.diagonal(dim1=1, dim2=2).add_(jitter)
    if A.is_cuda:  # half the time of cholesky_inverse there
        eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand_as(A)
        root = torch.linalg.solve_triangular(factor, eye, upper=False)
        inverse = root.mT @ root
    else:
        inverse = torch.cholesky_inverse(factor)
    return scale[..., None] * inverse * scale[:, None]


def _finished(logits: Tensor, fixed: Tensor, history: list[Row]) -> SelectorFit:
    """Logits of all nodes, fixed ones first, and the distinct features that they choose."""
    logits, fixed = logits.cpu(), fixed.cpu()
    starts, free, d = logits.shape
    certain = torch.full((len(fixed), d), -torch.inf)
    certain[torch.arange(len(fixed)), fixed] = 0.0
    everything = torch.cat([certain.expand(starts, -1, -1), logits], dim=1)
    chosen = [
        np.concatenate([fixed.numpy(), distinct_features(part)]) if free else fixed.numpy()
        for part in logits
    ]
    return SelectorFit(everything, np.stack(chosen), history)


def fit_covariance(
    source: Source,
    stats: Moments,
    config: TrainingConfig,
    *,
    seed: int,
    constraints: Constraints,
    refine: Trust | None = None,
) -> Fit:
    """Choose features on the covariance of a source and fit the exact linear decoder.

    The best of ``config.n_init`` starts is the one with the smallest residual. With ``refine``,
    swaps improve it. Each rank sums over its own rows, and rank 0 chooses.
    """
    summary = summarize(source, float64_device(pick_device(config.device)))
    C = summary.matrix
    fit = partial(
        fit_closed_form,
        C,
        costs=constraints.costs,
        cost_weight=config.cost_weight,
        starts=config.n_init,
        learning_rate=config.closed_form_rate,
        seed=seed,
    )

    def choose() -> tuple[np.ndarray, np.ndarray, Tensor, list[Row], bool]:
        found, history, stopped = _choose(fit, stats, config, constraints, tries=config.tries)
        choices = [obeying_features(logits, constraints, lambda: C) for logits in found.logits]
        left = [residual(C, constraints.complete(choice), config.ridge) for choice in choices]
        best = int(np.argmin(left))
        columns = constraints.complete(choices[best])
        if refine is not None and not constraints.only_choice:
            options: dict[str, Any] = {"ridge": config.ridge, "seed": seed, "trust": refine}
            columns = searched(C, constraints, columns, **options)
        return choices[best], columns, found.logits[best], history, stopped

    features, columns, logits, history, stopped = on_rank0(choose)
    exact = fit_linear(source, columns, stats, ridge=config.ridge, summary=summary)
    known = torch.from_numpy(columns) if config.keep_measured else None
    decoder = MeasuredDecoder(exact, fill=torch.from_numpy(stats.mean[columns]), known=known).eval()
    settled = _settled(logits)
    if settled < SETTLED and not stopped:
        warn(
            f"the selector has not converged: mean max probability {settled:.3f} after "
            f"{config.tries} tries, the last of {history[-1]['epoch']} steps. The {len(columns)} "
            "features are distinct, but may be poor: raise epochs, or use fewer.ColumnSubset",
            fewer.errors.NotConvergedWarning,
        )
    chosen = constraints.complete(features)
    found = Fit(features, chosen, logits, decoder, history, [], settled >= SETTLED)
    return found.swapped(constraints, columns)


def fit_surrogate(
    source: Source,
    stats: Moments,
    config: TrainingConfig,
    *,
    loss: Loss,
    seed: int,
    constraints: Constraints,
    refine: Trust | None = None,
) -> Fit:
    """Choose features against decoders on random features, then train the configured decoder.

    With ``refine``, swaps improve the choice in between.
    """
    fit = partial(
        fit_random_features,
        source,
        learning_rate=config.selector_rate,
        seed=seed,
        device=float64_device(pick_device(config.device)),
    )

    def choose() -> tuple[Tensor, list[Row]]:
        found, history, _ = _choose(fit, stats, config, constraints, title="random features")
        return found.logits[0], history

    logits, history = on_rank0(choose)
    home = pick_device(config.device)
    features = obeying_features(logits, constraints, lambda: summarize(source, home).matrix)
    data = prepare(source, stats, config, loss, seed)
    columns = chosen = constraints.complete(features)

    def refit(columns: np.ndarray, hold_out: bool = False) -> tuple[MeasuredDecoder, list[Row]]:
        with products(data.precision), seeded(seed + 1, data.device) as generator:
            new_decoder(data, config.k)  # draws as earlier versions did, so that seeds stay valid
            return fit_decoder(data, columns, generator, hold_out=hold_out)

    if refine is not None:
        columns, decoder, refit_history = refined(data, chosen, constraints, seed, refit, refine)
    else:
        decoder, refit_history = refit(chosen)
    decoder = decoder.cpu().double().eval()
    settled = _settled(logits) >= SETTLED
    found = Fit(features, chosen, logits, decoder, history, refit_history, settled)
    return found.swapped(constraints, columns)


def _settled(logits: Tensor) -> float:
    return float(torch.softmax(logits, dim=-1).amax(dim=-1).mean())


def _choose(
    fit: Callable[..., SelectorFit],
    stats: Moments,
    config: TrainingConfig,
    constraints: Constraints,
    *,
    tries: int = 1,
    title: str = "try {}",
) -> tuple[SelectorFit, list[Row], bool]:
    """Trained selectors, the history of all tries, and whether ``on_epoch`` stopped them.

    Selectors that do not converge are retrained from scratch with twice the steps.
    """
    steps = STEPS if isinstance(config.epochs, str) else config.epochs
    began = time.perf_counter()
    include, allowed = eligible(constraints, stats.variance * ~stats.constant, config.k)
    history: list[Row] = []
    stopped = False
    for attempt in range(1, tries + 1):
        with epoch_bar(title.format(attempt), steps, config.progress) as bar:

            def note(row: Row, attempt: int = attempt, bar: EpochBar = bar) -> bool:
                nonlocal stopped
                entry = {"try": attempt, "epoch": row["step"], "val_loss": None, **row}
                entry["seconds"] = time.perf_counter() - began
                del entry["step"]
                history.append(entry)
                bar(entry)
                stopped = stops_after(config, entry)
                return stopped

            found = fit(
                config.k,
                include=include,
                allowed=allowed,
                steps=steps,
                start_temperature=config.start_temperature,
                end_temperature=config.end_temperature,
                on_row=note,
            )
        if stopped or _settled(found.logits) >= SETTLED:
            break
        steps *= 2
    return found, history, stopped


def fit_random_features(
    source: Source,
    k: int,
    *,
    include: np.ndarray | None = None,
    allowed: np.ndarray | None = None,
    steps: int = 600,
    width: int = 256,
    batch: int = 1024,
    components: int = 128,
    learning_rate: float = 0.1,
    start_temperature: float = 3.0,
    end_temperature: float = 0.1,
    ridge: float = 1e-2,
    seed: int = 0,
    device: torch.device | str = "cpu",
    on_row: OnRow | None = None,
) -> SelectorFit:
    """Train a selector against the best decoder on fresh random features.

    Parameters
    ----------
    source : Source
        Rows; missing values are replaced by the mean.
    k, include, allowed, steps, learning_rate, start_temperature, end_temperature, seed, on_row
        As in `fit_closed_form`.
    width, batch : int, default=256, 1024
        Number of random features per step, and of rows in each half of a batch.
    components : int, default=128
        Number of principal components to predict.
    ridge : float, default=1e-2
        Penalty of the regression, on features of unit variance.
    device : torch.device, default="cpu"
        Where to compute.

    Examples
    --------
    >>> import numpy as np
    >>> from fewer.data.source import array_source
    >>> rows = np.random.default_rng(0).normal(size=(300, 4)) * [1, 3, 2, 0.1]
    >>> found = fit_random_features(array_source(rows), k=2, steps=150, width=32, batch=100)
    >>> sorted(found.features[0].tolist())
    [1, 2]
    """
    device = torch.device(device)
    n, d = source.shape
    summary = summarize(source, device)
    variance = float(summary.matrix.diagonal().mean()) or 1.0
    rows = Batches(
        source,
        np.arange(n),
        mean=summary.mean.cpu(),
        center=summary.mean.cpu(),
        scale=variance**0.5,
        device=device,
    )
    if isinstance(summary.matrix, FactoredCovariance):
        axes = leading_eigenvectors(summary.matrix, components).float().to(device)
    else:
        axes = torch.linalg.eigh(summary.matrix)[1].flip(1)[:, :components].float().to(device)
    fixed, forbidden = _included_and_forbidden(d, include, allowed, device)
    half = min(batch, n // 2)  # rows
    temperature = exponential(start_temperature, end_temperature, steps)
    # generators of its own, so that it can run beside other strategies
    order = torch.Generator().manual_seed(seed)
    generator = torch.Generator(device).manual_seed(seed)
    drawn = (batch.x for batch in rows.draws(2 * half, order))
    shape = 1, k - len(fixed), d
    logits = torch.randn(shape, generator=generator, device=device, dtype=torch.float32).mul_(0.01)
    logits.masked_fill_(forbidden, -torch.inf).requires_grad_()

    def backward(T: float | Tensor, x: Tensor | None, failed: Tensor | None) -> Tensor:
        assert x is not None
        M = relaxed_choice(logits[0], T, gumbel_noise(logits[0], generator))
        chosen = torch.cat([x[:, fixed], x @ M.T], dim=1)
        loss = _second_half_error(chosen, x @ axes, half, width, ridge, generator)
        logits.grad = None
        loss.backward()
        return loss

    unit = variance / d
    with torch.enable_grad():
        training = _Training(backward, logits, learning_rate, generator, drawn)
        history = training.run(fixed, temperature, steps, unit, on_row)
    return _finished(logits.detach(), fixed, history)


def _second_half_error(
    u: Tensor, y: Tensor, half: int, width: int, ridge: float, generator: torch.Generator
) -> Tensor:
    """Error on the second half of ridge regression on random features, fitted on the first."""
    spread = u.detach().std(dim=0).clamp_min(1e-3)
    z = u / spread
    draw = partial(torch.randn, generator=generator, device=u.device, dtype=u.dtype)
    mix = draw(z.shape[1], width) / z.shape[1] ** 0.5
    shift = draw(width)
    phi = torch.cat([torch.relu(z @ mix + shift), z, torch.ones_like(z[:, :1])], dim=1)
    fit, check = phi[:half], phi[half:]
    gram = fit.T @ fit / half
    penalty = torch.full((len(gram),), ridge, device=u.device, dtype=u.dtype)
    penalty[width:] = ridge / 100  # hardly any on the linear part
    # it cannot fail, and `solve` would wait for the GPU to know that
    solved = torch.linalg.solve_ex(gram + torch.diag(penalty), fit.T @ y[:half] / half)
    weights = solved.result
    return (check @ weights - y[half:]).square().sum(dim=1).mean()
