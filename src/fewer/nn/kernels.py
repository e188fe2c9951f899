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

__all__ = ["PLAN", "available", "columns", "gather", "noise", "residual", "sample", "update"]

PLAN = 8  # numbers for each step


def available() -> bool:
    """Whether the kernels can be used: Triton is there."""
    return triton is not None


def _jit(function):
    if triton is None:
        return function
    # compiled once, not anew for seeds and steps that are 1 or multiples of 16
    return triton.jit(function, do_not_specialize=("seed", "step", "node"))


@_jit
def gather(rows, order, x, plan, clock, width, stride_rows, stride_x, ROWS, BLOCK: tl.constexpr):
    """x = the rows of this step's batch, ``order`` holding the rows of all batches in turn.

    Rows beyond the batch are zero.
    """
    row = tl.program_id(0)
    step = tl.load(clock + 1)
    n = tl.load(plan + step * 8 + 5).to(tl.int32)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(order + step * ROWS + row, mask=row < n, other=0).to(tl.int64)
    inside = at < width
    found = tl.load(rows + source * stride_rows + at, mask=inside & (row < n), other=0.0)
    tl.store(x + row * stride_x + at, found.to(x.dtype.element_ty), mask=inside)


@_jit
def _log2(x):
    """The hardware's logarithm, good to 2^-22: tl.log2 takes ten times the instructions."""
    return tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@_jit
