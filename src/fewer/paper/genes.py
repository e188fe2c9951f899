"""Panels of genes and their errors, as the landmark experiment asks for them on any data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fewer.datasets import Dataset
from fewer.paper.context import Context
from fewer.search import greedy

__all__ = ["Genes", "Panel"]

Panel = NDArray[np.int64]


class Genes(ABC):
    """Panels of one split or start, and their errors.

    Parameters
    ----------
    context : Context
        Of the run.
    stored : Dataset
        The data.
    seed : int
        Of the split, or of everything random where the split is fixed.
    most : int
        The landmarks' number.

    Attributes
    ----------
    methods, deep : tuples of str
        Ways to choose genes; those whose genes are given decoders with hidden layers too.
    sizes : list of int
        Numbers of genes, the landmarks' first.
    layers : tuple of int
        Numbers of hidden layers.
    width : int
        Units of a hidden layer.
    """

    line: ClassVar[str]  # what the decoder without hidden layers is called
    again: ClassVar[str]  # what differs from seed to seed
    shares: ClassVar[tuple[float, ...]]  # numbers of genes, as shares of the landmarks'
    shares_quick: ClassVar[tuple[float, ...]]
    methods: tuple[str, ...]
    deep: tuple[str, ...]
    layers: tuple[int, ...]
    width: int

    def __init__(self, context: Context, stored: Dataset, seed: int, most: int) -> None:
        self.context, self.stored, self.seed, self.most = context, stored, seed, most
        shares = self.shares_quick if context.quick else self.shares
        self.sizes = [round(share * most) for share in shares]

    @property
    @abstractmethod
    def about(self) -> str:
        """What is compared, and how."""

    @property
    @abstractmethod
    def decoders(self) -> str:
        """What hidden layers are like."""

    @property
    @abstractmethod
    def matrix(self) -> Tensor:
        """Covariance of the rows to fit."""

    @cached_property
    def path(self) -> Panel:
        """Genes in the order in which greedy takes them."""
        return greedy(self.matrix, self.most).order

    def cell(self, name: str, k: int) -> dict[str, Any]:
        """The panel of k genes and its error."""
        key, settings = self._key(name, f"k {k}"), self._settings(name, k)
        return self.context.cells.get(key, settings, partial(self._score, name, k))

    def network(self, name: str, layers: int) -> dict[str, Any]:
        """The error of the landmarks' number of genes with so many hidden layers."""
        cell = self.cell(name, self.most)
        if not layers:
            return cell
        panel = np.array(cell["columns"])
        settings = {
            "data": self._identity,
            "width": self.width,
            "panel": panel.tolist(),
            "epochs": "validation",
        }
        key = self._key(name, f"{layers} hidden")
        return self.context.cells.get(key, settings, partial(self._network, panel, layers))

    def _key(self, name: str, what: str) -> tuple[str, ...]:
        return ("landmarks", self.stored.name, f"seed {self.seed}", name, what)

    def _settings(self, name: str, k: int) -> dict[str, Any]:
        return {"k": k, "data": self._identity}

    @property
    def _identity(self) -> str:
        shape = "{} x {}".format(*self.stored.X.shape)
        return self.stored.digest or f"{self.stored.description}, {shape}"

    def _score(self, name: str, k: int) -> dict[str, Any]:
        panel = np.sort(self._panel(name, k))
        return {"columns": panel.tolist(), **self._scored(panel)}

    def _panel(self, name: str, k: int) -> Panel:
        if name == "landmarks":
            return np.flatnonzero(np.asarray(self.stored.landmarks))
        if name == "random":
            return np.random.default_rng(self.seed).permutation(self.stored.X.shape[1])[:k]
        if name == "greedy":
            return self.path[:k]
        return self._searched(name, k)

    @abstractmethod
    def _searched(self, name: str, k: int) -> Panel:
        """The genes of a method that is not the same for all data."""

    @abstractmethod
    def _scored(self, panel: Panel) -> dict[str, Any]:
        """The error without hidden layers."""

    @abstractmethod
    def _network(self, panel: Panel, layers: int) -> dict[str, Any]:
        """The error with hidden layers that learn what the decoder without leaves."""
