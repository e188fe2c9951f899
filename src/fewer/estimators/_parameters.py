"""The options that the concrete estimators share, described once, and the settings of the paper."""

from types import MappingProxyType
from typing import Any

__all__ = ["PAPER", "SHARED"]

#: The settings of Abid, Balin and Zou (2019): one Adam rate of 0.001 for everything, the
#: temperature falling from 10 to 0.01 once an epoch, five tries, no scaling of any kind. The
#: paper gives no number of epochs or batch size for the small data sets; 300 epochs of batches
#: of 16 rows or more is what its authors' code does. Slow next to the defaults.
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
    }
)

CONSTRAINTS = """k : int or None, default=10
    How many features to choose; None to spend ``budget`` instead.
include, exclude : lists of names or column numbers, default=()
    Features that must be on the panel, and features that must not be.
costs : mapping from feature to cost, or array, default=None
    What measuring each feature costs.
cost_weight : float, default=0.0
    Trade-off: how much each unit of cost adds to the loss (the mean squared error).
budget : float, default=None
    Maximum total cost of the chosen features.
groups : list of lists of features, or a label for each, default=None
    Features that are measured together: choosing one brings all of its group, which counts
    once towards k and is paid once, at its highest cost."""

PARAMETERS = """{constraints}
decoder : "auto", "linear", tuple of int or callable, default="auto"
    What predicts from the k chosen values: a linear map, a network with hidden layers of
    these widths, or your own ``(k, out) -> torch.nn.Module``. "auto" is linear for
    ConcreteAutoencoder and one hidden layer of 100 for the other two. Your own network
    sees centred inputs divided by one number (see ``normalize``).
loss : str or callable, default="auto"
    "mse", "mae", "huber", "bce" (X from 0 to 1), "poisson" (counts), "cross_entropy"
    (classes), or ``(output, target) -> tensor``. "auto" is "cross_entropy" for the
    classifier and "mse" otherwise.
solver : {"auto", "closed_form", "gradient"}, default="auto"
    "gradient" trains selector and decoder together, as in the paper. "closed_form", for
    "mse" and no target, solves the decoder exactly at each step and trains the selector
    alone: a linear decoder on the covariance matrix, which is faster and better; one on
    fresh random features in the place of a network, which is trained afterwards. "auto"
    takes it for linear decoders, for up to 10,000 features (20,000 on a CUDA device), unless
    an option is set that only the gradient has.
activation : {"leaky_relu", "relu", "gelu", "silu", "tanh"}, default="leaky_relu"
    After each hidden layer of the decoder.
dropout : float, default=0.0
    Fraction of hidden values dropped in training.
norm : {None, "batch", "layer"}, default=None
    Normalisation after each hidden layer.
epochs : int or "auto", default="auto"
    Passes over the training rows in the first try; "auto" takes as many as give about
    2400 gradient steps, at least 20 and at most 600. In closed form: steps, 600 if "auto".
batch_size : int, default=256
    Rows in a gradient step.
learning_rate : float or "auto", default="auto"
    Adam's rate for the decoder; "auto" is 0.01 for a linear one, 0.001 for others.
learning_rate_decay : float, default=1.0
    Factor on that rate after each epoch.
selector_learning_rate : float or "auto", default="auto"
    Adam's rate for the selector; "auto" is 0.1, or 0.03 with indirect logits, or 0.2 in
    closed form. It decides whether the selector settles at all: at the paper's
    0.001 it needs many times the epochs.
schedule : str or callable, default="exponential"
    How the temperature falls: "exponential", "linear", "constant", "abrupt", or a function
    of (start, end, total) that returns ``step -> temperature``.
start_temperature, end_temperature : float, default=3.0, 0.1
    Where it starts and ends.
anneal : {"step", "epoch"}, default="step"
    When the temperature changes.
draw : {"batch", "row"}, default="batch"
    One random choice for all rows of a batch, or one for each row (slow).
logits : {"direct", "indirect"}, default="direct"
    Learn the selector's logits themselves, or as a linear map of a learned embedding.
embedding : int, default=None
    Width of that embedding; the number of features if None.
stop_probability : float, default=0.99
    Training ends when the mean over nodes of the largest probability gets here; in closed
    form all steps are made.
tries : int, default=3
    If it does not get there, start again with twice the epochs, up to this many times in all.
patience : int, default=None
    Stop early after this many epochs without a better held-out loss, counted in the second
    half of the schedule. In the refit of a network, where None means 30, the learning rate
    then falls to its end, from the best state so far.
validation_fraction : float, default=0.1
    Fraction of rows held out to compare epochs and starts; none with fewer than 20 rows.
n_init : int, default=1
    Independent starts; the one with the lowest held-out loss is kept (in closed form, the
    one whose choice leaves the smallest residual).
refit : {"scratch", "finetune", "none"}, default="scratch"
    The decoder for the final choice: a new one (exact least squares where it is linear and
    the loss is "mse"), the trained one tuned further, or the trained one as it is. Nodes
    that wanted the same feature always lead to at least "finetune".
refit_epochs : int or "auto", default="auto"
    Maximum number of epochs of that refit.
ridge : float, default=0.0
    Penalty on squared weights in exact least squares, in units of variance.
normalize : bool, default=True
    Centre all features and divide them all by one number inside the network, so that
    learning rates do not depend on units. Which features and decoder are best under
    squared or absolute error does not change.
{device}
precision : {"auto", "float32", "tf32", "bfloat16"}, default="auto"
    Of matrix products in training; parameters and sums are float32 in any case. "auto" is
    "bfloat16" on CUDA, "float32" elsewhere. "tf32" has three digits and the range of
    float32, on CUDA; a CPU takes it for "float32".
random_state : int, RandomState or None, default=None
    Fixes the result; bit for bit on a CPU.
progress : bool, default=False
    Show a progress bar.
on_epoch : callable, default=None
    Called with each row of ``history_`` as it is made; training ends early, and the decoder
    is fitted, where it returns True. `fewer.callbacks.TensorBoard` is one.
checkpoint : path, default=None
    A folder in which gradient training keeps its state every minute, as safetensors and
    JSON. After a crash or Ctrl-C the same ``fit`` resumes from there, to the same result;
    when it is done the folder is deleted. See `fewer.train.Checkpoint` for other intervals."""

DEVICE = """device : str, default="auto"
    "auto" (CUDA, MPS or CPU), or any torch device."""

ATTRIBUTES = """columns_ : ndarray of int
    The chosen columns, ascending.
nodes_ : ndarray of shape (k,)
    Column that each selector node chose, in node order; all different.
logits_ : ndarray of shape (k, n_features)
    Learned log alpha of each node.
decoder_ : fewer.nn.MeasuredDecoder
    From k measured values, in column order and in the units of X, to predictions.
history_ : list of dict
    One row per epoch (every ten steps in closed form): try, epoch, temperature, loss,
    val_loss, mean_max_probability, distinct, seconds.
refit_history_ : list of dict
    The same for the refit of the decoder; empty where that was exact.
converged_ : bool
    Whether the selector settled: ``stop_probability`` was reached, or 0.8 in closed form, and
    the state that is kept, which is the best on held-out rows, wants the same features.
n_conflicts_ : int
    Nodes that had to take another feature than their favourite.
n_features_in_, feature_names_in_
    As everywhere in scikit-learn."""

SHARED = {  # placeholders in docstrings; parameters first, since it has some too
    "parameters": PARAMETERS,
    "attributes": ATTRIBUTES,
    "constraints": CONSTRAINTS,
    "device": DEVICE,
}
