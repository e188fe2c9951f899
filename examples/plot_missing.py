"""
Missing values
==============

Real tables have gaps. Nothing needs to be filled in beforehand: NaN means "not measured", when
choosing features and when rebuilding rows alike.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import fewer

X = load_breast_cancer(as_frame=True).data
train, test = train_test_split(X, test_size=0.3, random_state=0)
gaps = np.random.default_rng(0)

# %%
# Take away a growing share of all training values, completely at random, choose from what is
# left, and judge each panel on complete test rows.


def error(panel, measured):
    """Mean squared error of all features of the test rows, each in standard deviations."""
    return np.square((test - panel.reconstruct(measured)) / train.std()).to_numpy().mean()


shares = [0.0, 0.1, 0.3, 0.5]
panels = []
for share in shares:
    holed = train.mask(gaps.random(train.shape) < share)
    panels.append(fewer.select(holed, k=6, strategies=["search"], random_state=0))
trained = [error(panel, test[panel.features]) for panel in panels]
for share, panel, found in zip(shares, panels, trained, strict=True):
    kept = len(set(panel.features) & set(panels[0].features))
    print(f"{share:.0%} missing: error {found:.3f}, {kept} of 6 features as without gaps")

# %%
# Good panels are many: other features, much the same error. A row to be rebuilt may have gaps,
# too. What was not measured takes the mean of the training rows; each gap costs some accuracy, and
# none stops the work.

whole, measured = panels[0], test[panels[0].features]
rebuilt = [error(whole, measured.mask(gaps.random(measured.shape) < share)) for share in shares]

figure, axis = plt.subplots(figsize=(7, 4))
axis.plot(shares, trained, "o-", label="of training values, test rows complete")
axis.plot(shares, rebuilt, "s--", label="of measured values, training rows complete")
axis.set(xlabel="share missing", ylabel="mean squared error, standardised", ylim=(0, None))
axis.legend(frameon=False, title="missing share")
axis.grid(alpha=0.3)
