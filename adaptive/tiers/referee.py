"""`Referee`: asks the policy and checks the answers, in one place, before any row moves.

Whatever valid thing a policy returns, only speed changes (and, for saturated rows, what the report says was
skipped). Anything else stops training with a `PolicyError` that names policy, method and batch; rows and slots are
then as they were.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.errors import AdaptiveError, PolicyError
from adaptive.policy import Policy, RowStats, TierView


class Referee:
    """One policy, its answers checked and its time measured."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.seconds = 0.0
        self.watches_saturation = policy.watches and type(policy).saturated is not Policy.saturated

    def score(self, stats: RowStats) -> NDArray[np.float64]:
        """(n,) float64 scores without NaN."""
        answer = self._ask("score", stats.step, lambda: self.policy.score(_read_only(stats)))
        array = self._array("score", stats, answer)
        if array.dtype.kind not in "fiub":
            raise self._wrong("score", stats.step, f"numbers, found dtype {array.dtype}")
        scores: NDArray[np.float64] = array.astype(np.float64)
        bad = int(np.isnan(scores).sum())
        if bad:
            first = int(np.flatnonzero(np.isnan(scores))[0])
            raise self._wrong("score", stats.step, f"no NaN, found {bad}, the first for row {stats.rows[first]}")
        return scores

    def saturated(self, stats: RowStats) -> NDArray[np.bool_]:
        """(n,) bool verdicts."""
        answer = self._ask("saturated", stats.step, lambda: self.policy.saturated(_read_only(stats)))
        array = self._array("saturated", stats, answer)
        if array.dtype != np.bool_:
            raise self._wrong("saturated", stats.step, f"an array of bool, found dtype {array.dtype}")
        return array

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        """The policy's batches, each checked to be one."""
        source = _Source(batches)
        arranged = self._ask("arrange", -1, lambda: iter(self.policy.arrange(source, view)))
        while True:
            try:
                batch = next(arranged)
            except StopIteration:
                return
            except AdaptiveError:
                raise
            except Exception as error:
                if error is source.error:
                    raise
                raise self._failed("arrange", -1, error) from error
            if not isinstance(batch, Batch):
                raise self._wrong("arrange", -1, f"batches, found {type(batch).__name__}")
            yield batch

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        self._ask("calibrate", -1, lambda: self.policy.calibrate(sample, view))

    def _ask(self, method: str, step: int, question: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        try:
            return question()
        except AdaptiveError:
            raise
        except Exception as error:
            raise self._failed(method, step, error) from error
        finally:
            self.seconds += time.perf_counter() - started

    def _array(self, method: str, stats: RowStats, answer: object) -> NDArray[Any]:
        if not isinstance(answer, np.ndarray) or answer.shape != (len(stats),):
            found = f"shape {answer.shape}" if isinstance(answer, np.ndarray) else type(answer).__name__
            raise self._wrong(method, stats.step, f"an array of shape ({len(stats)},), found {found}")
        return answer

    def _failed(self, method: str, step: int, error: Exception) -> PolicyError:
        return PolicyError(
            f"policy {self._name}.{method}{_at(step)} raised {type(error).__name__}: {error}. "
            f"Nothing was moved; run `adaptive-train policies check` on it."
        )

    def _wrong(self, method: str, step: int, needed: str) -> PolicyError:
        return PolicyError(
            f"policy {self._name}.{method}{_at(step)} must return {needed}. "
            f"Nothing was moved; run `adaptive-train policies check` on it."
        )

    @property
    def _name(self) -> str:
        return type(self.policy).__name__


class _Source(Iterator[Batch]):
    """Batches on their way to the policy; remembers an error of theirs, which is not the policy's."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.error: Exception | None = None
        self._batches = batches

    def __next__(self) -> Batch:
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise


def _at(step: int) -> str:
    return f" at batch {step}" if step >= 0 else ""


def _read_only(stats: RowStats) -> RowStats:
    for item in fields(stats):
        value = getattr(stats, item.name)
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return stats


def lowest(scores: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Positions of the `count` lowest scores; among equal scores the first positions. Independent of numpy's sort."""
    if count >= len(scores):
        return np.arange(len(scores))
    border = np.partition(scores, count - 1)[count - 1] if count else -np.inf
    below = np.flatnonzero(scores < border)
    level = np.flatnonzero(scores == border)[: count - len(below)]
    return np.sort(np.concatenate([below, level]))
