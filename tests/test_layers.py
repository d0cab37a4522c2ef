"""Imports point downwards only. Read from the source, so imports inside functions count too."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import adaptive

ROOT = Path(adaptive.__file__).parent.parent

# A part may import itself and what stands in the lines above it; parts in one line do not know each other, except
# those joined by "+".
LAYERS = [
    ["errors", "counters", "config", "system"],
    ["kernels", "batch", "files"],
    ["optim", "policy", "npy"],
    ["policy_loading", "planning"],
    ["tiers"],
    ["engine"],
    ["planned"],
    ["arguments"],
    ["embedding"],
    ["data", "models", "telemetry", "checkpoint", "rundir", "finite", "dense_update"],
    ["evaluation"],
    ["build", "settings", "recorder", "contract"],
    ["simulate"],
    ["trainer"],
    ["guard"],
    ["runs"],
    ["compare"],
    ["cli"],
]
LEVELS = {name: level for level, line in enumerate(LAYERS) for part in line for name in part.split("+")}
PARTS = {name: part for line in LAYERS for part in line for name in part.split("+")}

MODULES = sorted(
    path for path in (ROOT / "adaptive").rglob("*.py") if path.parent != ROOT / "adaptive" or path.stem != "__init__"
)
SHARED_BY_POLICIES = {
    "policies.inputs",
    "policies.shuffle",
    "policies.threshold",
}  # no policies; those do not know each other
OUTSIDE = sorted([*(ROOT / "policies").rglob("*.py"), *(ROOT / "examples").rglob("*.py")])


def imports(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line, module, name or "") of every import in a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide where they point"
            for alias in node.names:
                yield node.lineno, node.module or "", alias.name


def part_of(module: str, name: str) -> str:
    """`adaptive.planning.plan` -> tiers; `from adaptive import files` -> files; a public name -> its home."""
    if module == "adaptive":
        module = f"adaptive.{adaptive._HOMES.get(name, name)}"
    return module.split(".")[1]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_point_downwards(path: Path) -> None:
    own = path.relative_to(ROOT / "adaptive").parts[0].removesuffix(".py")
    assert own in LEVELS, f"{own}: give it a place in LAYERS"
    for line, module, name in imports(path):
        if module.split(".")[0] != "adaptive":
            continue
        other = part_of(module, name)
        assert other in LEVELS, f"{path}:{line}: {other} has no place in LAYERS"
        allowed = LEVELS[other] < LEVELS[own] or PARTS[other] == PARTS[own]
        assert allowed, f"{path}:{line}: {own} must not import {other}, which stands above or beside it"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_the_package_imports_neither_policies_nor_examples_nor_tests(path: Path) -> None:
    roots = {module.split(".")[0] for _, module, _ in imports(path)}
    assert not roots & {"policies", "examples", "tests", "benchmarks"}


@pytest.mark.parametrize("path", OUTSIDE, ids=relative)
def test_policies_and_examples_import_only_the_public_face(path: Path) -> None:
    for line, module, name in imports(path):
        root = module.split(".")[0]
        assert root not in {"policies", "examples", "tests"} or module in SHARED_BY_POLICIES, f"{path}:{line}"
        if root == "adaptive":
            assert module == "adaptive" and (name == "" or name in adaptive.__all__), f"{path}:{line}: {module} {name}"


@pytest.mark.parametrize("package", ["torch", "numba"])
def test_heavy_packages_stay_out_of_what_starts_the_program(package: str) -> None:
    """`--help` and configuration must not wait for them, so they are not imported at the top of these files."""
    light = ["__init__", "batch", "config", "counters", "errors", "policy", "files", "system", "settings", "cli/app"]
    for stem in light:
        path = ROOT / f"adaptive/{stem}.py"
        top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        named = {name for node in top for name in _roots(node)}
        assert package not in named, path


def _roots(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    return [(node.module or "").split(".")[0]]


def test_only_the_kernels_compile() -> None:
    """numba's options, cache and import order are decided in one place."""
    users = {relative(path) for path in MODULES if any(m.split(".")[0] == "numba" for _, m, _ in imports(path))}
    outside = {user for user in users if not user.startswith("adaptive/kernels/")}
    for user in outside:
        assert "njit" not in (ROOT / user).read_text(), user


def test_the_check_sees_imports_inside_functions(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("def f():\n    from adaptive.trainer import train\n    import adaptive.cli.app\n")
    assert list(imports(path)) == [(2, "adaptive.trainer", "train"), (3, "adaptive.cli.app", "")]
    assert part_of("adaptive.trainer", "train") == "trainer"
    assert part_of("adaptive", "Adam") == "optim"
    assert part_of("adaptive", "files") == "files"
