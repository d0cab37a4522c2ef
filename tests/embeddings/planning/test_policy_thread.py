"""A policy that does not return: an error that names it, rows as they were, and a process that can go on or end."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from support.helpers import bags, look_ahead_threads, one_table, step_all, sum_of
from support.skip_rules import LeaveOut

from adaptive import system
from adaptive.batch import Batch
from adaptive.config import SkipConfig
from adaptive.embeddings.planning.policy_thread import Overdue, PolicyThread, Raised
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import PolicyError
from adaptive.policies.lru import LRU
from adaptive.policies.random_drop import Drop
from adaptive.policy import Policy, RowStats, TierView

TIMEOUT = 0.2
SKIP = SkipConfig(interval=2, min_visits=1, hot_rows="100%", min_accesses=1, feedback_delay=2)
BATCHES = [bags([n % 10], [(3 * n) % 10]) for n in range(12)]


def policy_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "adaptive-policy"]


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    yield
    left = look_ahead_threads(), policy_threads()
    while Hangs.created:  # of a test that failed
        Hangs.created.pop().released.set()
    assert left == ([], [])


class Hangs(LRU):
    """Waits in one of its methods until it is released, or raises there, once."""

    method = ""
    created: ClassVar[list["Hangs"]] = []

    def __init__(self, *, raises: bool = False) -> None:
        self.created.append(self)
        self.released = threading.Event()
        self.hung = threading.Event()
        self.raises = raises

    @property
    def owner(self) -> str:
        return "skip rule LeaveOut" if self.method == "visits" else f"policy {type(self).__name__}"

    def hang(self, method: str) -> None:
        if method != self.method or self.hung.is_set():
            return
        self.hung.set()
        if self.raises:
            raise KeyError("my own mistake")
        self.released.wait()

    def end(self) -> None:
        """Released, its thread has nothing more to do."""
        self.released.set()
        for thread in policy_threads():
            thread.join()


class InScore(Hangs):
    method = "score"

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        if rows.step >= 5:
            self.hang("score")
        return super().score(rows)


class InVisits(Hangs):
    method = "visits"

    def __init__(self, *, raises: bool = False) -> None:
        super().__init__(raises=raises)
        self.rule = LeaveOut(self.choose)

    def choose(self, rows: RowStats) -> NDArray[np.bool_]:
        if rows.step >= 6:
            self.hang("visits")
        return np.zeros(len(rows), np.bool_)


class InArrange(Hangs):
    method = "arrange"

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for number, batch in enumerate(batches):
            if number == 5:
                self.hang("arrange")
            yield batch


class InObserve(Hangs):
    method = "observe"

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for batch in batches:
            yield replace(batch, held_back=bags([1]))

    def observe(self, number: int, loss: float) -> None:
        self.hang("observe")


class InCalibrate(Hangs):
    method = "calibrate"

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        self.hang("calibrate")


def embeddings_of(policy: Policy, timeout: float = TIMEOUT) -> TieredEmbeddingBag:
    return one_table(device_rows="80%", policy=policy, skip=SKIP, policy_timeout_s=timeout)


def train(embeddings: TieredEmbeddingBag, batches: Sequence[Batch], depth: int, stepped: list[Batch]) -> None:
    for planned in embeddings.look_ahead(batches, depth=depth):
        sum_of(embeddings(planned)).backward()  # type: ignore[no-untyped-call]
        embeddings.step()
        embeddings.report_loss(planned, 0.5)
        stepped.append(planned.batch)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("policy_class", [InScore, InVisits, InArrange, InObserve])
def test_a_policy_that_hangs_is_named_and_nothing_is_lost(policy_class: type[Hangs], depth: int) -> None:
    policy, stepped = policy_class(), list[Batch]()
    embeddings = embeddings_of(policy)
    where = "" if policy.method == "arrange" else r" at batch \d+"
    with pytest.raises(PolicyError) as error:
        train(embeddings, BATCHES, depth, stepped)
    assert policy.hung.is_set() and not policy.released.is_set()
    error.match(rf"{policy.owner}\.{policy.method}{where}: expected an answer within 0\.2 s")
    error.match(r"Nothing was moved\. .* --set tier\.policy_timeout_s=2 \(0: none\)")
    assert (error.value.exit_code, look_ahead_threads(), len(policy_threads())) == (9, [], 1)
    expected = one_table()
    step_all(expected, stepped)
    assert 0 < len(stepped) < len(BATCHES)
    assert np.array_equal(embeddings.rows.table_weights("t"), expected.rows.table_weights("t"))
    saved = embeddings.rows.state_arrays()  # with the policy still hanging
    with pytest.raises(PolicyError, match=r"a method that timed out is still running. Create another instance"):
        train(embeddings, BATCHES, depth, stepped)
    policy.end()
    embeddings.runtime.pipeline.policy_caller._timeout = 60.0  # on a busy machine any method may take a while
    rest = BATCHES[len(stepped) :]
    train(embeddings, rest, depth, stepped)  # it has come to its senses
    step_all(expected, rest)
    assert np.array_equal(embeddings.rows.table_weights("t"), expected.rows.table_weights("t"))
    assert len(saved) > 0


@pytest.mark.parametrize("timeout", [0.0, 9.0])
@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("policy_class", [InScore, InVisits, InArrange, InObserve])
def test_a_policy_that_raises_is_named_and_nothing_is_lost(
    policy_class: type[Hangs], depth: int, timeout: float
) -> None:
    policy, stepped = policy_class(raises=True), list[Batch]()
    embeddings = embeddings_of(policy, timeout)
    where = "" if policy.method == "arrange" else r" at batch \d+"
    with pytest.raises(PolicyError, match=rf"{policy.owner}\.{policy.method}{where} raised KeyError: 'my"):
        train(embeddings, BATCHES, depth, stepped)
    expected = one_table()
    step_all(expected, stepped)
    assert np.array_equal(embeddings.rows.table_weights("t"), expected.rows.table_weights("t"))
    rest = BATCHES[len(stepped) :]
    train(embeddings, rest, depth, stepped)
    step_all(expected, rest)
    assert np.array_equal(embeddings.rows.table_weights("t"), expected.rows.table_weights("t"))


def test_a_calibration_that_hangs() -> None:
    policy = InCalibrate()
    with pytest.raises(PolicyError, match=r"policy InCalibrate\.calibrate: expected an answer within 0\.2 s"):
        embeddings_of(policy).calibrate(BATCHES)
    policy.end()


class DropsWhatItReads(Drop):
    """Waits in `arrange`, for batch 6, until it is released."""

    def __init__(self, policy: Hangs) -> None:
        super().__init__(share=0.5)
        self._policy = policy

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for number, batch in enumerate(super().arrange(batches, view)):
            if number == 6:
                self._policy.hang("rule.arrange")
            yield batch


class InRulesArrange(Hangs):
    """Its scores are asked for in the training thread, while its rule runs in the thread that reads."""

    method, order = "rule.arrange", ()

    def __init__(self, *, raises: bool = False) -> None:
        super().__init__(raises=raises)
        self.rule = DropsWhatItReads(self)

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.last_access


@pytest.mark.parametrize("depth", [1, 4])
def test_a_rule_that_hangs_in_the_thread_that_reads_is_named(depth: int) -> None:
    """Whether the training thread waits for the next batch, or for its turn to call the policy."""
    policy = InRulesArrange()
    tier = {"device_rows": "80%", "plan_threads": 0, "policy_timeout_s": TIMEOUT}
    embeddings, stepped = one_table(policy=policy, skip=SKIP, **tier), list[Batch]()
    with pytest.raises(PolicyError, match=r"InRulesArrange\.arrange: expected an answer within 0\.2 s, got none"):
        train(embeddings, [bags([n % 10], [(3 * n) % 10]) for n in range(30)], depth, stepped)
    assert len(stepped) <= 6
    policy.end()


class SlowSource:
    """Takes longer than a policy may."""

    def __iter__(self) -> Iterator[Batch]:
        for batch in BATCHES[:1]:
            threading.Event().wait(2 * TIMEOUT)
            yield batch


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy_class", [LRU, InArrange])
def test_slow_data_are_not_the_policys_fault(policy_class: type[Policy], depth: int) -> None:
    assert len(step_all(embeddings_of(policy_class()), SlowSource(), depth=depth)) == 1


class ReadsOn(LRU):
    """Goes on reading when it comes back."""

    def __init__(self) -> None:
        self.released, self.read = threading.Event(), 0

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        yield next(batches)
        self.released.wait()
        for batch in batches:
            self.read += 1
            yield batch


def test_a_method_that_was_given_up_reads_no_more_data() -> None:
    policy, read = ReadsOn(), list[int]()

    def source() -> Iterator[Batch]:
        for number, batch in enumerate(BATCHES):
            read.append(number)
            yield batch

    with pytest.raises(PolicyError, match=r"ReadsOn\.arrange: expected an answer"):
        step_all(embeddings_of(policy), source(), depth=1)
    policy.released.set()
    for thread in policy_threads():
        thread.join()
    assert (read, policy.read) == ([0], 0)


class Notes(LRU):
    """In which threads its methods run."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        self.names.add(threading.current_thread().name)
        return super().score(rows)


