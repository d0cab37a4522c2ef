"""The README's five commands, from Parquet to scores by plain torch, as they stand there."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from adaptive.cli.app import main

README = Path(__file__).parents[2] / "README.md"
pytest.importorskip("pyarrow", reason="Parquet needs pyarrow, the extra 'parquet'")


def commands() -> list[list[str]]:
    """Return the words of each command of the block that begins with Parquet data."""
    (block,) = re.findall(r"^((?:    .*parquet:clicks.parquet .*\n)(?:    .*\n)+)", README.read_text(), re.M)
    return [shlex.split(line, comments=True) for line in block.splitlines()]


def write_clicks(path: Path, random: np.random.Generator, size: int) -> list[dict[str, object]]:
    import pyarrow
    import pyarrow.parquet

    users, items = random.zipf(1.3, size) % 50, random.zipf(1.3, size) % 30
    columns = {
        "click": (users % 3 == 0).astype(np.int64).tolist(),
        "user": [f"u{user}" for user in users],
        "item": items.tolist(),
        "price": random.random(size, np.float32).tolist(),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return pyarrow.table(columns).drop_columns("click").to_pylist()  # type: ignore[no-any-return]


@pytest.mark.nightly
def test_the_commands_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores of the export, by torch and numpy alone, are those of `predict` within 1e-6."""
    import pyarrow.parquet

    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    write_clicks(Path("clicks.parquet"), random, 3000)
    samples = write_clicks(Path("new.parquet"), random, 200)
    Path("clicks.toml").write_text(
        'label = { column = "click" }\n'
        'dense = [{ columns = ["price"] }]\n'
        'categorical = [{ columns = ["user", "item"], hash_rows = 100_000 }]\n'
    )
    *ours, alone = commands()
    assert [words[1] for words in ours] == ["run", "eval", "predict", "export"] and alone[0] == "python"
    for words in ours:
        assert words[0] == "adaptive-train"
        with pytest.raises(SystemExit) as ended:
            main(words[1:])
        assert not ended.value.code, capsys.readouterr().err
    expected = pyarrow.parquet.read_table("scores.parquet")["score"].to_numpy()
    (script,) = [word for word in alone if word.endswith(".py")]
    lines = "".join(json.dumps(sample) + "\n" for sample in samples)
    found = subprocess.run([sys.executable, script], input=lines, capture_output=True, text=True, check=True)
    np.testing.assert_allclose(np.array(found.stdout.split(), float), expected, atol=1e-6)
    assert expected.std() > 0.005
