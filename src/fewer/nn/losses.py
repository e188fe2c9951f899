"""Losses, each with the map from a network's raw output to the units of its target."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fewer.errors import InputError, TypeInputError

__all__ = ["LOSSES", "Loss", "cox_loss", "make_loss", "ordinal_entries"]

LossFunction = Callable[[Tensor, Tensor], Tensor]
TINY = 1e-30  # sum of weights


@dataclass(frozen=True)
class Loss:
    """The loss of predictions.

    Parameters
    ----------
    name : str
        Public name.
    entries : callable
        ``(output, target) -> loss of each entry``, so that missing entries can be ignored.
    mean : callable, default=None
        ``(output, target) -> scalar`` over all entries, if a fused version exists.
    link : {"sigmoid", "exp", "softmax"}, default=None
        Maps the network's output to the units of the target, such as exp for a log rate.
    degree : int, default=None
        Set if the loss depends only on output - target, so that targets can be centred and
        divided by s without changing which network is best; this divides the loss by s**degree.
    check : callable, default=None
        ``(lowest, highest, what)`` of the targets to the reason why they cannot be used, or None.
    smoothing : float, default=0.0
        Fraction of each label that is spread over other classes.
    whole : callable, default=None
        ``(output, target, weights) -> scalar``, where the loss is not a mean over entries; the
        weights of the rows (n) may be None.
    parts : tuple of (Loss, int, callable), default=()
        Of several targets: the loss of each, its number of outputs, and the function that takes its
        own targets from those of all.

    Examples
    --------
    >>> import torch
    >>> loss = make_loss("mse")
    >>> loss(torch.tensor([[1.0, 5.0]]), torch.tensor([[0.0, 0.0]])).item()
    13.0
    >>> seen = torch.tensor([[True, False]])
    >>> loss(torch.tensor([[1.0, 5.0]]), torch.tensor([[0.0, 0.0]]), seen).item()
    1.0
    """

    name: str
    entries: LossFunction
    mean: LossFunction | None = None
    link: str | None = None
    degree: int | None = None
    check: Callable[[float, float, str], str | None] | None = None
    smoothing: float = 0.0
    whole: Callable[[Tensor, Tensor, Tensor | None], Tensor] | None = None
    parts: "tuple[tuple[Loss, int, Callable[[Tensor], Tensor]], ...]" = ()

    def __call__(self, output: Tensor, target: Tensor, observed: Tensor | None = None) -> Tensor:
        """Mean loss over all entries, over the ``observed`` ones, or with these weights."""
        if self.whole is not None:
            rows = observed if observed is None or observed.ndim == 1 else observed[:, 0]
            return self.whole(output, target, rows)
        if observed is None:
            if self.mean is not None:
                return self.mean(output, target)
            return self.entries(output, target).mean()
        each = self.entries(output, target)
        if each.shape != observed.shape:
            raise InputError(
                f"loss {self.name!r} returned shape {tuple(each.shape)}, but with missing values "
                f"or weights it must return one number for each of the {tuple(observed.shape)} "
                "entries; "
                "do not average inside it"
            )
        if observed.is_floating_point():
            return (each * observed).sum() / observed.sum().clamp_min(TINY)
        return torch.where(observed, each, 0).sum() / observed.sum().clamp_min(1)

    def in_units_of(self, scale: float) -> "Loss":
        """The same loss for targets that have been divided by ``scale``."""
        return make_loss("huber", delta=1 / scale) if self.name == "huber" else self

    def of_scaled(self, scale: float, offset: Tensor) -> "Loss":
        """The same loss for outputs that have yet to be scaled and shifted."""

        def entries(output: Tensor, target: Tensor) -> Tensor:
            return self.entries(output * scale + offset.to(output), target)

        return replace(self, entries=entries, mean=None)

    def apart_from(self, known: Tensor) -> "Loss":
        """The same loss without these columns, whose values are measured."""

        def entries(output: Tensor, target: Tensor) -> Tensor:
            return self.entries(output, target).index_fill(1, known, 0.0)

        return replace(self, entries=entries, mean=None)

    def offset(self, mean: Tensor) -> Tensor:
        """Network output that the link maps to ``mean``: a good start for training."""
        if self.link == "exp":
            return mean.clamp_min(1e-6).log()
        if self.link == "sigmoid":
            return torch.logit(mean, eps=1e-4)
        return torch.zeros_like(mean)


def _outside(
    needs: str, most: float, remedy: str, low: float, high: float, what: str
) -> str | None:
    if low >= 0 and high <= most:
        return None
    return f"{needs}; {what} goes from {low:g} to {high:g}. {remedy}, or use loss='mse'"


def _huber(delta: float) -> Loss:
    # divided by delta, so that it tends to the absolute error as delta goes to 0
    def entries(output: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(output, target, reduction="none", delta=delta) / delta

    return Loss("huber", entries, degree=1)


def ordinal_entries(output: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
    r"""Cross-entropy of ordered classes plus their ranked probability score, per row.

    The latter, :math:`\sum_j (F_j - [y \le j])^2` with the cumulative probabilities F, is a proper
    score that grows with the distance from the true class. Smoothing gives a share of each label
    to the classes next to it.
    """
    levels = torch.arange(output.shape[-1], device=output.device)
    logs = torch.log_softmax(output, dim=-1)
    gaps = (logs.exp().cumsum(-1) - (target[:, None] <= levels).to(logs))[:, :-1]
    missed = -logs.gather(1, target[:, None])[:, 0]
    if smoothing:
        beside = ((levels - target[:, None]).abs() == 1).to(logs)
        beside = beside / beside.sum(1, keepdim=True)
        missed = (1 - smoothing) * missed - smoothing * (beside * logs).sum(1)
    return missed + gaps.square().sum(1)


def cox_loss(output: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Negative log partial likelihood of Cox's model per event, with Efron's method for ties.

    ``target`` has times and events (1: observed, 0: censored); the output is the log hazard f:

    .. math:: \frac1m \sum_{i: \text{event}} \Bigl[\log \Bigl(\sum_{j: t_j \ge t_i} e^{f_j} -
        \frac{l_i}{m_i} \sum_{j: \text{event}, t_j = t_i} e^{f_j}\Bigr) - f_i\Bigr]

    with the number l, from 0, of event i among the m events of its time. Weighted rows count in
    proportion; tied events then share their mean weight. In a batch, the rows at risk are those of
    the batch.
    """
    order = torch.argsort(target[:, 0], descending=True, stable=True)
    time, event = target[order, 0].contiguous(), target[order, 1].to(output)
    log_hazard = output[order, 0]
    weight = torch.ones_like(event) if weights is None else weights[order].to(output)
    top = log_hazard.detach().max()
    hazard = weight * torch.exp(log_hazard - top)
    tie = torch.cat([time.new_zeros(1), (time[1:] != time[:-1]).to(time)]).cumsum(0)
    first = torch.searchsorted(tie, tie)  # the first row of the same time, and the last
    last = torch.searchsorted(tie, tie, right=True) - 1

    def tied(values: Tensor) -> Tensor:
        return torch.zeros_like(values).index_add(0, first, values)[first]

    before = event.cumsum(0) - event
    number, count = before - before[first], tied(event).clamp_min(1)
    at_risk = hazard.cumsum(0)[last] - number / count * tied(hazard * event)
    shared = tied(weight * event) / count
    each = shared * (at_risk.clamp_min(TINY).log() + top) - weight * log_hazard
    return (event * each).sum() / (event * weight).sum().clamp_min(TINY)


