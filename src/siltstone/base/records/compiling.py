"""Compiles kernels with numba, which only this module imports. ``kernel`` imports this module when something
first calls a kernel.

A kernel is compiled once for each signature and kept on disk: in ``NUMBA_CACHE_DIR`` if that is set, else
beside the package where that is writable, else in the user's cache. Where none of them can be written, each
process compiles it. Machine code on disk is used as long as the kernel's file has the same time and size, and
the kernel the same ``fingerprint``.
"""

from __future__ import annotations

import functools
import hashlib
from enum import EnumType
from types import CodeType, ModuleType
from typing import Any

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, njit, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic, typeof_impl

from siltstone.base.records.kernel import Kernel


def compiled_kernel(function: Any) -> Any:
    """numba's function for a Python function: cached on disk where possible, without the GIL."""
    try:
        compiled: Any = njit(cache=True, nogil=True)(function)
        _guard_cache(compiled._cache._cache_file, fingerprint(function))
    except RuntimeError:  # "cannot cache function …: no locator available"
        compiled = njit(nogil=True)(function)
    return compiled


def _guard_cache(cache_file: Any, digest: str) -> None:
    """Make numba treat a kernel's cache as empty if it was made with another fingerprint than ``digest``, or
    cannot be read.

    numba compares the time and size of the kernel's file only (numba 0.60 to 0.68, ``IndexDataCacheFile``).
    And it reads an index whole before it compares: the index names the classes of a kernel's arguments, so
    after one of them was renamed or moved, reading the index fails, and every call with it.
    """
    cache_file._source_stamp = cache_file._source_stamp, digest
    load = cache_file._load_index

    def load_index() -> Any:
        try:
            return load()
        except Exception:  # unpickling raises anything: a missing class, a truncated file
            return {}

    cache_file._load_index = load_index


@functools.cache
def fingerprint(function: Any) -> str:
    """A digest of everything that the machine code of ``function`` depends on, in its own file and in others.

    numba freezes the constants that a kernel uses, and LLVM inlines the kernels that it calls, so a change of
    either in another file makes the machine code on disk wrong.
    """
    codes = [function.__code__]
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    for code in codes:  # the list grows in the loop: an intrinsic has functions within functions
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        named = [function.__globals__.get(name) for name in code.co_names]
        # ``module.NAME`` and ``Enum.NAME``: a code object has both parts in ``co_names``, as separate names.
        owners = [owner for owner in named if isinstance(owner, EnumType) or _is_siltstone_module(owner)]
        members = [getattr(owner, name, None) for owner in owners for name in code.co_names]
        values += [code.co_code, *code.co_consts, *named, *members]
    return hashlib.sha256("|".join(map(_constant_text, values)).encode()).hexdigest()


def _is_siltstone_module(value: Any) -> bool:
    return isinstance(value, ModuleType) and value.__name__.startswith("siltstone.")


def _constant_text(value: Any) -> str:
    """A constant, or a called kernel or intrinsic, as text that is the same in each process; else ""."""
    if isinstance(value, Kernel):
        value = value.compiled()
    if hasattr(value, "__wrapped__"):
        return fingerprint(value.__wrapped__)
    if isinstance(value, np.ndarray):
        return value.tobytes().hex()
    return repr(value) if isinstance(value, bytes | int | float | str | tuple | np.generic) else ""


def compiled_inline_kernel(function: Any) -> Any:
    """numba's function for a Python function that is inlined into the kernels that call it, and is compiled
    and cached with them."""
    return njit(nogil=True, inline="always")(function)


@typeof_impl.register(Kernel)
def _type_of_kernel(kernel: Kernel, context: object) -> Any:
    """numba's type of a ``Kernel``. A kernel that is being compiled may call another one before
    ``kernel.load`` has put numba's function in its place: the global that it finds is then still a
    ``Kernel``."""
    return cpu_target.typing_context.resolve_value_type(kernel.compiled())


def _byte_at(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.int64(types.int64), generate


byte_at: Any = intrinsic(_byte_at)
"""The byte at an address (int64 → int64)."""


HAS_CRC32C = bool(dict(get_host_cpu_features()).get("sse4.2")) and not vars(config).get("CPU_NAME")
"""Is there the instruction for CRC32C? Not if ``NUMBA_CPU_NAME`` names another processor than this one."""


def _call_c_function(typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        pointer = builder.inttoptr(arguments[0], ir.FunctionType(word, [word] * 5).as_pointer())
        return builder.call(pointer, arguments[1:])

    return types.int64(*[types.int64] * 6), generate


call_c_function: Any = intrinsic(_call_c_function)
"""Calls the C function at an address (int64) with five int64 arguments; returns its int64."""


def _make_crc_intrinsic(instruction: str, bits: int) -> Any:
    """An intrinsic that continues a CRC32C over the ``bits`` at an address by an instruction of x86.

    The CRC is a uint64 of which the low half counts, not yet inverted.
    """

    def declare(typing: Any, crc: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            state, data = ir.IntType(max(bits, 32)), ir.IntType(bits)
            step = builder.module.declare_intrinsic(instruction, (), ir.FunctionType(state, [state, data]))
            crc = builder.trunc(arguments[0], state)
            pointer = builder.inttoptr(arguments[1], data.as_pointer())
            return builder.zext(builder.call(step, [crc, builder.load(pointer, align=1)]), ir.IntType(64))

        return types.uint64(types.uint64, types.int64), generate

    return intrinsic(declare)


crc_of_word_at = _make_crc_intrinsic("llvm.x86.sse42.crc32.64.64", 64)
"""Continues a CRC32C over the eight bytes at an address."""
crc_of_byte_at = _make_crc_intrinsic("llvm.x86.sse42.crc32.32.8", 8)
"""Continues a CRC32C over the byte at an address."""
