"""Rows of a torch Dataset."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fewer.data.source import DenseSource, Source
from fewer.data.values import as_array, check_values
from fewer.errors import InputError, TypeInputError

__all__ = ["DatasetRows", "open_dataset"]


class DatasetRows(Source):
    """Rows of a torch Dataset, asked for one by one; of a pair, the first is the row.

    Examples
    --------
    >>> import torch
    >>> pairs = [(torch.ones(2, 2), 7), (torch.zeros(2, 2), 8)]
    >>> DatasetRows(pairs).rows(slice(1))
    tensor([[1., 1., 1., 1.]])
    """

    on_disk = True  # who knows; asking in order does no harm

    def __init__(self, dataset: Any, names: list[str] | None = None) -> None:
        self.dataset, self.names = dataset, names
        first = self._row(0)
        self._shape = len(dataset), len(first)
        self.dtype = first.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self._shape

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows."""
        wanted = range(len(self.dataset))[index] if isinstance(index, slice) else index
        kind = np.float64 if dtype == torch.float64 else np.float32
        out = np.empty((len(wanted), self.shape[1]), dtype=kind)
        for at, number in enumerate(wanted):
            row = self._row(int(number))
            if len(row) != self.shape[1]:
                raise InputError(
                    f"item {number} of the dataset has {len(row)} values, item 0 has "
                    f"{self.shape[1]}; all need the same"
                )
            check_values(row[None], self.names, "the dataset", first_row=int(number))
            out[at] = row
        return torch.from_numpy(out).to(dtype)

    def _row(self, number: int) -> np.ndarray:
        item = self.dataset[number]
        row = np.asarray(as_array(item[0] if isinstance(item, (tuple, list)) else item))
        if row.dtype.kind not in "biuf":
            raise InputError(
                f"item {number} of the dataset holds {row.dtype}, not numbers; give items that "
                "are tensors, or pairs that begin with one"
            )
        return row.reshape(-1)


def open_dataset(data: Dataset, names: list[str] | None, memory_limit: int) -> Source:
    """A source of a torch Dataset with a length; its tensor, where it is made of tensors."""
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise TypeInputError(
            f"{type(data).__name__} has no rows by number; give a dataset with __len__ and "
            "__getitem__"
        )
    if len(data) == 0:
        raise InputError("the dataset is empty")
    source: Source
    if isinstance(data, TensorDataset):
        array = as_array(data.tensors[0]).reshape(len(data), -1)
        check_values(array, names, "the dataset")
        source = DenseSource(array, names)
    else:
        source = DatasetRows(data, names)
    source.memory_limit = memory_limit
    return source
