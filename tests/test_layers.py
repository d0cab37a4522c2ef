"""Imports point downwards only. Read from the source, so imports inside functions count too."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import adaptive

ROOT = Path(adaptive.__file__).parent.parent

# A room, or a module at the top, may import itself and what is in the lines above it; those of one line do not know
# each other.
LAYERS = [
    ["errors", "counters", "arrays"],
    ["config", "system", "kernels"],
    ["storage", "batch"],
    ["data", "optim", "policy"],
    ["plugins"],
    ["embeddings", "models"],
    ["distributed"],
    ["training"],
    ["serving", "studies"],
    ["cli"],
    ["__main__"],
]
LEVELS = {room: level for level, line in enumerate(LAYERS) for room in line}
COPIED = "adaptive/models/dense"  # exports have copies of its files, whose imports of each other are relative
MOST_MODULES = 16  # in one flat folder: more, and nobody finds a room

MODULES = sorted(
    path for path in (ROOT / "adaptive").rglob("*.py") if path.parent != ROOT / "adaptive" or path.stem != "__init__"
)
SHARED_BY_POLICIES = {
    "adaptive.policies",
    "adaptive.policies.samples",
    "adaptive.policies.rules.defer",
    "adaptive.policies.rules.predicted",
}  # no policies; those do not know each other
OUTSIDE = sorted([*(ROOT / "policies").rglob("*.py"), *(ROOT / "examples").rglob("*.py")])


@cache
def imports(path: Path) -> list[tuple[int, str, str]]:
    """(line, module, name or "") of every import in a file, wherever it stands."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            is_copied = path.parent == ROOT / COPIED and node.level == 1
            assert node.level == 0 or is_copied, f"{path}:{node.lineno}: relative imports hide where they point"
            package = COPIED.replace("/", ".") + "." if is_copied else ""
            for alias in node.names:
                yield node.lineno, f"{package}{node.module or ''}", alias.name


def room_of(module: str, name: str) -> str:
    """`adaptive.data.open` -> data; `from adaptive import batch` -> batch; a public name -> its
    home."""
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
        other = room_of(module, name)
        assert other in LEVELS, f"{path}:{line}: {other} has no place in LAYERS"
        allowed = LEVELS[other] < LEVELS[own] or other == own
        assert allowed, f"{path}:{line}: {own} must not import {other}, which is above or next to it"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Inside rooms, too. An import inside a function counts: it hides a circle, and does not open it."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}

    def imported(module: str) -> set[str]:
        found = set()
        for _, other, name in imports(names[module]):
            found |= {
                full for full in (f"{other}.{name}", other) if full in names and not module.startswith(full + ".")
            }
        return found - {module}

    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, f"circle: {' -> '.join([*way[way.index(module) :], module])}"
        if module not in done:
            for other in sorted(imported(module)):
                visit(other, (*way, module))
            done.add(module)

    for module in names:
        visit(module, ())


def test_no_room_is_a_corridor() -> None:
    for folder in {path.parent for path in MODULES}:
        modules = [path for path in folder.glob("*.py") if path.stem not in ("__init__", "__main__")]  # doors
        assert len(modules) <= MOST_MODULES, f"{relative(folder)} has {len(modules)} modules"


def test_planning_knows_no_values() -> None:
    """It decides and keeps the books: on any machine, for simulation too. So it imports neither torch nor numba."""
    for path in (ROOT / "adaptive/embeddings/planning").rglob("*.py"):
        roots = {module.split(".")[0] for _, module, _ in imports(path)}
        assert not roots & {"torch", "numba", "triton"}, path


def test_what_only_a_gpu_needs_lies_in_its_rooms() -> None:
    """Nothing outside knows pinned memory or a plan that lies on a device; Triton is imported by its kernels alone."""
    from_gpu = {"build", "launch_check"}  # to make device tiers, and for doctor
    rooms = [ROOT / "adaptive" / room for room in ("embeddings/tiers/gpu", "kernels/rows/gpu", "kernels/gpu")]
    for path in MODULES:
        if any(path.is_relative_to(room) for room in rooms):
            continue
        for line, module, name in imports(path):
            assert module.split(".")[0] != "triton", f"{path}:{line}"
            full = f"{module}.{name}" if module == "adaptive.embeddings.tiers.gpu" else module
            if full.startswith("adaptive.embeddings.tiers.gpu."):
                assert full.split(".")[4] in from_gpu, f"{path}:{line}: {full}"


