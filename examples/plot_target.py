"""
A panel for a diagnosis
=======================

Sometimes the other features do not matter in themselves: the panel should predict one thing. With
``target=``, features are chosen to predict it.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fewer

frame = load_breast_cancer(as_frame=True).frame  # 30 measurements and the column "target"
frame["target"] = frame["target"].map({0: "malignant", 1: "benign"})
train, test = train_test_split(frame, test_size=0.4, random_state=0, stratify=frame["target"])

# %%
# The target is a column of the table, or an array. Text, integers and booleans are classes;
# floating-point values are regressed.

panel = fewer.select(train, k=3, target="target", random_state=0)
print(panel.features)
print(panel.leaderboard)

# %%
# The panel predicts from its three measurements; probabilities are in the order of
# ``target.classes``.

measured = test[panel.features]
print(panel.predict(measured)[:4])
print(panel.target.classes, panel.predict_proba(measured)[:2].round(3), sep="\n")

# %%
# Does choosing for the target help? The same classifier on both kinds of panels, test rows:

features = frame.columns.drop("target")


def accuracy(chosen):
    """Accuracy of logistic regression on some features of the test rows."""
    model = make_pipeline(StandardScaler(), LogisticRegression())
    return model.fit(train[chosen], train["target"]).score(test[chosen], test["target"])


ks = [1, 2, 3, 4, 6]
quick = {"strategies": ["search"], "validation": 0.2, "random_state": 0}
for_target, for_all = [], []
for k in ks:
    chosen = fewer.select(train, k=k, target="target", **quick).features
    for_target.append(accuracy(chosen))
    for_all.append(accuracy(fewer.select(train[features], k=k, **quick).features))

figure, axis = plt.subplots(figsize=(7, 4))
axis.plot(ks, for_target, "o-", label="chosen for the diagnosis")
axis.plot(ks, for_all, "s--", label="chosen to reconstruct all features")
axis.axhline(accuracy(list(features)), color="#777777", lw=1, label="all 30 features")
axis.set(xlabel="k", ylabel="accuracy, test rows", xticks=ks)
axis.legend(frameon=False)
axis.grid(alpha=0.3)
