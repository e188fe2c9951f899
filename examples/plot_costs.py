"""
Costs and a budget
==================

Not every feature costs the same. Here each of the 13 measurements of a wine has a price, and the
panel has to stay within a budget. (The prices are made up: the data set comes without any.)
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import fewer
from fewer import ColumnSubset

X = load_wine(as_frame=True).data
train, test = train_test_split(X, test_size=0.3, random_state=0)

prices = dict.fromkeys(X.columns, 4.0)  # chemistry in a laboratory
prices |= {"alcohol": 1.0, "ash": 1.0, "color_intensity": 0.5, "hue": 0.5}  # quick and cheap
prices |= {"flavanoids": 8.0, "proanthocyanins": 8.0}

# %%
# ``budget`` with ``costs`` takes the place of ``k``: as many features as the money buys.

panel = fewer.select(train, costs=prices, budget=12, random_state=0)
spent = sum(prices[name] for name in panel.features)
print(f"{panel.k} features for {spent:g}: {', '.join(panel.features)}")

# %%
# What is the next unit of money worth? One panel for each budget, and beside them the panels that
# ``k`` alone would have chosen, at what they cost. ``ColumnSubset`` is the estimator behind
# the quickest strategy of ``fewer.select``; it leaves scaling to its user.

scaler = StandardScaler().set_output(transform="pandas").fit(train)
scaled, unseen = scaler.transform(train), scaler.transform(test)


def cost(subset):
    """What the features that were chosen cost."""
    return sum(prices[name] for name in subset.get_feature_names_out())


def fitted(**wishes):
    """Price and score on test rows of the best panel under some constraints."""
    subset = ColumnSubset(random_state=0, **wishes).fit(scaled)
    return cost(subset), subset.score(unseen)


within = [fitted(k=None, costs=prices, budget=b) for b in (2, 4, 6, 8, 12, 16, 20, 26, 32)]
blind = [fitted(k=k) for k in range(1, 8)]

figure, axis = plt.subplots(figsize=(7, 4))
axis.plot(*zip(*within, strict=True), "o-", label="budget=")
axis.plot(*zip(*blind, strict=True), "s--", label="k= alone")
axis.set(xlabel="price of the panel", ylabel="share of variance rebuilt, test rows")
axis.legend(frameon=False)
axis.grid(alpha=0.3)

# %%
# A trade-off instead of a limit: with ``cost_weight`` every unit of cost adds so much to the mean
# squared error, so that a cheaper feature is taken where it is nearly as good.

for weight in (0.0, 0.002, 0.01, 0.03):
    price, share = fitted(k=6, costs=prices, cost_weight=weight)
    print(f"cost_weight={weight:<6} price {price:>4g}   share of variance {share:.2f}")

# %%
# Measurements that one assay gives together are a group: they count once and are paid once.

together = [["total_phenols", "flavanoids", "nonflavanoid_phenols", "proanthocyanins"]]
subset = ColumnSubset(k=2, groups=together, include=["hue"], random_state=0).fit(scaled)
print(list(subset.get_feature_names_out()))