LOSSES: dict[str, Loss] = {
    "mse": Loss("mse", lambda o, t: (o - t).square(), mean=F.mse_loss, degree=2),
    "mae": Loss("mae", lambda o, t: (o - t).abs(), mean=F.l1_loss, degree=1),
    "huber": _huber(1.0),
    "bce": Loss(
        "bce",
        lambda o, t: F.binary_cross_entropy_with_logits(o, t, reduction="none"),
        mean=F.binary_cross_entropy_with_logits,
        link="sigmoid",
        check=partial(_outside, "loss='bce' needs values from 0 to 1", 1.0, "Scale them"),
    ),
    "poisson": Loss(
        "poisson",
        lambda o, t: F.poisson_nll_loss(o, t, log_input=True, full=False, reduction="none"),
        link="exp",
        check=partial(_outside, "loss='poisson' needs counts", math.inf, "Give raw counts"),
    ),
    "cross_entropy": Loss(
        "cross_entropy",
        lambda o, t: F.cross_entropy(o, t, reduction="none"),
        mean=F.cross_entropy,
        link="softmax",
    ),
}


def make_loss(
    loss: str | LossFunction | Loss, *, delta: float = 1.0, smoothing: float = 0.0
) -> Loss:
    """Look up a loss by name, or wrap your own ``(output, target) -> tensor``.

    Your function may return a scalar or one number for each entry; with missing values it must
    be the latter. ``delta`` is for "huber", ``smoothing`` of labels for "cross_entropy".

    Examples
    --------
    >>> make_loss("poisson").name
    'poisson'
    >>> make_loss(lambda output, target: (output - target).abs() ** 3).name
    'your <lambda>'
    """
    if isinstance(loss, Loss):
        return loss
    if callable(loss):
        # a name that no built-in loss has
        return Loss(f"your {getattr(loss, '__name__', type(loss).__name__)}", _checked(loss))
    if isinstance(loss, str) and loss == "huber":
        return _huber(delta)
    if isinstance(loss, str) and loss == "cross_entropy" and smoothing:
        smoothed = partial(F.cross_entropy, label_smoothing=smoothing)
        entries = partial(smoothed, reduction="none")
        return replace(LOSSES[loss], entries=entries, mean=smoothed, smoothing=smoothing)
    if not isinstance(loss, str) or loss not in LOSSES:
        raise InputError(
            f"loss={loss!r} is not valid; use one of {', '.join(map(repr, LOSSES))}, "
            "or a function of (output, target)"
        )
    return LOSSES[loss]


def _checked(function: LossFunction) -> LossFunction:
    def entries(output: Tensor, target: Tensor) -> Tensor:
        value = function(output, target)
        if not isinstance(value, Tensor):
            raise TypeInputError(
                f"the loss function returned {type(value).__name__}; return a tensor, "
                "one number for each entry"
            )
        return value

    return entries
