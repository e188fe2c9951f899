"""On a GPU: the benchmark sets give what they give on the CPU."""

import numpy as np
import pytest
import torch

from fewer import select
from fewer.data import covariance
from fewer.data.source import array_source
from fewer.datasets import load

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.usefixtures("data_folder")
@pytest.mark.parametrize(("name", "k"), [("mice", 10), ("coil20", 20), ("isolet", 30)])
def test_linear_panels_are_as_good(name, k):
    X = load(name).X.astype(np.float64)
    X = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    here, there = (covariance(array_source(X), device=on).matrix.cpu() for on in ("cpu", "cuda"))
    spread = here.diagonal().sqrt().clamp(min=1e-12)
    assert ((there - here) / torch.outer(spread, spread)).abs().max() < 1e-6
    errors = []
    for device in ("cpu", "cuda"):
        panel = select(
            X, k, strategies=["search"], validation=0.2, random_state=0, scale="none", device=device
        )
        errors.append(np.square(panel.reconstruct(X[:, panel.indices]) - X).mean())
    assert errors[1] == pytest.approx(errors[0], rel=0.01)
