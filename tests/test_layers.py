"""Imports point downwards only. Read from the source, so imports inside functions count too."""

import ast
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
    ["system"],
    ["config", "kernels"],
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
        root = module.split(".")[0]
        assert root not in {"policies", "examples", "tests", "benchmarks"}, f"{path}:{line}"
        if root != "adaptive":
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


@pytest.mark.parametrize("path", OUTSIDE, ids=relative)
def test_policies_and_examples_import_only_the_public_face(path: Path) -> None:
    for line, module, name in imports(path):
        root = module.split(".")[0]
        assert root not in {"policies", "examples", "tests"}, f"{path}:{line}"
        if root == "adaptive" and module not in SHARED_BY_POLICIES:
            assert module == "adaptive" and (name == "" or name in adaptive.__all__), f"{path}:{line}: {module} {name}"


def test_only_what_is_around_the_core_uses_torch_distributed() -> None:
    around = ROOT / "adaptive/distributed", ROOT / "adaptive/cli/launching.py"
    for path in [*MODULES, *sorted((ROOT / "policies").rglob("*.py"))]:
        if not any(path.is_relative_to(place) for place in around):
            assert not any(module.startswith("torch.distributed") for _, module, _ in imports(path)), path
