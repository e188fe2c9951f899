"""
When a linear decoder is not enough
===================================

A linear decoder reconstructs every feature as a weighted sum of the measured ones, and a linear
search chooses the features for which that works best. Both can miss nonlinear dependence. This
example plants such a dependence, shows what a network finds, and how to tell on your own data
whether a linear decoder is enough.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import fewer
from fewer.datasets import load

# %%
# A planted answer
# ----------------
# Five independent factors hide among 60 columns. The other 55 are products, squares, absolute
# values and sines of one or two of them, with a little noise. Whoever measures the five factors
# knows the rest; but a product is uncorrelated with its factors, and so is a square.

data = load("planted-products", rows=2500, features=60, factors=5)
X = pd.DataFrame(data.X, columns=data.names)
train, test = train_test_split(X, test_size=0.2, random_state=0)
print("planted:", sorted(data.names[data.planted].tolist()))
print("some others:", data.names[~data.planted][:5].tolist())

# %%
# Both calls choose five columns; the second one for a network with two hidden layers.

linear = fewer.select(train, k=5, random_state=0)
network = fewer.select(train, k=5, decoder=(64, 64), random_state=0)
print("linear panel: ", sorted(linear.features))
print("network panel:", sorted(network.features))

# %%
# Squares are the best that a linear decoder can do: they are correlated with each other and with
# absolute values. The network has found the factors themselves. Is it the choice that matters, or
# only the better decoder? ``include=`` fixes the panel, so each panel can be tried with the other's
# decoder:

crossed = {
    ("linear panel", "linear decoder"): linear,
    ("linear panel", "network"): fewer.select(
        train, k=5, include=linear.features, decoder=(64, 64), random_state=0
    ),
    ("network panel", "linear decoder"): fewer.select(
        train, k=5, include=network.features, random_state=0
    ),
    ("network panel", "network"): network,
}
unexplained = pd.Series({key: 1 - float(panel.score(test)) for key, panel in crossed.items()})
print("unexplained variance of new rows\n")
print(unexplained.unstack().round(3))

# %%
# A network on the wrong panel is hardly better than a linear decoder, and a linear decoder on the
# right panel is worse than on its own: **the panel must be chosen for the decoder**. One of the
# products, for new rows:

product = next(name for name in X.columns if "*" in name)
blind = crossed["linear panel", "network"]
figure, axes = plt.subplots(1, 2, figsize=(7, 3.4), sharex=True, sharey=True)
for axis, panel, title in zip(
    axes, (blind, network), ("linear panel", "network panel"), strict=True
):
    rows = panel.reconstruct(test[panel.features])
    axis.plot(test[product], rows[product], ".", markersize=4, alpha=0.6)
    axis.axline((0, 0), slope=1, color="#777777", linewidth=0.8)
    axis.set(title=f"{title}, network decoder", xlabel=f"true {product}")
axes[0].set_ylabel(f"reconstructed {product}")

# %%
# On your own data
# ----------------
# There, nobody tells you the answer, but three numbers on held-out rows do: the error of a linear
# decoder on its panel, of a network on the same panel, and of a network on its own panel. Here they
# are for synthetic gene expression, time series of pulses with varying delays, handwritten digits,
# and the products from above.


def three_numbers(X, k, decoder=(64, 64)):
    """Unexplained variance of new rows: linear, network on the same panel, network on its own."""
    train, test = train_test_split(X, test_size=0.2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fewer.errors.FewerWarning)  # that a network does not win
        line = fewer.select(train, k=k, random_state=0)
        same = fewer.select(train, k=k, include=line.features, decoder=decoder, random_state=0)
        own = fewer.select(train, k=k, decoder=decoder, random_state=0)
    return [1 - float(panel.score(test)) for panel in (line, same, own)]


found = {
    "genes, k = 10": three_numbers(load("geo-synthetic", n=1500, d=60).X, k=10),
    "pulses, k = 8": three_numbers(load("pulses", rows=1500, features=60).X, k=8),
    "digits, k = 10": three_numbers(load_digits().data, k=10),
    "products, k = 5": [
        unexplained["linear panel", "linear decoder"],
        unexplained["linear panel", "network"],
        unexplained["network panel", "network"],
    ],
}
labels = ["linear", "network, same panel", "network, own panel"]
table = pd.DataFrame(found, index=labels).T
print(table.round(3))

# %%
# Relative to the first number:

figure, axis = plt.subplots(figsize=(7, 3.4))
place = np.arange(len(table))
for shift, label, color in zip(
    (-0.27, 0, 0.27), labels, ("#999999", "#56b4e9", "#0072b2"), strict=True
):
    ratios = table[label] / table["linear"]
    bars = axis.bar(place + shift, ratios, width=0.25, label=label, color=color)
    axis.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
axis.set_xticks(place, table.index)
axis.set(ylabel="unexplained variance / that of a linear decoder", ylim=(0, 1.35))
axis.legend(ncols=3, loc="upper center", frameon=False, fontsize=9)

# %%
# How to read them:
#
# - **All three alike** (genes): a linear decoder is enough. Keep the linear panel, which is exact
#   and takes a second.
# - **The second is lower, the third is not** (pulses): relations are nonlinear, but a linear search
#   finds the right features. Pass ``decoder=``; the choice of features gains little.
# - **The third is lower still** (digits a little, products very much): some features matter only
#   to the network. Choose for the network.
#
# With few test rows, differences of a few percent are noise: repeat with other splits.
# ``fewer.select`` with a network makes the first comparison automatically: ``panel.leaderboard``
# has every strategy, and a warning tells you if a network does not beat a linear decoder on
# held-out rows, as for the genes here. ``benchmarks/planted.py`` compares more methods on more such
# data.
