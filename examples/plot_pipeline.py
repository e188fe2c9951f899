"""
A step of a scikit-learn pipeline
=================================

Chosen features can feed a classifier like any others. Here thirty measurements of cell nuclei are
cut down to a few, inside a pipeline, so that every fold of a cross-validation chooses its own.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fewer import ColumnSubset

X, y = load_breast_cancer(return_X_y=True, as_frame=True)
train, test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)

# %%
# Estimators do not scale anything by themselves, so a scaler comes first. The choice looks at the
# measurements only, not at the diagnosis: the same panel would serve another question as well.

pipe = make_pipeline(StandardScaler(), ColumnSubset(k=5, random_state=0), LogisticRegression())
pipe.fit(train, y_train)
print(f"accuracy on new patients, 5 of 30 measurements: {pipe.score(test, y_test):.3f}")

# %%
# How many are enough? A grid search tries, with training rows alone.

sizes = [1, 2, 3, 5, 8, 12, 20]
search = GridSearchCV(pipe, {"columnsubset__k": sizes}, cv=5)
search.fit(train, y_train)
print(f"best: {search.best_params_}, accuracy on new patients {search.score(test, y_test):.3f}")

# %%
# The same search, by how much of the other measurements comes back: without a target in view, the
# score of the step itself is the share of the variance that it reconstructs.

scaled = StandardScaler().set_output(transform="pandas").fit_transform(train)
blind = GridSearchCV(ColumnSubset(random_state=0), {"k": sizes}, cv=5).fit(scaled)

figure, axis = plt.subplots(figsize=(6, 3.5))
for found, label in ((search, "accuracy of the diagnosis"), (blind, "variance reconstructed")):
    mean, spread = (np.array(found.cv_results_[f"{what}_test_score"]) for what in ("mean", "std"))
    axis.plot(sizes, mean, marker="o", label=label)
    axis.fill_between(sizes, mean - spread, mean + spread, alpha=0.15)
axis.set_xticks(sizes)
axis.set_xlabel("measurements chosen")
axis.set_ylabel("held-out folds")
axis.set_ylim(top=1.02)
axis.legend()

# %%
# Tables stay tables: ``set_output`` takes "pandas" and "polars", for each step of a pipeline.

pipe.set_output(transform="pandas").fit(train, y_train)
pipe[:-1].transform(test).head(3)

# %%
# A pipeline without the classifier also runs backwards: from the chosen measurements, scaled, to
# all thirty in their own units.

half = make_pipeline(StandardScaler(), ColumnSubset(k=5, random_state=0))
half.set_output(transform="pandas").fit(train)
measured = half.transform(test)
rebuilt = pd.DataFrame(half.inverse_transform(measured), columns=train.columns)
print(list(measured))
true, back = test["mean area"].iloc[0], rebuilt["mean area"].iloc[0]
print(f"mean area, which is not among them: {true:.0f}, rebuilt {back:.0f}")