def test_what_exports_copy_imports_torch_and_its_own_folder() -> None:
    for path in (ROOT / COPIED).glob("*.py"):
        tree = ast.parse(path.read_text())
        for node in tree.body if path.name != "interactions.py" else []:  # which exports replace
            for name in _roots(node) if isinstance(node, ast.Import | ast.ImportFrom) else []:
                assert name in {*sys.stdlib_module_names, "torch"} or getattr(node, "level", 0) == 1, f"{path}: {name}"


def test_only_tiers_tell_one_kind_of_tier_from_another() -> None:
    kinds = re.compile(
        r"isinstance\([^)]*\b(CpuDevice|TorchDevice|MemoryHost|FileHost|DirectTransfer|StagedTransfer)\b"
    )
    for path in MODULES:
        if "tiers" not in path.parts:
            assert not kinds.search(path.read_text()), path


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_the_package_imports_no_policies_examples_or_tests(path: Path) -> None:
    found = {
        (module.split(".")[0], module.split(".")[:2] == ["adaptive", "policies"]) for _, module, _ in imports(path)
    }
    assert not {root for root, _ in found} & {"policies", "examples", "tests", "benchmarks"}
    assert not any(is_policy for _, is_policy in found)


@pytest.mark.parametrize("path", OUTSIDE, ids=relative)
def test_policies_and_examples_import_only_the_public_face(path: Path) -> None:
    for line, module, name in imports(path):
        root = module.split(".")[0]
        assert root not in {"policies", "examples", "tests"}, f"{path}:{line}"
        if root == "adaptive" and module not in SHARED_BY_POLICIES:
            assert module == "adaptive" and (name == "" or name in adaptive.__all__), f"{path}:{line}: {module} {name}"


@pytest.mark.parametrize("package", ["torch", "numba"])
def test_heavy_packages_stay_out_of_what_starts_the_program(package: str) -> None:
    """`--help` and configuration must not wait for them, so they are not imported at the top of these files."""
    light = [
        "__init__",
        "batch/batch",
        "batch/named",
        "config",
        "counters",
        "errors",
        "policy",
        "storage/durable",
        "system",
        "training/settings",
    ]
    light += ["cli/app"]
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
    outside = {user for user in users if not user.startswith(("adaptive/kernels/", "adaptive/data/kernels/"))}
    for user in outside:
        assert "njit" not in (ROOT / user).read_text(), user


def test_private_interfaces_are_those_that_the_design_lists() -> None:
    """Of other packages: names that begin with an underscore, where a line shows whose they are."""
    others = r"torch|numba|numpy|np|scipy|sys|os|threading|triton|tensorboard|typer|click|pydantic|pyarrow"
    private = re.compile(rf"\b(?:{others})(?:\.\w+)*\._[a-z]\w*|\b(?!self\b)\w+\.(?:_started|_compiler)\b")
    used = {match for path in MODULES for match in private.findall(path.read_text(encoding="utf-8"))}
    used.remove("os._exit")  # documented, in spite of its name
    design = (ROOT / "docs/explanation/design.md").read_text(encoding="utf-8")
    listed = design[design.index("**Private interfaces in use**") :].split("\n\n")[0]
    assert {name for name in used if f"`{name}`" not in listed} == set()
    assert set(private.findall(listed)) == used


def test_the_check_sees_imports_inside_functions(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("def f():\n    from adaptive.training.trainer import train\n    import adaptive.cli.app\n")
    assert list(imports(path)) == [(2, "adaptive.training.trainer", "train"), (3, "adaptive.cli.app", "")]
    assert room_of("adaptive.training.trainer", "train") == "training"
    assert room_of("adaptive", "Adam") == "optim"
    assert room_of("adaptive", "batch") == "batch"


def test_only_what_is_around_the_core_knows_of_ranks() -> None:
    """The core says nothing of ranks. Only `distributed`, and what starts ranks, use torch.distributed."""
    for path in [*MODULES, *sorted((ROOT / "policies").rglob("*.py"))]:
        name = relative(path)
        if name.startswith(("adaptive/embeddings/", "policies/")) or name == "adaptive/training/trainer.py":
            assert not re.search(r"\branks?\b", path.read_text(), re.IGNORECASE), path
        if not name.startswith("adaptive/distributed/") and name != "adaptive/cli/launching.py":
            assert not any(module.startswith("torch.distributed") for _, module, _ in imports(path)), path
