"""A panel as an ONNX graph: measured values in, all features out, in the units of the data.

The graph is written node by node from the layers of the decoder, which needs no exporter, and is
run and compared with the panel before it is kept.
"""

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fewer import __version__
from fewer._checks import check_suffix
from fewer._files import write_whole
from fewer._optional import import_optional
from fewer.errors import InputError
from fewer.nn import MeasuredDecoder
from fewer.panel import Panel
from fewer.reconstructor import run_decoder

OPSET, IR = 20, 9  # of 2023: what runtimes in use understand
CLOSE = 1e-3  # standard deviations that a float32 graph may be off
ROWS = 64
MOST_COMPLETED = 128  # features whose missing values are predicted; else the training mean

INPUT, OUTPUT, TARGET = "measured", "reconstructed", "target"


def export_onnx(panel: Panel, path: str | os.PathLike[str]) -> float:
    """Write the decoder of a panel, and its predictor, as an ONNX file.

    Input ``measured`` (n x k): the chosen features in column order, NaN where not measured, which
    is predicted from the others as the panel does it, for up to 128 features (beyond, it is the
    training mean).
    Output ``reconstructed`` (n x d): all features. A panel with a target has the output ``target``
    too: the probability of each class, or the number. Names of features and classes are in the
    metadata of the file. Numbers are float32; float64 where that is not exact enough.

    Parameters
    ----------
    panel : Panel
        From `fewer.select` or `fewer.Panel.load`; its decoder must be linear or of hidden layers.
    path : path
        The .onnx file.

    Returns
    -------
    float
        Largest difference from the panel, in standard deviations of each feature, on random rows:
        run by onnxruntime, or by the reference of onnx where that is not installed.

    Examples
    --------
    >>> import fewer, tempfile
    >>> from sklearn.datasets import load_iris
    >>> panel = fewer.select(load_iris().data, 2, strategies=["search"], random_state=0)
    >>> export_onnx(panel, tempfile.mkdtemp() + "/iris.onnx") < 1e-4
    True
    """
    import_optional("onnx")
    path = Path(path)
    check_suffix(path, (".onnx",))
    for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        model = _model(panel, dtype)
        gap = _difference(panel, model, dtype)
        if gap <= CLOSE:
            break
    else:
        raise InputError(
            f"the ONNX graph differs from the panel by {gap:.2g} standard deviations; "
            "it was not written"
        )
    write_whole(path, lambda draft: draft.write_bytes(model.SerializeToString()))
    return gap


def _model(panel: Panel, dtype: np.dtype) -> Any:
    onnx = import_optional("onnx")
    kind = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    graph = _Graph(dtype)
    graph.decoder(panel.reconstructor.decoder, INPUT, OUTPUT, panel.d)
    outputs = [(OUTPUT, panel.d)]
    if panel.target is not None:
        width = panel.target.outputs
        graph.decoder(panel.target.decoder, INPUT, TARGET, width)
        outputs.append((TARGET, width))
    value = onnx.helper.make_tensor_value_info
    made = onnx.helper.make_graph(
        graph.nodes,
        "panel",
        [value(INPUT, kind, ["rows", panel.k])],
        [value(name, kind, ["rows", width]) for name, width in outputs],
        graph.constants,
    )
    model = onnx.helper.make_model(
        made,
        producer_name="fewer",
        producer_version=__version__,
        ir_version=IR,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
    )
    about: dict[str, Any] = {
        "measured": panel.features,
        "reconstructed": panel.names or list(range(panel.d)),
    }
    if panel.target is not None:
        classes = panel.target.classes
        about["target"] = [panel.target.name]
        about["classes"] = None if classes is None else classes.tolist()
    onnx.helper.set_model_props(model, {name: json.dumps(part) for name, part in about.items()})
    onnx.checker.check_model(model, full_check=True)
    return model


