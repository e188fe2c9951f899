"""A panel as an ONNX graph: measured values in, all features out, in the units of the data.

The graph is written node by node from the layers of the decoder, which needs no exporter, and is
run and compared with the panel before it is kept.
"""

import json
import os
from collections.abc import Iterator
from importlib import import_module
from itertools import count
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
from fewer.nn.decoder import SkipConnected, links_of
from fewer.panel import Panel
from fewer.reconstructor import run_decoder

OPSET, IR = 20, 9  # of 2023: what runtimes in use understand
CLOSE = 1e-3  # standard deviations that a float32 graph may be off
ROWS = 64

OPERATIONS = {"sigmoid": "Sigmoid", "exp": "Exp", "softplus": "Softplus", "softmax": "Softmax"}
INPUT, OUTPUT, TARGET = "measured", "reconstructed", "target"


def export_onnx(panel: Panel, path: str | os.PathLike[str]) -> float:
    """Write the decoder of a panel, and its predictor, as an ONNX file.

    Input ``measured`` (n x k): the chosen features in column order, NaN where not measured, which
    is predicted from the others as the panel does it.
    Output ``reconstructed`` (n x d): all features. A panel with a target has the output ``target``
    too: the probability of each class, the number, the mean of a count or the log hazard; several
    targets lie side by side. Names of features and classes are in the
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
        about["kind"] = panel.target.kind.name
        if panel.target.parts:
            about["parts"] = [
                {
                    "name": part.name,
                    "kind": part.kind.name,
                    "outputs": part.kind.outputs,
                    "classes": None if part.kind.classes is None else part.kind.classes.tolist(),
                }
                for part in panel.target.parts
            ]
        about["classes"] = None if classes is None else classes.tolist()
    onnx.helper.set_model_props(model, {name: json.dumps(part) for name, part in about.items()})
    onnx.checker.check_model(model, full_check=True)
    return model


class _Graph:
    """Nodes and constants of a graph, added one by one; those of a body inside of it, too."""

    def __init__(self, dtype: np.dtype, around: "_Graph | None" = None) -> None:
        self.onnx = import_optional("onnx")
        self.dtype = dtype
        self.nodes: list[Any] = []
        # a body refers to constants of the graph around it, and its names must be others
        self.constants: list[Any] = [] if around is None else around.constants
        self.numbers: Iterator[int] = count() if around is None else around.numbers

    def constant(self, values: Tensor | NDArray | list[int] | float, dtype: Any = None) -> str:
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        name = f"constant_{len(self.constants)}"
        array = np.asarray(array.astype(dtype or self.dtype), order="C")  # which keeps scalars
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def add(self, kind: str, *inputs: str, to: str | None = None, **options: Any) -> str:
        name = to or f"value_{next(self.numbers)}"
        if "to_type" in options:  # the attribute of Cast is called "to"
            options["to"] = options.pop("to_type")
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], **options))
        return name

    def decoder(self, decoder: MeasuredDecoder, measured: str, out: str, d: int) -> None:
        """The steps of `MeasuredDecoder.forward`."""
        gaps = self.add("IsNaN", measured)
        if decoder.precision is not None:
            measured = self.completed(decoder.fill, decoder.precision, measured, gaps)
            gaps = self.add("IsNaN", measured)
        x = self.add("Where", gaps, self.constant(decoder.fill), measured)
        if decoder.log_inputs:
            x = self.add("Max", x, self.constant(0.0))
            x = self.add("Log", self.add("Add", x, self.constant(1.0)))
        x = self.add("Sub", x, self.constant(decoder.center))
        x = self.add("Div", x, self.constant(decoder.scale))
        x = self.add("Gather", x, self.constant(decoder.order, np.int64), axis=1)
        *layers, last = decoder.net if isinstance(decoder.net, nn.Sequential) else [decoder.net]
        hidden = x
        for layer in layers:
            hidden = self.layer(layer, hidden)
        if isinstance(decoder.net, SkipConnected):
            hidden = self.add("Concat", hidden, x, axis=1)
        x = self.layer(last, hidden)
        if decoder.link is not None:
            x = self.linked(decoder.link, self.add("Add", x, self.constant(decoder.offset)))
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

    def body(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> Any:
        """The nodes as a graph of its own, for Scan and Loop; names with their types and shapes."""
        value = self.onnx.helper.make_tensor_value_info
        typed = [[value(name, *kind) for name, kind in side.items()] for side in (inputs, outputs)]
        return self.onnx.helper.make_graph(self.nodes, f"body_{next(self.numbers)}", *typed)

    def linked(self, link: str, x: str) -> str:
        """The steps of `fewer.nn.decoder.apply_link`."""
        if link in OPERATIONS:
            return self.add(OPERATIONS[link], x)  # the axis of Softmax is the last
        parts, start = [], 0
        for name, size in links_of(link):
            part = self.add(
                "Gather", x, self.constant(np.arange(start, start + size), np.int64), axis=1
            )
            parts.append(part if name is None else self.add(OPERATIONS[name], part))
            start += size
        return self.add("Concat", *parts, axis=1)

    def completed(self, mean: Tensor, precision: Tensor, measured: str, gaps: str) -> str:
        """The steps of `fewer.nn.completion.complete`, for each row on its own.

        With M the missing values of a row, P_MM y = -(P x)_M is solved by Gauss-Jordan
        elimination, with 0 in x where values are missing; all about the mean, in units in which P
        has a unit diagonal. P_MM is positive definite, so that no pivoting is needed.
        """
        unit = precision.diagonal().rsqrt()
        P = self.constant(precision * unit[:, None] * unit)
        centred = self.add("Sub", measured, self.constant(mean))
        centred = self.add("Div", centred, self.constant(unit))
        known = self.add("Where", gaps, self.constant(0.0), centred)
        pull = self.add("MatMul", known, P)
        body = self.solved_row(P, len(mean))
        solution = self.add("Scan", pull, gaps, body=body, num_scan_inputs=2)
        guess = self.add("Add", self.add("Mul", solution, self.constant(unit)), self.constant(mean))
        return self.add("Where", gaps, guess, measured)

    def solved_row(self, P: str, k: int) -> Any:
        """The body of a scan over rows: P x (k) and gaps (k) in, missing values (k) out."""
        helper, row = self.onnx.helper, _Graph(self.dtype, around=self)
        pull, gaps, out = (f"row_{next(self.numbers)}" for _ in range(3))
        at = row.add("Squeeze", row.add("NonZero", gaps), self.constant([0], np.int64))
        size = row.add("Size", at)
        A = row.add("Gather", row.add("Gather", P, at, axis=0), at, axis=1)
        right = row.add("Neg", row.add("Gather", pull, at))
        right = row.add("Unsqueeze", right, self.constant([1], np.int64))
        start = row.add("Concat", A, right, axis=1)  # m x (m + 1)
        true = self.constant(True, np.bool_)
        ended = row.add("Loop", size, true, start, body=self.elimination(size))
        solution = row.add("Gather", ended, size, axis=1)
        zeros = self.constant(np.zeros(k))
        row.add("ScatterElements", zeros, at, solution, axis=0, to=out)
        real = helper.np_dtype_to_tensor_dtype(self.dtype)
        inputs = {pull: (real, [k]), gaps: (self.onnx.TensorProto.BOOL, [k])}
        return row.body(inputs, {out: (real, [k])})

    def elimination(self, size: str) -> Any:
        """The body of a loop over i: column i of T (m x (m + 1)) becomes that of the identity."""
        helper, step = self.onnx.helper, _Graph(self.dtype, around=self)
        i, before, after, T, out = (f"step_{next(self.numbers)}" for _ in range(5))
        real = helper.np_dtype_to_tensor_dtype(self.dtype)
        row = step.add("Gather", T, i, axis=0)
        row = step.add("Div", row, step.add("Gather", row, i, axis=0))
        zero, one = self.constant(0, np.int64), self.constant(1, np.int64)
        unit = step.add("Equal", step.add("Range", zero, size, one), i)
        column = step.add("Gather", T, i, axis=1)
        column = step.add("Sub", column, step.add("Cast", unit, to_type=real))
        down = step.add("Unsqueeze", column, self.constant([1], np.int64))
        across = step.add("Unsqueeze", row, self.constant([0], np.int64))
        step.add("Sub", T, step.add("Mul", down, across), to=out)
        step.add("Identity", before, to=after)
        whole, truth = self.onnx.TensorProto.INT64, self.onnx.TensorProto.BOOL
        inputs = {i: (whole, []), before: (truth, []), T: (real, ["m", "m1"])}
        return step.body(inputs, {after: (truth, []), out: (real, ["m", "m1"])})

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
    rows[random.random(rows.shape) < 0.3 * random.random((ROWS, 1))] = np.nan
    rows[0] = np.nan
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
