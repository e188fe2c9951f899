"""The gain of every swap of a batch of panels, updated after each swap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.constraints import Constraints
from fewer.data.factored import SOME_COLUMNS, FactoredCovariance, Matrix
from fewer.search.objective import (
    DEPENDENT,
    ROUNDING,
    Penalty,
    check_penalty,
    covariance,
    padded,
    penalty_at,
    regular_inverse,
    regular_root,
    total_variance,
)

__all__ = [
    "Exchange",
    "Limits",
    "Places",
    "Purse",
    "WholeExchange",
    "best_swap",
    "swap_losses",
    "whole_exchange",
]

LEAST_ROWS, CPU_AT_ONCE, AT_ONCE = 256, 2**19, 2**26  # rows at a time, and numbers in them
LITTLE = 1e-3  # fraction of the trace: where less is left, differences of squares cancel


class Exchange:
    r"""A batch of B panels with K places each, and the gain of all K x c swaps.

    Only c candidate columns can be on the panels, but all d features count: C is the
    c x c covariance of the candidates and `square` the same part of C squared, which
    contains the sums over all d features. With S on the panel, P the inverse of
    :math:`C_{SS} + \lambda I`, :math:`V = P C_S`, :math:`E = C - C_S^\top V` and
    :math:`U = V E`, emptying place i adds :math:`v_i v_i^\top / P_{ii}` to E, so for every
    (out i, in j) the gain is :math:`F_{ij} / G_{ij} - |v_i|^2 / P_{ii}` with

    .. math::
        F_{ij} = |E_j|^2 + 2 V_{ij} U_{ij} / P_{ii} + |v_i|^2 V_{ij}^2 / P_{ii}^2, \quad
        G_{ij} = E_{jj} + \lambda + V_{ij}^2 / P_{ii}.

    A swap changes E by a matrix of rank 2, so V, U, P and the rest follow in O(K c), not
    O(K c^2): :meth:`swap`. `Z` is V, P, U and -N side by side, with :math:`N = V V^\top` over all
    d features: P is to the K unit vectors what V is to the columns of C, and -N what U is to
    those of E, so that all of it changes by one product.

    A place that holds the number c is empty; its row of V is zero, and a swap from it is
    the plain addition of a feature.
    """

    C: Matrix

    def __init__(
        self,
        C: Matrix,
        square: Tensor,
        trace: float,
        ridge: Penalty,
        S: Tensor,
        closed: Tensor | None = None,
        prices: Tensor | None = None,
    ) -> None:
        self.prices = None if prices is None else padded(prices)
        self.C, self.square, self.trace, self.ridge = C, square, trace, ridge
        self.c = len(C)
        self.floor = DEPENDENT * C.diagonal() + 1e-290
        never = torch.zeros(self.c, dtype=torch.bool) if closed is None else closed
        self.closed = never.to(C.device)
        self.reset(S)

    def reset(self, S: Tensor) -> None:
        """Replace the panels."""
        # memory for intermediate results, which is slow to allocate
        self._work: Tensor | None = None
        self._right: Tensor | None = None
        self.S = S.to(self.C.device).clone()
        self.at = torch.arange(len(S), device=self.C.device)
        self.refresh()

    def refresh(self) -> None:
        """Compute everything from S, without the rounding errors of the updates."""
        B, K = self.S.shape
        full = self.S.ne(self.c)[..., None]  # B x K x 1
        S = self.S.clamp_max(self.c - 1)
        self.shut = padded(self.closed).repeat(B, 1).scatter(1, self.S, True)
        C_S = self.C[S] * full
        A = C_S.gather(2, S[:, None].expand(-1, K, -1)) * full.mT
        P = regular_inverse(A, full[..., 0], penalty_at(self.ridge, self.S))
        V = P @ C_S
        U, M, self.f = self._second_order(S, P, C_S, V, full)
        self.Z = torch.cat([V, P, U, -(P @ M @ P)], 2)
        self.e = self.C.diagonal() - (C_S * V).sum(1)  # E_jj
        self.objective = self.trace - (P * M).sum((1, 2))
        if self.prices is not None:
            self.objective = self.objective + self.prices[self.S].sum(1)

    def _second_order(
        self, S: Tensor, P: Tensor, C_S: Tensor, V: Tensor, full: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """U = V E, M = C_S C_S^T over all d features, and |E_j|^2."""
        T = self.square[S] * full
        M = T.gather(2, S[:, None].expand(-1, S.shape[1], -1)) * full.mT
        MV = M @ V
        return P @ (T - MV), M, self.square.diagonal() + (V * (MV - 2 * T)).sum(1)

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """V, P, U and -N: views of Z."""
        K = self.S.shape[1]
        V, P, U, minus_N = self.Z.split([self.c, K, self.c, K], 2)
        return V, P, U, minus_N

    def gains(self, fixed: Tensor | None = None, shut: Tensor | None = None) -> Tensor:
        """Decrease of the objective for every swap (B x K x c); -inf where it is not allowed.

        `fixed` (B x K) marks places that keep their feature, `shut` (B x c) additional candidates
        that may not enter. The result is valid until the next call.
        """
        found, loss = self._ratios(fixed, shut)
        loss = loss[..., None]
        if self.prices is not None:
            loss = loss - self.prices[self.S][..., None] + self.prices[: self.c]
        return found.sub_(loss)

    def best(
        self, fixed: Tensor | None = None, shut: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`best_swap` of the `gains`, where features have no prices."""
        ratios, loss = self._ratios(fixed, shut)
        i = (ratios.amax(2) - loss).argmax(1)  # a place loses the same for all candidates
        gain, j = (ratios[self.at, i] - loss.gather(1, i[:, None])).max(1)
        return gain, i, j

    def _ratios(self, fixed: Tensor | None, shut: Tensor | None) -> tuple[Tensor, Tensor]:
        """F / G, -inf for candidates that may not enter, and the losses, infinite for `fixed`."""
        V, P, U, minus_N = self._parts()
        p = P.diagonal(dim1=1, dim2=2)
        minus_n = minus_N.diagonal(dim1=1, dim2=2)
        loss = -minus_n / p
        if fixed is not None:
            loss = loss.masked_fill(fixed, torch.inf)
        closed = self.shut[:, : self.c]
        f = self.f.masked_fill(closed if shut is None else closed | shut, -torch.inf)
        if self._work is None:
            # reused, because new memory costs as much as the sums
            self._work = V.new_empty(2, *V.shape)
        A, F = self._work
        # each of these reads and writes all of it, so there are as few as possible
        torch.div(V, p[..., None], out=A)
        torch.addcmul(U, A, minus_n[..., None], value=-0.5, out=F)
        torch.addcmul(f[:, None], A, F, value=2, out=F)
        G = torch.addcmul((self.e + self.ridge)[:, None], A, V, out=A)
        return F.div_(torch.maximum(G, self.floor, out=G)), loss

    def swap(self, i: Tensor, j: Tensor, gain: Tensor, moves: Tensor) -> None:
        """Put feature j into place i of each panel (all of length B) for which `moves`.

        First place i is emptied, E' = E + v v^T / p, then j is added, E'' = E' - w w^T / q
        with w = E'_j. `gain` is what :meth:`gains` gave. Rows of Z, and what belongs to them, are
        first of V and P, then of U and -N.
        """
        c, i1, j1 = self.c, i[:, None], j[:, None]
        half = c + self.S.shape[1]
        vu = self.Z[self.at, i]  # v and u = E v
        v, P_i, u, minus_m = vu.split([c, half - c, c, half - c], 1)  # m = V v
        p, minus_vv = P_i.gather(1, i1), minus_m.gather(1, i1)
        a = P_i / p  # V' = V - a v^T
        b = torch.addcmul(-minus_m, a, minus_vv) / p  # U' = U - a u^T + b v^T
        wh = self._column(i1, j, a, b, vu)  # w and h = E' w
        w, minus_x, h, minus_y = wh.split([c, half - c, c, half - c], 1)
        # x = V'_j, and -1 in place i; y = U'_j = V' w
        q = torch.maximum(w.gather(1, j1) + penalty_at(self.ridge, j1), self.floor[j1])
        v_p, w_q, minus_x_q = v / p, w / q, minus_x / q
        f = torch.addcmul(self.f, v_p, torch.addcmul(u, v_p, minus_vv, value=-0.5), value=2)
        ww = f.gather(1, j1)
        f = torch.addcmul(f, w_q, torch.addcmul(h, w_q, ww, value=-0.5), value=-2)
        e = torch.addcmul(self.e, v, v_p).addcmul_(w, w_q, value=-1)
        if self._right is None:
            self._right = wh.new_zeros(len(self.at), 4, 2 * half)
        right = self._right
        right[:, 0], right[:, 1] = vu, wh
        right[:, 2, half:], right[:, 3, half:] = vu[:, :half], wh[:, :half]
        last = torch.addcmul(minus_y, minus_x_q, ww, value=-1) / q
        left = torch.stack([-a, minus_x_q, b, last], 2)
        out, new = self.S.gather(1, i1), j1
        # whether all move is unknown on a GPU without waiting for it
        if self.C.is_cuda or not bool(moves.all()):
            go = moves[:, None]
            e, f = torch.where(go, e, self.e), torch.where(go, f, self.f)
            left = left * go[..., None]
            gain, new = torch.where(moves, gain, 0.0), torch.where(go, j1, out)
        self.e, self.f = e, f
        self.Z.baddbmm_(left, right)
        self.objective = self.objective - gain
        self.shut.scatter_(1, out, False).scatter_(1, new, True)
        self.S.scatter_(1, i1, new)

    def _column(self, i1: Tensor, j: Tensor, a: Tensor, b: Tensor, vu: Tensor) -> Tensor:
        """w = C_j - V'^T c_j and E' w = (C^2)_j - U'^T c_j - V'^T M_j, from the old Z.

        Beside w and E' w they have -x and -y, since column i is e_i without the panel.
        """
        c, half, none = self.c, self.c + self.S.shape[1], self._none()
        wh = torch.cat([self.C[j], none, self.square[j], none], 1)
        c_j = wh[:, :half].gather(1, self.S).scatter_(1, i1, 0.0)  # C_Sj without place i
        M_j = wh[:, half:].gather(1, self.S).scatter_(1, i1, 0.0)
        wh = torch.baddbmm(wh[:, None], c_j[:, None], self.Z, alpha=-1)
        wh[:, :, half:].baddbmm_(M_j[:, None], self.Z[..., :half], alpha=-1)
        wh = wh[:, 0]
        ac = (a * c_j).sum(1, keepdim=True)
        wh.addcmul_(ac, vu).scatter_add_(1, c + i1, torch.ones_like(ac))
        back = torch.addcmul(a * M_j, b, c_j, value=-1).sum(1, keepdim=True)
        wh[:, half:].addcmul_(back, vu[:, :half])
        return wh

    def _none(self) -> Tensor:
        """Zeros for the K unit vectors, the first of which is also what an empty place has."""
        return self.Z.new_zeros(self.S.shape)


