"""Options shared by the concrete estimators, documented once, and the settings of the paper."""

from types import MappingProxyType
from typing import Any

__all__ = ["PAPER", "SHARED"]

#: The settings of Abid, Balin and Zou (2019): an Adam learning rate of 0.001 throughout, the
#: temperature decreasing from 10 to 0.01 once per epoch, five tries, no scaling. The paper gives no
#: number of epochs or batch size for the small data sets; its authors' code uses 300 epochs and
#: batches of at least 16 rows. Much slower than the defaults.
PAPER: MappingProxyType[str, Any] = MappingProxyType(
    {
        "solver": "gradient",
        "epochs": 300,
        "batch_size": 32,
        "learning_rate": 1e-3,
        "selector_learning_rate": 1e-3,
        "schedule": "exponential",
        "start_temperature": 10.0,
        "end_temperature": 0.01,
        "anneal": "epoch",
        "draw": "batch",
        "logits": "direct",
        "stop_probability": 0.99,
        "tries": 5,
        "normalize": False,
        "norm": None,
        "dropout": 0.0,
        "refine": None,
        "keep_measured": False,
        "ridge": 0.0,
    }
)

CONSTRAINTS = """k : int or None, default=10
    Number of features to choose; None to spend ``budget`` instead.
include, exclude : lists of names or column numbers, default=()
    Features that must be in the panel, and features that must not.
costs : mapping from feature to cost, or array, default=None
    Cost of measuring each feature.
cost_weight : float, default=0.0
    Penalty per unit of cost, added to the loss (the mean squared error).
budget : float, default=None
    Maximum total cost of the chosen features.
groups : list of lists of features, or one label per feature, default=None
    Features that are measured together. A group is chosen as a whole, counts once towards k
    and is paid for once, at its highest cost."""

