"""What deferred updates save, and where: row writes by tier, bytes to the host tier, speed; `defer` beside `off`.

    python -m benchmarks.bench_deferral [--quick] [--set optimizers=adam steps=50] [--folder /fast/disk]

Policy `slipstream` twice on the same batches, with `skip=off` and `skip=defer`, the embedding part alone with a fixed
gradient and without a look-ahead thread, so that whatever is saved shows in full. The host tier is a file or memory;
the device tier holds all rows, some (the most frequently or the most recently used), or none: then rows are used where
they lie. With a file, bytes are those that were written to it; in memory, and where rows are changed in place, they
are rows times the bytes of a row.

A second table tells what checkpoints of the difference to the last one would hold. Deferral leaves rows unchanged whose
gradient waits; an exact restart needs the sums that wait, as well. (`state_arrays` applies what waits to what it saves:
its difference is that of `off`.)

Before anything is timed, the rows said to be written must be those whose bytes have changed. Tables trained in every
place must end with the same bits, those of `off` and those of `defer`.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive.config import SkipConfig
from adaptive.policies.slipstream import Slipstream
from adaptive.policy import RowStats
from benchmarks import harness
from benchmarks.deferral_account import Account, Differences, Watch
from benchmarks.harness import Report, Table, median_ms, paired, timed
from benchmarks.skipping import Line, close_all, fixed_gradient, values_of
from benchmarks.step_cases import CHECK_STEPS
from benchmarks.streams import kaggle_tables, make_batches
from benchmarks.variants import Optimizer, Ours, Setup

MODES = ("off", "defer")


@dataclass(frozen=True)
class Settings:
    folder: str = ""  # of the files; default: the folder for temporary files
    rows: int = 1_000_000
    dim: int = 16
    batch: int = 512
    optimizers: tuple[str, ...] = ("sgd", "rowwise_adagrad", "adam")
    file_shares: tuple[int, ...] = (0, 1, 10)  # per cent of the rows on the device, host tier a file
    recent_shares: tuple[int, ...] = (1, 2)  # a file, and the most recently used rows stay
    memory_shares: tuple[int, ...] = (0, 1, 10, 100)  # the same, host tier in memory
    saves: tuple[int, ...] = (1, 4, 16, 64, 256)  # steps between checkpoints of the difference
    warmup: int = 100  # of the policy
    fill: int = 400  # batches trained before the clock starts, for rows to become popular
    steps: int = 32  # of a block
    rounds: int = 8
    warm_up: int = 1


SETTINGS = {
    "full": Settings(),
    "quick": Settings(
        rows=200_000, batch=256, optimizers=("sgd", "adam"), file_shares=(0, 2), recent_shares=(2,),
        memory_shares=(100,), saves=(1, 16, 64), fill=160, steps=16, rounds=4,
    ),
    "smoke": Settings(
        rows=20_000, batch=64, optimizers=("adam",), file_shares=(0, 20), recent_shares=(20,), memory_shares=(100,),
        saves=(1, 4), warmup=2, fill=70, steps=4, rounds=2,
    ),
}  # fmt: skip


class Recent(Slipstream):
    """The most recently used rows stay, not the most frequently used."""

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.last_access


class OnHost(Slipstream):
    """Rows are used where they lie."""

    misses = "host"


@dataclass(frozen=True)
class Place:
    """Where rows may lie, and which stay on the device."""

    host: str  # "file" or "memory"
    share: int  # per cent of the rows on the device
    kept: type[Slipstream] = Slipstream

    @property
    def keeps(self) -> str | None:
        return {Slipstream: "frequent", Recent: "recent"}[self.kept] if 0 < self.share < 100 else None

    @property
    def name(self) -> str:
        return f"{self.host}_{self.share}pct" + ("_recent" if self.kept is Recent else "")

    def make(self, setup: Setup, mode: str, settings: Settings, folder: Path) -> Ours:
        host = "memory" if self.host == "memory" else f"mmap:{folder}"
        kind = self.kept if self.share else OnHost
        policy = kind(skip=mode, warmup=settings.warmup)  # type: ignore[arg-type]
        device_rows = f"{self.share}%" if self.share else "0"
        return Ours(setup, policy=policy, device_rows=device_rows, host=host, skip=SkipConfig())


ALL = Place("memory", 100)  # whose values the other places must end with


def run(settings: Settings) -> Report:
    report = Report()
    account = report.table(
        f"`off` and `defer`, means of a step, batch {settings.batch}, width {settings.dim}, {settings.rows:,} rows",
        "host tier", "device rows", "which", "optimizer", "rows looked up", "not written", "rows leaving the device",
        "of them changed, off", "defer", "bytes to the host tier, off", "defer", "saved", "samples/s, off", "defer",
        "defer over off",
    )  # fmt: skip
    saves = report.table(
        "checkpoints of the difference to the last one, MB each",
        "optimizer", "every ... steps", "off", "defer", "saved", "with the sums that wait", "saved",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=settings.folder or None) as folder:
        for optimizer in settings.optimizers:
            bench = _Bench(settings, optimizer, Path(folder))
            for place in _places(settings):
                bench.compare(report, account, place)
            bench.tell_differences(saves)
    return report


def _places(settings: Settings) -> list[Place]:
    files = [Place("file", share) for share in settings.file_shares]
    files += [Place("file", share, Recent) for share in settings.recent_shares]
    return [ALL, *files, *(Place("memory", share) for share in settings.memory_shares if share < 100)]


class _Bench:
    """One optimizer in all places."""

    def __init__(self, settings: Settings, name: str, folder: Path) -> None:
        optimizer: Optimizer = name  # type: ignore[assignment]
        self._settings, self._folder = settings, folder
        self._setup = Setup(kaggle_tables(settings.rows, settings.dim), optimizer)
        steps = CHECK_STEPS + settings.fill + (settings.rounds + settings.warm_up) * settings.steps
        self._batches = make_batches(self._setup.tables, steps, settings.batch)
        self._expected: dict[str, NDArray[np.float32]] = {}
        self._differences: dict[str, Differences] = {}

    def compare(self, report: Report, table: Table, place: Place) -> None:
        """One line of the table, and the speed."""
        settings = self._settings
        lines, accounts = self._start(place)
        cases = {mode: timed(lambda line=line: line.block(settings.steps)) for mode, line in lines.items()}  # type: ignore[misc]
        harness.take_turns(cases, rounds=settings.rounds, warm_up=settings.warm_up)
        found = {mode: account.read() for mode, account in accounts.items()}
        self._check_values(place, lines)
        off, defer = found["off"], found["defer"]
        spent = {mode: line.spent["step"][-settings.rounds :] for mode, line in lines.items()}
        speed, saved = paired(spent["off"], spent["defer"]), _saved(off["bytes"], defer["bytes"])
        table.add(
            place.host, f"{place.share}%", place.keeps, self._setup.optimizer, int(off["visits"]),
            f"{defer['not_written'] / defer['visits']:.1%}", int(off["leaving"]), _share(off), _share(defer),
            int(off["bytes"]), int(defer["bytes"]), f"{saved:.1%}",
            *(settings.batch * settings.steps / median_ms(spent[mode]) * 1e3 for mode in MODES), speed,
        )  # fmt: skip
        name = f"{place.name}_{self._setup.optimizer}"
        report.figures[f"deferral_host_bytes_saved_{name}"] = saved
        report.ratios[f"deferral_speed_{name}"] = speed
        close_all(lines)

    def _start(self, place: Place) -> tuple[dict[str, Line], dict[str, Account]]:
        """Both variants, trained until rows are popular; what comes then is counted."""
        settings, gradient = self._settings, fixed_gradient(self._setup, self._settings.batch)
        lines: dict[str, Line] = {}
        accounts: dict[str, Account] = {}
        for mode in MODES:
            lines[mode] = line = Line(place.make(self._setup, mode, settings, self._folder), gradient)
            line.start(self._batches)
            line.block(settings.fill)
            account = accounts[mode] = Account(line.ours)
            self._check_written(place, line, account)
            account.begin()
            line.seen = account.see
            if place == ALL:
                self._differences[mode] = Differences(account, settings.saves, self._setup.num_rows)
                line.seen = self._differences[mode].see
        return lines, accounts

    def _check_written(self, place: Place, line: Line, account: Account) -> None:
        watch = Watch(line.ours)
        line.seen = lambda planned: watch.written.append(account.see(planned))
        line.block(CHECK_STEPS)
        if place == ALL:
            watch.check()

    def _check_values(self, place: Place, lines: dict[str, Line]) -> None:
        """The rows of the last batches are those of the first place."""
        rows = np.unique(np.concatenate([lines["off"].ours.bag.view.rows(one) for one in self._batches[-8:]]))
        for mode, line in lines.items():
            values = values_of(line.ours, rows)
            if not np.array_equal(self._expected.setdefault(mode, values), values):
                raise harness.NotEqual(f"{mode}, {place.name}: other values than in {ALL.name}")
        if np.array_equal(self._expected["off"], self._expected["defer"]):
            raise harness.NotEqual("nothing was deferred")

    def tell_differences(self, table: Table) -> None:
        """Lines of the second table."""
        for every in self._settings.saves:
            (off, _), (defer, with_sums) = (self._differences[mode].bytes(every) for mode in MODES)
            table.add(
                self._setup.optimizer, every, off / 1e6, defer / 1e6, f"{_saved(off, defer):.1%}", with_sums / 1e6,
                f"{_saved(off, with_sums):.1%}",
            )  # fmt: skip


def _saved(off: float, defer: float) -> float:
    return 1 - defer / off if off else 0.0


def _share(found: dict[str, float]) -> str | None:
    return f"{found['written_back'] / found['leaving']:.1%}" if found["leaving"] else None


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS, "folder")
