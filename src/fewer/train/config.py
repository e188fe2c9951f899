"""Validated training options."""

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fewer._checks import check_choice, check_number, check_whole
from fewer.errors import InputError, TypeInputError
from fewer.nn.decoder import DecoderSpec, check_decoder, hidden_widths
from fewer.nn.schedule import Schedule, make_schedule
from fewer.train.checkpoint import Checkpoint

__all__ = ["TrainingConfig", "TrainingOptions"]

SELECTOR_STEPS = 2400  # gradient steps that a selector needs to settle (MNIST, k = 50)
REFIT_STEPS = 4000
CLASS_SMOOTHING, CLASS_DROPOUT = 0.1, 0.1  # of labels and hidden values, in networks for classes
SELECTOR_EPOCHS = (5, 600)
REFIT_EPOCHS = (20, 600)
# mean max probability at which training stops: the paper's, and the lowest that gives as good
# panels, where there are many nodes; it is also enough where the schedule ends
PAPER_STOP, LOWEST_STOP, MANY_NODES = 0.99, 0.95, 50


@dataclass(kw_only=True, eq=False, repr=False)
class TrainingOptions:
    """Training options and their defaults; see `fewer.ConcreteAutoencoder`."""

    decoder: DecoderSpec = "linear"
    activation: str = "leaky_relu"
    dropout: float = 0.0
    norm: str | None = None
    epochs: int | str = "auto"
    batch_size: int = 256
    learning_rate: float | str = "auto"
    learning_rate_decay: float = 1.0
    selector_learning_rate: float | str = "auto"
    schedule: str | Callable[[float, float, float], Schedule] = "exponential"
    start_temperature: float = 3.0
    end_temperature: float = 0.1
    anneal: str = "step"
    draw: str = "batch"
    logits: str = "direct"
    embedding: int | None = None
    stop_probability: float | str = "auto"
    tries: int = 3
    patience: int | None = None
    validation_fraction: float = 0.1
    n_init: int = 1
    refit: str = "scratch"
    refit_epochs: int | str = "auto"
    keep_measured: bool = True
    ridge: float = 0.0
    cost_weight: float = 0.0
    normalize: bool = True
    device: str = "auto"
    precision: str = "auto"
    progress: bool = False
    on_epoch: Callable[[dict[str, Any]], Any] | None = None
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None


