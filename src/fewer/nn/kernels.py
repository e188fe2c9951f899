# mypy: disable-error-code="no-untyped-def"
"""GPU kernels of a linear concrete autoencoder's training step, written in Triton.

All matrices are padded (see `fewer.train.fused`), so that rows start on whole cache lines and
tiles need no masks: what lies outside is zero and stays zero. ``clock`` holds the number of the
step since training began, that since the epoch began, and the seed; ``plan`` one row of numbers
for each step of the epoch (`fewer.train.fused.plan_row` names them): nothing comes from the host
in between, so a whole step can be replayed as one CUDA graph.

The gradient with respect to logits needs, for each node, the mean of the gradient with respect
to its sample under that sample: sum_j M_ij D_ij with D = g' x. It equals sum_n g_ni u_ni with
u = x M', so it is known before D is, and D's tiles can be used up where they are made: the
product, the way through the softmax and Adam are one kernel, and no gradient is ever stored.
"""

from __future__ import annotations

try:  # torch's builds for CUDA bring Triton along, those for CPU do not
    import triton
    import triton.language as tl
except ImportError:  # pragma: no cover
    triton = None

__all__ = ["PLAN", "available", "columns", "gather", "residual", "sample", "update"]

PLAN = 8  # numbers for each step


def available() -> bool:
    """Whether the kernels can be used: Triton is there."""
    return triton is not None


def _jit(function):
    return function if triton is None else triton.jit(function)


@_jit
def gather(rows, order, x, plan, clock, d, stride_rows, stride_x, ROWS, BLOCK: tl.constexpr):
    """x = the rows of this step's batch, ``order`` holding the rows of all batches in turn.

    Rows beyond the batch are zero.
    """
    row = tl.program_id(0)
    step = tl.load(clock + 1)
    n = tl.load(plan + step * 8 + 5).to(tl.int32)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < d) & (row < n)
    source = tl.load(order + step * ROWS + row, mask=row < n, other=0).to(tl.int64)
    values = tl.load(rows + source * stride_rows + at, mask=inside, other=0.0)
    tl.store(x + row * stride_x + at, values.to(x.dtype.element_ty), mask=at < d)