PARAMETERS = """{constraints}
decoder : "auto", "linear", tuple of int or callable, default="auto"
    A linear map, a network with hidden layers of these widths, or a function
    ``(k, out) -> torch.nn.Module``, whose inputs are normalised (see ``normalize``). "auto" is
    linear for ConcreteAutoencoder and one hidden layer of 100 units for the other two.
loss : str or callable, default="auto"
    "mse", "mae", "huber", "bce" (X from 0 to 1), "poisson" (counts), "cross_entropy"
    (classes), or ``(output, target) -> tensor``. "auto" is "cross_entropy" for the
    classifier and "mse" otherwise.
solver : {"auto", "closed_form", "gradient"}, default="auto"
    "gradient" trains selector and decoder jointly, as in the paper. "closed_form", for "mse"
    without a target, trains only the selector and solves for the decoder exactly at each step: on
    the covariance matrix if it is linear (faster and better), else on random features, with
    the network trained afterwards. "auto" is "closed_form" for linear decoders of up to 10,000
    features (20,000 on CUDA), unless an option that only "gradient" supports is set.
refine : {"swaps", None}, default="swaps"
    Refinement after the selector is trained. "swaps": chosen features are swapped for others
    as long as that lowers the squared error, in competition with a search from greedy selection.
    With a linear decoder, all swaps are scored exactly, so the features are at least as good on
    the training rows as those of `ColumnSubset` with the same seed and ridge. For networks and
    classes, a surrogate scores the swaps (`fewer.train.network_swaps`); a decoder is then trained
    with and without them, and held-out rows decide, as with any loss other than "mse". Skipped if
    ``refit`` is not "scratch", and if neither the covariance (of more than 10,000 features, 20,000
    on CUDA) nor the rows (n < d / 4) fit into memory. None: the selector's own features, as in the
    paper.
activation : {"leaky_relu", "relu", "gelu", "silu", "tanh"}, default="leaky_relu"
    Activation after each hidden layer of the decoder.
dropout : float or "auto", default="auto"
    Dropout rate of hidden layers; "auto" is 0.1 if ``norm="auto"`` applies, else 0.
norm : {None, "batch", "layer", "auto"}, default="auto"
    Normalisation after each hidden layer. For networks of ConcreteClassifier with the "auto"
    loss, "auto" trains as `fewer.select` does: batch normalisation, label smoothing of 0.1,
    a short cycle with a high learning rate, and probabilities calibrated on held-out rows.
    Otherwise, it is None.
epochs : int or "auto", default="auto"
    Passes over the training rows in the first try; "auto" makes about 2400 gradient steps in
    5 to 600 epochs. In closed form: number of steps, 600 if "auto".
batch_size : int, default=256
    Rows per gradient step.
learning_rate : float or "auto", default="auto"
    Learning rate of the decoder (Adam); "auto" is 0.01 if it is linear, else 0.001.
learning_rate_decay : float, default=1.0
    Factor applied to that rate after each epoch.
selector_learning_rate : float or "auto", default="auto"
    Learning rate of the selector (Adam); "auto" is 0.1, 0.03 with indirect logits, or 0.2 in
    closed form. At the paper's 0.001, the selector needs many times the epochs to converge.
schedule : str or callable, default="exponential"
    Temperature schedule: "exponential", "linear", "constant", "abrupt", or a function
    of (start, end, total) that returns ``step -> temperature``.
start_temperature, end_temperature : float, default=3.0, 0.1
    First and last temperature.
anneal : {"step", "epoch"}, default="step"
    When the temperature changes.
draw : {"batch", "row"}, default="batch"
    One random sample per batch, or one per row (slow).
logits : {"direct", "indirect"}, default="direct"
    Learn the selector's logits directly, or as a linear map of a learned embedding.
embedding : int, default=None
    Width of that embedding; the number of features if None.
stop_probability : float or "auto", default="auto"
    Training stops when the mean over nodes of the largest probability reaches this value (not
    in closed form). "auto" is 0.99, as in the paper. If ``epochs`` is also "auto", it decreases
    from 0.99 for 10 nodes to 0.95 for 50, and 0.95 is enough at the end of the schedule.
tries : int, default=3
    Maximum number of tries to reach it, each with twice the epochs of the previous one.
patience : int, default=None
    Stop early after this many epochs without a lower held-out loss, in the second half of the
    schedule. In the refit of a network (30 if None), the learning rate then decays to zero,
    starting from the best state so far.
validation_fraction : float, default=0.1
    Fraction of rows held out to compare epochs and starts; none with fewer than 20 rows.
n_init : int, default=1
    Number of independent starts; the one with the lowest held-out loss (in closed form, the
    smallest residual) is kept.
refit : {"scratch", "finetune", "none"}, default="scratch"
    The final decoder: a new one (exact least squares if it is linear and the loss is "mse"),
    the trained one after fine-tuning, or the trained one unchanged. If nodes chose the same
    feature, "none" becomes "finetune".
refit_epochs : int or "auto", default="auto"
    Maximum number of epochs of that refit.
keep_measured : bool, default=True
    Whether ConcreteAutoencoder returns measured features unchanged, and refits a network for the
    others only. The paper's decoder reconstructs them, too.
ridge : float or "auto", default="auto"
    Penalty on squared weights in exact least squares, in units of variance. "auto" is 0, unless
    a linear decoder of X is refined by swaps and there are few rows for k or a few extreme values
    make up much of the variance: then it is chosen on held-out rows, as in `ColumnSubset`, which
    may also prefer the features of greedy selection.
normalize : bool, default=True
    Centre all features and divide them by one common number inside the network, so that
    learning rates do not depend on units. This does not change the optimum of squared or
    absolute error.
{device}
precision : {"auto", "float32", "tf32", "bfloat16"}, default="auto"
    Precision of matrix products in training; parameters and sums are always float32. "auto" is
    "bfloat16" on CUDA, "float32" elsewhere. On a CPU, "tf32" is "float32".
random_state : int, RandomState or None, default=None
    Seed; results are reproducible, bit for bit on a CPU.
progress : bool, default=False
    Show a progress bar, or one line every ten seconds if the output is not a terminal.
on_epoch : callable, default=None
    Called with each new row of ``history_``; if it returns True, training stops and the
    decoder is refitted. See `fewer.callbacks.TensorBoard`.
checkpoint : path, default=None
    Folder in which gradient training saves its state every minute (use `fewer.train.Checkpoint`
    for other intervals). After a crash or Ctrl-C, the same ``fit`` resumes from there, with
    the same result; the folder is deleted at the end."""

DEVICE = """device : str, default="auto"
    "auto" (CUDA, MPS or CPU), or any torch device."""

ATTRIBUTES = """columns_ : ndarray of int
    The chosen columns, ascending.
nodes_ : ndarray of shape (k,)
    Column of each selector node, in node order; all distinct. Features from swaps are assigned to
    the nodes that give them the highest probability.
logits_ : ndarray of shape (k, n_features)
    Learned log alpha of each node.
decoder_ : fewer.nn.MeasuredDecoder
    Maps k measured values, in column order and in the units of X, to predictions.
history_ : list of dict
    One row per epoch (every ten steps in closed form): try, epoch, temperature, loss,
    val_loss, mean_max_probability, distinct, seconds.
refit_history_ : list of dict
    The same for the refit of the decoder; empty if that was exact.
converged_ : bool
    Whether the selector converged: ``stop_probability`` (0.8 in closed form) was reached, and
    the best state on held-out rows has the same features.
n_conflicts_ : int
    Nodes that did not get their most likely feature, before any swaps.
n_swapped_ : int
    Number of chosen features that come from swaps.
ridge_ : float
    The penalty that was used.
n_features_in_, feature_names_in_
    As in every scikit-learn estimator."""

SHARED = {  # placeholders in docstrings; parameters first, since it has some too
    "parameters": PARAMETERS,
    "attributes": ATTRIBUTES,
    "constraints": CONSTRAINTS,
    "device": DEVICE,
}
