"""Ctrl-C in a simulation: the batches read by then are reported, the rest is listed."""

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.toy import ToyData, toy_config

import adaptive.studies.simulation
import adaptive.studies.skew
from adaptive.config import TrainConfig
from adaptive.data.dataset import by_table
from adaptive.errors import DeviceMemoryError
from adaptive.studies.simulation import Simulation, SizedPolicy, simulate, simulation_document
from adaptive.studies.skew import count_skew, skew_document
from adaptive.system import StopRequest

BATCHES = 80  # an epoch's: two chunks and a half


@pytest.fixture(autouse=True)
def _data(monkeypatch: pytest.MonkeyPatch) -> None:
    data = by_table(ToyData(num_train=8 * BATCHES))
    for module in (adaptive.studies.simulation, adaptive.studies.skew):
        monkeypatch.setattr(module, "open_data", lambda config: data)


def cases(*labels: str, **more: Any) -> list[tuple[str, TrainConfig]]:
    return [(label, toy_config(policy=label, batch_size=8, depth=1, **more)) for label in labels]


def interrupted_at(number: int) -> Callable[[int, int | None], None]:
    """Send Ctrl-C at the `number`th line of progress."""
    calls: list[int] = []

    def tell(done: int, total: int | None) -> None:
        calls.append(done)
        if len(calls) == number:
            signal.raise_signal(signal.SIGINT)

    return tell


def counted(result: Simulation) -> list[dict[str, Any]]:
    """Return the runs without numbers that depend on measured times."""
    return [{key: value for key, value in vars(run).items() if key != "lookups_per_s"} for run in result.runs]


@pytest.mark.parametrize(("number", "batches"), [(1, 32), (2, 64), (4, 112)])
def test_a_stop_reports_only_batches_read_so_far(number: int, batches: int) -> None:
    sizes, labels, stop = ["60%", "90%"], ["lru", "lfu", "scratchpipe", "hybrid"], StopRequest()
    result = simulate(cases(*labels, epochs=2), sizes, embedding_dim=4, on_progress=interrupted_at(number), stop=stop)
    assert stop.signal == signal.SIGINT
    short = simulate(cases(*labels, epochs=2, steps=batches), sizes, embedding_dim=4)
    assert counted(result) == counted(short) and len(result.runs) == 7
    for name in ("batches", "lookups", "distinct_rows", "least_device_rows"):
        assert getattr(result, name) == getattr(short, name)
    assert (result.was_stopped, result.total_batches, result.missing) == (True, 160, [])
    said = f"stopped after {batches} of 160 batches: all numbers are of these. Run the same command again for all"
    assert said in simulation_document(result).to_text() and said in simulation_document(result).to_markdown()
    assert "stopped" not in simulation_document(short).to_text() and not short.was_stopped


@pytest.mark.parametrize("number", [1, 4])
def test_policies_that_regroup_are_complete_or_missing(number: int) -> None:
    """Three lines of progress are of the stream that `lru` and `lfu` share; the next is of Regrouping at 60%."""
    labels, stop = ["contract:Regrouping", "lru", "lfu"], StopRequest()
    result = simulate(cases(*labels), ["60%", "90%"], embedding_dim=4, on_progress=interrupted_at(number), stop=stop)
    assert [(run.policy, run.size) for run in result.runs] == [
        (policy, size) for policy in ("lru", "lfu") for size in ("60%", "90%")
    ]
    assert result.was_stopped and result.batches == (32 if number == 1 else BATCHES)
    assert result.missing == [SizedPolicy("contract:Regrouping", size) for size in ("60%", "90%")]
    text = simulation_document(result).to_text()
    assert ("contract:Regrouping with 60%, 90% are missing. Run the same command again for all" in text) == (
        number == 1
    )
    flags = "Run the same command with --policies contract:Regrouping --device-rows 60%,90% for these"
    assert (flags in text) == (number == 4)


def test_a_lone_regrouping_policy_stops() -> None:
    stop = StopRequest()
    result = simulate(
        cases("contract:Regrouping"), ["60%", "90%"], embedding_dim=4, on_progress=interrupted_at(5), stop=stop
    )
    assert [run.size for run in result.runs] == ["60%"] and result.batches == 5
    assert result.missing == [SizedPolicy("contract:Regrouping", "90%")]


def test_a_stop_at_the_last_batch_changes_nothing() -> None:
    stop = StopRequest()
    result = simulate(cases("lru"), ["60%"], embedding_dim=4, on_progress=interrupted_at(3), stop=stop)
    assert stop and (result.was_stopped, result.batches) == (False, BATCHES)


def test_failures_before_a_stop_are_reported() -> None:
    result = simulate(cases("lru"), ["5", "100%"], embedding_dim=4, on_progress=interrupted_at(1), stop=StopRequest())
    assert [run.size for run in result.failed] == ["5"] and [run.size for run in result.runs] == ["100%"]
    with pytest.raises(DeviceMemoryError):
        simulate(cases("lru"), ["5"], embedding_dim=4, on_progress=interrupted_at(1), stop=StopRequest())


def test_signal_handlers_are_restored() -> None:
    handler = signal.getsignal(signal.SIGINT)
    simulate(cases("lru"), ["60%"], embedding_dim=4, on_progress=interrupted_at(1), stop=StopRequest())
    assert signal.getsignal(signal.SIGINT) == handler
    with pytest.raises(KeyboardInterrupt):  # without a request nobody is in its way
        simulate(cases("lru"), ["60%"], embedding_dim=4, on_progress=interrupted_at(1))


def test_a_stop_counts_the_batches_read() -> None:
    settings = toy_config(batch_size=8, epochs=2)
    result = count_skew(settings, on_progress=interrupted_at(90), stop=StopRequest())
    short = count_skew(settings.model_copy(update={"steps": 90}))
    assert replace(result, was_stopped=False, total_batches=short.total_batches) == short
    assert (result.was_stopped, result.total_batches, result.batches) == (True, 160, 90)
    assert "stopped after 90 of 160 batches. Run the same command again for all" in skew_document(result).to_text()
    assert "stopped" not in skew_document(short).to_markdown()