class _Graph:
    """Nodes and constants of a graph, added one by one."""

    def __init__(self, dtype: np.dtype) -> None:
        self.onnx = import_optional("onnx")
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: Tensor | NDArray | list[int] | float, dtype: Any = None) -> str:
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        name = f"constant_{len(self.constants)}"
        array = np.ascontiguousarray(array.astype(dtype or self.dtype))
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def add(self, kind: str, *inputs: str, to: str | None = None, **options: Any) -> str:
        name = to or f"value_{len(self.nodes)}"
        if "to_type" in options:  # the attribute of Cast is called "to"
            options["to"] = options.pop("to_type")
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], **options))
        return name

    def decoder(self, decoder: MeasuredDecoder, measured: str, out: str, d: int) -> None:
        """The steps of `MeasuredDecoder.forward`."""
        gaps = self.add("IsNaN", measured)
        if decoder.precision is not None and len(decoder.fill) <= MOST_COMPLETED:
            measured = self.completed(decoder.fill, decoder.precision, measured, gaps)
            gaps = self.add("IsNaN", measured)
        x = self.add("Where", gaps, self.constant(decoder.fill), measured)
        if decoder.log_inputs:
            x = self.add("Max", x, self.constant(0.0))
            x = self.add("Log", self.add("Add", x, self.constant(1.0)))
        x = self.add("Sub", x, self.constant(decoder.center))
        x = self.add("Div", x, self.constant(decoder.scale))
        x = self.add("Gather", x, self.constant(decoder.order, np.int64), axis=1)
        for layer in decoder.net if isinstance(decoder.net, nn.Sequential) else [decoder.net]:
            x = self.layer(layer, x)
        if decoder.link is not None:
            x = self.add("Add", x, self.constant(decoder.offset))
            kind = {"sigmoid": "Sigmoid", "exp": "Exp", "softmax": "Softmax"}[decoder.link]
            x = self.add(kind, x)  # the axis of Softmax is the last
        x = self.add("Mul", x, self.constant(decoder.out_scale))
        x = self.add("Add", x, self.constant(decoder.out_center))
        if decoder.known is None:
            self.add("Identity", x, to=out)
            return
        # what was measured comes back as it was: pick it from the right of [guessed | measured]
        guessed = self.add("Gather", x, self.constant(decoder.known, np.int64), axis=1)
        kept = self.add("Where", gaps, guessed, measured)
        both = self.add("Concat", x, kept, axis=1)
        places = np.arange(d)
        places[decoder.known.numpy()] = d + np.arange(len(decoder.known))
        self.add("Gather", both, self.constant(places, np.int64), axis=1, to=out)

    def completed(self, mean: Tensor, precision: Tensor, measured: str, gaps: str) -> str:
        """The steps of `fewer.nn.completion.complete`: Gauss-Jordan elimination for each row.

        With m = 1 where a value is missing, A = diag(1 - m) + m m' P and b = -m P x, the solution
        of A y = b has the missing values, and 0 elsewhere; all about the mean, in units in which P
        has a unit diagonal.
        """
        k = len(mean)
        unit = precision.diagonal().rsqrt()
        P = self.constant(precision * unit[:, None] * unit)
        centred = self.add("Sub", measured, self.constant(mean))
        centred = self.add("Div", centred, self.constant(unit))
        known = self.add("Where", gaps, self.constant(0.0), centred)
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(self.dtype)
        m = self.add("Cast", gaps, to_type=kind)
        pull = self.add("Mul", m, self.add("MatMul", known, P))
        last, middle = self.constant([-1], np.int64), self.constant([1], np.int64)
        down, across = self.add("Unsqueeze", m, last), self.add("Unsqueeze", m, middle)
        A = self.add("Mul", self.add("Mul", down, across), P)
        rest = self.add("Mul", self.add("Sub", self.constant(1.0), down), self.constant(np.eye(k)))
        right = self.add("Neg", self.add("Unsqueeze", pull, last))
        T = self.add("Concat", self.add("Add", A, rest), right, axis=2)
        for i in range(k):
            at = self.constant([i], np.int64)
            row = self.add("Gather", T, at, axis=1)  # n x 1 x (k + 1)
            row = self.add("Div", row, self.add("Gather", row, at, axis=2))
            column = self.add("Gather", T, at, axis=2)  # n x k x 1
            column = self.add("Sub", column, self.constant(np.eye(k)[:, [i]]))
            T = self.add("Sub", T, self.add("Mul", column, row))
        solution = self.add("Gather", T, self.constant([k], np.int64), axis=2)
        solution = self.add("Squeeze", solution, last)
        guess = self.add("Add", self.add("Mul", solution, self.constant(unit)), self.constant(mean))
        return self.add("Where", gaps, guess, measured)

    def layer(self, layer: nn.Module, x: str) -> str:
        """A layer as it is in use: dropout does nothing, batch statistics are fixed."""
        match layer:
            case nn.Dropout() | nn.Identity():
                pass
            case nn.Linear():
                x = self.add("MatMul", x, self.constant(layer.weight.T))
                if layer.bias is not None:
                    x = self.add("Add", x, self.constant(layer.bias))
            case nn.BatchNorm1d(running_mean=Tensor() as mean, running_var=Tensor() as variance):
                scale = layer.weight / (variance + layer.eps).sqrt()
                x = self.add("Mul", self.add("Sub", x, self.constant(mean)), self.constant(scale))
                x = self.add("Add", x, self.constant(layer.bias))
            case nn.LayerNorm():
                parts = self.constant(layer.weight), self.constant(layer.bias)
                x = self.add("LayerNormalization", x, *parts, axis=-1, epsilon=layer.eps)
            case nn.LeakyReLU():
                x = self.add("LeakyRelu", x, alpha=layer.negative_slope)
            case nn.SiLU():
                x = self.add("Mul", x, self.add("Sigmoid", x))
            case nn.GELU(approximate="none"):
                # x / 2 (1 + erf(x / sqrt 2)): the operator Gelu is not everywhere in float64
                half = self.add("Mul", x, self.constant(0.5))
                erf = self.add("Erf", self.add("Mul", x, self.constant(0.5**0.5)))
                x = self.add("Mul", half, self.add("Add", erf, self.constant(1.0)))
            case nn.ReLU() | nn.Tanh():
                x = self.add("Relu" if isinstance(layer, nn.ReLU) else "Tanh", x)
            case _:
                raise InputError(
                    f"a decoder with {type(layer).__name__} cannot be written as ONNX here; only "
                    "linear decoders and hidden layers can (a module of your own: use "
                    "torch.onnx.export)"
                )
        return x


