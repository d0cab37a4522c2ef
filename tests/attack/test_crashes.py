"""Runs that are killed and stopped at drawn instants and resumed: the numbers are those of a run that was not, and
nothing is left lying about."""

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.attacks import SECONDS, Campaign, attack, copied
from support.forked import SIGNALS, Nursery, run_and_hit, train, trained
from support.interrupted import (
    ALIKE,
    POLICIES,
    RULES,
    SKIP,
    assert_equal,
    config_of,
    interrupted,
    numbers,
    resume_run,
    run,
    small_world,
)  # fmt: skip

from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import IN_PARTS, ROWS_NOW, WAITED, IntervalRecord

pytestmark = attack

PATIENCE = 600  # seconds for a process that is to end by itself, on a machine that does much else
MOST_HITS = 9 if SECONDS else 2  # of a run
FILES = {"run.json", "metrics.jsonl", "weights", "tensorboard"}


def drawn(rng: np.random.Generator, folder: Path) -> dict[str, Any]:
    """Settings of a run."""
    chosen = tuple(POLICIES)[int(rng.integers(len(POLICIES)))]
    name, options = POLICIES[chosen]
    host = "memory" if rng.random() < 0.6 else f"mmap:{folder / 'rows'}"
    tier = {"device_rows": "auto" if name == "hybrid" else "60%", "host": host}
    return {
        "policy": name, "policy_options": options, "skip": {**SKIP, "rule": RULES.get(chosen)}, "tier": tier,
        "depth": int(rng.integers(0, 5)),
        "model_options": {"embedding_dim": 4, "bottom_mlp": (8, 4), "top_mlp": (8, 1)}, "batch_size": 32,
        "eval_batch_size": 100, "log_every": 4, "calibrate": 2, "tensorboard": bool(rng.random() < 0.5),
        "save_every": int(rng.integers(1, 8)), "eval_every": 5 if rng.random() < 0.3 else None, "epochs": 2,
        "optimizer": {"name": ("sgd", "adagrad", "rowwise_adagrad", "adam")[int(rng.integers(4))]},
        "keep_checkpoints": int(rng.integers(1, 3)),
    }  # fmt: skip


def curves(out: Path) -> dict[int, tuple[Any, ...]]:
    """Of each step at which an interval ends: what was learnt and counted by then; but for shares of the interval."""
    found = {}
    for record in read_metrics(out / "metrics.jsonl"):
        if isinstance(record, IntervalRecord):
            rows = [[getattr(one, name) for name in ROWS_NOW[1:]] for one in record.tables.values()]
            told = {name: value for name, value in record.policy.items() if name not in (IN_PARTS, WAITED)}
            found[record.step] = (record.samples, record.auc, record.accuracy, rows, told, record.log_loss)
    return found


def ends(settings: dict[str, Any]) -> set[int]:
    """Steps at which an interval of a whole run ends, wherever it began: saves, evaluations, ends of an epoch."""
    every = [settings["save_every"], settings["eval_every"] or 20, 20]
    return {step for one in every for step in range(one, 41, one)}


