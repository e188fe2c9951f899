"""Exactly k distinct features from k nodes that may want the same one."""

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

__all__ = ["distinct_features"]


def distinct_features(logits: Tensor) -> np.ndarray:
    """One feature for each node, no two alike, of the largest total log probability.

    Where the nodes' favourites differ already, these are the answer.

    Examples
    --------
    >>> import torch
    >>> distinct_features(torch.tensor([[5.0, 4.0, 0.0], [9.0, 0.0, 1.0]]))
    array([1, 0])
    """
    favourites = logits.argmax(dim=1).cpu().numpy()
    if len(np.unique(favourites)) == len(favourites):
        return favourites
    scores = torch.log_softmax(logits.double(), dim=1).cpu().numpy()
    # a forbidden feature stays a last resort, not an infinity that breaks the solver
    scores = np.maximum(scores, -1e6)
    return linear_sum_assignment(scores, maximize=True)[1]