def _difference(panel: Panel, model: Any, dtype: np.dtype) -> float:
    """Largest difference between graph and panel on random rows, some of them with gaps."""
    decoder = panel.reconstructor.decoder
    random = np.random.default_rng(0)
    unit = (decoder.scale.abs() + 0 * decoder.fill).numpy()
    rows = decoder.fill.numpy() + unit * random.normal(size=(ROWS, panel.k))
    rows = rows.astype(dtype).astype(np.float64)
    if decoder.precision is None or panel.k <= MOST_COMPLETED:
        rows[random.random(rows.shape) < 0.05] = np.nan
    found = _run(model, rows.astype(dtype))
    true = panel.reconstructor.decode(rows)
    size = np.maximum(true.std(axis=0), np.sqrt(np.maximum(panel.held_out.errors, 0.0)))
    worst = float((np.abs(found[0] - true) / np.where(size > 0, size, 1.0)).max())
    if panel.target is not None:
        truth = run_decoder(panel.target.decoder, rows)
        size = np.ones(1) if panel.target.classes is not None else truth.std(axis=0) + 1e-300
        worst = max(worst, float((np.abs(found[1] - truth) / size).max()))
    return worst


def _run(model: Any, rows: NDArray) -> list[NDArray]:
    try:
        onnxruntime = import_module("onnxruntime")
    except ModuleNotFoundError:
        reference = import_optional("onnx.reference")
        return reference.ReferenceEvaluator(model).run(None, {INPUT: rows})
    content, providers = model.SerializeToString(), ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(content, providers=providers).run(None, {INPUT: rows})
