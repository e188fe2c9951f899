"""
Ten pixels, whole digits
========================

These images of handwritten digits have 64 pixels. Which ten of them say the most about all the
others, and what do images look like that are reconstructed from these ten alone?
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import fewer

X = load_digits(as_frame=True).data / 16  # pixels from 0 to 1, named pixel_<row>_<column>
train, test = train_test_split(X, test_size=400, random_state=0)

# %%
# One call chooses the pixels and learns to reconstruct the rest. All pixels share a unit, so they
# are not standardised (``scale="none"``): a pixel that hardly varies then counts for little.

panel = fewer.select(train, k=10, scale="none", random_state=0)
panel

# %%
# Several strategies made proposals, which were compared on held-out rows:

panel.leaderboard

# %%
# From now on, ten values are enough. Columns are matched by name, so their order does not matter.

measured = test[panel.features[::-1]]
rebuilt = panel.reconstruct(measured)
print(f"{measured.shape} -> {rebuilt.shape}")
print(f"explained variance on new images: {panel.score(test):.2f}")

# %%
# Original images, measured pixels and reconstructions.

shown = [0, 5, 10, 15, 20, 25, 30, 35]
mask = np.zeros(64)
mask[panel.indices] = 1

figure, axes = plt.subplots(3, len(shown) + 1, figsize=(9, 3.2))
for axis in axes.flat:
    axis.set_axis_off()
axes[1, 0].imshow(mask.reshape(8, 8), cmap="Blues", vmax=1.4)
axes[1, 0].set_title("the ten", fontsize=9)
for column, row in enumerate(shown, start=1):
    whole, again = test.iloc[row].to_numpy(), rebuilt.iloc[row].to_numpy()
    seen = np.ma.masked_where(mask == 0, whole)
    for axis, values in zip(axes[:, column], (whole, seen, again), strict=True):
        axis.imshow(np.ma.reshape(values, (8, 8)), cmap="gray_r", vmin=0, vmax=1)
for axis, text in zip(axes[:, 1], ("original", "measured", "reconstructed"), strict=True):
    axis.set_title(text, fontsize=9, loc="left")

# %%
# Prediction intervals come from the errors on held-out rows. About 90% of the values should lie
# inside; not exactly, since 140 held-out rows are few.

_, low, high = panel.reconstruct(measured, interval=0.9)
inside = ((test >= low) & (test <= high)).to_numpy()
print(f"inside: {np.delete(inside, panel.indices, axis=1).mean():.1%}")

# %%
# A saved panel is a folder of safetensors and JSON files, no pickle.

with tempfile.TemporaryDirectory() as folder:
    panel.save(f"{folder}/digits-panel")
    again = fewer.Panel.load(f"{folder}/digits-panel")
print(np.array_equal(again.reconstruct(measured), rebuilt))