class WholeExchange(Exchange):
    """`Exchange` over all d features, without the square of C.

    It reads all of C for a swap, where `Exchange` reads a row, but needs no d^3 product beforehand
    and stays precise when hardly anything is left to explain.
    """

    def __init__(
        self,
        C: Matrix,
        ridge: Penalty,
        S: Tensor,
        closed: Tensor | None = None,
        prices: Tensor | None = None,
    ) -> None:
        super().__init__(C, S.new_empty(0), total_variance(C, ridge), ridge, S, closed, prices)

    def _second_order(
        self, S: Tensor, P: Tensor, C_S: Tensor, V: Tensor, full: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        U, f = torch.zeros_like(V), V.new_empty(len(V), self.c)
        # E some rows at a time: few enough for a cache, enough for a good matrix product
        some = max(LEAST_ROWS, (CPU_AT_ONCE if V.device.type == "cpu" else AT_ONCE) // self.c)
        for begin in range(0, self.c, some):
            r = slice(begin, begin + some)
            for b in range(len(V)):
                E = torch.addmm(self.C[r], C_S[b, :, r].T, V[b], alpha=-1)
                U[b].addmm_(V[b, :, r], E)
                f[b, r] = (E * E).sum(1)
        return U, C_S @ C_S.mT, f

    def _column(self, i1: Tensor, j: Tensor, a: Tensor, b: Tensor, vu: Tensor) -> Tensor:
        half, none = self.c + self.S.shape[1], self._none()
        VP, vp = self.Z[..., :half], vu[:, :half]

        def rest(column: Tensor) -> Tensor:
            """A column (B x c) without what the panel, but for place i, explains of it."""
            column = torch.cat([column, none], 1)
            inside = column.gather(1, self.S).scatter_(1, i1, 0.0)
            found = torch.baddbmm(column[:, None], inside[:, None], VP, alpha=-1)[:, 0]
            return found.addcmul_((a * inside).sum(1, keepdim=True), vp)

        w = rest(self.C[j]).scatter_add_(1, self.c + i1, torch.ones_like(a[:, :1]))
        return torch.cat([w, rest(w[:, : self.c] @ self.C)], 1)


class FactoredExchange(WholeExchange):
    r"""`WholeExchange` of :math:`C = X^\top X`, from the r rows of X.

    With :math:`Z = X_S^\top` (K x r) and :math:`P = R R^\top`, :math:`Q = R^\top Z` whitens the
    panel: :math:`V = R Q X` and :math:`E = X^\top (I - Q^\top Q) X`. So a swap reads X once, and
    scoring all swaps from scratch takes O(r K d), some columns of X at a time.
    """

    C: FactoredCovariance

    def refresh(self) -> None:
        """Compute everything from S, without the rounding errors of the updates."""
        C, c = self.C, self.c
        B, K = self.S.shape
        full = self.S.ne(c)[..., None]  # B x K x 1
        self.shut = padded(self.closed).repeat(B, 1).scatter(1, self.S, True)
        Z = C.columns(self.S.clamp_max(c - 1)) * full
        P, R = regular_root(Z @ Z.mT, full[..., 0], penalty_at(self.ridge, self.S))
        Q = R.mT @ Z
        QG = Q @ C.gram
        M = QG @ Q.mT
        self.objective = self.trace - M.diagonal(dim1=1, dim2=2).sum(1)
        precise = bool((self.objective <= LITTLE * self.trace).any())
        if self.prices is not None:
            self.objective = self.objective + self.prices[self.S].sum(1)
        self.Z = Z.new_empty(B, K, 2 * (c + K))
        self.Z[..., c : c + K], self.Z[..., 2 * c + K :] = P, -(R @ M @ R.mT)
        self.e, self.f = Z.new_empty(B, c), Z.new_empty(B, c)
        both = torch.cat([Q, QG], 1).flatten(0, 1)  # one product of many rows is faster than two
        for start in range(0, c, SOME_COLUMNS):
            at = slice(start, min(start + SOME_COLUMNS, c))
            X = C.rows[:, at]
            W, T = (both @ X).view(B, 2, K, -1).unbind(1)  # V = R W, E_jj = C_jj - |W_j|^2
            if precise:
                Y = X - Q.mT @ W
                U, f = QG @ Y, torch.stack([C.squares_of(y) for y in Y])
            else:
                MW = M @ W
                U, f = T - MW, C.squares[at] + (W * MW.sub_(T, alpha=2)).sum(1)
            self.e[:, at], self.f[:, at] = C.diagonal()[at] - W.square().sum(1), f
            torch.bmm(R, W, out=self.Z[..., at])
            torch.bmm(R, U, out=self.Z[..., c + K + at.start : c + K + at.stop])

    def _column(self, i1: Tensor, j: Tensor, a: Tensor, b: Tensor, vu: Tensor) -> Tensor:
        # E'_j = X' y with y = K' x_j, K' = I - Z' P' Z, where P' is P without place i
        C, full = self.C, self.S.ne(self.c)[..., None]
        Z = C.columns(self.S.clamp_max(self.c - 1)) * full  # B x K x r
        P = self._parts()[1]
        P_i = P[self.at, i1[:, 0]][..., None]

        def left(x: Tensor) -> tuple[Tensor, Tensor]:
            inside = Z @ x  # B x K x 1
            inside.scatter_(1, i1[..., None], 0.0)
            weight = P @ inside - P_i * (a[..., None] * inside).sum(1, keepdim=True)
            return x - Z.mT @ weight, -weight[..., 0]

        y, minus_x = left(C.columns(j)[..., None])
        h, minus_y = left(C.gram @ y)
        minus_x.scatter_add_(1, i1, torch.ones_like(minus_x[:, :1]))
        both = torch.cat([y, h], 2).mT.flatten(0, 1)  # 2 B x r: one product reads X once
        w, h = (both @ C.rows).view(len(j), 2, -1).unbind(1)
        return torch.cat([w, minus_x, h, minus_y], 1)


def whole_exchange(
    C: Matrix,
    ridge: Penalty,
    S: Tensor,
    closed: Tensor | None = None,
    prices: Tensor | None = None,
) -> WholeExchange:
    """All swaps of panels S with all d features."""
    kind = FactoredExchange if isinstance(C, FactoredCovariance) else WholeExchange
    return kind(C, ridge, S, closed, prices)


def best_swap(gains: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest gain of each panel (B x K x c), its place and its candidate."""
    i = gains.amax(2).argmax(1)  # amax is vectorised, a flat argmax is not
    gain, j = gains[torch.arange(len(gains), device=gains.device), i].max(1)
    return gain, i, j


class Places:
    """Panels (of features 0..d-1) as places (of candidates 0..c-1, c is empty).

    Included features are in the first places and stay there.
    """

    def __init__(
        self,
        constraints: Constraints,
        device: torch.device,
        candidates: NDArray[np.int64] | None = None,
    ) -> None:
        self.device = device
        self.candidates = np.arange(constraints.d) if candidates is None else candidates
        self.c, self.K = len(self.candidates), constraints.most_units
        self.position = np.full(constraints.d, self.c)
        self.position[self.candidates] = np.arange(self.c)
        self.closed = torch.as_tensor(~constraints.allowed[self.candidates], device=device)
        self.include = constraints.include
        self.fixed = torch.arange(self.K, device=self.device) < len(constraints.include)
        self.prices = None
        if constraints.unit_prices is not None:
            # of excluded features, which are in no unit, any price will do
            prices = constraints.unit_prices[constraints.unit_of[self.candidates]]
            self.prices = torch.as_tensor(prices, device=device)
        self.limits = None
        if constraints.budget is not None or constraints.limits:
            units = constraints.unit_of[self.candidates]
            self.limits = Limits(constraints, device, units)

    def fill(self, panels: Sequence[Iterable[int]]) -> Tensor:
        """Panels in places (B x K): included features first, empty places last."""
        S = np.full((len(panels), self.K), self.c)
        for row, panel in zip(S, panels, strict=True):
            rest = np.setdiff1d(np.fromiter(panel, dtype=np.int64), self.include)
            features = np.concatenate([self.include, rest])
            row[: len(features)] = self.position[features]
        return torch.as_tensor(S, device=self.device)

    def panel(self, places: Tensor) -> NDArray[np.int64]:
        """Features in the K places of one panel, ascending."""
        filled = places[places < self.c].cpu().numpy()
        return np.sort(self.candidates[filled])

    def gains(
        self, state: Exchange, fixed: Tensor | None = None, shut: Tensor | None = None
    ) -> Tensor:
        """`Exchange.gains` for the swaps that the constraints allow."""
        keep = self.fixed.expand_as(state.S) if fixed is None else self.fixed | fixed
        gains = state.gains(keep, shut)
        if self.limits is None:
            return gains
        return gains.masked_fill_(~self.limits.exchangeable(state.S), -torch.inf)

    def best(
        self, state: Exchange, fixed: Tensor | None = None, shut: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`best_swap` of these gains."""
        if self.limits is not None or self.prices is not None:
            return best_swap(self.gains(state, fixed, shut))
        keep = self.fixed.expand_as(state.S) if fixed is None else self.fixed | fixed
        return state.best(keep, shut)

    def addable(self, state: Exchange) -> Tensor:
        """Which candidates (B x c) may be put into an empty place."""
        open_ = ~state.shut[:, : self.c]
        return open_ if self.limits is None else self.limits.addable(open_, state.S)


class Limits:
    """The swaps and additions that a budget, further costs and counts of sets allow.

    Candidates are units of the constraints, all of them by default; -1 is one that is never chosen.
    """

    def __init__(
        self,
        constraints: Constraints,
        device: torch.device,
        units: NDArray[np.int64] | None = None,
    ) -> None:
        at = np.arange(len(constraints.units)) if units is None else units
        self.n = len(at)
        self.exact = constraints.k is not None
        self.purses: list[Purse] = []

        def afford(costs: NDArray[np.float64], ceiling: float) -> None:
            self.purses.append(Purse(costs, ceiling, self.exact, device))

        if constraints.budget is not None:
            afford(constraints.unit_costs[at], constraints.ceiling)
        self.budgeted = constraints.budget is not None
        table, sets = constraints.unit_limits, []
        for row, limit in enumerate(constraints.limits):
            if limit.cost:
                afford(table[[row]].toarray()[0][at], limit.most * (1 + ROUNDING) + 1e-300)
            else:
                sets.append(row)
        self.sets = len(sets)
        if not sets:
            return
        member = table[sets].tocsc()[:, at].toarray()  # sets x n
        listed = np.flatnonzero(member.any(0))  # most features are in no set
        self.listed = torch.as_tensor(listed, device=device)
        self.position = torch.full((self.n + 1,), len(listed), device=device)
        self.position[self.listed] = torch.arange(len(listed), device=device)
        self.member = torch.as_tensor(member[:, listed], dtype=torch.float32, device=device)
        self.of = padded(self.member).T.contiguous()  # listed + 1 x sets
        self.single = bool((self.member <= 1).all())
        bounds = [(constraints.limits[row].least, constraints.limits[row].most) for row in sets]
        self.least, self.most = torch.tensor(bounds, dtype=torch.float32, device=device).T

    def exchangeable(self, S: Tensor) -> Tensor:
        """Which candidates may take each place of panels (B x K places to B x K x n)."""
        fits = torch.ones(*S.shape, self.n, dtype=torch.bool, device=S.device)
        for purse in self.purses:
            fits &= purse.exchangeable(S)
        if not self.sets:
            return fits
        own = self.of[self.position[S]]  # B x K x sets
        others = own.sum(1, keepdim=True) - own  # how many of each set the other places have
        lacks, full = (others < self.least).float(), (others + 1 > self.most).float()
        fits &= ~lacks.any(2)[..., None].bool()  # a feature of no set
        if self.single:
            # lacks of a set that the feature is not in, or full of one that it is in
            broken = lacks.sum(2, keepdim=True) + (full - lacks) @ self.member
            allowed = broken < 0.5
        else:
            after = others[..., None] + self.member  # B x K x sets x listed
            allowed = ((after >= self.least[:, None]) & (after <= self.most[:, None])).all(2)
        for purse in self.purses:
            allowed &= purse.exchangeable(S)[..., self.listed]
        fits[..., self.listed] = allowed
        return fits

    def addable(self, open_: Tensor, S: Tensor) -> Tensor:
        """Which ``open_`` candidates (B x n) may be put into an empty place of S.

        Where every place must be filled, the others must be enough for what is still required.
        It is a bound where sets overlap, so that filling may still get stuck: see `met`.
        """
        for purse in self.purses:
            open_ = purse.addable(open_, S)
        if not self.sets:
            return open_
        count = self.of[self.position[S]].sum(1)  # B x sets
        lacking = (self.least - count).clamp_min(0)
        vacant = S.eq(self.n).sum(1, keepdim=True)
        if self.single:
            over = (count + 1 > self.most).float() @ self.member > 0.5
        else:
            after = count[..., None] + self.member  # B x sets x listed
            over = ((after > self.most[:, None]) & (self.member > 0)).any(1)
        open_ = open_ & ~self._spread(over)
        helps = self._spread((lacking > 0).float() @ self.member) * open_
        need = lacking.sum(1, keepdim=True) - (vacant - 1)
        if not self.exact:  # what is required comes first, the rest of the budget after it
            need = torch.where(lacking.sum(1, keepdim=True) > 0, need.clamp_min(1), need)
        return open_ & (helps >= torch.minimum(need, helps.amax(1, keepdim=True)))

    def _spread(self, x: Tensor) -> Tensor:
        """From the features of sets to all candidates, 0 for the others (B x n)."""
        return padded(x)[:, self.position[: self.n]]

    def met(self, S: Tensor) -> Tensor:
        """Whether each panel has all that is required of sets, and no empty place too many."""
        good = torch.ones(len(S), dtype=torch.bool, device=S.device)
        if self.exact:
            good = S.ne(self.n).all(1)
        if self.sets:
            good &= (self.of[self.position[S]].sum(1) >= self.least).all(1)
        return good


class Purse:
    """What is affordable within a budget, for features or units at these costs."""

    def __init__(
        self, costs: NDArray[np.float64], ceiling: float, exact: bool, device: torch.device
    ) -> None:
        self.costs = torch.as_tensor(costs, dtype=torch.float64, device=device)
        self.paid = padded(self.costs)  # an empty place is free
        self.ceiling, self.exact = ceiling, exact
        self.sorted, self.order = self.costs.sort()

    def slack(self, S: Tensor) -> Tensor:
        """Budget left by panels (B x K places, n where empty), as B x 1."""
        return self.ceiling - self.paid[S].sum(1, keepdim=True)

    def addable(self, open_: Tensor, S: Tensor) -> Tensor:
        """Which `open_` candidates (B x n) can be put into an empty place of S.

        Where every place must be filled, the rest of the budget must be enough for the cheapest
        ones in the other empty places.
        """
        slack = self.slack(S)
        mask = open_ & (self.costs <= slack)
        if not self.exact:
            return mask
        vacant = S.eq(len(self.costs)).sum(1, keepdim=True)
        ranked = open_[:, self.order]
        # the cheapest open ones for the other vacant places, which the panel so far left affordable
        filler = ranked & (ranked.cumsum(1) < vacant)
        reserve = (filler * self.sorted).sum(1, keepdim=True)
        fits = filler | (self.sorted <= slack - reserve)
        return mask & torch.zeros_like(mask).scatter(1, self.order.expand_as(fits), fits)

    def exchangeable(self, S: Tensor) -> Tensor:
        """Which candidates are affordable once a place is emptied (B x K x n)."""
        return self.costs <= (self.slack(S) + self.paid[S])[..., None]


def swap_losses(C: Any, S: Any, ridge: Any = 0.0) -> NDArray[np.float32]:
    """Increase of `residual` when each chosen feature (rows) is replaced by any other."""
    chosen = torch.as_tensor(np.asarray(S, dtype=np.int64))
    penalty = check_penalty(ridge, len(C))
    state = whole_exchange(covariance(C, penalty=penalty), penalty, chosen[None])
    state.shut[:] = False
    gains, own = state.gains()[0], (torch.arange(len(chosen)), chosen)
    same = gains[own]  # 0, up to rounding that cancels; noise where columns are dependent
    same = torch.where(same.abs() < ROUNDING * state.trace, same, 0.0)
    losses = (same[:, None] - gains).clamp_min(0.0)
    losses[:, chosen] = torch.inf
    losses[own] = 0.0
    return losses.cpu().numpy().astype(np.float32)
