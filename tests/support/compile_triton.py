"""Compile Triton kernels for a GPU that need not be there: `compile_triton.py CAPABILITY FORMS [WIDTH ...]`.

Prints for each kernel a line of JSON: its name, the float32 and float64 instructions of its PTX that do not round to
nearest once an operation, its registers, and its bytes of spilled registers. FORMS: `once` compiles each kernel once
(updates once for each optimizer), `few` in its fullest forms, `all` in every form that the program can launch, `dense`
those of the model's interaction, whose products are fused. It needs a process of its own, TRITON_INTERPRET unset.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from adaptive.kernels.gpu import interaction
from adaptive.kernels.rows.cpu import steps
from adaptive.kernels.rows.gpu.decay import decay_kernel
from adaptive.kernels.rows.gpu.deferred import accumulate_kernel
from adaptive.kernels.rows.gpu.drift import drift_kernel
from adaptive.kernels.rows.gpu.initial import initial_kernel
from adaptive.kernels.rows.gpu.launch import EXACT_ARITHMETIC, MAX_ROWS, tile_of
from adaptive.kernels.rows.gpu.move import copy_kernel, copy_tile, copy_warps
from adaptive.kernels.rows.gpu.pool import POOL_WARPS, pool_kernel
from adaptive.kernels.rows.gpu.sums import HOT_COLUMNS, HOT_DEPTH, hot_kernel
from adaptive.kernels.rows.gpu.update import update_kernel

TYPES = {
    "*i64": "locations row_locations bag_starts segments to_rows source_rows slots rows table_starts table_keys",
    "*i32": "inverse bag_vectors vectors hot",
    "*u8": "known pending",
    "fp32": "learning_rate epsilon decay1 decay2 kept",
}
Form = tuple[Any, dict[str, Any]]  # kernel, constants

# Fused, flushing small numbers to zero, or not correctly rounded.
INEXACT = re.compile(r"^.*\b(?:(?:fma|mad)\.\S*f(?:32|64)|\S+\.ftz\S*|\S+\.approx\S*|div\.full\S*).*$", re.M)


def signature(kernel: Any, constants: dict[str, Any]) -> dict[str, str]:
    """Triton's type of every argument."""
    types = {name: kind for kind, names in TYPES.items() for name in names.split()}
    types |= dict.fromkeys(constants, "constexpr")
    types["entries"] = "*i32" if kernel is drift_kernel else "*i64"
    return {name: types.get(name, "i32" if name.startswith("num_") else "*fp32") for name in kernel.arg_names}


def examine(kernel: Any, capability: int, options: dict[str, Any], constants: dict[str, Any]) -> Any:
    types = signature(kernel, constants)
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types.values()) if kind.startswith("*")}
    source = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    inexact = [line.strip() for line in INEXACT.findall(compiled.asm["ptx"])]
    registers, spilled = usage(compiled.asm["cubin"])
    found = {"kernel": kernel.__name__, "inexact": inexact, "registers": registers, "spilled": spilled}
    found["in_flight"] = in_flight(compiled.asm["cubin"])
    return found | {"warps": options["num_warps"], "constants": constants}


def told(cubin: bytes, what: str) -> str:
    """What NVIDIA's tool tells of a compiled kernel."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        return subprocess.run([tool, what, file.name], check=True, capture_output=True, text=True).stdout


def usage(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes that it keeps on the stack."""
    ((registers, stack),) = re.findall(r"REG:(\d+) STACK:(\d+)", told(cubin, "-res-usage"))
    return int(registers), int(stack)


def in_flight(cubin: bytes) -> int:
    """The most loads from global memory that a thread has asked for before it needs the first of them.

    Instructions as they stand, from top to bottom: a load is on its way until another instruction names its register.
    """
    waiting: list[set[int]] = []  # registers of the loads on their way, oldest first
    most = 0
    for line in told(cubin, "-sass").splitlines():
        instruction = re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?(.*?) ;", line)
        if instruction is None:
            continue
        name, _, rest = instruction[1].partition(" ")
        load = re.match(r"LDG\.E\S*", name)
        first, _, others = rest.partition(",")
        read = {int(number) for number in re.findall(r"\bR(\d+)\b", others if load else rest)}
        read |= {number + 1 for number in read if re.search(rf"\bR{number}\.64\b", rest)}
        needed = [place for place, registers in enumerate(waiting) if registers & read]
        if needed:
            del waiting[: needed[-1] + 1]
        if load:
            start = int(re.sub(r"\D", "", first) or 0)
            words = 4 if ".128" in name else 2 if ".64" in name else 1
            waiting.append(set(range(start, start + words)))
            most = max(most, len(waiting))
    return most


