"""The objective of a column subset: the variance that it leaves unexplained."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from fewer.constraints import Constraints, resolve
from fewer.data.factored import FactoredCovariance, Matrix
from fewer.errors import InputError, warn

__all__ = ["residual"]

Penalty = float | Tensor  # for all features, or one for each (d)

# A column depends on others when less than this fraction of its variance is left: well above the
# rounding of a float64 covariance, well below any real feature.
DEPENDENT = 1e-9
JITTER, FASTER = 1e-10, 100  # added to a singular unit diagonal, and so many times as much
SINGULAR = 10  # times the rounding of eigenvalues: smaller ones are none
ROUNDING = 1e-10  # smaller gains, as fractions of the trace, are rounding errors


def residual(C: Any, S: Any, ridge: Any = 0.0) -> float:
    r"""Return the variance left unexplained by the features `S`, summed over all features.

    With :math:`A = C_{SS} + \lambda I` this is

    .. math:: f(S) = \mathrm{tr}\, C - \mathrm{tr}(A^{-1} C_{S\cdot} C_{\cdot S})
        = \min_B \mathrm{tr}\, (I - J_S B)^\top C\, (I - J_S B) + \lambda \|B\|_F^2

    where :math:`J_S` (d x k) picks the columns S and B (k x d) is the linear decoder. With
    :math:`\lambda = 0` it is the residual trace of least squares, d times the mean squared
    error; linearly dependent columns of S then add nothing.

    Parameters
    ----------
    C, S : array or tensor, d x d, and sequence of int
        Covariance, and the chosen columns.
    ridge : float or array of d
        The penalty :math:`\lambda`, in the units of C; or one for each feature. With measurement
        errors of variance :math:`n_j`, C is the covariance of what is behind them (on the diagonal,
        the variance less :math:`n_j`) and :math:`\lambda_j = n_j`. The sum of the penalties is then
        part of the result, such that it is that of the measured values.

    Examples
    --------
    >>> round(residual([[2.0, 1.0], [1.0, 1.0]], [0]), 9)
    0.5
    """
    penalty = check_penalty(ridge, len(C))
    return residual_of(covariance(C, penalty=penalty), S, penalty)


def residual_of(C: Matrix, S: Any, ridge: Penalty) -> float:
    """`residual` of a matrix that `covariance` has checked."""
    index = torch.as_tensor(np.asarray(S, dtype=np.int64), device=C.device)
    if isinstance(C, FactoredCovariance):
        # rows of C are those of Z X with Z = X_S' (k x r): sums over d features go through X X'
        rows, gram = C.columns(index), C.gram
        A = rows @ rows.T
    else:
        rows, gram = C[index], None  # k x d
        A = rows[:, index]
    A = A + penalty_at(ridge, index) * torch.eye(len(index), dtype=C.dtype, device=C.device)
    # unit diagonal, so that "dependent" means the same at every scale of the features
    scale = _to_one(A.diagonal())
    A = scale[:, None] * A * scale
    L, failed = torch.linalg.cholesky_ex(A)
    if len(index) == 0:
        explained = 0.0
    elif failed or L.diagonal().square().min() < DEPENDENT:
        # dependent columns: the pseudo-inverse drops directions without variance
        values, vectors = torch.linalg.eigh(A)
        keep = values > DEPENDENT * values[-1]
        whitened = (vectors[:, keep] / values[keep].sqrt()).T @ (scale[:, None] * rows)
        explained = _squared(whitened, gram)
    else:
        whitened = torch.linalg.solve_triangular(L, scale[:, None] * rows, upper=False)
        explained = _squared(whitened, gram)
    return max(0.0, total_variance(C, ridge) - explained)


def _squared(rows: Tensor, gram: Tensor | None) -> float:
    """Sum of squares of rows, or of rows X with the Gram matrix of X."""
    return float((rows * (rows if gram is None else rows @ gram)).sum())


def total_variance(C: Matrix, ridge: Penalty) -> float:
    """Of all features, as they are measured."""
    return float(C.trace()) + (float(ridge.sum()) if isinstance(ridge, Tensor) else 0.0)


def penalty_at(ridge: Penalty, index: Tensor) -> Penalty:
    """Penalties of some features (of any shape), 0 for the number d, an empty place."""
    return padded(ridge)[index] if isinstance(ridge, Tensor) else ridge


def padded(x: Tensor) -> Tensor:
    """`x` with an additional last column of zeros, for the number d, an empty place."""
    return torch.cat([x, x.new_zeros(*x.shape[:-1], 1)], dim=-1)


def _to_one(variance: Tensor) -> Tensor:
    """Factors of features that make these variances 1; those of 0 stay as they are."""
    return torch.where(variance > 0, variance, 1.0).rsqrt()


def solve_normal(gram: Tensor, cross: Tensor, ridge: Penalty = 0.0) -> Tensor:
    """Solve (gram + ridge I) B = cross for symmetric gram, the shortest B if it is singular."""
    penalised = gram + ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    # unit diagonal: what counts as singular must not depend on the units of the columns
    scale = _to_one(penalised.diagonal())
    values, vectors = torch.linalg.eigh(scale[:, None] * penalised * scale)
    cut = values.amax() * len(gram) * torch.finfo(gram.dtype).eps * SINGULAR
    inverse = torch.where(values > cut, 1 / values, 0.0)
    return scale[:, None] * ((vectors * inverse) @ (vectors.T @ (scale[:, None] * cross)))


def worth(C: Matrix, S: Any, constraints: Constraints, ridge: Penalty) -> float:
    """What a search minimises: `residual`, plus the price of the panel where costs have weight."""
    return residual_of(C, S, ridge) + constraints.price(S)


def regular_inverse(A: Tensor, full: Tensor, ridge: Penalty) -> Tensor:
    """Inverses of A + ridge (B x K x K), with a minimal ridge where A is singular.

    Rows and columns of A where `full` (B x K) is False must be zero; they become the identity's.
    The ridge may be B x K, too.
    """
    L, scale = _regular_cholesky(A, full, ridge)
    return scale[..., None] * torch.cholesky_inverse(L) * scale[:, None]


def regular_root(A: Tensor, full: Tensor, ridge: Penalty) -> tuple[Tensor, Tensor]:
    """The inverses P of `regular_inverse`, and upper triangular R with R R' = P."""
    L, scale = _regular_cholesky(A, full, ridge)
    one = torch.eye(A.shape[1], dtype=A.dtype, device=A.device).expand_as(A)
    root = torch.linalg.solve_triangular(L.mT, one, upper=True)
    return scale[..., None] * torch.cholesky_inverse(L) * scale[:, None], scale[..., None] * root


