"""Policies that follow accesses, and skip rules, that misbehave in any hook; see `test_misbehaving_policies`."""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray
from support.attacks import attack
from support.helpers import bags, one_table, sum_of
from test_misbehaving_policies import MISDEEDS, Misbehaves

from adaptive.batch import Batch
from adaptive.config import SkipConfig
from adaptive.errors import AdaptiveError, CheckpointError, PolicyError
from adaptive.policies.lru import LRU
from adaptive.policy import Follows, InputPolicy, InputRule, RowStats, TierView
from adaptive.training.runs.state import load_policy_state, policy_state

pytestmark = attack


class Everything(Misbehaves, Follows, InputPolicy):
    """A policy of which all is asked that a run may ask, in batches of the library."""

    reported = ("number",)

    @property
    def number(self) -> Any:
        return self._do("reported", lambda: 1.0)

    def looked_up(self, number: int, rows: NDArray[np.int64], view: TierView) -> None:
        return self._do("looked_up", lambda: None)  # type: ignore[no-any-return]

    def evicted(self, number: int, rows: NDArray[np.int64]) -> None:
        return self._do("evicted", lambda: None)  # type: ignore[no-any-return]

    def admitted(self, number: int, rows: NDArray[np.int64]) -> None:
        return self._do("admitted", lambda: None)  # type: ignore[no-any-return]

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for batch in batches:
            yield replace(batch, held_back=bags([1]))

    def observe(self, number: int, loss: float) -> None:
        self._do("observe", lambda: None)

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._do("load_state_dict", lambda: None)


class Rule(InputRule):
    """The same of a skip rule."""

    warmup, most = 0, 2
    hook = ""
    misdeed: Callable[[], Any]
    _do = Misbehaves._do

    def begin(self, optimizer: str) -> None:
        self._do("begin", lambda: None)

    def visits(self, rows: RowStats) -> NDArray[Any]:
        found: NDArray[Any] = self._do("visits", lambda: np.full(len(rows), 2))
        return found

    def keep(self, batch: Batch, rows: NDArray[np.int64]) -> NDArray[Any]:
        found: NDArray[Any] = self._do("keep", lambda: np.ones(batch.num_samples))
        return found

    def state_dict(self) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = self._do("state_dict", dict)
        return found

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._do("load_state_dict", lambda: None)


OTHER_HOOKS: Final = ("looked_up", "evicted", "admitted", "observe", "load_state_dict", "reported")
RULE_HOOKS: Final = ("begin", "visits", "keep", "state_dict", "load_state_dict")
WANT_NOTHING: Final = ("observe", "load_state_dict", "begin")  # what they return is not looked at
SOME: Final = SkipConfig(interval=2, hot_rows="100%", min_accesses=1, feedback_delay=2)


def trained_by(policy: LRU) -> None:
    embeddings = one_table(device_rows="50%", policy=policy, skip=SOME)
    for planned in embeddings.look_ahead([bags([n % 10], [(3 * n) % 10]) for n in range(24)], depth=1):
        sum_of(embeddings(planned)).backward()  # type: ignore[no-untyped-call]
        embeddings.step()
        embeddings.report_loss(planned, 0.5)
    load_policy_state(embeddings, policy_state(embeddings), Path("checkpoint-1"))


@pytest.mark.parametrize("hook", [*OTHER_HOOKS, *(f"rule.{hook}" for hook in RULE_HOOKS)])
def test_any_other_hook_that_misbehaves_is_named_too(hook: str) -> None:
    of_rule, name = hook.startswith("rule."), hook.removeprefix("rule.")
    for misdeed, action in MISDEEDS.items():
        kind = type("Wicked", (Rule if of_rule else Everything,), {"hook": name, "misdeed": staticmethod(action)})
        policy = Everything() if of_rule else kind()
        policy.rule = kind() if of_rule else None
        returns = misdeed in ("None", "object", "text", "objects")
        if returns and (name in WANT_NOTHING or (misdeed == "None" and hook in OTHER_HOOKS[:3])):
            trained_by(policy)
            continue
        owner = "skip rule" if of_rule else "policy"
        with pytest.raises(AdaptiveError, match=rf"{owner} Wicked\.{name}") as caught:
            trained_by(policy)
        assert isinstance(caught.value, CheckpointError if name == "load_state_dict" else PolicyError), misdeed
        assert "\x1b" not in str(caught.value), misdeed
        assert threading.active_count() < 10
