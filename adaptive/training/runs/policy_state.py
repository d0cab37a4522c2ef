"""The state of a policy and of the skip rule beside it, as arrays in a checkpoint; asked and checked as any answer of a
policy is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import CheckpointError, PolicyError, printable
from adaptive.policy import Policy, SkipRule
from adaptive.storage.arrays import DTYPES

Arrays = dict[str, NDArray[Any]]
OF_RULE: Final = "rule."  # before the names of a skip rule's arrays, and of its methods
_LONGEST_NAME: Final = 200


def policy_state(embeddings: TieredEmbeddingBag) -> Arrays:
    """The policy's arrays, and those of its skip rule under names of their own.

    Raises:
        PolicyError: if one fails to give them, or gives something else.
    """
    policy = embeddings.policy
    found = _checked(policy, embeddings.ask_policy("state_dict", policy.state_dict))
    if (rule := policy.rule) is not None:
        of_rule = _checked(rule, embeddings.ask_policy(f"{OF_RULE}state_dict", rule.state_dict))
        found |= {OF_RULE + name: array for name, array in of_rule.items()}
    return found


def load_policy_state(embeddings: TieredEmbeddingBag, state: Mapping[str, NDArray[Any]], where: Path) -> None:
    """Give policy and rule back what `policy_state` gave; `where`: the checkpoint.

    Raises:
        CheckpointError: if one of them does not take it.
    """
    policy = embeddings.policy
    of_rule = {name.removeprefix(OF_RULE): array for name, array in state.items() if name.startswith(OF_RULE)}
    own = {name: array for name, array in state.items() if not name.startswith(OF_RULE)}
    for name, one in policy_state(embeddings).items():  # as it is at the beginning: of its dtypes and columns
        here = state.get(name, one)
        if (here.dtype, here.ndim, here.shape[1:]) != (one.dtype, one.ndim, one.shape[1:]):
            raise CheckpointError(f"{where}: policy array {name}: expected {one.dtype} {one.shape}, got {_text(here)}")
    try:
        embeddings.ask_policy("load_state_dict", lambda: policy.load_state_dict(own))
        if (rule := policy.rule) is not None:
            embeddings.ask_policy(f"{OF_RULE}load_state_dict", lambda: rule.load_state_dict(of_rule))
        taken = policy_state(embeddings)
    except PolicyError as error:
        raise CheckpointError(f"{where}: saved by another version of the policy? {error}") from error
    for name in sorted(taken.keys() | state.keys()):
        if not _is_same(taken.get(name), state.get(name)):
            raise CheckpointError(
                f"{where}: policy array {name}: expected what the policy gives back as it took it, got "
                f"{_text(state.get(name))}, which became {_text(taken.get(name))}. It was changed, or saved by another "
                "version of the policy"
            )


def _is_same(one: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    if one is None or other is None or one.dtype != other.dtype:
        return False
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _text(array: NDArray[Any] | None) -> str:
    return "none" if array is None else f"{array.dtype} {array.shape}"


def _checked(owner: Policy | SkipRule, state: object) -> Arrays:
    """A copy of the state, if it is one that a checkpoint takes."""
    kind = "policy" if isinstance(owner, Policy) else "skip rule"
    what = f"{kind} {type(owner).__name__}.state_dict must return"
    if not isinstance(state, dict):
        raise PolicyError(f"{what} a dict of arrays, found {type(state).__name__}")
    found: Arrays = {}
    for name, array in state.items():
        if not _is_name(name) or (kind == "policy" and name.startswith(OF_RULE)):
            raise PolicyError(
                f"{what} arrays by names of up to {_LONGEST_NAME} letters, digits and signs but slashes, found "
                f"{printable(repr(name))[:80]}"
            )
        if not isinstance(array, np.ndarray) or array.dtype.str not in DTYPES:
            has = f"dtype {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
            raise PolicyError(f"{what} numpy arrays of {', '.join(DTYPES)}, found {has} under {name!r}")
        found[name] = np.array(array)
    return found


def _is_name(name: object) -> bool:
    return (
        isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable() and not set(name) & set("/\\")
    )
