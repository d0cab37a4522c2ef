"""Policies and skip rules that raise, lie or meddle in every hook: policy and hook named, or no effect."""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.attacks import attack
from support.helpers import assert_equal_rows, bags, one_table, sum_of
from support.interrupted import small_world
from support.toy import toy_config

from adaptive.batch import Batch
from adaptive.config import SkipConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import AdaptiveError, CheckpointError, PolicyError, error_text
from adaptive.policies.lru import LRU
from adaptive.policy import Calibrates, Follows, InputPolicy, InputRule, RowStats, TierView
from adaptive.training.runs import train_run
from adaptive.training.runs.state import load_policy_state, policy_state

pytestmark = attack


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def _raises(error: BaseException | type[BaseException]) -> Callable[[], Any]:
    def misdeed() -> Any:
        raise error

    return misdeed


def _deep() -> Any:
    return _deep()


RAISED: Final[dict[str, Callable[[], Any]]] = {
    "SystemExit": _raises(SystemExit(0)),
    "StopIteration": _raises(StopIteration),
    "MemoryError": _raises(MemoryError("none")),
    "recursion": _deep,
    "an error of ours": _raises(CheckpointError("not a policy error")),
    "an error without text": _raises(SpeechlessError()),
    "terminal escapes": _raises(ValueError("\x1b[31mred\x1b]0;title\x07")),
}
RETURNED: Final[dict[str, Callable[[], Any]]] = {"object": object, "objects": lambda: np.array([object()])}


class Misbehaves:
    """Does something in one hook."""

    hook = ""
    misdeed: Callable[[], Any]

    def _do(self, hook: str, otherwise: Callable[[], Any] = lambda: None) -> Any:
        return type(self).misdeed() if self.hook == hook else otherwise()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = self._do("state_dict", dict)
        return found

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._do("load_state_dict")


class BadPolicy(Misbehaves, LRU, Follows, Calibrates, InputPolicy):
    """A policy of which all is asked that a run may ask."""

    reported = ("number",)

    @property
    def number(self) -> Any:
        return self._do("reported", lambda: 1.0)

    def calibrate(self, sample: Any, view: TierView) -> None:
        self._do("calibrate")

    def score(self, rows: RowStats) -> NDArray[Any]:
        found: NDArray[Any] = self._do("score", lambda: rows.last_access)
        return found

    def looked_up(self, number: int, rows: NDArray[np.int64], view: TierView) -> None:
        return self._do("looked_up")  # type: ignore[no-any-return]

    def evicted(self, number: int, rows: NDArray[np.int64]) -> None:
        return self._do("evicted")  # type: ignore[no-any-return]

    def admitted(self, number: int, rows: NDArray[np.int64]) -> None:
        return self._do("admitted")  # type: ignore[no-any-return]

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for batch in batches:
            yield self._do("arrange", lambda batch=batch: replace(batch, held_back=bags([1])))

    def observe(self, number: int, loss: float) -> None:
        self._do("observe")


class BadRule(Misbehaves, InputRule):
    """The same of a skip rule."""

    warmup, most = 0, 2

    def begin(self, optimizer: str) -> None:
        self._do("begin")

    def visits(self, rows: RowStats) -> NDArray[Any]:
        found: NDArray[Any] = self._do("visits", lambda: np.full(len(rows), 2))
        return found

    def keep(self, batch: Batch, rows: NDArray[np.int64]) -> NDArray[Any]:
        found: NDArray[Any] = self._do("keep", lambda: np.ones(batch.num_samples))
        return found


HOOKS: Final = (
    "score", "arrange", "calibrate", "looked_up", "evicted", "admitted", "observe", "reported", "state_dict",
    "load_state_dict", "rule.begin", "rule.visits", "rule.keep", "rule.state_dict", "rule.load_state_dict",
)  # fmt: skip
RESULT_UNUSED: Final = ("calibrate", "observe", "load_state_dict", "begin")


def trained_by(policy: LRU) -> TieredEmbeddingBag:
    """Train, save and load with a policy whose every hook is called."""
    skip = SkipConfig(interval=2, hot_rows="100%", min_accesses=1, feedback_delay=2)
    embeddings, batches = one_table(device_rows="50%", policy=policy, skip=skip), [bags([n % 10]) for n in range(24)]
    embeddings.calibrate(batches[:2])
    for planned in embeddings.look_ahead(batches, depth=1):
        sum_of(embeddings(planned)).backward()  # type: ignore[no-untyped-call]
        embeddings.step()
        embeddings.report_loss(planned, 0.5)
    load_policy_state(embeddings, policy_state(embeddings), Path("checkpoint-1"))
    return embeddings


@pytest.mark.parametrize("hook", HOOKS)
def test_what_misbehaves_is_named_with_its_hook(hook: str) -> None:
    of_rule, name = hook.startswith("rule."), hook.removeprefix("rule.")
    for misdeed, action in {**RAISED, **({} if name in RESULT_UNUSED else RETURNED)}.items():
        kind = type("Wicked", (BadRule if of_rule else BadPolicy,), {"hook": name, "misdeed": staticmethod(action)})
        policy = BadPolicy() if of_rule else kind()
        policy.rule = kind() if of_rule else None
        with pytest.raises(AdaptiveError, match=rf"{'skip rule' if of_rule else 'policy'} Wicked\.{name}") as caught:
            trained_by(policy)
        assert isinstance(caught.value, CheckpointError if name == "load_state_dict" else PolicyError), misdeed
        assert "\x1b" not in str(caught.value), misdeed
        assert threading.active_count() < 10


BAD_STATES: Final[dict[str, Any]] = {
    "a list": [], "a number": {3: np.zeros(1)},
    "complex": {"a": np.zeros(1, complex)}, "a float": {"a": 1.0}, "the rule's": {"rule.a": np.zeros(1)},
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_STATES)
def test_a_state_that_no_checkpoint_takes(name: str) -> None:
    kind = type("Wicked", (BadPolicy,), {"hook": "state_dict", "misdeed": staticmethod(lambda: BAD_STATES[name])})
    with pytest.raises(PolicyError, match=r"expected .*policy Wicked.state_dict"):
        trained_by(kind())


class Meddles(BadPolicy):
    """Writes through arrays that it was given, by way of what they are views of."""

    def score(self, rows: RowStats) -> NDArray[Any]:
        answer = super().score(rows).copy()
        for array in (rows.rows, rows.accesses, rows.update_norm):
            base = array.base if isinstance(array.base, np.ndarray) else array
            try:
                base.flags.writeable = True
                base[...] = 0
            except (ValueError, RuntimeError):
                pass
        return answer


def test_writing_through_given_arrays_changes_no_number() -> None:
    assert_equal_rows(trained_by(Meddles()), trained_by(BadPolicy()))


class Reseeds(LRU):
    def score(self, rows: RowStats) -> NDArray[Any]:
        torch.manual_seed(123)
        return super().score(rows)


def test_seeding_torch_again_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adaptive.training import components

    monkeypatch.setattr(components, "make_policy", lambda spec, options: Reseeds())
    with small_world(), pytest.raises(PolicyError, match=r"expected no change of torch's seed .* torch.Generator"):
        train_run(toy_config(out=str(tmp_path / "run")))


def test_the_text_of_an_error_reaches_no_terminal_as_codes() -> None:
    assert error_text(ValueError("\x1b[31mred\n\x07")) == "ValueError: \\x1b[31mred\n\\x07"
    assert error_text(SpeechlessError()) == "SpeechlessError: (its __str__ raised ValueError)"
    assert len(error_text(ValueError("x" * 10_000))) < 600
