"""Adam is that of torch, for any parameters; options are recorded as JSON."""

import json

import numpy as np
import pytest
import torch

from fewer.train.config import TrainingConfig
from fewer.train.optimize import Adam


@pytest.mark.parametrize("dtypes", [(torch.float32,) * 3, (torch.float32, torch.float64) * 2])
def test_steps_are_those_of_torch(dtypes):
    values = [torch.linspace(-1, 1, 4, dtype=dtype) for dtype in dtypes]
    ours, theirs = ([v.clone().requires_grad_() for v in values] for _ in range(2))
    optimizer = Adam((ours[:1], 0.1), (ours[1:], 0.02))
    reference = torch.optim.Adam([{"params": theirs[:1], "lr": 0.1}, {"params": theirs[1:]}], 0.02)
    for step in range(4):
        for optimized, found in ((optimizer, ours), (reference, theirs)):
            optimized.zero_grad()
            used = found if step % 2 else found[:-1]  # the loss may not depend on all parameters
            sum((p.double() ** 3).sum() for p in used).backward()
            optimized.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    only = Adam((ours[:1], 0.1), (ours[1:], 0.02))
    only.zero_grad()
    before = ours[1].detach().clone()
    ours[0].sum().backward()
    only.step()
    torch.testing.assert_close(ours[1].detach(), before, rtol=0, atol=0)


def test_options_are_recorded_as_json():
    def build(k, out):
        return torch.nn.Linear(k, out)

    config = TrainingConfig(k=np.int64(3), decoder=build, batch_size=np.int32(8))
    facts = json.loads(json.dumps(config.facts()))
    assert (facts["k"], facts["batch_size"]) == (3, 8)
    assert facts["decoder"].endswith("build")
    assert "device" not in facts
