"""How Siltstone compiles its kernels: the only module that imports numba.

A kernel is a leaf: arrays in, arrays out, no I/O and no Python object. It is compiled once for each
signature and kept on disk, beside the package where that is writable, else in the user's cache, else
in ``NUMBA_CACHE_DIR``; where none of them can be written, each process compiles it.

Kernels that walk through records do it by address. numba counts a reference for each array that one function
passes to another, and that takes longer than reading a field. ``byte_at`` checks nothing: its caller has
compared the address with the end of an array that it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, njit, types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile ``function`` with numba: cached on disk where possible, without the GIL."""
    try:
        compiled: Any = njit(cache=True, nogil=True)(function)
        _ignore_unreadable_index(compiled)
    except RuntimeError:  # "cannot cache function …: no locator available"
        compiled = njit(nogil=True)(function)
    wrapped: Function = compiled
    return wrapped


def _ignore_unreadable_index(compiled: Any) -> None:
    """Treat a cache index that cannot be read as empty, such as one of another version of this package.

    numba reads a cache's index whole before it compares the source's time. An index names the classes of a
    kernel's arguments: after one of them was renamed or moved, reading the index fails, and every call with
    it. (numba 0.60 to 0.68, ``IndexDataCacheFile._load_index``.)
    """
    cache_file = compiled._cache._cache_file
    load = cache_file._load_index

    def load_index() -> Any:
        try:
            return load()
        except Exception:  # unpickling raises anything: a missing class, a truncated file
            return {}

    cache_file._load_index = load_index


def inlined(function: Function) -> Function:
    """Compile a few lines into every kernel that calls them, where a call would cost more than the lines."""
    compiled: Any = njit(nogil=True, inline="always")(function)
    wrapped: Function = compiled
    return wrapped


def _byte_at(typing: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.int64(types.int64), code


byte_at: Any = intrinsic(_byte_at)
"""The byte at an address (int64 → int64)."""


HAS_CRC32C = bool(dict(get_host_cpu_features()).get("sse4.2")) and not vars(config).get("CPU_NAME")
"""Does this processor have an instruction for CRC32C? Only x86's is used, and none with
``NUMBA_CPU_NAME``."""


def _call_of_five(typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        pointer = builder.inttoptr(arguments[0], ir.FunctionType(word, [word] * 5).as_pointer())
        return builder.call(pointer, arguments[1:])

    return types.int64(*[types.int64] * 6), code


call_of_five: Any = intrinsic(_call_of_five)
"""Calls the C function at an address (int64) with five int64 arguments; returns its int64."""


def _crc_of_word_at(typing: Any, crc: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        pointer = builder.inttoptr(arguments[1], word.as_pointer())
        instruction = builder.module.declare_intrinsic(
            "llvm.x86.sse42.crc32.64.64", (), ir.FunctionType(word, [word, word])
        )
        return builder.call(instruction, [arguments[0], builder.load(pointer, align=1)])

    return types.uint64(types.uint64, types.int64), code


def _crc_of_byte_at(typing: Any, crc: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, half = ir.IntType(8), ir.IntType(32)
        pointer = builder.inttoptr(arguments[1], byte.as_pointer())
        instruction = builder.module.declare_intrinsic(
            "llvm.x86.sse42.crc32.32.8", (), ir.FunctionType(half, [half, byte])
        )
        crc = builder.trunc(arguments[0], half)
        return builder.zext(builder.call(instruction, [crc, builder.load(pointer)]), ir.IntType(64))

    return types.uint64(types.uint64, types.int64), code


crc_of_word_at: Any = intrinsic(_crc_of_word_at)
"""Continues a CRC32C (uint64, the low half counts, not yet inverted) over the eight bytes at an address."""
crc_of_byte_at: Any = intrinsic(_crc_of_byte_at)
"""The same over one byte."""
