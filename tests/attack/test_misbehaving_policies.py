"""Policies that raise, hang, lie, exit or meddle in every hook: exit code 9, policy and hook named, or no effect."""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.attacks import attack
from support.interrupted import SKIP, small_world
from support.toy import toy_config

from adaptive.batch import Batch
from adaptive.errors import CheckpointError, PolicyError, error_text
from adaptive.policies.lru import LRU
from adaptive.policy import Calibrates, InputPolicy, RowStats, TierView
from adaptive.storage.checkpoint import load_checkpoint
from adaptive.training.runs import resume_run, train_run

pytestmark = attack


class Odd(BaseException):
    pass


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def _raises(error: BaseException | type[BaseException]) -> Callable[[], Any]:
    def misdeed() -> Any:
        raise error

    return misdeed


def _deep() -> Any:
    return _deep()


MISDEEDS: Final[dict[str, Callable[[], Any]]] = {
    "ValueError": _raises(ValueError("mine")),
    "BaseException": _raises(Odd("odd")),
    "GeneratorExit": _raises(GeneratorExit),
    "KeyboardInterrupt": _raises(KeyboardInterrupt),
    "SystemExit": _raises(SystemExit(0)),
    "StopIteration": _raises(StopIteration),
    "MemoryError": _raises(MemoryError("none")),
    "recursion": _deep,
    "an error of ours": _raises(CheckpointError("not a policy error")),
    "an error without text": _raises(SpeechlessError()),
    "terminal escapes": _raises(ValueError("\x1b[31mred\x1b]0;title\x07")),
    "None": lambda: None,
    "object": object,
    "text": lambda: "abc",
    "objects": lambda: np.array([object()]),
}
HOOKS: Final = ("score", "arrange", "calibrate", "state_dict")


class Misbehaves(LRU, Calibrates):
    """Does something in one hook."""

    hook = ""
    misdeed: Callable[[], Any]

    def _do(self, hook: str, otherwise: Callable[[], Any]) -> Any:
        return type(self).misdeed() if self.hook == hook else otherwise()

    def score(self, rows: RowStats) -> NDArray[Any]:
        found: NDArray[Any] = self._do("score", lambda: super(Misbehaves, self).score(rows))
        return found

    def calibrate(self, sample: Any, view: TierView) -> None:
        self._do("calibrate", lambda: None)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = self._do("state_dict", dict)
        return found


class Arranges(Misbehaves, InputPolicy):
    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for number, batch in enumerate(batches):
            yield self._do("arrange", lambda batch=batch: batch) if number == 3 else batch


KINDS: Final = {"arrange": Arranges}
SMALL: Final = {
    "model_options": {"embedding_dim": 4, "bottom_mlp": (8, 4), "top_mlp": (8, 1)}, "batch_size": 32, "log_every": 4,
    "tensorboard": False, "tier": {"device_rows": "60%"},
}  # fmt: skip


def train(monkeypatch: pytest.MonkeyPatch, out: Path, kind: type[LRU], **changed: Any) -> dict[str, Any]:
    """A run of the toy data under a policy of this module."""
    from adaptive.training import components

    monkeypatch.setattr(components, "make_policy", lambda spec, options: kind())
    config = toy_config(out=str(out), skip=SKIP, **changed)
    return train_run(config)