def fullest(width: int) -> Iterator[Form]:
    """Each kernel as training usually launches it, then with all that it can do."""
    shape, pooling = shape_of(width), shape_of(width, POOL_WARPS)
    yield pool_kernel, pooling | {"HOST": False, "SCALED": False, "SINGLE": True, "IN_ORDER": True}
    yield pool_kernel, pooling | {"HOST": True, "SCALED": True, "SINGLE": False, "IN_ORDER": False}
    for kind, state in states(width).items():
        own = shape | {"KIND": kind, "STATE": state, "APART": True}
        yield update_kernel, own | {"SCALED": False, "SUMMED": False}
        for summed in (False, True) if kind != steps.SGD_ else (False,):
            yield update_kernel, own | {"SCALED": True, "SUMMED": summed}
    yield hot_kernel, hot_shape(width) | {"SCALED": False}
    yield hot_kernel, hot_shape(width) | {"SCALED": True}
    for squares in sorted({0, 1, width, width + 1}):
        yield accumulate_kernel, shape | {"SQUARES": squares, "SCALED": True, "APART": True}
    yield drift_kernel, {"WIDTH": width, "ROWS": MAX_ROWS, "HOST": True}
    for state in states(width).values():
        yield copy_kernel, {"WIDTH": width, "STATE": state, **copy_tile(width, state)}
    yield decay_kernel, shape
    yield initial_kernel, shape


def once(width: int) -> Iterator[Form]:
    """The first of each kernel's fullest forms, that of the base case; of `update_kernel` one for each optimizer, of
    `pool_kernel` one for bags of any length, too."""
    chosen: dict[tuple[Any, ...], Form] = {}
    for kernel, constants in fullest(width):
        chosen.setdefault((kernel, constants.get("KIND"), constants.get("SINGLE")), (kernel, constants))
    yield from chosen.values()


def every(width: int) -> Iterator[Form]:
    """Whatever the program can launch beside `fullest`."""
    shape, flags = shape_of(width), (False, True)
    for host, scaled, single, in_order in product(flags, flags, flags, flags):
        told = {"SINGLE": single, "IN_ORDER": in_order}
        yield pool_kernel, shape_of(width, POOL_WARPS) | {"HOST": host, "SCALED": scaled} | told
    for (kind, state), scaled, apart in product(states(width).items(), flags, flags):
        own = {"KIND": kind, "STATE": state, "SCALED": scaled, "APART": apart}
        for summed in (False, True) if kind != steps.SGD_ else (False,):
            yield update_kernel, shape | own | {"SUMMED": summed}
    for squares, scaled, apart in product(sorted({0, 1, width, width + 1}), flags, flags):
        yield accumulate_kernel, shape | {"SQUARES": squares, "SCALED": scaled, "APART": apart}
    yield drift_kernel, {"WIDTH": width, "ROWS": MAX_ROWS, "HOST": False}


def states(width: int) -> dict[int, int]:
    """Optimizer -> width of its state."""
    return {steps.SGD_: 0, steps.ADAGRAD: width, steps.ROWWISE_ADAGRAD: 1, steps.ADAM: 2 * width + 1}


def shape_of(width: int, warps: int = 1) -> dict[str, Any]:
    tile = tile_of(width, warps=warps)
    return {"WIDTH": width, "BLOCK": tile.block, "ROWS": tile.rows}


def hot_shape(width: int) -> dict[str, Any]:
    return {"WIDTH": width, "COLUMNS": min(HOT_COLUMNS, tile_of(width).block), "DEPTH": HOT_DEPTH}


def interactions(width: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    """With 26 and 31 features, all that can be chosen."""
    for features, own, tf32 in product((26, 31), (False, True), (False, True)):
        dots = (features + 1) * (features + (2 if own else 0)) // 2
        constants = interaction.constants_of(features, width, -(-(width + dots) // 16) * 16, True, own, tf32)
        yield interaction.forward_kernel, constants
        yield interaction.backward_kernel, constants


def compile_dense(capability: int, width: int) -> None:
    for kernel, given in interactions(width):
        constants = dict(given)
        options = {name: constants.pop(name) for name in ("num_warps", "enable_fp_fusion")}
        print(json.dumps(examine(kernel, capability, options, constants) | {"width": width}), flush=True)


def main(capability: int, which: str, *widths: int) -> None:
    if which == "dense":
        for width in widths:
            compile_dense(capability, width)
        return
    one_warp = {"num_warps": 1, **EXACT_ARITHMETIC}
    for width in widths:
        forms = once(width) if which == "once" else fullest(width)
        for kernel, constants in (*forms, *(every(width) if which == "all" else ())):
            options = tile_of(constants["BLOCK"]).options if "BLOCK" in constants else one_warp
            if kernel is pool_kernel:
                options = tile_of(constants["BLOCK"], warps=POOL_WARPS).options
            if kernel is copy_kernel:
                options = {"num_warps": copy_warps(width), **EXACT_ARITHMETIC}
            print(json.dumps(examine(kernel, capability, options, constants) | {"width": width}), flush=True)
    fused, constants = {"num_warps": 1, "enable_fp_fusion": True}, {"WIDTH": 8, "ROWS": MAX_ROWS, "HOST": False}
    print(json.dumps(examine(drift_kernel, capability, fused, constants)))  # what must not be


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