@pytest.mark.parametrize(
    ("timeout", "depth", "name"),
    [(9, 0, "adaptive-policy"), (9, 2, "adaptive-policy"), (0, 0, "MainThread"), (0, 2, "adaptive-look-ahead")],
)
def test_methods_run_in_a_thread_of_their_own_if_they_are_timed(timeout: float, depth: int, name: str) -> None:
    policy = Notes()
    step_all(embeddings_of(policy, timeout), BATCHES, depth=depth)
    assert policy.names == {name}


# --- the thread itself -------------------------------------------------------------------------------------------


def test_an_answer_that_comes_too_late_is_nobodys() -> None:
    thread, go_on = PolicyThread(0.05), threading.Event()
    with pytest.raises(Overdue):
        thread.ask(go_on.wait)
    assert thread.is_stuck
    go_on.set()
    while thread.is_stuck:
        pass
    assert thread.ask(lambda: "mine") == "mine"
    thread.close()


def test_what_a_question_raises_is_raised_where_it_was_asked() -> None:
    thread = PolicyThread(9)
    for error in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(Raised if error is KeyboardInterrupt else error):  # that is the user's, elsewhere
            thread.ask(lambda error=error: (_ for _ in ()).throw(error))  # type: ignore[misc]
    thread.close()


@pytest.mark.nightly
@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("how", ["while True: pass", "import threading; threading.Event().wait()"])
def test_the_command_line_ends_with_the_policys_exit_code(tmp_path: Path, how: str, depth: int) -> None:
    policy = tmp_path / "hangs.py"
    policy.write_text(
        textwrap.dedent(f"""
        from adaptive import Policy

        class Hangs(Policy):
            def score(self, rows):
                {how}
        """)
    )
    command = [
        *(sys.executable, "-m", "adaptive.cli.app", "run", "--policy", f"{policy}:Hangs", "--steps", "50"),
        *("--set", "tier.policy_timeout_s=0.5", "--set", f"depth={depth}", "--device-rows", "10%"),
        *("--out", str(tmp_path / "run"), "--set", "data.synthetic.rows=100000", "--set", "batch_size=64"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 9, done.stderr
    assert "policy Hangs.score at batch" in done.stderr and "expected an answer within 0.5 s" in done.stderr


def test_a_thread_that_never_begins_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is where no memory is left: it is made, and ends before its first line."""
    monkeypatch.setattr(threading, "_start_new_thread", lambda function, arguments: 1)
    monkeypatch.setattr(threading, "_start_joinable_thread", lambda function, **more: None, raising=False)
    monkeypatch.setattr(system, "START_SECONDS", 1)
    with pytest.raises(MemoryError, match="a new thread could not begin"):
        PolicyThread(9)
    for thread in policy_threads():
        threading._limbo.pop(thread)  # type: ignore[attr-defined]