@pytest.mark.parametrize("misdeed", MISDEEDS)
@pytest.mark.parametrize("hook", HOOKS)
def test_a_policy_that_misbehaves_is_named_with_its_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str, misdeed: str
) -> None:
    kind = type("Wicked", (KINDS.get(hook, Misbehaves),), {"hook": hook, "misdeed": staticmethod(MISDEEDS[misdeed])})
    is_harmless = hook == "calibrate" and misdeed in ("None", "object", "text", "objects")  # nothing is wanted of it
    with small_world():
        if is_harmless:
            train(monkeypatch, tmp_path / "run", kind)
            return
        with pytest.raises(PolicyError, match=f"Wicked.{hook}") as caught:
            train(monkeypatch, tmp_path / "run", kind)
    assert caught.value.exit_code == 9 and "\x1b" not in str(caught.value)
    if hook == "score":
        assert "at batch" in str(caught.value)
    if misdeed in ("ValueError", "BaseException", "KeyboardInterrupt", "an error of ours"):
        assert "raised" in str(caught.value) and "policies check" in str(caught.value)
    left = (tmp_path / "run" / "run.json").exists()
    assert not left or '"status": "stopped"' in (tmp_path / "run" / "run.json").read_text()
    assert threading.active_count() < 10


BAD_STATES: Final[dict[str, dict[Any, Any]]] = {
    "a list": [], "a path": {"../x": np.zeros(1)}, "a number": {3: np.zeros(1)}, "a surrogate": {"\ud800": np.zeros(1)},
    "no name": {"": np.zeros(1)}, "objects": {"a": np.array([{}])}, "complex": {"a": np.zeros(1, complex)},
    "big-endian": {"a": np.zeros(1, ">f8")}, "a float": {"a": 1.0}, "the rule's": {"rule.a": np.zeros(1)},
    "a long name": {"a" * 1000: np.zeros(1)}, "control characters": {"\x1b[2J": np.zeros(1)},
}  # type: ignore[dict-item]  # fmt: skip


@pytest.mark.parametrize("name", BAD_STATES)
def test_a_state_that_no_checkpoint_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    kind = type("Wicked", (Misbehaves,), {"hook": "state_dict", "misdeed": staticmethod(lambda: BAD_STATES[name])})
    with small_world(num_train=128), pytest.raises(PolicyError, match=r"expected .*policy Wicked.state_dict"):
        train(monkeypatch, tmp_path / "run", kind)
    assert not (tmp_path / "run/weights").exists()


class Forgets(LRU):
    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"a": np.zeros(1)}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        raise Odd("what is that?")


def test_a_state_that_is_not_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adaptive.training.runs import resuming

    monkeypatch.setattr(resuming, "make_policy", lambda spec, options: Forgets(), raising=False)
    with small_world(num_train=128):
        train(monkeypatch, tmp_path / "run", Forgets)
        with pytest.raises(CheckpointError, match=r"load_state_dict raised Odd: what .* Use the version of the policy"):
            resume_run(tmp_path / "run", epochs=2)


class Meddles(LRU):
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


def weights_of(out: Path) -> dict[str, bytes]:
    saved = load_checkpoint(out / "weights")
    arrays = {**saved.rows, **{name: value.numpy() for name, value in saved.dense.items()}}
    return {name: array.tobytes() for name, array in arrays.items() if "access" not in name}


def test_writing_through_given_arrays_changes_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_world():
        train(monkeypatch, tmp_path / "honest", LRU)
        train(monkeypatch, tmp_path / "meddles", Meddles)
    assert weights_of(tmp_path / "meddles") == weights_of(tmp_path / "honest")


class Reseeds(LRU):
    def score(self, rows: RowStats) -> NDArray[Any]:
        torch.manual_seed(123)
        return super().score(rows)


def test_seeding_torch_anew_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_world(), pytest.raises(PolicyError, match=r"expected no change of torch's seed .* torch.Generator"):
        train(monkeypatch, tmp_path / "run", Reseeds)


class Reports(LRU):
    reported = ("number",)

    @property
    def number(self) -> float:
        raise RuntimeError("no number")


def test_the_text_of_an_error_reaches_no_terminal_as_codes() -> None:
    assert error_text(ValueError("\x1b[31mred\n\x07")) == "ValueError: \\x1b[31mred\n\\x07"
    assert error_text(SpeechlessError()) == "SpeechlessError: (its __str__ raised ValueError)"
    assert len(error_text(ValueError("x" * 10_000))) < 600
