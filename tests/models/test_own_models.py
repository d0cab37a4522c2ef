"""Models of the user's own: found as policies are, given what they ask for, tried before anything is trained."""

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptive.cli.app import main
from adaptive.errors import ConfigError
from adaptive.models.dense.base import Inputs
from adaptive.models.factory import make_model, model_config
from adaptive.plugins import load_model_class
from adaptive.training.settings import load_settings

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_model.py"
INPUTS = Inputs(("user", "item"), 2)
HEAD = "import torch\nfrom torch import nn\n\n"


def model_of(folder: Path, text: str) -> str:
    path = folder / "mine.py"
    path.write_text(HEAD + textwrap.dedent(text))
    return f"{path}:Mine"


def made(spec: str, seed: int = 0, **options: Any) -> torch.nn.Module:
    return make_model(spec, model_config(spec, options, INPUTS), INPUTS, seed=seed)


@pytest.mark.nightly
def test_the_example_trains_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As its page says, and served from its file."""
    monkeypatch.chdir(tmp_path)
    small = ["data.synthetic.num_train=2000", "data.synthetic.num_eval=500", "data.synthetic.rows=100000"]
    sets = [word for one in [*small, "model.hidden=8", "batch_size=256"] for word in ("--set", one)]
    commands = [
        ["run", "--model", f"{EXAMPLE}:SumAndDot", "--out", "run", *sets],
        ["eval", "run", "--set", f"model={EXAMPLE}:SumAndDot"],
        ["export", "run", "--out", "served", "--set", f"model={EXAMPLE}:SumAndDot"],
    ]
    for command in commands:
        with pytest.raises(SystemExit) as exit_:
            main(command)
        assert not exit_.value.code, capsys.readouterr().err
    text = capsys.readouterr().out
    assert "500 held-out samples" in text and f"eval run --set model={EXAMPLE}:SumAndDot" in text
    assert Path("served/custom_model.py").read_text() == EXAMPLE.read_text()


def test_settings_are_the_parameters_that_the_run_does_not_give() -> None:
    config, origins = load_settings(
        flags={"model": f"{EXAMPLE}:SumAndDot"}, sets=["model.hidden=9", "model.widths.C1=4"]
    )
    assert config.model_options == {"hidden": 9, "widths": {"C1": 4}} and origins["model_options.hidden"] == "--set"
    for given, message in (
        ("model.hiden=9", r"model.hiden \(--set\): unknown key; did you mean model.hidden"),
        ("model.hidden=a", r"model.hidden \(--set\): expected a valid integer, got 'a'"),
        ("model.num_dense=9", r"model.num_dense \(--set\): unknown key"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_settings(flags={"model": f"{EXAMPLE}:SumAndDot"}, sets=[given])


def test_it_is_given_what_it_asks_for(tmp_path: Path) -> None:
    spec = model_of(
        tmp_path,
        """
        class Mine(nn.Module):
            def __init__(self, num_features, num_dense, embedding_dim, inputs, seed, *, size: int = 3):
                super().__init__()
                self.given = (num_features, num_dense, embedding_dim, inputs.tables, seed, size)
            def forward(self, dense, pooled):
                return dense[:, 0]
        """,
    )
    assert made(spec, 5, embedding_dim=4, size=8).given == (2, 2, 4, ("user", "item"), 5, 8)


def test_weights_follow_from_the_seed() -> None:
    before = torch.get_rng_state()
    one, same, other = (made(f"{EXAMPLE}:SumAndDot", seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    weights = [model.state_dict()["mlp.0.weight"] for model in (one, same, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


MIXED = "class Mine(nn.Module):\n  def forward(self, d, p): return d.sum(1)\n  def __init__(self):\n    "
MIXED += "super().__init__()\n    self.part = "
BAD = {
    "class Mine: pass": "has no class Mine derived from torch.nn.Module",
    "class Other(nn.Module): pass": "has no class Mine derived from torch.nn.Module",
    "class Mine(nn.Module:": r"model file .*mine.py: SyntaxError",
    "class Mine(nn.Module):\n  def forward(self, d, p): return p.sum((1, 2))[:, None]": r"expected a tensor \(2,\) of "
    r"logits, got a tensor \(2, 1\)\. End forward with .squeeze\(1\)",
    "class Mine(nn.Module):\n  def forward(self, d, p): return p": r"got a tensor \(2, 2, 16\)\.$",
    "class Mine(nn.Module):\n  def forward(self, d, p): return None": "got a NoneType",
    "class Mine(nn.Module):\n  def forward(self, d, p): return p.sum((1, 2)) > 0": "which are floats, got torch.bool",
    "class Mine(nn.Module):\n  def forward(self, d): return d": r"forward of dense \(2, 2\) and pooled \(2, 2, 16\): "
    "expected logits, got an error: TypeError",
    "class Mine(nn.Module):\n  def __init__(self): super().__init__(); self.x": "error in __init__: AttributeError",
    "class Mine(nn.Module):\n  def __init__(self, widths): pass": "other names than settings in __init__",
    "class Mine(nn.Module):\n  def __init__(self, a: 'Nowhere' = 1): pass": "got an error: NameError",
    "class Mine(nn.Module):\n  def __init__(self, a): pass": "model.a: is needed",
    MIXED
    + "nn.Linear(2, 1).bfloat16()": r"model Mine: expected weights in float32, got bfloat16 \(part.weight\). Keep",
    MIXED + "nn.Linear(2, 1).double()": r"model Mine: expected weights in float32, got float64 \(part.weight\)",
    MIXED
    + "nn.BatchNorm1d(2, affine=False).bfloat16()": r"expected weights in float32, got bfloat16 \(part.running_me",
}


@pytest.mark.parametrize("text", BAD)
def test_wrong_models_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=BAD[text]):
        made(model_of(tmp_path, text))


def test_unknown_models_are_refused() -> None:
    for spec, message in (
        ("nowhere.py:Mine", "model file nowhere.py not found"),
        ("nowhere:Mine", "cannot import nowhere"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_model_class(spec)
    with pytest.raises(ConfigError, match=r"model: expected one of dlrm, .*, got 'dlmr'; did you mean dlrm"):
        load_settings(sets=["model=dlmr"])


def test_a_file_of_settings_names_no_code(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(f'model = "{EXAMPLE}:SumAndDot"\n')
    with pytest.raises(ConfigError, match=r"run.toml: model=.* code that only a file names is not run"):
        load_settings(file=tmp_path / "run.toml")
    actual, _ = load_settings(file=tmp_path / "run.toml", flags={"model": f"{EXAMPLE}:SumAndDot"})
    assert actual.model == f"{EXAMPLE}:SumAndDot"