def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path: Path, nursery: Nursery, cold_nursery: Nursery) -> None:
    campaign = Campaign("crash and resume", 1)
    for seed, rng in campaign.tries():
        folder = tmp_path / str(seed)
        folder.mkdir()
        settings = drawn(rng, folder)
        whole = folder / "whole"
        seconds = nursery.here(train, str(whole), settings, False, str(whole.with_suffix(".log")))
        if seconds > 2:  # kernels were compiled or loaded
            seconds = nursery.here(train, str(folder / "again"), settings, False, str(folder / "again.log"))
        expected, lines = numbers(whole), curves(whole)
        parent = cold_nursery if SECONDS and rng.random() < 0.05 else nursery  # 0.05: hit also while kernels load
        out, resume, code, begun = folder / "run", False, -1, 4 * seconds if parent is cold_nursery else seconds
        what = settings["policy"], settings["policy_options"], settings["skip"]["rule"]
        alike = any(what == (*POLICIES[name], RULES.get(name)) for name in ALIKE)
        signals = SIGNALS if alike else SIGNALS[:1]  # where a look-ahead ends, some policies train otherwise
        stopped = False
        for hit in range(MOST_HITS + 1):
            at = float(rng.uniform(0, begun * rng.choice([0.25, 0.5, 1])))
            hits = signals[int(rng.integers(len(signals)))](at) if hit < MOST_HITS else []
            code = run_and_hit(parent, out, settings, resume=resume, hits=hits)
            if code == 2 and "got a finished run" in log_of(out):  # the last signal came behind its end
                code = 0
            assert code in (0, -9, -15, -2, -1, 129, 130, 143), (code, log_of(out))
            saved = [path for path in out.glob("checkpoint-*") if ".tmp-" not in path.name]  # not half-written ones
            resume = bool(saved) or (out / "weights").exists()
            if code:
                campaign.came("killed" if code == -9 else "stopped")
                stopped |= code != -9
                campaign.came("saved by then" if resume else "nothing saved")
            if code == 0:
                break
            if not resume and out.exists():  # nothing to go on from: as `--overwrite` would
                shutil.rmtree(out)
        assert code == 0
        assert_equal(numbers(out), expected)
        found = curves(out)
        if stopped:  # an interval ends there, and others begin
            assert found.keys() >= lines.keys() & ends(settings)
        else:
            assert found.keys() == lines.keys()
        for step in lines.keys() & found.keys():
            (*learnt, loss), (*expected_learnt, expected_loss) = found[step], lines[step]
            assert learnt == expected_learnt, step
            # Summed interval by interval: those that end at a stop round otherwise.
            assert loss == (pytest.approx(expected_loss, rel=1e-12) if stopped else expected_loss), step
        assert {path.name for path in out.iterdir()} - FILES == set(), "litter"
        assert not [path for path in folder.rglob("*") if ".tmp-" in path.name], "litter"
        shutil.rmtree(folder)


def log_of(out: Path) -> str:
    log = out.with_suffix(".log")
    return log.read_text()[-3000:] if log.exists() else "it ended before it wrote anything"


def test_two_runs_in_one_directory_and_one_of_them_runs(tmp_path: Path, nursery: Nursery) -> None:
    settings = {**drawn(np.random.default_rng(0), tmp_path), "epochs": 1}
    campaign = Campaign("two runs at once", 1)
    for seed, rng in campaign.tries():
        out, rivals = tmp_path / f"run{seed}", int(rng.integers(2, 6))
        logs = [tmp_path / f"{seed}-{n}.log" for n in range(rivals)]
        children = [nursery.start(trained, str(out), settings, False, str(log)) for log in logs]
        codes = [child.ended() for child in children]
        assert codes.count(0) == 1 and set(codes) <= {0, 6}, codes
        texts = [log.read_text() for log, code in zip(logs, codes, strict=True) if code == 6]
        assert all("in use by process" in text or "an empty directory" in text or "taken it" in text for text in texts)


@pytest.mark.skipif(not SECONDS, reason="a case of it is in test_damaged_data.py")
def test_two_that_resume_one_run_and_one_of_them_trains(tmp_path: Path, nursery: Nursery) -> None:
    """Processes at once; the one that trains ends with the numbers of one that was alone."""
    with small_world() as patch:
        with interrupted(patch, "stop", 6):
            run(tmp_path / "stopped", config_of("lru"))
        resume_run(copied(tmp_path / "stopped", tmp_path / "whole"))
    campaign, out = Campaign("two resume at once", 1), tmp_path / "run"
    for number, _ in enumerate(campaign.tries()):
        copied(tmp_path / "stopped", out)
        logs = [tmp_path / f"{number}-{n}.log" for n in range(2)]
        children = [nursery.start(trained, str(out), {}, True, str(log)) for log in logs]
        codes = [child.ended() for child in children]
        texts = [log.read_text() for log, code in zip(logs, codes, strict=True) if code]
        assert codes.count(0) == 1, (codes, texts)
        reasons = ("in use by process", "taken it", "finished run")
        campaign.came(next(reason for reason in reasons if reason in texts[0]))
        assert_equal(numbers(out), numbers(tmp_path / "whole"))


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
