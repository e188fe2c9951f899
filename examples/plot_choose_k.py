"""
How many features?
==================

More features always rebuild the training rows better. This example draws the held-out error
against *k*, beside the bound that no linear method can beat, and reads off a sensible *k*.
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
scaler = StandardScaler().set_output(transform="pandas").fit(train)  # on training rows alone
train, test = scaler.transform(train), scaler.transform(test)

# %%
# One fit for each k, scored on rows that took no part.

ks = np.arange(1, 16)
methods = {
    "random features": lambda k: RandomSubset(k=k, random_state=0),
    "ColumnSubset": lambda k: ColumnSubset(k=k, random_state=0),
    "PCA, a bound": lambda k: PCABound(k=k),
}
scores = {
    name: np.array([make(int(k)).fit(train).score(test) for k in ks])
    for name, make in methods.items()
}

figure, axis = plt.subplots(figsize=(7, 4))
for (name, found), style in zip(scores.items(), (":", "-", "--"), strict=True):
    axis.plot(ks, found, style, marker=".", label=name)
axis.set(xlabel="k, features measured", ylabel="share of variance rebuilt, test rows")
axis.legend(frameon=False)
axis.grid(axis="y", alpha=0.3)

# %%
# Read the curve from the right: what does one feature less cost? Here is the smallest k for some
# shares of the variance.

for share in (0.8, 0.9, 0.95):
    enough = ks[scores["ColumnSubset"] >= share]
    print(f"{share:.0%} of the variance: k = {enough[0] if len(enough) else 'more than 15'}")

# %%
# A quicker look: one fit with a generous k orders its features, most useful first, and says what
# remains after each. These panels are nested, so that a smaller one can be grown later; each is a
# little worse than the best panel of its size.

subset = ColumnSubset(k=15, random_state=0).fit(train)
total = train.var(ddof=0).sum()
for place, (column, left) in enumerate(zip(subset.order_, subset.residuals_, strict=True), 1):
    print(f"{place:2d}  {train.columns[column]:<26} {1 - left / total:.1%}")