def _regular_cholesky(A: Tensor, full: Tensor, ridge: Penalty) -> tuple[Tensor, Tensor]:
    """The factor of A + ridge with a unit diagonal, and what each row was multiplied by."""
    spread = A.diagonal(dim1=1, dim2=2) + ridge
    scale = _to_one(spread * full)
    A = scale[..., None] * A * scale[:, None]
    jitter = JITTER
    while True:
        # the diagonal is 1 after scaling; for constant and empty columns it is set to 1
        A.diagonal(dim1=1, dim2=2).fill_(1 + jitter)
        L, info = torch.linalg.cholesky_ex(A)
        if not info.any():
            return L, scale
        jitter *= FASTER


def covariance(C: Any, device: str | torch.device | None = None, penalty: Penalty = 0.0) -> Matrix:
    """C in float64 on `device` (by default where it is), checked.

    With a penalty for each feature, only C plus penalties is the covariance of any values.
    """
    if isinstance(C, FactoredCovariance):
        if not torch.isfinite(C.trace()):
            raise InputError("the rows have NaN or infinite values; impute or drop those features")
        return C.to(device or C.device)
    matrix = torch.as_tensor(C)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise InputError(f"C has shape {tuple(matrix.shape)}; give a square d x d covariance")
    matrix = matrix.detach().to(device=device or matrix.device, dtype=torch.float64)
    # sums find every NaN and infinity, and nearly every asymmetry, without a d x d copy
    down, across = matrix.sum(0), matrix.sum(1)
    if not torch.isfinite(down).all():
        bad = int((~torch.isfinite(down)).nonzero()[0])
        raise InputError(
            f"C has NaN or infinite entries in column {bad}; impute or drop that feature, or "
            "divide it by a constant if its values are beyond 1e75"
        )
    variances = matrix.diagonal()
    if isinstance(penalty, Tensor):
        variances = variances + penalty.to(variances.device)
    largest = float(variances.max())
    if float(variances.min()) < -1e-9 * max(largest, 0.0):
        worst = int(variances.argmin())
        raise InputError(
            f"C[{worst}, {worst}] is negative, so C is no covariance; if it was computed from "
            f"rows, look for a huge outlier in column {worst}"
        )
    if float((down - across).abs().max()) > 1e-6 * len(matrix) * largest:
        raise InputError(
            "C is not symmetric, so it is not a covariance; pass X.T @ X / n with centred X"
        )
    return matrix.contiguous()


def check_problem(
    C: Any, k: int | Constraints, ridge: Any, device: str | torch.device | None
) -> tuple[Matrix, Constraints, Penalty]:
    """Arguments of a search, checked: covariance, constraints and penalty."""
    penalty = check_penalty(ridge, len(C))
    matrix = covariance(C, device, penalty)
    constraints = k if isinstance(k, Constraints) else resolve(None, len(matrix), k)
    if constraints.d != len(matrix):
        raise InputError(
            f"the constraints are for {constraints.d} features but C has {len(matrix)}"
        )
    if isinstance(penalty, Tensor):
        penalty = penalty.to(matrix.device)
    return matrix, constraints, penalty


def check_penalty(ridge: Any, d: int) -> Penalty:
    """A number, or one for each of d features."""
    if np.ndim(ridge) == 0:
        if not 0 <= float(ridge) < float("inf"):
            raise InputError(f"ridge={ridge!r}; give a finite number of at least 0")
        return float(ridge)
    found = torch.as_tensor(ridge, dtype=torch.float64)
    if found.shape != (d,) or not torch.isfinite(found).all() or (found < 0).any():
        raise InputError(
            f"ridge has shape {tuple(found.shape)}; give a finite number of at least 0, or {d} of "
            "them, one for each feature"
        )
    return found


P = ParamSpec("P")
T = TypeVar("T")


def on_cpu_if_short(function: Callable[P, T]) -> Callable[P, T]:
    """Rerun a function with an option ``device`` on the CPU if the memory of the GPU runs out."""

    @wraps(function)
    def careful(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError:
            if kwargs.get("device") == "cpu":
                raise
        # after the handler, which would keep the tensors alive
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warn(f"{function.__name__} does not fit into GPU memory; using the CPU")
        options: Any = {**kwargs, "device": "cpu"}
        return function(*args, **options)

    return careful
