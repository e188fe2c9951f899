"""
Comparing methods
=================

Feature selection methods from the literature, run on the same rows with the same k. Each panel
is scored with the same linear decoder on the same test rows, so that only the choice differs.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import fewer
from fewer import baselines

X = load_digits().data / 16
order = np.random.default_rng(0).permutation(len(X))
train, test = X[order[:1400]], X[order[1400:]]
k = 10

# %%
# Every method has the same interface: ``fit``, ``transform``, ``inverse_transform``, ``score``. The
# decoder behind ``inverse_transform`` is least squares for each of them.

methods = {
    "random (mean of 20)": [baselines.RandomSubset(k=k, random_state=seed) for seed in range(20)],
    "largest variance": [baselines.MaxVariance(k=k)],
    "Laplacian score": [baselines.LaplacianScore(k=k)],
    "MCFS": [baselines.MCFS(k=k)],
    "PFA": [baselines.PFA(k=k, random_state=0)],
    "pivoted QR": [baselines.PivotedQR(k=k)],
    "greedy": [baselines.Greedy(k=k)],
    "ConcreteAutoencoder": [fewer.ConcreteAutoencoder(k=k, random_state=0)],
    "ColumnSubset": [fewer.ColumnSubset(k=k, random_state=0)],
    "PCA (reference)": [baselines.PCABound(k=k)],
}


def error(estimator):
    """Mean squared error over all pixels of the test images."""
    variance = ((test - test.mean(axis=0)) ** 2).mean()
    return (1 - estimator.fit(train).score(test)) * variance


with warnings.catch_warnings():
    warnings.simplefilter("ignore", fewer.errors.FewerWarning)
    errors = {name: np.mean([error(one) for one in runs]) for name, runs in methods.items()}

# %%
# Lower is better.

figure, axis = plt.subplots(figsize=(7, 3.6))
names = sorted(errors, key=errors.get, reverse=True)
ours = {"ConcreteAutoencoder", "ColumnSubset"}
colors = ["#0072b2" if name in ours else "#999999" for name in names]
bars = axis.barh(names, [errors[name] for name in names], color=colors)
axis.bar_label(bars, fmt="%.4f", padding=3, fontsize=9)
axis.set(xlabel="mean squared error, test images")
axis.margins(x=0.12)

# %%
# The gap between ``greedy`` and PCA is the price of measuring single pixels; the gap between
# ``greedy`` and ``ColumnSubset`` is what swaps gain. ``python -m paper table1`` reproduces the
# table of the paper, on larger data and several splits.
