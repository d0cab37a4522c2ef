"""Compile Triton kernels for any GPU: `compile_triton.py CAPABILITY rows|dense [WIDTH ...]`.

Prints a line of JSON for each kernel: its name, the float32 and float64 instructions of its PTX that do not round to
nearest once an operation, its registers, its bytes of spilled registers, its loads in flight. `rows`: each kernel for
rows, as training usually launches it and with everything it can do; `dense`: those of the model's interaction, whose
products are fused. It needs its own process, with TRITON_INTERPRET unset.
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
from adaptive.kernels.rows.gpu.initial import initial_kernel
from adaptive.kernels.rows.gpu.launch import EXACT_ARITHMETIC, tile_of
from adaptive.kernels.rows.gpu.move import copy_kernel, copy_tile, copy_warps
from adaptive.kernels.rows.gpu.pool import POOL_WARPS, pool_kernel
from adaptive.kernels.rows.gpu.sums import HOT_COLUMNS, HOT_DEPTH, chunks_kernel, hot_kernel
from adaptive.kernels.rows.gpu.update import update_kernel

TYPES = {
    "*i64": "locations row_locations bag_starts segments to_rows source_rows slots rows table_starts table_keys keys",
    "*i32": "inverse bag_vectors vectors hot",
    "*u8": "has_snapshot pending",
    "fp32": "learning_rate epsilon decay1 decay2 decay_factor",
}
ROWS = "weights host_weights to source"  # float32, or the bits of bfloat16
STATE = "state to_state source_state"
Form = tuple[Any, dict[str, Any]]  # kernel, constants; "half": rows are bfloat16; "half_state": their state is

# Fused, flushing small numbers to zero, or not correctly rounded.
INEXACT = re.compile(r"^.*\b(?:(?:fma|mad)\.\S*f(?:32|64)|\S+\.ftz\S*|\S+\.approx\S*|div\.full\S*).*$", re.M)


def signature(kernel: Any, constants: dict[str, Any]) -> dict[str, str]:
    """Triton's type of every argument."""
    types = {name: kind for kind, names in TYPES.items() for name in names.split()}
    types |= dict.fromkeys(ROWS.split(), "*i16") if constants.get("half") else {}
    types |= dict.fromkeys(STATE.split(), "*i16") if constants.get("half_state") else {}
    types |= dict.fromkeys(constants, "constexpr")
    types["row_keys"] = "*i64"
    types["entries"] = "*i64"
    return {name: types.get(name, "i32" if name.startswith("num_") else "*fp32") for name in kernel.arg_names}


