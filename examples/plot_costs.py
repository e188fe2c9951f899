"""
Costs and a budget
==================

Not every feature costs the same. Here each of the 13 measurements of a wine has a price, and the
panel must stay within a budget. (The prices are fictitious: the data set comes without any.)
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
# ``costs`` and ``budget`` replace ``k``: the best features that the budget can buy.

panel = fewer.select(train, costs=prices, budget=12, random_state=0)
spent = sum(prices[name] for name in panel.features)
print(f"{panel.k} features for {spent:g}: {', '.join(panel.features)}")

# %%
# What does a larger budget buy? One panel per budget, compared with the panels that ``k`` alone
# would have chosen, at their cost. ``ColumnSubset`` is the estimator behind the fastest strategy of
# ``fewer.select``; it leaves scaling to the user.

scaler = StandardScaler().set_output(transform="pandas").fit(train)
scaled, unseen = scaler.transform(train), scaler.transform(test)


def cost(subset):
    """Total cost of the chosen features."""
    return sum(prices[name] for name in subset.get_feature_names_out())


def fitted(**constraints):
    """Cost and test score of the best panel under some constraints."""
    subset = ColumnSubset(random_state=0, **constraints).fit(scaled)
    return cost(subset), subset.score(unseen)


within = [fitted(k=None, costs=prices, budget=b) for b in (2, 4, 6, 8, 12, 16, 20, 26, 32)]
without_costs = [fitted(k=k) for k in range(1, 8)]

figure, axis = plt.subplots(figsize=(7, 4))
axis.plot(*zip(*within, strict=True), "o-", label="budget=")
axis.plot(*zip(*without_costs, strict=True), "s--", label="k= alone")
axis.set(xlabel="cost of the panel", ylabel="explained variance, test rows")
axis.legend(frameon=False)
axis.grid(alpha=0.3)

# %%
# A trade-off instead of a limit: ``cost_weight`` is added to the mean squared error per unit of
# cost, so that a cheaper feature is preferred where it is nearly as good.

for weight in (0.0, 0.002, 0.01, 0.03):
    total, score = fitted(k=6, costs=prices, cost_weight=weight)
    print(f"cost_weight={weight:<6} cost {total:>4g}   explained variance {score:.2f}")

# %%
# Measurements that one assay yields together are a group: they count once and are paid for once.

together = [["total_phenols", "flavanoids", "nonflavanoid_phenols", "proanthocyanins"]]
subset = ColumnSubset(k=2, groups=together, include=["hue"], random_state=0).fit(scaled)
print(list(subset.get_feature_names_out()))
