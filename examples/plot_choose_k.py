"""
How many features?
==================

More features always reconstruct the training rows better. This example plots the explained variance
of test rows against *k*, with PCA as a reference, and reads off a sensible *k*.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from fewer import ColumnSubset
from fewer.baselines import PCABound, RandomSubset

X = load_breast_cancer(as_frame=True).data  # 30 measurements of cell nuclei, in many units
train, test = train_test_split(X, test_size=0.3, random_state=0)
scaler = StandardScaler().set_output(transform="pandas").fit(train)  # on training rows only
train, test = scaler.transform(train), scaler.transform(test)

# %%
# One fit per k, scored on test rows.

ks = np.arange(1, 16)
methods = {
    "random features": lambda k: RandomSubset(k=k, random_state=0),
    "ColumnSubset": lambda k: ColumnSubset(k=k, random_state=0),
    "PCA (reference)": lambda k: PCABound(k=k),
}
scores = {
    name: np.array([make(int(k)).fit(train).score(test) for k in ks])
    for name, make in methods.items()
}

figure, axis = plt.subplots(figsize=(7, 4))
for (name, found), style in zip(scores.items(), (":", "-", "--"), strict=True):
    axis.plot(ks, found, style, marker=".", label=name)
axis.set(xlabel="k, features measured", ylabel="explained variance, test rows")
axis.legend(frameon=False)
axis.grid(axis="y", alpha=0.3)

# %%
# Read the curve from the right: what does one feature less cost? Here is the smallest k for some
# levels of explained variance.

for level in (0.8, 0.9, 0.95):
    enough = ks[scores["ColumnSubset"] >= level]
    print(f"{level:.0%} of the variance: k = {enough[0] if len(enough) else 'more than 15'}")

# %%
# A faster way: a single fit with a generous k sorts its features, most useful first, and reports
# the residual variance after each. These panels are nested, so that a smaller one can be extended
# later; each is slightly worse than the best panel of its size.

subset = ColumnSubset(k=15, random_state=0).fit(train)
total = train.var(ddof=0).sum()
for rank, (column, left) in enumerate(zip(subset.order_, subset.residuals_, strict=True), 1):
    print(f"{rank:2d}  {train.columns[column]:<26} {1 - left / total:.1%}")