def _gumbel(word):
    """Noise of a random word: -log(-log(1 - w)), w = (word + 1/2) / 2^32, good to 1e-5."""
    # the logarithm of a number near 1 has few digits: there its series; else w's complement
    near = word < 134217728  # w < 1/32
    w = (tl.where(near, word, word ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    series = w * (1.0 + w * (0.5 + w * (0.33333334 + w * 0.25)))
    waiting = tl.where(near, series, _log2(w) * -0.69314718)
    return _log2(waiting) * -0.69314718


@_jit
def noise(out, seed, step, node, d, quarter, stride, BLOCK: tl.constexpr):
    """The noise of one step, by itself: a node for each program along axis 0."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    words = tl.philox(seed, at, at * 0 + (node + row), at * 0 + step, at * 0)
    out += row.to(tl.int64) * stride
    inside = at < quarter
    tl.store(out + at, _gumbel(words[0]), mask=inside & (at < d))
    tl.store(out + at + quarter, _gumbel(words[1]), mask=inside & (at + quarter < d))
    tl.store(out + at + 2 * quarter, _gumbel(words[2]), mask=inside & (at + 2 * quarter < d))
    tl.store(out + at + 3 * quarter, _gumbel(words[3]), mask=inside & (at + 3 * quarter < d))


@_jit
def _scores(row, at, quarter, step, seed, node):
    """Logits plus noise of four features for each counter in ``at``; -inf where there are none."""
    words = tl.philox(seed, at, at * 0 + node, at * 0 + step, at * 0)
    inside = at < quarter
    never = float("-inf")
    a = tl.load(row + at, mask=inside, other=never)
    b = tl.load(row + at + quarter, mask=inside, other=never)
    c = tl.load(row + at + 2 * quarter, mask=inside, other=never)
    e = tl.load(row + at + 3 * quarter, mask=inside, other=never)
    a, b = a + _gumbel(words[0]), b + _gumbel(words[1])
    return a, b, c + _gumbel(words[2]), e + _gumbel(words[3])


@_jit
def _put(row, at, quarter, a, b, c, e):
    inside = at < quarter
    kind = row.dtype.element_ty
    tl.store(row + at, a.to(kind), mask=inside)
    tl.store(row + at + quarter, b.to(kind), mask=inside)
    tl.store(row + at + 2 * quarter, c.to(kind), mask=inside)
    tl.store(row + at + 3 * quarter, e.to(kind), mask=inside)


@_jit
def sample(logits, choice, plan, clock, quarter, stride, FIRST: tl.constexpr, REST: tl.constexpr):
    """One draw of the selector, a node for each program: softmax((logits + noise) / T).

    Logits are -inf beyond the last feature, to the end of four quarters, so the sample is 0.
    The counters of a row are two runs of FIRST and REST, powers of 2 that together waste less
    than the next power of 2 would.
    """
    node = tl.program_id(0)
    cold = tl.load(plan + tl.load(clock + 1) * 8)  # log2(e) / T
    step, seed = tl.load(clock).to(tl.int32), tl.load(clock + 2)
    row = logits + node.to(tl.int64) * stride
    at = tl.arange(0, FIRST)
    a, b, c, e = _scores(row, at, quarter, step, seed, node)
    top = tl.max(tl.maximum(tl.maximum(a, b), tl.maximum(c, e)), 0)
    if REST > 0:
        more = FIRST + tl.arange(0, REST)
        a2, b2, c2, e2 = _scores(row, more, quarter, step, seed, node)
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
    _put(row, at, quarter, a * share, b * share, c * share, e * share)
    if REST > 0:
        _put(row, more, quarter, a2 * share, b2 * share, c2 * share, e2 * share)


@_jit
def residual(
    u,
    weight,
    bias,
    x,
    r,
    sums,
    losses,
    plan,
    clock,
    d,
    inner,
    ROWS,
    stride_u,
    stride,
    PRODUCT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """r = u W' + b - x (rows x features); column sums of each row of tiles; losses of each tile.

    Without PRODUCT, u W' is in r already. Losses (means of squares) are added to what is there.
    """
    step = tl.load(clock + 1)
    n = tl.load(plan + step * 8 + 5).to(tl.int32)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    feature = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = row[:, None] < ROWS
    place = row[:, None] * stride + feature[None, :]
    if PRODUCT:
        node = tl.arange(0, BK)
        left = u + row[:, None] * stride_u + node[None, :]
        right = weight + node[:, None].to(tl.int64) * stride + feature[None, :]
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for _ in range(0, inner, BK):
            total = tl.dot(tl.load(left, mask=inside, other=0.0), tl.load(right), total)
            left += BK
            right += BK * stride
    else:
        total = tl.load(r + place, mask=inside, other=0.0)
    wanted = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(bias + feature)[None, :] - wanted
    total = tl.where((row[:, None] < n) & (feature[None, :] < d), total, 0.0)
    tl.store(r + place, total.to(r.dtype.element_ty), mask=inside)
    tl.store(sums + tl.program_id(0) * stride + feature, tl.sum(total, 0))
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
    sums,
    g,
    u,
    means,
    bias,
    first,
    second,
    plan,
    clock,
    parts,
    rows,
    stride,
    stride_u,
    tiles,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Sums over the rows of a batch: Adam's step of the bias, and sum_n g u for each node."""
    tile = tl.program_id(0)
    plan += tl.load(clock + 1) * 8
    if tile < tiles:
        at = tile * BN + tl.arange(0, BN)
        total = tl.zeros((BN,), dtype=tl.float32)
        for one in range(parts):
            total += tl.load(sums + one * stride + at)
        p, m, v = tl.load(bias + at), tl.load(first + at), tl.load(second + at)
        gradient = total * tl.load(plan + 6)
        p, m, v = _adam(p, m, v, gradient, tl.load(plan + 3), tl.load(plan + 4))
        tl.store(bias + at, p)
        tl.store(first + at, m)
        tl.store(second + at, v)
    else:
        at = (tile - tiles) * BN + tl.arange(0, BN)
        place = tl.arange(0, BK)[:, None] * stride_u + at[None, :]
        both = tl.zeros((BK, BN), dtype=tl.float32)
        for _ in range(0, rows, BK):
            both += tl.load(g + place).to(tl.float32) * tl.load(u + place).to(tl.float32)
            place += BK * stride_u
        tl.store(means + at, tl.sum(both, 0))


@_jit
def _kept(values, first, second, low, place, inside, logits):
    """A tile of parameters, their moments and, for logits, the sample.

    Nothing reads the first three again before the next step: the cache is left to what is.
    """
    p = tl.load(values + place, mask=inside, other=0.0, eviction_policy="evict_first")
    m = tl.load(first + place, mask=inside, other=0.0, eviction_policy="evict_first")
    v = tl.load(second + place, mask=inside, other=0.0, eviction_policy="evict_first")
    return p, m, v, tl.load(low + place, mask=inside & logits, other=0.0)


@_jit
def _moved(total, p, m, v, drawn, mean, plan, which):
    """The same after Adam's step by the gradient of a tile."""
    through = drawn.to(tl.float32) * (total - mean[:, None]) * tl.load(plan + 1)
    gradient = tl.where(which == 0, through, total) * tl.load(plan + 6)
    return _adam(p, m, v, gradient, tl.load(plan + 2 + which), tl.load(plan + 4))


@_jit
def _keep(values, first, second, low, place, inside, logits, p, m, v):
    tl.store(values + place, p, mask=inside, eviction_policy="evict_first")
    tl.store(first + place, m, mask=inside, eviction_policy="evict_first")
    tl.store(second + place, v, mask=inside, eviction_policy="evict_first")
    tl.store(low + place, p.to(low.dtype.element_ty), mask=inside & (logits == 0))


@_jit
def _finish(total, values, first, second, low, mean, plan, which, place, inside):
    logits = which == 0
    p, m, v, drawn = _kept(values, first, second, low, place, inside, logits)
    p, m, v = _moved(total, p, m, v, drawn, mean, plan, which)
    _keep(values, first, second, low, place, inside, logits, p, m, v)


@_jit
def update(
    left,
    right,
    product,
    values,
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
    PRODUCT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PIECES: tl.constexpr,
):
    """Adam's step of the logits (part 0) and of the decoder's weights (part 1), nodes x features.

    The gradient of a tile is made here, left' right, and used here (without PRODUCT it is in
    ``product``); of the decoder's new weights a copy in the products' precision is kept in
    ``low``, where part 0 has its sample. A small tile (1 piece) fetches its parameters before it
    multiplies, which hides the wait; a large one, better for large batches, has no registers for
    that and finishes in 4 pieces.
    """
    which = tl.program_id(2)
    logits = which == 0
    node = tl.program_id(0) * BM + tl.arange(0, BM)
    feature = tl.program_id(1) * BN + tl.arange(0, BN)
    plan += tl.load(clock + 1) * 8
    inside = node[:, None] < k
    mean = tl.load(means + node, mask=node < k, other=0.0)
    begin = which.to(tl.int64) * part + node[:, None].to(tl.int64) * stride
    if PIECES == 1:
        place = begin + feature[None, :]
        p, m, v, drawn = _kept(values, first, second, low, place, inside, logits)
    if PRODUCT:
        row = tl.arange(0, BK)
        some = node[None, :] < stride_u
        a = left + which * left_part + row[:, None] * stride_u + node[None, :]
        b = right + which * right_part + row[:, None] * stride + feature[None, :]
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for _ in range(0, rows, BK):
            total = tl.dot(tl.trans(tl.load(a, mask=some, other=0.0)), tl.load(b), total)
            a += BK * stride_u
            b += BK * stride
    else:
        at = begin + feature[None, :]
        total = tl.load(product + at, mask=inside, other=0.0, eviction_policy="evict_first")
    if PIECES == 1:
        p, m, v = _moved(total, p, m, v, drawn, mean, plan, which)
        _keep(values, first, second, low, place, inside, logits, p, m, v)
    else:
        begin += tl.program_id(1) * BN
        SOME: tl.constexpr = BN // 4
        at = begin + tl.arange(0, SOME)[None, :]
        x, y = tl.split(tl.permute(tl.reshape(total, (BM, 2, BN // 2)), (0, 2, 1)))
        x0, x1 = tl.split(tl.permute(tl.reshape(x, (BM, 2, SOME)), (0, 2, 1)))
        y0, y1 = tl.split(tl.permute(tl.reshape(y, (BM, 2, SOME)), (0, 2, 1)))
        _finish(x0, values, first, second, low, mean, plan, which, at, inside)
        _finish(x1, values, first, second, low, mean, plan, which, at + SOME, inside)
        _finish(y0, values, first, second, low, mean, plan, which, at + 2 * SOME, inside)
        _finish(y1, values, first, second, low, mean, plan, which, at + 3 * SOME, inside)
