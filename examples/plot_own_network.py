"""
Your own decoder, your own loss
===============================

A decoder is any module that maps k values to d, a loss any function of output and target. This
example replaces both, and then uses the selector layer on its own in a PyTorch training loop.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import fewer
from fewer.nn import ConcreteSelector, schedule

X = (load_digits().data / 16).astype(np.float32)
train, test = X[:1400], X[1400:]

# %%
# The decoder is given as a function of (k, out), so that a new one can be created for every
# training run. This one adds a small network to a linear map, with outputs between 0 and 1.


class LinearPlusNetwork(nn.Module):
    """A linear map with a correction, squashed to [0, 1]."""

    def __init__(self, k, out):
        super().__init__()
        self.linear = nn.Linear(k, out)
        self.correction = nn.Sequential(nn.Linear(k, 64), nn.GELU(), nn.Linear(64, out))

    def forward(self, x):
        return torch.sigmoid(self.linear(x) + self.correction(x))


def mostly_ink(output, target):
    """Squared error that weights inked pixels more than blank ones."""
    return (0.5 + target) * (output - target).square()


cae = fewer.ConcreteAutoencoder(
    k=10, decoder=LinearPlusNetwork, loss=mostly_ink, normalize=False, random_state=0
).fit(train)
print(cae.get_support(indices=True), cae.converged_)
print(f"explained variance, test rows: {cae.score(test):.2f}")

# %%
# As the temperature decreases, each node settles on one feature.

history = [row for row in cae.history_ if row["try"] == cae.history_[-1]["try"]]
epochs = [row["epoch"] for row in history]
figure, axes = plt.subplots(1, 3, figsize=(9, 2.8))
for axis, name in zip(axes, ("temperature", "mean_max_probability", "loss"), strict=True):
    axis.plot(epochs, [row[name] for row in history])
    axis.set(xlabel="epoch", title=name.replace("_", " "))
axes[0].set_yscale("log")

# %%
# The layer itself
# ----------------
# ``ConcreteSelector`` is a PyTorch layer like any other. In training mode it samples soft choices,
# in eval mode it outputs single features; your loop lowers its temperature.

torch.manual_seed(0)
selector = ConcreteSelector(d=64, k=10, temperature=3.0)
network = nn.Sequential(selector, nn.Linear(10, 128), nn.GELU(), nn.Linear(128, 64))
rates = [{"params": selector.parameters(), "lr": 0.1}, {"params": network[1:].parameters()}]
optimiser = torch.optim.Adam(rates, lr=2e-3)
temperature = schedule.exponential(3.0, 0.1, total=1500)
rows = torch.from_numpy(train)
for step in range(1500):
    selector.temperature = temperature(step)
    batch = rows[torch.randint(len(rows), (256,))]
    loss = (network(batch) - batch).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

network.eval()
with torch.no_grad():
    error = (network(torch.from_numpy(test)) - torch.from_numpy(test)).square().mean()
print(sorted(selector.indices().tolist()), f"test error {error:.4f}")