@_jit
def _gumbel(word):
    """Noise of a random word: -log(-log(1 - w)), w = (word + 1/2) / 2^32."""
    w = tl.minimum((word.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)
    # the logarithm of a number near 1 has few digits; its series has all
    small = w * (1.0 + w * (0.5 + w * (0.33333334 + w * 0.25)))
    return -tl.log(tl.where(w < 0.015625, small, -tl.log(1.0 - w)))


@_jit
def _scores(row, at, quarter, d, step, seed, node):
    """Logits plus noise of four features for each counter in ``at``; -inf beyond d."""
    words = tl.philox(seed, at, at * 0 + node, at * 0 + step, at * 0)
    inside = at < quarter
    never = float("-inf")
    a = tl.load(row + at, mask=inside, other=never) + _gumbel(words[0])
    b = tl.load(row + at + quarter, mask=inside & (at + quarter < d), other=never)
    c = tl.load(row + at + 2 * quarter, mask=inside & (at + 2 * quarter < d), other=never)
    e = tl.load(row + at + 3 * quarter, mask=inside & (at + 3 * quarter < d), other=never)
    return a, b + _gumbel(words[1]), c + _gumbel(words[2]), e + _gumbel(words[3])


@_jit
def _put(row, at, quarter, d, a, b, c, e):
    inside = at < quarter
    kind = row.dtype.element_ty
    tl.store(row + at, a.to(kind), mask=inside & (at < d))
    tl.store(row + at + quarter, b.to(kind), mask=inside & (at + quarter < d))
    tl.store(row + at + 2 * quarter, c.to(kind), mask=inside & (at + 2 * quarter < d))
    tl.store(row + at + 3 * quarter, e.to(kind), mask=inside & (at + 3 * quarter < d))


@_jit
def sample(
    logits, choice, plan, clock, d, quarter, stride, FIRST: tl.constexpr, REST: tl.constexpr
):
    """One draw of the selector, a node for each program: softmax((logits + noise) / T).

    The counters of a row are two runs of FIRST and REST, powers of 2 that together waste less
    than the next power of 2 would.
    """
    node = tl.program_id(0)
    cold = tl.load(plan + tl.load(clock + 1) * 8)  # log2(e) / T
    step, seed = tl.load(clock).to(tl.int32), tl.load(clock + 2)
    row = logits + node.to(tl.int64) * stride
    at = tl.arange(0, FIRST)
    a, b, c, e = _scores(row, at, quarter, d, step, seed, node)
    top = tl.max(tl.maximum(tl.maximum(a, b), tl.maximum(c, e)), 0)
    if REST > 0:
        more = FIRST + tl.arange(0, REST)
        a2, b2, c2, e2 = _scores(row, more, quarter, d, step, seed, node)
        top = tl.maximum(top, tl.max(tl.maximum(tl.maximum(a2, b2), tl.maximum(c2, e2)), 0))
        a2, b2 = tl.exp2((a2 - top) * cold), tl.exp2((b2 - top) * cold)
        c2, e2 = tl.exp2((c2 - top) * cold), tl.exp2((e2 - top) * cold)
    a, b = tl.exp2((a - top) * cold), tl.exp2((b - top) * cold)
    c, e = tl.exp2((c - top) * cold), tl.exp2((e - top) * cold)
    total = tl.sum((a + b) + (c + e), 0)
    if REST > 0:
        total += tl.sum((a2 + b2) + (c2 + e2), 0)
    share = 1.0 / total
    row = choice + node.to(tl.int64) * stride
    _put(row, at, quarter, d, a * share, b * share, c * share, e * share)
    if REST > 0:
        _put(row, more, quarter, d, a2 * share, b2 * share, c2 * share, e2 * share)


@_jit
def residual(
    u,
    weight,
    bias,
    x,
    r,
    losses,
    plan,
    clock,
    d,
    inner,
    ROWS,
    stride_u,
    stride,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """r = u W' + b - x (rows x features), and the mean square of each tile added to ``losses``."""
    step = tl.load(clock + 1)
    n = tl.load(plan + step * 8 + 5).to(tl.int32)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    feature = tl.program_id(1) * BN + tl.arange(0, BN)
    node = tl.arange(0, BK)
    inside = row[:, None] < ROWS
    left = u + row[:, None] * stride_u + node[None, :]
    right = weight + node[:, None].to(tl.int64) * stride + feature[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, inner, BK):
        a = tl.load(left, mask=inside, other=0.0)
        total = tl.dot(a, tl.load(right), total, input_precision=PRECISION)
        left += BK
        right += BK * stride
    place = row[:, None] * stride + feature[None, :]
    wanted = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(bias + feature)[None, :] - wanted
    total = tl.where((row[:, None] < n) & (feature[None, :] < d), total, 0.0)
    tl.store(r + place, total.to(r.dtype.element_ty), mask=inside)
    tile = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    mean = tl.sum(total * total) * tl.load(plan + step * 8 + 6) * 0.5
    tl.store(losses + tile, tl.load(losses + tile) + mean)


@_jit
def _adam(p, m, v, gradient, rate, root):
    m += 0.1 * (gradient - m)
    v = 0.999 * v + 0.001 * gradient * gradient
    return p - rate * m / (tl.sqrt(v) * root + 1e-8), m, v


@_jit
def columns(
    r,
    g,
    u,
    means,
    bias,
    first,
    second,
    plan,
    clock,
    rows,
    stride,
    stride_u,
    tiles,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Sums over the rows of a batch: Adam's step of the bias, and sum_n g u for each node."""
    tile = tl.program_id(0)
    step = tl.load(clock + 1) * 8
    row = tl.arange(0, BK)
    if tile < tiles:
        at = tile * BN + tl.arange(0, BN)
        pointer = r + row[:, None] * stride + at[None, :]
        total = tl.zeros((BK, BN), dtype=tl.float32)
        for _ in range(0, rows, BK):
            total += tl.load(pointer).to(tl.float32)
            pointer += BK * stride
        gradient = tl.sum(total, 0) * tl.load(plan + step + 6)
        p, m, v = tl.load(bias + at), tl.load(first + at), tl.load(second + at)
        p, m, v = _adam(p, m, v, gradient, tl.load(plan + step + 3), tl.load(plan + step + 4))
        tl.store(bias + at, p)
        tl.store(first + at, m)
        tl.store(second + at, v)
    else:
        at = (tile - tiles) * BN + tl.arange(0, BN)
        place = row[:, None] * stride_u + at[None, :]
        total = tl.zeros((BK, BN), dtype=tl.float32)
        for _ in range(0, rows, BK):
            total += tl.load(g + place).to(tl.float32) * tl.load(u + place).to(tl.float32)
            place += BK * stride_u
        tl.store(means + at, tl.sum(total, 0))


@_jit
def update(
    left,
    right,
    params,
    first,
    second,
    low,
    means,
    plan,
    clock,
    rows,
    k,
    stride_u,
    stride,
    left_part,
    right_part,
    part,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Adam's step of the logits (part 0) and of the decoder's weights (part 1), nodes x features.

    The gradient of a tile is made here, left' right, and used here; of the decoder's new weights
    a copy in the products' precision is kept in ``low``, where part 0 has its sample.
    """
    which = tl.program_id(2)
    logits = which == 0
    node = tl.program_id(0) * BM + tl.arange(0, BM)
    feature = tl.program_id(1) * BN + tl.arange(0, BN)
    row = tl.arange(0, BK)
    some = node[None, :] < stride_u
    a = left + which * left_part + row[:, None] * stride_u + node[None, :]
    b = right + which * right_part + row[:, None] * stride + feature[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, rows, BK):
        one = tl.load(a, mask=some, other=0.0)
        total = tl.dot(tl.trans(one), tl.load(b), total, input_precision=PRECISION)
        a += BK * stride_u
        b += BK * stride
    step = tl.load(clock + 1) * 8
    inside = node[:, None] < k
    place = which.to(tl.int64) * part + node[:, None].to(tl.int64) * stride + feature[None, :]
    mean = tl.load(means + node, mask=node < k, other=0.0)
    drawn = tl.load(low + place, mask=inside & logits, other=0.0).to(tl.float32)
    through = drawn * (total - mean[:, None]) * tl.load(plan + step + 1)
    gradient = tl.where(logits, through, total) * tl.load(plan + step + 6)
    rate = tl.load(plan + step + 2 + which)
    p = tl.load(params + place, mask=inside, other=0.0)
    m = tl.load(first + place, mask=inside, other=0.0)
    v = tl.load(second + place, mask=inside, other=0.0)
    p, m, v = _adam(p, m, v, gradient, rate, tl.load(plan + step + 4))
    tl.store(params + place, p, mask=inside)
    tl.store(first + place, m, mask=inside)
    tl.store(second + place, v, mask=inside)
    tl.store(low + place, p.to(low.dtype.element_ty), mask=inside & (which == 1))
