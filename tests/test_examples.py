"""The examples run and print the expected results. (`custom_policy.py`: tests/policies.)"""

import difflib
import json
import re
import runpy
import warnings
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.nightly
def test_quickstart_learns_and_placement_does_not_matter(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("quickstart.py", capsys)
    assert "tables equal" in text and "DIFFER" not in text
    assert float(re.search(r"AUC (0\.\d+)", text)[1]) > 0.7  # type: ignore[index]
    assert "device tier: 40,000 of 200,000 rows" in text
    lru, lfu = (re.findall(rf"{policy} .*loss (.*)", text) for policy in ("lru", "lfu"))
    assert len(lru) == 4 and lru == lfu


def test_own_loop_learns_its_rule(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("own_loop.py", capsys)
    first, *_, last = (float(loss) for loss in re.findall(r"loss (\d\.\d+)", text))
    assert last < first
    right, loaded = re.findall(r"(?:right on new samples|the same, loaded): +(.*)%", text)
    assert float(right) > 70 and loaded == right


@pytest.mark.nightly
def test_nine_lines_make_a_plain_loop_a_tiered_one(capsys: pytest.CaptureFixture[str]) -> None:
    plain, tiered = ((EXAMPLES / f"{name}_loop.py").read_text().split('"""\n\n', 1)[1] for name in ("plain", "tiered"))
    changed = [line for line in difflib.ndiff(plain.split("\n"), tiered.split("\n")) if line.startswith("+ ")]
    assert 0 < len([line for line in changed if line.strip("+ ")]) <= 9, changed
    assert 'device_rows="10%"' in tiered

    def aucs(name: str) -> list[float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's own, of sparse gradients
            return [float(number) for number in re.findall(r"0\.\d+", printed(name, capsys))]

    trained, loaded = aucs("tiered_loop.py")
    assert trained == loaded > 0.7
    assert aucs("plain_loop.py") == pytest.approx([trained, trained], abs=2e-4)


def test_own_policies_records_compares_and_simulates(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["own_policies.py", str(tmp_path / "run")])
    text = printed("own_policies.py", capsys)
    assert "policy lfu: 60 steps, 15,360 samples" in text
    assert "lfu: within the AUC budget of 0.0005 (equal to the control bit for bit)" in text
    assert "least device rows for policies that prefetch misses" in text
    assert re.search(r"^guard, step \d+: (keep|reduce|stop): ", text, re.M)
    assert (tmp_path / "run/metrics.jsonl").exists()


@pytest.mark.nightly
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((EXAMPLES / "quickstart.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not [cell for cell in cells if cell["outputs"] or cell["execution_count"]]  # outputs would grow old
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join("".join(cell["source"]) for cell in cells))
    runpy.run_path(str(script), run_name="__main__")
    text = capsys.readouterr().out
    assert "the same losses, bit for bit: True" in text
    assert float(re.search(r"AUC (0\.\d+)", text)[1]) > 0.65  # type: ignore[index]
