"""A stream of files under kills at drawn instants of reading, judging, training and saving; what stays flat over it."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

from support.attacks import Campaign, attack
from support.followed import config, follow, followed, put
from support.forked import SIGNALS, Nursery
from support.interrupted import assert_equal, numbers

from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import ResumeRecord

pytestmark = attack

FILES, HITS = 200, 30


def appear(source: Path, folder: Path, number: int) -> None:
    """A file of another folder appears whole, as a writer's rename makes it."""
    shutil.copyfile(source / f"d{number}.csv", folder / ".new")
    os.rename(folder / ".new", folder / f"d{number}.csv")


def test_a_killed_stream_ends_as_one_that_was_not(tmp_path: Path, nursery: Nursery) -> None:
    for seed, rng in (campaign := Campaign("followed folder", 1)).tries():
        base = tmp_path / str(seed)
        sizes = rng.integers(0, 80, FILES)
        for number in range(FILES):
            put(base / "all", 1000 + number, samples=int(sizes[number]))
        whole = config(base, "whole", data="all", save_every=int(rng.integers(3, 9)))
        settings: dict[str, Any] = whole.model_dump(mode="json")
        seconds = nursery.here(follow, settings)
        (base / "some").mkdir()
        settings |= {"data": f"csv:{base / 'some'}", "out": str(base / "cut"), "until": "idle=1h"}
        appear(base / "all", base / "some", 1000)
        come, log = 1, base / "log"
        for _ in range(HITS):
            child = nursery.start(followed, settings, str(log))
            begun, life = time.monotonic(), float(rng.uniform(0.05, 3 * seconds / HITS + 1))
            while time.monotonic() - begun < life:  # files come while it reads, judges, trains, saves and waits
                for _ in range(int(rng.integers(0, 3))):
                    if come < FILES:
                        appear(base / "all", base / "some", 1000 + come)
                        come += 1
                assert not child.ends_within(float(rng.uniform(0, 0.2))), log.read_text()[-3000:]
            for after, signal in SIGNALS[int(rng.integers(3))](0):
                child.ends_within(after)
                child.send(signal)
            campaign.came({-9: "killed", 143: "stopped"}[child.ended()])
        for number in range(come, FILES):
            appear(base / "all", base / "some", 1000 + number)
        assert nursery.start(followed, settings | {"until": "idle=1s"}, str(log)).ended() == 0, log.read_text()[-3000:]
        assert_equal(numbers(base / "cut"), numbers(base / "whole"))
        assert not [path for path in base.rglob("*") if ".tmp-" in path.name], "litter"
        places = {r.step for r in read_metrics(base / "cut" / "metrics.jsonl") if isinstance(r, ResumeRecord)}
        assert len(places) >= 5, "kills hit runs that only began or waited"  # many do on a machine that is busy
        shutil.rmtree(base)
