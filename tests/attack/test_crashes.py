"""Runs that are killed and stopped at drawn instants and resumed: the numbers are those of a run that was not, and
nothing is left lying about."""

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from support.attacks import SECONDS, Campaign, attack
from support.forked import SIGNALS, Nursery, run_and_hit, train, trained
from support.interrupted import ALIKE, POLICIES, assert_equal, config_of, numbers

pytestmark = attack

PATIENCE = 600  # seconds for a process that is to end by itself, on a machine that does much else
MOST_HITS = 9 if SECONDS else 2  # of a run
FILES = {"run.json", "metrics.jsonl", "weights", "tensorboard"}


def drawn(rng: np.random.Generator, folder: Path) -> tuple[str, dict[str, Any]]:
    """A name of `POLICIES` and settings of a run."""
    policy = tuple(POLICIES)[int(rng.integers(len(POLICIES)))]
    settings = config_of(
        policy,
        depth=int(rng.integers(0, 5)),
        tensorboard=bool(rng.random() < 0.5),
        save_every=int(rng.integers(1, 8)),
        eval_every=5 if rng.random() < 0.3 else None,
        epochs=2,
        optimizer={"name": ("sgd", "adagrad", "rowwise_adagrad", "adam")[int(rng.integers(4))]},
        keep_checkpoints=int(rng.integers(1, 3)),
    ).model_dump(mode="json")
    settings["tier"]["host"] = "memory" if rng.random() < 0.6 else f"mmap:{folder / 'rows'}"
    return policy, settings


def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path: Path, nursery: Nursery) -> None:
    campaign = Campaign("crash and resume", 1)
    for seed, rng in campaign.tries():
        folder = tmp_path / str(seed)
        folder.mkdir()
        policy, settings = drawn(rng, folder)
        whole = folder / "whole"
        seconds = nursery.here(train, str(whole), settings, False, str(whole.with_suffix(".log")))
        if seconds > 2:  # kernels were compiled or loaded
            seconds = nursery.here(train, str(folder / "again"), settings, False, str(folder / "again.log"))
        expected = numbers(whole)
        out, resume, code = folder / "run", False, -1
        signals = SIGNALS if policy in ALIKE else SIGNALS[:1]  # where a look-ahead ends, some policies train otherwise
        for hit in range(MOST_HITS + 1):
            at = float(rng.uniform(0, seconds * rng.choice([0.25, 0.5, 1])))
            hits = signals[int(rng.integers(len(signals)))](at) if hit < MOST_HITS else []
            code = run_and_hit(nursery, out, settings, resume=resume, hits=hits)
            if code == 2 and "got a finished run" in log_of(out):  # the last signal came behind its end
                code = 0
            assert code in (0, -9, -15, -2, -1, 129, 130, 143), (code, log_of(out))
            saved = [path for path in out.glob("checkpoint-*") if ".tmp-" not in path.name]  # not half-written ones
            resume = bool(saved) or (out / "weights").exists()
            if code:
                campaign.came("killed" if code == -9 else "stopped")
                campaign.came("saved by then" if resume else "nothing saved")
            if code == 0:
                break
            if not resume and out.exists():  # nothing to go on from: as `--overwrite` would
                shutil.rmtree(out)
        assert code == 0
        assert_equal(numbers(out), expected)
        assert {path.name for path in out.iterdir()} - FILES == set(), "litter"
        assert not [path for path in folder.rglob("*") if ".tmp-" in path.name], "litter"
        shutil.rmtree(folder)


def log_of(out: Path) -> str:
    log = out.with_suffix(".log")
    return log.read_text()[-3000:] if log.exists() else "it ended before it wrote anything"


def test_two_runs_in_one_directory_and_one_of_them_runs(tmp_path: Path, nursery: Nursery) -> None:
    settings = config_of("lru").model_dump(mode="json")
    campaign = Campaign("two runs at once", 1)
    for seed, rng in campaign.tries():
        out, rivals = tmp_path / f"run{seed}", int(rng.integers(2, 6))
        logs = [tmp_path / f"{seed}-{n}.log" for n in range(rivals)]
        children = [nursery.start(trained, str(out), settings, False, str(log)) for log in logs]
        codes = [child.ended() for child in children]
        assert codes.count(0) == 1 and set(codes) <= {0, 6}, codes
        texts = [log.read_text() for log, code in zip(logs, codes, strict=True) if code == 6]
        assert all("in use by process" in text or "an empty directory" in text or "taken it" in text for text in texts)


def test_a_signal_while_libraries_load_ends_with_its_code(tmp_path: Path) -> None:
    """A process for each signal, side by side."""
    campaign = Campaign("signal during imports", 1)
    words = [sys.executable, "-c", "from adaptive.__main__ import main; main()", "run", "--dry-run"]
    for _, rng in campaign.tries():
        at = {number: float(rng.uniform(0.3, 3)) for number in (15, 2, 1)}
        children = {
            number: subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            for number in at
        }
        begun = time.monotonic()
        for number, seconds in sorted(at.items(), key=lambda one: one[1]):
            time.sleep(max(0.0, begun + seconds - time.monotonic()))
            children[number].send_signal(number)
        for number, child in children.items():
            _, errors = child.communicate(timeout=PATIENCE)
            campaign.came(str(child.returncode))
            # -: before our first line; 0: it had ended
            assert child.returncode in (128 + number, -number, 0), errors
            assert "Traceback" not in errors or child.returncode == -number, errors
            assert "bug" not in errors
