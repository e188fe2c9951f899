"""
Inspecting a panel
==================

``panel.report("panel.html")`` writes everything into one file. This example takes the same numbers
from the panel itself, for those who want their own figures.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split

import fewer

X = load_wine(as_frame=True).data
train, test = train_test_split(X, test_size=0.3, random_state=0)
panel = fewer.select(train, k=5, random_state=0)

# %%
# At the end of a notebook cell, a panel shows a summary.

panel

# %%
# The full report is one file that works offline.

with tempfile.TemporaryDirectory() as folder:
    page = panel.report(Path(folder) / "wine.html", test, title="Five of thirteen")
    print(f"{page.name}: {page.stat().st_size / 1000:.0f} kB")

# %%
# How well is each feature reconstructed? R² on test rows: 1 for measured features, 0 for a feature
# whose mean is as good a guess.

score = panel.score(test)
r2 = 1 - score.errors / test.var(ddof=0).to_numpy()
order = np.argsort(r2)
colors = np.where(np.isin(order, panel.indices), "#d55e00", "#0072b2")

figure, axis = plt.subplots(figsize=(7, 4))
axis.barh(np.array(panel.names)[order], r2[order], color=colors)
axis.set(xlabel="R², test rows")
axis.axvline(0, color="#777777", lw=0.8)

# %%
# Reconstructed against true values, for a feature that was not measured:

rebuilt, low, high = panel.reconstruct(test[panel.features], interval=0.9)
name = next(panel.names[j] for j in order[::-1] if j not in panel.indices)

figure, axis = plt.subplots(figsize=(4.5, 4.5))
bars = np.abs(np.array([low[name], high[name]]) - rebuilt[name].to_numpy())
axis.errorbar(test[name], rebuilt[name], yerr=bars, fmt="o", ms=4, lw=0.6)
axis.axline((test[name].mean(), test[name].mean()), slope=1, color="#777777", lw=1)
axis.set(xlabel=f"{name}, true value", ylabel="reconstructed, with 90% prediction intervals")
