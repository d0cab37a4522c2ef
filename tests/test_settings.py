"""Precedence of sources, all mistakes at once, what counts as which value."""

import json
from pathlib import Path
from typing import Any

import pytest

from adaptive.config import SkipConfig, TrainConfig
from adaptive.errors import ConfigError, PolicyError
from adaptive.training.settings import load_settings, parse_text

MINE = "a policy of three parameters"  # stands for the file that `mine` writes
POLICY = """
from adaptive.policy import Policy

class Mine(Policy):
    def __init__(self, *, decay: float = 0.5, name: str = "x", mix: dict[str, float] | None = None) -> None:
        self.decay, self.name, self.mix = decay, name, mix

    def score(self, rows):
        return rows.last_access
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(POLICY)
    return f"{tmp_path / 'mine.py'}:Mine"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def mistakes(**sources: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_settings(**sources)  # type: ignore[arg-type]
    return str(caught.value).splitlines()


def test_nothing_given_is_the_default() -> None:
    config, origins = load_settings()
    assert config == TrainConfig()
    assert set(origins.values()) == {"default"}
    assert origins["tier.device_rows"] == "default"


def test_order_flag_set_environment_file_default(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", "batch_size = 1\nseed = 1\ndepth = 1\nepochs = 1\n")
    config, origins = load_settings(
        file=file,
        environ={"ADAPTIVE_BATCH_SIZE": "2", "ADAPTIVE_SEED": "2", "ADAPTIVE_DEPTH": "2", "PATH": "/bin"},
        sets=["batch_size=3", "seed=3", "seed=33"],
        flags={"batch_size": "4"},
        flag_names={"batch_size": "--batch-size"},
    )
    assert (config.batch_size, config.seed, config.depth, config.epochs, config.log_every) == (4, 33, 2, 1, 20)
    assert origins["batch_size"] == "flag --batch-size"
    assert origins["seed"] == "--set"
    assert origins["depth"] == "environment ADAPTIVE_DEPTH"
    assert origins["epochs"] == f"{file}:epochs"
    assert origins["log_every"] == "default"


def test_file_as_toml_with_sections_and_as_json(tmp_path: Path) -> None:
    toml = write(tmp_path / "a.toml", '[tier]\ndevice_rows = 5000\nhost = "mmap:/x"\n[skip]\nfeedback_delay = 2\n')
    config, origins = load_settings(file=toml)
    assert (config.tier.device_rows, config.tier.host) == ("5000", "mmap:/x")
    assert config.skip == SkipConfig(feedback_delay=2)
    assert origins["skip.feedback_delay"] == f"{toml}:skip.feedback_delay"
    same = write(
        tmp_path / "a.json", '{"tier": {"device_rows": 5000, "host": "mmap:/x"}, "skip": {"feedback_delay": 2}}'
    )
    assert load_settings(file=same)[0] == config


def test_run_record_repeats_a_run_in_a_new_directory(tmp_path: Path, mine: str) -> None:
    first, _ = load_settings(sets=[f"policy={mine}", "policy.decay=0.25", "skip=null", "out=runs/old", "steps=7"])
    record = write(tmp_path / "run.json", json.dumps({"version": "1", "config": first.model_dump()}))
    again, _ = load_settings(file=record, sets=[f"policy={mine}"])  # a file alone loads no code
    assert again == first.model_copy(update={"out": None})


def test_section_may_be_none_and_come_back() -> None:
    assert load_settings(sets=["skip=null"])[0].skip is None
    both = {"environ": {"ADAPTIVE_SKIP": "null"}, "sets": ["skip.interval=3"]}
    assert load_settings(**both)[0].skip == SkipConfig(interval=3)  # type: ignore[arg-type]
    both = {"environ": {"ADAPTIVE_SKIP__INTERVAL": "3"}, "sets": ["skip=null"]}
    assert load_settings(**both)[0].skip is None  # type: ignore[arg-type]


def test_options_of_policy_and_model(mine: str) -> None:
    config, origins = load_settings(
        sets=["policy.decay=0.25", "policy.name=x7", "policy.mix.a=1", "policy_options.mix.b=2.5", "model.top_mlp=8-1"],
        flags={"policy": mine, "model.bottom_mlp": "13-512-16"},
    )
    assert config.policy_options == {"decay": 0.25, "name": "x7", "mix": {"a": 1, "b": 2.5}}
    assert config.model_options == {"top_mlp": "8-1", "bottom_mlp": "13-512-16"}
    assert origins["policy_options.decay"] == "--set"


def test_a_policy_may_have_parameters_and_a_skip_rule(tmp_path: Path) -> None:
    """The names that `compare` prints, from every source; the latest policy counts with all that it names."""
    name = "lfu+half_life=100+skip=defer+every=8"
    (tmp_path / "a.toml").write_text(f'policy = "{name}"')
    sources: list[dict[str, Any]] = [
        {"flags": {"policy": name, "skip.rule": "off"}},
        {"sets": [f"policy={name}"]},
        {"environ": {"ADAPTIVE_POLICY": name}},
        {"file": tmp_path / "a.toml"},
    ]
    for source in sources:
        config, _ = load_settings(**source)
        assert (config.policy, config.policy_options) == ("lfu", {"half_life": 100}), source
        assert config.skip is not None and config.skip.rule == "defer+every=8"
    config, _ = load_settings(file=tmp_path / "a.toml", sets=["policy=lru"])
    assert (config.policy, config.policy_options, config.skip) == ("lru", {}, TrainConfig().skip)
    for bad, message in (
        ("lfu+half_live=3", r"policy \(--set\): lfu\+half_live=3: lfu expected one of .*did you mean half_life\?"),
        ("lru,lfu", "run `adaptive-train compare --policies lru,lfu`"),
    ):
        with pytest.raises((ConfigError, PolicyError), match=message):
            load_settings(sets=[f"policy={bad}"])
    (tmp_path / "a.toml").write_text('policy = "lru+skip=mine.py:Mine"')
    with pytest.raises(ConfigError, match=r"skip.rule=mine.py:Mine is code that no installed package offers"):
        load_settings(file=tmp_path / "a.toml")


def test_text_settings_keep_numbers_as_text() -> None:
    sets = ["out=2024_01", "preset=null", "data='csv:a b.csv'"]
    config, _ = load_settings(sets=sets, environ={"ADAPTIVE_TIER__HOST": "mmap:/x=y"})
    assert (config.out, config.data, config.tier.host) == ("2024_01", "csv:a b.csv", "mmap:/x=y")
    assert load_settings(sets=["out=2024"])[0].out == "2024"


def test_data_options_have_sections() -> None:
    config, _ = load_settings(sets=["data.synthetic.rows=200000", "data.time_split=5"])
    assert config.data_options == {"synthetic": {"rows": 200000}, "time_split": 5}
    (line,) = mistakes(environ={"ADAPTIVE_DATA__SYNTHETIC__ROWS": "7"})
    assert line.startswith("data.synthetic.rows (environment ADAPTIVE_DATA__SYNTHETIC__ROWS): expected a value ")


def test_empty_and_foreign_variables_are_ignored() -> None:
    environ = {"ADAPTIVE_STEPS": "", "ADAPTIVE_VENV": "/x", "ADAPTIVE_DATA": "/y", "ADAPTIVELY": "1"}
    assert load_settings(environ=environ)[0] == TrainConfig()


def test_every_mistake_is_reported_with_its_origin(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", 'batch_sise = 3\nsteps = 0\n[tier]\ndevice_rows = "10 apples"\n')
    lines = mistakes(
        file=file,
        environ={"ADAPTIVE_TIER__DEVICE": "gpu", "ADAPTIVE_LOG_EVRY": "3"},
        sets=["nonsense", "optimizer.name=adagrd", "model.bottom_mlp=64-a", "policy.decay=1"],
        flags={"batch_size": "abc", "optimizer.lr": "-1"},
        flag_names={"batch_size": "--batch-size", "optimizer.lr": "--lr"},
    )
    expected = [
        ["11 settings are invalid"],
        ["--set: expected key=value", "got 'nonsense'"],
        ["policy LRU has no parameter decay; it has: none"],
        [f"batch_sise ({file}:batch_sise)", "unknown key", "did you mean batch_size?"],
        ["log_evry (environment ADAPTIVE_LOG_EVRY)", "unknown key", "did you mean log_every?"],
        ["model.bottom_mlp (--set)", "'a' at position 2", "got '64-a'"],
        [f"tier.device_rows ({file}:tier.device_rows)", "got '10 apples'", "percent (10%) or bytes"],
        ["tier.device (environment ADAPTIVE_TIER__DEVICE)", "expected 'auto', 'cpu', 'cuda' or 'cpu-torch', got 'gpu'"],
        ["optimizer.name (--set)", "got 'adagrd'", "expected 'sgd', 'adagrad'", "did you mean adagrad?"],
        ["optimizer.lr (flag --lr)", "expected a value greater than 0, got -1"],
        ["batch_size (flag --batch-size)", "expected a valid integer, got 'abc'"],
        [f"steps ({file}:steps)", "expected a value greater than or equal to 1, got 0"],
    ]
    assert len(lines) == len(expected)
    for parts in expected:
        assert sum(all(part in line for part in parts) for line in lines) == 1, (parts, lines)


@pytest.mark.parametrize(
    ("value", "text"),
    [("0", "greater than or equal to 1 or 'auto', got 0"), ("x", "a valid integer or 'auto', got 'x'")],
)
def test_a_value_that_no_type_of_a_setting_takes_is_one_mistake(value: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^data.num_workers .*{text}"):
        load_settings(sets=[f"data.num_workers={value}"])


@pytest.mark.parametrize(
    ("sets", "flags", "parts"),
    [
        ("device_row=5", {}, ["device_row (--set): unknown key; did you mean tier.device_rows?"]),
        ("tier=5", {}, ["tier (--set): expected a valid dictionary or instance of TierConfig", "got 5"]),
        ("depth.x=3", {}, ["depth.x (--set): expected a valid integer"]),
        ("optimizer.lr=inf", {}, ["optimizer.lr"]),
        ("optimizer.lr=nan", {}, ["optimizer.lr"]),
        ("data.synthetic.row=7", {}, ["data.synthetic.row (--set): unknown key; did you mean data.synthetic.rows?"]),
        (
            "qqqwxz=7",
            {},
            ["qqqwxz (--set): unknown key; adaptive-train config lists all keys"],
        ),
        (
            "policy.decya=5",
            {"policy": MINE},
            [
                "policy Mine has no parameter decya; it has: decay, name, mix; did you mean decay?",
            ],
        ),
        ("policy.decay=much", {"policy": MINE}, ["policy Mine: decay: expected a valid number, got 'much'"]),
        (
            "model.embedding_dim=32",
            {"model.bottom_mlp": "64-8"},
            [
                "model.embedding_dim (--set), model.bottom_mlp (flag): ",
                "expected bottom_mlp to end with embedding_dim = 32, got 64-8",
            ],
        ),
    ],
)
def test_one_mistake_is_one_line(mine: str, sets: str, flags: dict[str, str], parts: list[str]) -> None:
    (line,) = mistakes(sets=[sets], flags={name: mine if text == MINE else text for name, text in flags.items()})
    assert line.startswith(parts[0])
    assert line.endswith(parts[-1]) or len(parts) == 1


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (
            "tier.device_rows=0.1",
            "expected a size in whole rows, got 0.1 (size of the device tier: a number of rows, percent",
        ),
        ("epochs=true", "expected a number, got True (passes over the training data)"),
        ("data.hash_rows=true", "expected a number, got True (rows of each hashed feature"),
        ("optimizer.lr=fast", "expected a valid number, got 'fast' (learning rate of rows)"),
    ],
)
def test_a_wrong_value_is_shown_with_the_meaning_of_its_key(setting: str, expected: str) -> None:
    assert expected in "\n".join(mistakes(sets=[setting]))


def test_unknown_policy_is_listed_with_other_mistakes() -> None:
    lines = mistakes(flags={"policy": "slipstraem", "depth": "-1"})
    assert len(lines) == 3 and "depth" in lines[1] and "slipstream?" in lines[2]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.toml", None, "not found"),
        ("a.toml", "a = = 1", r"expected TOML, got .*line 1"),
        ("a.json", "{", r"expected JSON, got .*line 1"),
        ("a.json", "[" * 100_000, "expected JSON"),
        ("a.json", "[1]", "expected an object of keys, got a list"),
    ],
)
def test_unusable_files_are_reported(tmp_path: Path, name: str, text: str | None, reason: str) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        load_settings(file=file)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        (" 3.5 ", 3.5),
        ("1e-3", 0.001),
        ("true", True),
        ('"a b"', "a b"),
        ("[1, 2]", [1, 2]),
        ("null", None),
        ("10%", "10%"),
        ("2024-01-31", "2024-01-31"),
        ("1\nother = 2", "1\nother = 2"),
        ("", ""),
        ("[" * 10_000, "[" * 10_000),
    ],
)
def test_parse_text(text: str, value: object) -> None:
    assert parse_text(text) == value


def test_keys_below_model_are_those_of_the_model() -> None:
    config, origins = load_settings(sets=["model=tbsm", "model.final_mlp=8-1"])
    assert config.model_options == {"final_mlp": "8-1"}
    assert (config.data, origins["data"]) == ("sequences", "model tbsm")
    assert load_settings(sets=["model=tbsm"], flags={"data": "taobao:a.csv"})[0].data == "taobao:a.csv"
    assert load_settings()[0].data == "synthetic"
    with pytest.raises(ConfigError, match=r"model.final_mlp \(--set\): unknown key; did you mean model.top_mlp"):
        load_settings(sets=["model.final_mlp=8-1"])
    with pytest.raises(ConfigError, match=r"model.final_mlp \(--set\): expected final_mlp to end with 1 .*got 8-2"):
        load_settings(flags={"model": "tbsm"}, sets=["model.final_mlp=8-2"])
    for wrong in ("tbms", "[1]"):
        with pytest.raises(ConfigError, match=r"model: expected one of dlrm, dcn, .*din, module:Class.*got "):
            load_settings(sets=[f"model={wrong}"])
