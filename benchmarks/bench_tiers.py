"""What two tiers cost: device rows x look-ahead depth x policy, each beside our own single tier.

    python -m benchmarks.bench_tiers [--quick] [--set policies=lru,lfu depths=0,4 shares=10]

Both train the same batches with the same dense part, in blocks of steps that take turns. Before that the device tier
is filled by planning batches without training them, and the rows of some trained batches are compared bit by bit.

`tracker_overhead` is what the row tracker and the policy `lfu` add to a step: the same run once more with the
policy's answers recorded beforehand, so that the same rows move, and no statistics gathered or taken in. (The norm of
each update is computed inside the update kernel in both.)
"""

import gc
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.counters import Counter
from adaptive.policies.lfu import LFU
from adaptive.policy import Policy, RowStats
from benchmarks import harness
from benchmarks.harness import Report, median_ms, paired, timed
from benchmarks.step_cases import CHECK_STEPS, Case
from benchmarks.streams import kaggle_tables, make_batches, one_each
from benchmarks.variants import Optimizer, Ours, Setup, hit_rate
from benchmarks.whole_step import Whole, our_model


@dataclass(frozen=True)
class Settings:
    rows: int = 10_000_000
    dim: int = 16
    optimizer: str = "rowwise_adagrad"
    batch: int = 2048
    shares: tuple[int, ...] = (1, 5, 10, 20, 100)  # per cent of the rows on the device
    depths: tuple[int, ...] = (0, 1, 2, 4, 8)
    policies: tuple[str, ...] = ("lru", "lfu", "scratchpipe")
    fill: int = 300  # batches planned before the first is trained
    steps: int = 4  # of a block
    rounds: int = 7
    main_rounds: int = 21  # of the ratios that have a bar
    warm_up: int = 2


SETTINGS = {
    "full": Settings(),
    "quick": Settings(
        rows=1_500_000, shares=(10, 100), depths=(0, 4), policies=("lru",), fill=40, rounds=3, main_rounds=7, warm_up=1
    ),
    "smoke": Settings(
        rows=20_000, batch=64, shares=(10,), depths=(0, 2), policies=("lru",), fill=10, steps=1, rounds=2,
        main_rounds=2, warm_up=1,
    ),
}  # fmt: skip
DEPTH = 4  # of the ratios that have a bar
Point = tuple[int, str, int]  # per cent, policy, depth


def run(settings: Settings) -> Report:
    report = Report()
    batches = _make_batches(settings)
    table = report.table(
        f"two tiers beside one, {settings.rows:,} rows, batch {settings.batch}, width {settings.dim}, "
        f"{settings.optimizer}",
        "device rows", "policy", "depth", "step ms", "single tier ms", "speed over single", "hit rate",
        "rows moved a step", "wait ms", "plan ms",
    )  # fmt: skip
    for point in _points(settings):
        is_main = point in ((10, "lru", DEPTH), (10, "lfu", DEPTH))
        speed, cells = _compare(point, settings, batches, settings.main_rounds if is_main else settings.rounds)
        table.add(f"{point[0]}%", point[1], point[2], *cells)
        if is_main:
            report.ratios["tiers_10pct_vs_single" + ("" if point[1] == "lru" else f"_{point[1]}")] = speed
    _tracker_overhead(report, settings, batches)
    return report


def _points(settings: Settings) -> list[Point]:
    points = [
        (share, policy, depth)
        for share in settings.shares
        for policy in (settings.policies if share < 100 else settings.policies[:1])
        for depth in settings.depths
    ]
    return points if (10, "lru", DEPTH) in points else [*points, (10, "lru", DEPTH)]


def _setup(settings: Settings) -> Setup:
    optimizer: Optimizer = settings.optimizer  # type: ignore[assignment]
    return Setup(kaggle_tables(settings.rows, settings.dim), optimizer)


def _make_batches(settings: Settings) -> list[Batch]:
    steps = (settings.main_rounds + settings.warm_up) * settings.steps
    return make_batches(_setup(settings).tables, settings.fill + CHECK_STEPS + steps, settings.batch)


def _fill(ours: Ours, batches: Sequence[Batch]) -> None:
    """Let rows come onto the device as these batches would bring them, without training any."""
    for _ in ours.bag.look_ahead(batches, depth=0):
        pass