def examine(kernel: Any, capability: int, options: dict[str, Any], constants: dict[str, Any]) -> Any:
    types = signature(kernel, constants)
    known = {name: value for name, value in constants.items() if name not in ("half", "half_state")}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types.values()) if kind.startswith("*")}
    source = ASTSource(fn=kernel, signature=types, constexprs=known, attrs=aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    inexact = [line.strip() for line in INEXACT.findall(compiled.asm["ptx"])]
    registers, spilled = usage(compiled.asm["cubin"])
    report = {"kernel": kernel.__name__, "inexact": inexact, "registers": registers, "spilled": spilled}
    report["in_flight"] = in_flight(compiled.asm["cubin"])
    return report | {"warps": options["num_warps"], "constants": constants}


def disassembled(cubin: bytes, what: str) -> str:
    """Output of NVIDIA's tool for a compiled kernel."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        return subprocess.run([tool, what, file.name], check=True, capture_output=True, text=True).stdout


def usage(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes on its stack."""
    ((registers, stack),) = re.findall(r"REG:(\d+) STACK:(\d+)", disassembled(cubin, "-res-usage"))
    return int(registers), int(stack)


def in_flight(cubin: bytes) -> int:
    """The most loads from global memory that a thread has issued before it needs the first of them.

    Instructions are read from top to bottom: a load is in flight until another instruction names its register.
    """
    waiting: list[set[int]] = []  # registers of the loads in flight, oldest first
    most = 0
    for line in disassembled(cubin, "-sass").splitlines():
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


def row_forms(width: int) -> Iterator[Form]:
    """Each kernel as training usually launches it, then in its other forms."""
    shape, pooling, flags = shape_of(width), shape_of(width, POOL_WARPS), (False, True)
    for host, scaled, single, in_order in product(flags, flags, (True, False), (True, False)):
        yield pool_kernel, pooling | {"HOST": host, "SCALED": scaled, "SINGLE": single, "IN_ORDER": in_order}
    for (kind, state), scaled in product(states(width).items(), flags):
        for summed in flags if kind != steps.SGD_ else (False,):
            form = {"KIND": kind, "STATE": state, "SCALED": scaled, "SUMMED": summed}
            yield update_kernel, shape | form | {"STOCHASTIC": False, "LENGTHS": not scaled, "FLAGGED": not scaled}
    for scaled in flags:
        columns = min(HOT_COLUMNS, tile_of(width).block)
        hot = {"WIDTH": width, "COLUMNS": columns, "DEPTH": HOT_DEPTH}
        yield hot_kernel, hot | {"SCALED": scaled}
    yield chunks_kernel, hot
    for squares, scaled in product(sorted({0, 1, width, width + 1}), flags):
        yield accumulate_kernel, shape | {"SQUARES": squares, "SCALED": scaled, "FLAGGED": not scaled}
    for state in states(width).values():
        yield copy_kernel, {"WIDTH": width, "STATE": state, **copy_tile(width, state)}
    yield decay_kernel, shape | {"STOCHASTIC": False, "FLAGGED": True}
    for keys in flags:
        yield initial_kernel, shape | {"HAS_KEYS": keys}
    yield from half_forms(width)


def half_forms(width: int) -> Iterator[Form]:
    """The kernels of rows in bfloat16."""
    shape, half = shape_of(width), {"half": True}
    pooling = shape_of(width, POOL_WARPS) | {"SCALED": False, "SINGLE": False, "IN_ORDER": False}
    for flag in (False, True):
        yield pool_kernel, pooling | half | {"HOST": flag}
        yield decay_kernel, shape | half | {"STOCHASTIC": flag, "FLAGGED": flag}
    form = {"SCALED": False, "STOCHASTIC": True, "LENGTHS": True, "FLAGGED": True}
    for kind, state in states(width).items():
        yield update_kernel, shape | half | form | {"KIND": kind, "STATE": state, "SUMMED": False}
    for (kind, state), summed in product(((steps.ADAGRAD, width), (steps.ADAM, 2 * width + 2)), (False, True)):
        moments = {"KIND": kind, "STATE": state, "SUMMED": summed, "half_state": True}
        yield update_kernel, shape | form | moments | {"half": summed}  # also next to rows in float32
    yield copy_kernel, {"WIDTH": width, "STATE": 1, **copy_tile(width, 1)} | half
    counted = 2 * width + 2  # Adam's
    yield copy_kernel, {"WIDTH": width, "STATE": counted, **copy_tile(width, counted)} | half | {"half_state": True}
    yield initial_kernel, shape | half | {"HAS_KEYS": False}


def options_of(kernel: Any, width: int, constants: dict[str, Any]) -> dict[str, Any]:
    """Options of a launch for rows of this width."""
    if kernel is copy_kernel:
        return {"num_warps": copy_warps(width), **EXACT_ARITHMETIC}
    if kernel is pool_kernel:
        return tile_of(width, warps=POOL_WARPS).options
    return tile_of(width).options if "BLOCK" in constants else {"num_warps": 1, **EXACT_ARITHMETIC}


def states(width: int) -> dict[int, int]:
    """Optimizer -> width of its state."""
    return {
        steps.SGD_: 0,
        steps.ADAGRAD: width,
        steps.ROWWISE_ADAGRAD: 1,
        steps.ADAM: 2 * width + 1,
        steps.FTRL: 2 * width,
    }


def shape_of(width: int, warps: int = 1) -> dict[str, Any]:
    tile = tile_of(width, warps=warps)
    return {"WIDTH": width, "BLOCK": tile.block, "ROWS": tile.rows}


def dense_forms(width: int) -> Iterator[Form]:
    """The interaction with 26 and 31 features and every option; launch options are among the constants."""
    for features, tf32 in product((26, 31), (False, True)):
        dots = (features + 1) * features // 2
        constants = interaction.constants_of(features, width, -(-(width + dots) // 16) * 16, True, tf32)
        yield interaction.forward_kernel, constants
        yield interaction.backward_kernel, constants


def main(capability: int, which: str, *widths: int) -> None:
    for width in widths:
        for kernel, arguments in row_forms(width) if which == "rows" else dense_forms(width):
            constants = dict(arguments)
            if which == "rows":
                options = options_of(kernel, width, constants)
            else:
                options = {name: constants.pop(name) for name in ("num_warps", "enable_fp_fusion")}
            print(json.dumps(examine(kernel, capability, options, constants) | {"width": width}), flush=True)
    fused = {"num_warps": 1, "enable_fp_fusion": True}
    constants = shape_of(8) | {"KIND": steps.ADAGRAD, "STATE": 8, "SCALED": True, "SUMMED": False}
    constants |= {"STOCHASTIC": False, "LENGTHS": False, "FLAGGED": False}
    print(json.dumps(examine(update_kernel, capability, fused, constants)))  # an example of a fused operation


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
