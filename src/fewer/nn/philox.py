"""Random numbers by counter: the noise of a step, a node and a feature is a function of them.

Philox 4x32 (Salmon et al., 2011) turns a counter of four 32-bit words and a 64-bit key into four
random words. Nothing is carried from one number to the next, so any part of the noise can be
made again, in any order, by any process: a seed means the same noise however a batch is split.
`fewer.nn.kernels` makes the same numbers inside GPU kernels; this is the plain version.
"""

import torch
from torch import Tensor

from fewer.nn import kernels

__all__ = ["CountedGumbel", "counted_gumbel", "philox", "quarter"]

WORD = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


def philox(seed: int, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four random 32-bit words, held in int64, for each counter.

    Examples
    --------
    >>> import torch
    >>> zero = torch.zeros(1, dtype=torch.int64)
    >>> [f"{word.item():08x}" for word in philox(0, (zero, zero, zero, zero))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    key = [seed & WORD, (seed >> 32) & WORD]
    c0, c1, c2, c3 = counter
    for _ in range(ROUNDS):
        a, b = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]  # modulo 2^64: all 64 bits are right
        c0, c2 = ((b >> 32) & WORD) ^ c1 ^ key[0], ((a >> 32) & WORD) ^ c3 ^ key[1]
        c1, c3 = b & WORD, a & WORD
        key = [(word + step) & WORD for word, step in zip(key, WEYL, strict=True)]
    return c0, c1, c2, c3


def quarter(d: int) -> int:
    """Counters for d features: each gives the noise of four, this far apart (a multiple of 32).

    Examples
    --------
    >>> quarter(100), quarter(10_463)
    (32, 2624)
    """
    return -(-d // 128) * 32


def counted_gumbel(seed: int, step: int, nodes: range, d: int, device: torch.device) -> Tensor:
    """Gumbel(0, 1) noise of one step for some nodes and all d features, float32.

    Feature j of node i takes word j // q of counter (j % q, i, step, 0), q = ``quarter(d)``; a
    word r is the share w = (r + 1/2) / 2^32 of large values, and the noise -log(-log(1 - w)),
    which has all its digits where it is large. On CUDA, with Triton, one kernel makes it, within
    1e-5 of this.

    Examples
    --------
    >>> import torch
    >>> noise = counted_gumbel(0, 5, range(100), 2000, torch.device("cpu"))
    >>> round(noise.mean().item(), 1)  # Euler's constant is 0.5772
    0.6
    >>> torch.equal(noise[3:7], counted_gumbel(0, 5, range(3, 7), 2000, torch.device("cpu")))
    True
    """
    q = quarter(d)
    if device.type == "cuda" and kernels.available():
        out = torch.empty(len(nodes), d, device=device)
        with torch.cuda.device(device):
            kernels.noise[(len(nodes), -(-q // 256))](
                out, seed, step, nodes.start, d, q, d, BLOCK=256
            )
        return out
    at = torch.arange(q, device=device).expand(len(nodes), q)
    node = torch.arange(nodes.start, nodes.stop, device=device)[:, None].expand_as(at)
    words = philox(seed, (at, node, torch.full_like(at, step), torch.zeros_like(at)))
    share = torch.cat(words, dim=1)[:, :d].double().add_(0.5).mul_(2.0**-32)
    return share.neg_().log1p_().neg_().log_().neg_().float()


class CountedGumbel:
    """Noise for one step after another.

    Parameters
    ----------
    seed : int
        The same seed gives the same noise on every device.
    step : int, default=0
        Where to begin.

    Examples
    --------
    >>> import torch
    >>> first, again = CountedGumbel(0), CountedGumbel(0, step=1)
    >>> _ = first(torch.zeros(2, 3))
    >>> torch.equal(first(torch.zeros(2, 3)), again(torch.zeros(2, 3)))
    True
    """

    def __init__(self, seed: int, step: int = 0) -> None:
        self.seed, self.step = seed, step

    def __call__(self, like: Tensor) -> Tensor:
        """Noise in the shape (nodes x features), dtype and device of ``like``."""
        k, d = like.shape
        noise = counted_gumbel(self.seed, self.step, range(k), d, like.device)
        self.step += 1
        return noise.to(like.dtype)
