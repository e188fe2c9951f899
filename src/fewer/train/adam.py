"""Adam over groups of parameters with their own learning rates, without the ceremony.

`torch.optim.Adam` spends more time in Python hooks than in arithmetic when parameters are few;
this calls the same fused kernel directly.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

__all__ = ["Adam"]


class Adam:
    """Adam with betas 0.9 and 0.999, as in the paper.

    Parameters
    ----------
    *groups : tuples (parameters, learning rate)
        Change a rate through ``rates[i]``.

    Examples
    --------
    >>> import torch
    >>> x = torch.nn.Parameter(torch.tensor([3.0]))
    >>> optimizer = Adam(([x], 0.1))
    >>> for _ in range(200):
    ...     optimizer.zero_grad()
    ...     (x**2).sum().backward()
    ...     optimizer.step()
    >>> abs(x.item()) < 0.05
    True
    """

    def __init__(self, *groups: tuple[Iterable[Tensor], float]) -> None:
        self.groups: list[dict[str, Any]] = []
        self.rates: list[float] = []
        for parameters, rate in groups:
            params = list(parameters)
            self.groups.append(
                {
                    "params": params,
                    "exp_avgs": [torch.zeros_like(p) for p in params],
                    "exp_avg_sqs": [torch.zeros_like(p) for p in params],
                    "max_exp_avg_sqs": [],
                    "state_steps": [torch.zeros((), device=p.device) for p in params],
                }
            )
            self.rates.append(rate)

    @property
    def parameters(self) -> list[Tensor]:
        """Everything that it moves."""
        return [parameter for group in self.groups for parameter in group["params"]]

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        for group in self.groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self, rates: Sequence[Tensor] | None = None) -> None:
        """Move all parameters that have a gradient.

        ``rates`` replaces the learning rates by numbers that are read on the GPU, which a
        recorded graph of steps needs.
        """
        used: Sequence[float | Tensor] = self.rates if rates is None else rates
        for group, rate in zip(self.groups, used, strict=True):
            state, grads = _with_gradient(group)
            if not grads:
                continue
            fused = grads[0].device.type in ("cpu", "cuda")
            adam(
                **state,
                grads=grads,
                fused=fused,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )


def _with_gradient(group: dict[str, Any]) -> tuple[dict[str, Any], list[Tensor]]:
    grads = [p.grad for p in group["params"]]
    used = [at for at, grad in enumerate(grads) if grad is not None]
    if len(used) < len(grads):  # a decoder may have parameters that this loss does not reach
        group = {name: [parts[at] for at in used] if parts else [] for name, parts in group.items()}
    return group, [grads[at] for at in used]
