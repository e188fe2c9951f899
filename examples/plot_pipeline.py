"""
A step of a scikit-learn pipeline
=================================

Feature selection can be a step of a pipeline. Here thirty measurements of cell nuclei are reduced
to a few inside a pipeline, so that every fold of a cross-validation chooses its own.
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
# The estimators do not scale features, so a scaler comes first. The choice uses only the
# measurements, not the diagnosis: the same panel could answer other questions as well.

pipe = make_pipeline(StandardScaler(), ColumnSubset(k=5, random_state=0), LogisticRegression())
pipe.fit(train, y_train)
print(f"accuracy on new patients, 5 of 30 measurements: {pipe.score(test, y_test):.3f}")

# %%
# How many are enough? A grid search on the training rows finds out.

sizes = [1, 2, 3, 5, 8, 12, 20]
search = GridSearchCV(pipe, {"columnsubset__k": sizes}, cv=5)
search.fit(train, y_train)
print(f"best: {search.best_params_}, accuracy on new patients {search.score(test, y_test):.3f}")

# %%
# The same search without a target: the score of the selection step itself is the explained variance
# of all measurements.

scaled = StandardScaler().set_output(transform="pandas").fit_transform(train)
unsupervised = GridSearchCV(ColumnSubset(random_state=0), {"k": sizes}, cv=5).fit(scaled)

figure, axis = plt.subplots(figsize=(6, 3.5))
for found, label in ((search, "accuracy of the diagnosis"), (unsupervised, "explained variance")):
    mean, std = (np.array(found.cv_results_[f"{what}_test_score"]) for what in ("mean", "std"))
    axis.plot(sizes, mean, marker="o", label=label)
    axis.fill_between(sizes, mean - std, mean + std, alpha=0.15)
axis.set_xticks(sizes)
axis.set_xlabel("measurements chosen")
axis.set_ylabel("score on held-out folds")
axis.set_ylim(top=1.02)
axis.legend()

# %%
# ``set_output`` works as usual, with "pandas" and "polars".

pipe.set_output(transform="pandas").fit(train, y_train)
pipe[:-1].transform(test).head(3)

# %%
# Without the classifier, the pipeline can be inverted: from the chosen, scaled measurements to all
# thirty in their own units.

half = make_pipeline(StandardScaler(), ColumnSubset(k=5, random_state=0))
half.set_output(transform="pandas").fit(train)
measured = half.transform(test)
rebuilt = pd.DataFrame(half.inverse_transform(measured), columns=train.columns)
print(list(measured))
true, found = test["mean area"].iloc[0], rebuilt["mean area"].iloc[0]
print(f"mean area, which is not among them: true {true:.0f}, reconstructed {found:.0f}")