@dataclass(kw_only=True)
class TrainingConfig(TrainingOptions):
    """Validated training options; see `fewer.ConcreteAutoencoder`.

    Examples
    --------
    >>> TrainingConfig(k=10, epochs="auto").epochs_for(rows=5400)
    110
    >>> TrainingConfig(k=10, tries=0)
    Traceback (most recent call last):
    fewer.errors.InputError: tries=0 must be a whole number of at least 1
    """

    k: int

    def __post_init__(self) -> None:
        check_decoder(self.decoder, self.activation, self.dropout, self.norm)
        optional = [n for n in ("embedding", "patience") if getattr(self, n) is not None]
        for name in ("k", "batch_size", "tries", "n_init", *optional):
            check_whole(name, getattr(self, name))
        for name in ("epochs", "refit_epochs"):
            if getattr(self, name) != "auto":
                check_whole(name, getattr(self, name), hint=" or 'auto'")
        rates = ("learning_rate", "selector_learning_rate")
        for name in (*rates, "start_temperature", "end_temperature"):
            if name not in rates or getattr(self, name) != "auto":
                check_number(name, getattr(self, name), above=0)
        for name in ("learning_rate_decay", "stop_probability"):
            if name != "stop_probability" or self.stop_probability != "auto":
                check_number(name, getattr(self, name), above=0, most=1)
        for name in ("ridge", "cost_weight"):
            check_number(name, getattr(self, name), least=0)
        check_number("validation_fraction", self.validation_fraction, least=0, most=0.9)
        check_choice("anneal", self.anneal, ("step", "epoch"))
        check_choice("draw", self.draw, ("batch", "row"))
        check_choice("logits", self.logits, ("direct", "indirect"))
        check_choice("refit", self.refit, ("scratch", "finetune", "none"))
        check_choice("precision", self.precision, ("auto", "float32", "tf32", "bfloat16"))
        if self.on_epoch is not None and not callable(self.on_epoch):
            raise TypeInputError(f"on_epoch={self.on_epoch!r} must be a function of a dict")
        if self.checkpoint is not None:
            Checkpoint.of(self.checkpoint)
        if self.norm == "batch" and self.batch_size == 1:
            raise InputError("norm='batch' needs batch_size of at least 2")
        make_schedule(self.schedule, self.start_temperature, self.end_temperature, 1)

    @property
    def linear(self) -> bool:
        """Whether the decoder is a single linear map."""
        return isinstance(self.decoder, str) or (
            not callable(self.decoder) and hidden_widths(self.decoder) == ()
        )

    @property
    def decoder_rate(self) -> float:
        """Learning rate of the decoder: a linear map tolerates ten times that of a network."""
        rate = self.learning_rate
        return rate if not isinstance(rate, str) else 1e-2 if self.linear else 1e-3

    @property
    def selector_rate(self) -> float:
        """Learning rate of the selector: lower where logits are a product of two parameters."""
        rate = self.selector_learning_rate
        return rate if not isinstance(rate, str) else 0.1 if self.logits == "direct" else 0.03

    @property
    def closed_form_rate(self) -> float:
        """Learning rate of a selector with an exact decoder, whose gradients are less noisy."""
        rate = self.selector_learning_rate
        return 0.2 if isinstance(rate, str) else rate

    @property
    def stop_at(self) -> float:
        """Mean max probability of the nodes at which training stops."""
        if not isinstance(self.stop_probability, str):
            return self.stop_probability
        if self.epochs != "auto":
            return PAPER_STOP
        # of few nodes, none may be undecided
        share = (1 - LOWEST_STOP) * self.k / MANY_NODES
        return float(np.clip(1 - share, LOWEST_STOP, PAPER_STOP))

    @property
    def enough_at_end(self) -> float:
        """Mean max probability that makes another try unnecessary where the schedule has ended."""
        auto = self.stop_probability == "auto" and self.epochs == "auto"
        return LOWEST_STOP if auto else self.stop_at

    def facts(self) -> dict[str, Any]:
        """All options that determine the result, as JSON; functions by their names."""
        ignored = ("device", "progress", "on_epoch", "checkpoint")
        names = (field.name for field in fields(self) if field.name not in ignored)
        return {name: _plain(getattr(self, name)) for name in names}

    def values_per_operation(self, d: int) -> int:
        """How large the operations of a training step are, as `for_operations` counts them.

        A matrix product with 32 or fewer rows takes as long as reading its result.
        """
        widths: tuple[int, ...] = ()
        if not isinstance(self.decoder, str) and not callable(self.decoder):
            widths = hidden_widths(self.decoder)
        return self.batch_size * d * max(self.k, 32, *widths) // 32

    def epochs_for(self, rows: int) -> int:
        """Number of training epochs: as configured, or enough for a selector to settle."""
        return _epochs(self.epochs, SELECTOR_STEPS, SELECTOR_EPOCHS, rows, self.batch_size)

    def refit_epochs_for(self, rows: int, steps: int = REFIT_STEPS) -> int:
        """Number of epochs of the final decoder: as configured, or enough for so many steps."""
        return _epochs(self.refit_epochs, steps, REFIT_EPOCHS, rows, self.batch_size)


def _plain(value: Any) -> Any:
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if isinstance(value, np.generic):
        return value.item()
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _epochs(
    epochs: int | str, steps: int, limits: tuple[int, int], rows: int, batch_size: int
) -> int:
    if not isinstance(epochs, str):
        return int(epochs)
    steps_per_epoch = -(-rows // batch_size)
    return int(np.clip(-(-steps // steps_per_epoch), *limits))
