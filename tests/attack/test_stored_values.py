"""Every value that a stranger's run stores, replaced and signed again: refused by name, or believed where that harms
nothing; within seconds, in little memory."""

import json
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from support.attacks import Campaign, attack, copied, told
from support.hostile import VALUES, at_once, paths_in, put
from support.interrupted import small_world
from support.manifests import edit_manifest, edit_record

from adaptive.storage.untrusted import DIGEST
from adaptive.training.runs import evaluate_run, resume_run
from adaptive.training.runs.loading import load_run

pytestmark = attack


def opened(folder: Path) -> None:
    with load_run(folder):
        pass
    evaluate_run(folder)


@pytest.mark.parametrize("action", ["open", "resume"])
def test_every_value_of_a_strangers_record(cut_run: Path, tmp_path: Path, action: str) -> None:
    content = json.loads((cut_run / "run.json").read_text())
    places = [path for path in paths_in(content) if path[0] != DIGEST]
    campaign, act = Campaign(f"values of run.json, {action}", 20), opened if action == "open" else resume_run
    with small_world(num_train=256):
        for _, rng in campaign.tries():
            place, value = places[int(rng.integers(len(places)))], VALUES[int(rng.integers(len(VALUES)))]
            folder = copied(cut_run, tmp_path / "run")
            edit_record(folder, lambda record: put(record, place, value))  # noqa: B023 (called at once)
            with at_once():
                message = told(partial(act, folder), codes=(2, 3, 4, 6, 7, 8, 9))
            campaign.came("accepted" if message is None else "told")


def test_every_value_of_a_strangers_checkpoint(cut_run: Path, tmp_path: Path) -> None:
    manifest = json.loads((cut_run / "checkpoint-4/manifest.json").read_text())
    places = [path for path in paths_in(manifest) if path[0] != DIGEST]
    campaign = Campaign("values of a manifest", 20)
    with small_world(num_train=256):
        for _, rng in campaign.tries():
            place, value = places[int(rng.integers(len(places)))], VALUES[int(rng.integers(len(VALUES)))]
            folder = copied(cut_run, tmp_path / "run")
            edit_manifest(folder / "checkpoint-4", lambda found: put(found, place, value))  # noqa: B023
            with at_once():
                message = told(partial(resume_run, folder), codes=(2, 3, 4, 7, 8, 9))
            campaign.came("accepted" if message is None else "told")


OTHERS: Final[list[Any]] = [None, "text", -1, 1.5, True, [], [[]], {"a": {}}, [1, "2"], 10**18, 2**70]


@pytest.mark.parametrize("value", OTHERS, ids=repr)
@pytest.mark.parametrize("key", ["versions", "resumed"])
def test_versions_and_resumed_of_another_type(cut_run: Path, tmp_path: Path, key: str, value: Any) -> None:
    folder = copied(cut_run, tmp_path / "run")
    edit_record(folder, lambda record: record.update({key: value}))
    with small_world(num_train=256), at_once():
        told(lambda: resume_run(folder), codes=(4,), names="run.json")


COUNTED: Final = {
    "steps": ("steps",),
    "samples": ("samples",),
    "batches taken": ("progress", "place", "taken"),
    "batches in all": ("progress", "place", "total"),
    "the step of the interval": ("progress", "recorder", "so_far", "step"),
    "samples of log loss": ("progress", "recorder", "log_loss", "num_samples"),
}


@pytest.mark.parametrize("value", [10**18, 2**70, -1, "text", None, [], {}, 1.5], ids=repr)
@pytest.mark.parametrize("what", COUNTED)
def test_a_count_that_cannot_be_is_not_believed(cut_run: Path, tmp_path: Path, what: str, value: Any) -> None:
    folder = copied(cut_run, tmp_path / "run")
    edit_manifest(folder / "checkpoint-4", lambda found: put(found["meta"], COUNTED[what], value))
    with small_world(num_train=256), at_once():
        message = told(lambda: resume_run(folder), codes=(4,), names="checkpoint")
    assert message is not None
