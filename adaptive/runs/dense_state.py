"""The state of a torch optimizer as named arrays, so that no pickle is needed to keep it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def optimizer_arrays(optimizer: torch.optim.Optimizer) -> Arrays:
    """`<number of the parameter>.<name>` -> copy of what the optimizer keeps of it, of the parameter's shape or ()."""
    states = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": np.array(torch.as_tensor(value).detach().cpu().numpy())
        for number, values in states.items()
        for name, value in values.items()
        if value is not None
    }


def load_optimizer_arrays(optimizer: torch.optim.Optimizer, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Restore what `optimizer_arrays` gave, into an optimizer of parameters of the same shapes; settings stay.

    Raises:
        ValueError: if the arrays are of other parameters.
    """
    shapes = [tuple(parameter.shape) for group in optimizer.param_groups for parameter in group["params"]]
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in arrays.items():
        number, _, what = name.partition(".")
        if not (number.isdecimal() and what and int(number) < len(shapes)):
            raise ValueError(f"optimizer {name!r}: there are parameters 0 to {len(shapes) - 1}")
        if value.shape not in ((), shapes[int(number)]):
            raise ValueError(f"optimizer {name!r}: shape {shapes[int(number)]} is needed, found {value.shape}")
        states.setdefault(int(number), {})[what] = torch.from_numpy(value.copy())
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
