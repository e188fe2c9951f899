"""
Missing values
==============

Real tables have missing values. There is no need to impute them beforehand: NaN means "not
measured", both when choosing features and when reconstructing rows.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import fewer

X = load_breast_cancer(as_frame=True).data
train, test = train_test_split(X, test_size=0.3, random_state=0)
rng = np.random.default_rng(0)

# %%
# Remove a growing fraction of the training values completely at random, choose from what is left,
# and score each panel on complete test rows.


def error(panel, measured):
    """Mean squared error of all features of the test rows, each in standard deviations."""
    return np.square((test - panel.reconstruct(measured)) / train.std()).to_numpy().mean()


fractions = [0.0, 0.1, 0.3, 0.5]
panels = []
for fraction in fractions:
    incomplete = train.mask(rng.random(train.shape) < fraction)
    panels.append(fewer.select(incomplete, k=6, strategies=["search"], random_state=0))
trained = [error(panel, test[panel.features]) for panel in panels]
for fraction, panel, found in zip(fractions, panels, trained, strict=True):
    kept = len(set(panel.features) & set(panels[0].features))
    print(f"{fraction:.0%} missing: error {found:.3f}, {kept} of 6 features as on complete data")

# %%
# There are many good panels: different features, much the same error. A row to be reconstructed may
# have missing values, too. It is then reconstructed from the features it does have, which costs
# some accuracy.

complete, measured = panels[0], test[panels[0].features]
used = [error(complete, measured.mask(rng.random(measured.shape) < x)) for x in fractions]

figure, axis = plt.subplots(figsize=(7, 4))
axis.plot(fractions, trained, "o-", label="in training rows, test rows complete")
axis.plot(fractions, used, "s--", label="in measured values, training rows complete")
axis.set(xlabel="fraction missing", ylabel="mean squared error, standardised", ylim=(0, None))
axis.legend(frameon=False, title="missing values")
axis.grid(alpha=0.3)
