"""The gain of every swap of a batch of panels, and what one swap does to all gains."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fewer.search.objective import DEPENDENT, regular_inverse

__all__ = ["Exchange", "WholeExchange", "best_swap"]


class Exchange:
    r"""A batch of B panels with K places each, and the gain of all K x c swaps.

    Only c candidate columns can be on the panels, but all d features count: C is the
    c x c covariance of the candidates and `square` the same part of C squared, in which
    the sums over all d features are already done. With S on the panel, P the inverse of
    :math:`C_{SS} + \lambda I`, :math:`V = P C_S`, :math:`E = C - C_S^\top V` and
    :math:`U = V E`, emptying place i adds :math:`v_i v_i^\top / P_{ii}` to E, so for every
    (out i, in j) the gain is :math:`F_{ij} / G_{ij} - |v_i|^2 / P_{ii}` with

    .. math::
        F_{ij} = |E_j|^2 + 2 V_{ij} U_{ij} / P_{ii} + |v_i|^2 V_{ij}^2 / P_{ii}^2, \quad
        G_{ij} = E_{jj} + \lambda + V_{ij}^2 / P_{ii}.

    A swap changes E by a matrix of rank 2, so V, U, P and the rest follow in O(K c), not
    O(K c^2): :meth:`swap`.

    A place that holds the number c is empty; its row of V is zero, and a swap from it is
    the plain addition of a feature.

    Parameters
    ----------
    C, square : tensors, c x c
    trace : float
        Trace of the whole covariance.
    ridge : float
    S : integer tensor, B x K
    closed : boolean tensor of length c, optional
        Candidates that may not enter.
    prices : tensor of length c, optional
        What each candidate on the panel adds to the objective.

    Examples
    --------
    >>> C = torch.tensor([[2.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 3.0]]).double()
    >>> state = Exchange(C, C @ C, 6.0, 0.0, torch.tensor([[1]]))
    >>> [round(gain, 6) for gain in state.gains()[0, 0].tolist()]  # out 1, in 0 or 2
    [0.5, -inf, 1.0]
    """

    def __init__(
        self,
        C: Tensor,
        square: Tensor,
        trace: float,
        ridge: float,
        S: Tensor,
        closed: Tensor | None = None,
        prices: Tensor | None = None,
    ) -> None:
        self.prices = None if prices is None else nn.functional.pad(prices, (0, 1))
        self.C, self.square, self.trace, self.ridge = C, square, trace, ridge
        self.c = len(C)
        self.floor = DEPENDENT * C.diagonal() + 1e-290
        never = torch.zeros(self.c, dtype=torch.bool) if closed is None else closed
        self.closed = never.to(C.device)
        self._work: Tensor | None = None
        self.reset(S)

    def reset(self, S: Tensor) -> None:
        """Put other panels in place of the present ones."""
        self.S = S.to(self.C.device).clone()
        self.at = torch.arange(len(S), device=self.C.device)
        self.refresh()

    def refresh(self) -> None:
        """Compute everything from S alone, which sheds the rounding of the updates."""
        B, K = self.S.shape
        full = self.S.ne(self.c)[..., None]  # B x K x 1
        S = self.S.clamp_max(self.c - 1)
        shut = torch.cat([self.closed, self.closed.new_ones(1)]).repeat(B, 1)
        self.shut = shut.scatter(1, self.S, True)
        C_S = self.C[S] * full
        A = C_S.gather(2, S[:, None].expand(-1, K, -1)) * full.mT
        self.P = regular_inverse(A, full[..., 0], self.ridge)
        V = self.P @ C_S
        U, M, self.f = self._second_order(S, C_S, V, full)
        self.Z = torch.cat([V, U], 2)
        self.N = self.P @ M @ self.P  # V V^T over all d features
        self.e = self.C.diagonal() - (C_S * V).sum(1)  # E_jj
        self.objective = self.trace - (self.P * M).sum((1, 2))
        if self.prices is not None:
            self.objective = self.objective + self.prices[self.S].sum(1)

    def _second_order(
        self, S: Tensor, C_S: Tensor, V: Tensor, full: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """U = V E, M = C_S C_S^T over all d features, and |E_j|^2."""
        T = self.square[S] * full
        M = T.gather(2, S[:, None].expand(-1, S.shape[1], -1)) * full.mT
        MV = M @ V
        return self.P @ (T - MV), M, self.square.diagonal() + (V * (MV - 2 * T)).sum(1)

    @property
    def losses(self) -> Tensor:
        """What emptying each place would cost (B x K)."""
        return self.N.diagonal(dim1=1, dim2=2) / self.P.diagonal(dim1=1, dim2=2)

    def gains(self, fixed: Tensor | None = None, shut: Tensor | None = None) -> Tensor:
        """Fall of the objective for every swap (B x K x c); -inf where it is not allowed.

        `fixed` (B x K) marks places that keep their feature, `shut` (B x c) candidates that
        may not enter, besides those that are closed or on the panel. The result is valid until
        the next call.
        """
        V, U = self.Z[..., : self.c], self.Z[..., self.c :]
        p = self.P.diagonal(dim1=1, dim2=2)[..., None]
        n = self.N.diagonal(dim1=1, dim2=2)[..., None]
        loss = n / p
        closed = self.shut[:, : self.c]
        f = self.f.masked_fill(closed if shut is None else closed | shut, -torch.inf)
        if self.prices is not None:
            loss = loss - self.prices[self.S][..., None] + self.prices[: self.c]
        if fixed is not None:
            loss = loss.masked_fill(fixed[..., None], torch.inf)
        if self._work is None or self._work.shape[1:] != V.shape:
            # kept from call to call: fresh pages cost as much as the sums
            self._work = V.new_empty(2, *V.shape)
        A, F = self._work
        torch.div(V, p, out=A)
        torch.mul(A, n, out=F).add_(U, alpha=2).mul_(A).add_(f[:, None])
        G = A.mul_(V).add_((self.e + self.ridge)[:, None])
        return F.div_(torch.maximum(G, self.floor, out=G)).sub_(loss)

    def swap(self, i: Tensor, j: Tensor, gain: Tensor, moves: Tensor) -> None:
        """Put feature j into place i of each panel (all of length B) for which `moves`.

        First place i is emptied, E' = E + v v^T / p, then j is added, E'' = E' - w w^T / q
        with w = E'_j. `gain` is what :meth:`gains` gave.
        """
        at, c = self.at, self.c
        V, U = self.Z[..., :c], self.Z[..., c:]
        i1, j1 = i[:, None], j[:, None]
        P_i, m = self.P[at, i], self.N[at, i]  # B x K; m = V v
        p, vv = P_i.gather(1, i1), m.gather(1, i1)
        vu = self.Z[at, i]  # B x 2c: v and u = E v
        v, u = vu[:, :c], vu[:, c:]
        a = P_i / p  # V' = V - a v^T
        b = (m - a * vv) / p  # U' = U - a u^T + b v^T
        wh = self._column(i1, j, a, b, vu)  # B x 2c: w and h = E' w
        w, h = wh[:, :c], wh[:, c:]
        v_j, u_j = v.gather(1, j1), u.gather(1, j1)
        x = (V[at, :, j] - a * v_j).scatter(1, i1, -1.0)  # V'_j, and -1 in place i
        y = (U[at, :, j] - a * u_j + b * v_j).scatter(1, i1, 0.0)  # U'_j = V' w
        q = torch.maximum(w.gather(1, j1), self.floor[j1]) + self.ridge
        v_p, w_q, x_q = v / p, w / q, x / q
        f = self.f + v_p * (2 * u + vv * v_p)
        ww = f.gather(1, j1)
        e, f = self.e + v * v_p - w * w_q, f - w_q * (2 * h - ww * w_q)
        right = wh.new_zeros(len(at), 4, 2 * c)
        right[:, 0], right[:, 1], right[:, 2, c:], right[:, 3, c:] = vu, wh, v, w
        for_Z = torch.stack([-a, -x_q, b, x_q * (ww / q) - y / q], 2)
        for_P = torch.stack([-a, x_q], 2)
        for_N = torch.stack([-a, a * vv - m, -x_q, x_q * ww - y], 2)
        out, new = self.S.gather(1, i1), j1
        # to look whether all move waits for a GPU, so there nothing is left out
        if self.C.is_cuda or not bool(moves.all()):
            go = moves[:, None]
            e, f = torch.where(go, e, self.e), torch.where(go, f, self.f)
            for_Z, for_P, for_N = (left * go[..., None] for left in (for_Z, for_P, for_N))
            gain, new = torch.where(moves, gain, 0.0), torch.where(go, j1, out)
        self.e, self.f = e, f
        self.Z.baddbmm_(for_Z, right)
        self.P.baddbmm_(for_P, torch.stack([P_i, x], 1))
        self.N.baddbmm_(for_N, torch.stack([m, a, y, x_q], 1))
        self.objective = self.objective - gain
        self.shut.scatter_(1, out, False).scatter_(1, new, True)
        self.S.scatter_(1, i1, new)

    def _column(self, i1: Tensor, j: Tensor, a: Tensor, b: Tensor, vu: Tensor) -> Tensor:
        """w = C_j - V'^T c_j and E' w = (C^2)_j - U'^T c_j - V'^T M_j, from the old V and U."""
        S = self.S.clamp_max(self.c - 1)
        C_j, CC_j = self.C[j], self.square[j]
        c_j = C_j.gather(1, S).scatter(1, i1, 0.0)  # C_Sj without place i
        M_j = CC_j.gather(1, S).scatter(1, i1, 0.0)
        wh = torch.cat([C_j, CC_j], 1) - torch.bmm(c_j[:, None], self.Z)[:, 0]
        wh += (a * c_j).sum(1, keepdim=True) * vu
        back = (a * M_j).sum(1, keepdim=True) - (b * c_j).sum(1, keepdim=True)
        wh[:, self.c :] += back * vu[:, : self.c]
        wh[:, self.c :] -= torch.bmm(M_j[:, None], self.Z[..., : self.c])[:, 0]
        return wh


class WholeExchange(Exchange):
    """`Exchange` over all d features, without the square of C.

    It reads C once for a swap, where `Exchange` reads a row, but needs no d^3 product
    beforehand and keeps its digits when hardly anything is left to explain: the residual
    is formed, not its square.

    Examples
    --------
    >>> C = torch.tensor([[2.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 3.0]]).double()
    >>> state = WholeExchange(C, 0.0, torch.tensor([[1]]))
    >>> round(state.objective.item(), 6)
    4.0
    """

    def __init__(
        self,
        C: Tensor,
        ridge: float,
        S: Tensor,
        closed: Tensor | None = None,
        prices: Tensor | None = None,
    ) -> None:
        super().__init__(C, C.new_empty(0), float(C.trace()), ridge, S, closed, prices)

    def _second_order(
        self, S: Tensor, C_S: Tensor, V: Tensor, full: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        U, f = torch.zeros_like(V), V.new_empty(len(V), self.c)
        # E some rows at a time: few enough for a cache, enough for a good matrix product
        some = max(256, (2**19 if V.device.type == "cpu" else 2**26) // self.c)
        for begin in range(0, self.c, some):
            r = slice(begin, begin + some)
            for b in range(len(V)):
                E = torch.addmm(self.C[r], C_S[b, :, r].T, V[b], alpha=-1)
                U[b].addmm_(V[b, :, r], E)
                f[b, r] = (E * E).sum(1)
        return U, C_S @ C_S.mT, f

    def _column(self, i1: Tensor, j: Tensor, a: Tensor, b: Tensor, vu: Tensor) -> Tensor:
        S, V, v = self.S.clamp_max(self.c - 1), self.Z[..., : self.c], vu[:, : self.c]
        C_j = self.C[j]
        c_j = C_j.gather(1, S).scatter(1, i1, 0.0)
        w = C_j - torch.bmm(c_j[:, None], V)[:, 0] + (a * c_j).sum(1, keepdim=True) * v
        Cw = w @ self.C
        s = Cw.gather(1, S).scatter(1, i1, 0.0)  # C_S' w
        h = Cw - torch.bmm(s[:, None], V)[:, 0] + (a * s).sum(1, keepdim=True) * v
        return torch.cat([w, h], 1)


def best_swap(gains: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest gain of each panel (B x K x c), its place and its candidate."""
    i = gains.amax(2).argmax(1)  # amax is vectorised, a flat argmax is not
    gain, j = gains[torch.arange(len(gains), device=gains.device), i].max(1)
    return gain, i, j