def _compare(point: Point, settings: Settings, batches: list[Batch], rounds: int) -> tuple[float, list[object]]:
    share, policy, depth = point
    setup = _setup(settings)
    tiers = Ours(setup, device_rows=f"{share}%", policy=policy, depth=depth)
    single = Ours(setup, depth=depth)
    wholes = {"tiers": tiers, "single": single}
    times = _train(wholes, settings, batches, rounds)
    statistics = tiers.statistics()
    steps = max(statistics.batches, 1)
    moved = statistics.counts.sum(axis=0)[[Counter.FETCHED, Counter.WRITTEN_BACK]].sum() / steps
    spent = {name: statistics.times_ms.get(name, 0.0) / steps for name in ("wait", "plan")}
    speed = paired(times["single"], times["tiers"])
    cells: list[object] = [median_ms(times[key]) / settings.steps for key in ("tiers", "single")]
    cells += [speed, f"{hit_rate(statistics):.1%}", int(moved), spent["wait"], spent["plan"]]
    for one in wholes.values():
        one.close()
    gc.collect()
    return speed, cells


def _train(
    variants: dict[str, Ours], settings: Settings, batches: Sequence[Batch], rounds: int, *, filled: bool = False
) -> harness.Times:
    """Fill the device tier, train some batches and compare the rows bit by bit, then train and time the others."""
    case = Case(settings.batch, settings.dim, _setup(settings).optimizer)
    wholes = {key: our_model(key, one, case) for key, one in variants.items()}
    rest = batches[settings.fill + CHECK_STEPS :]
    if not filled:
        for one in variants.values():
            _fill(one, batches[: settings.fill])
    _check(variants, wholes, _setup(settings), batches[settings.fill : settings.fill + CHECK_STEPS])
    for key, whole in wholes.items():
        variants[key].statistics()
        whole.start(rest[: (rounds + settings.warm_up) * settings.steps])

    def block(whole: Whole) -> None:
        for _ in range(settings.steps):
            whole.step()

    cases = {key: timed(lambda whole=whole: block(whole)) for key, whole in wholes.items()}  # type: ignore[misc]
    times = harness.take_turns(cases, rounds=rounds, warm_up=settings.warm_up)
    for one in variants.values():
        one.stop()
    return times


def _check(variants: dict[str, Ours], wholes: dict[str, Whole], setup: Setup, batches: Sequence[Batch]) -> None:
    ids = one_each(setup.tables, batches)
    found = []
    for key, whole in wholes.items():
        whole.start(batches)
        for _ in batches:
            whole.step()
        whole.finish()
        found.append(variants[key].rows(ids))
    if not all(np.array_equal(one, found[0]) for one in found):
        raise harness.NotEqual(f"rows trained as {' and '.join(variants)} differ")


# --- the tracker and a policy ----------------------------------------------------------------------------------------


class Recorder(LFU):
    """`lfu`, its answers kept."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: deque[NDArray[np.float64]] = deque()

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        answer = super().score(rows)
        self.answers.append(answer.copy())
        return answer


class Replay(Policy):
    """Gives the answers another policy gave: the same rows move, nothing is computed."""

    def __init__(self, answers: deque[NDArray[np.float64]]) -> None:
        self._answers = answers

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        return self._answers.popleft()


def _switch_tracking_off(ours: Ours) -> None:
    """No statistics are gathered for the policy, no update norms taken in."""

    def no_stats(rows: NDArray[np.int64], number: int, *rest: Any, **named: Any) -> RowStats:
        nothing: Any = np.broadcast_to(np.int64(0), len(rows))
        return RowStats(number, rows, *[nothing] * 11)

    for lane in ours.bag._pipeline.lanes:
        planner: Any = lane.planner
        planner._stats.of, planner.learn = no_stats, lambda feedback: None


def _tracker_overhead(report: Report, settings: Settings, batches: list[Batch]) -> None:
    setup, rounds = _setup(settings), settings.main_rounds
    recorder = Recorder()
    recorded = Ours(setup, device_rows="10%", policy=recorder, depth=DEPTH)
    last = settings.fill + CHECK_STEPS
    _fill(recorded, batches[: settings.fill])
    for part in (batches[settings.fill : last], batches[last:]):
        for _ in recorded.stream(part):
            pass
    recorded.close()
    bare = Ours(setup, device_rows="10%", policy=Replay(recorder.answers), depth=DEPTH)
    _switch_tracking_off(bare)
    tracked = Ours(setup, device_rows="10%", policy="lfu", depth=DEPTH)
    times = _train({"tracked": tracked, "bare": bare}, settings, batches, rounds)
    statistics = tracked.statistics()
    report.ratios["tracker_overhead"] = paired(times["tracked"], times["bare"]) - 1
    table = report.table(
        "tracker and policy lfu, 10% device rows, depth 4", "variant", "step ms", "policy ms", "hit rate"
    )
    policy_ms = statistics.times_ms["policy"] / max(statistics.batches, 1)
    table.add("lfu", median_ms(times["tracked"]) / settings.steps, policy_ms, f"{hit_rate(statistics):.1%}")
    table.add("recorded answers, no tracking", median_ms(times["bare"]) / settings.steps, None,
              f"{hit_rate(bare.statistics()):.1%}")  # fmt: skip
    tracked.close()
    bare.close()
    gc.collect()


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
