"""Kernels: functions that numba compiles.

A kernel is a leaf: arrays in, arrays out, no I/O and no Python object. Importing numba takes longer than
importing the rest of the package, and many processes call no kernel, so a kernel is a ``Kernel`` until
something calls a kernel. Then ``load`` imports ``compiling``, and puts numba's function in the place of every
``Kernel``.

Kernels read records by address (an int64), not by array and index: numba counts references for each array
that one function passes to another, which takes longer than reading a field. ``byte_at`` checks nothing. Its
caller has compared the address with the end of an array, and holds that array.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


class Kernel:
    """Stands for a kernel until ``load`` puts numba's function in its place. Where ``load`` does not reach
    (in a list, say), the ``Kernel`` stays: calling it calls numba's function, whose attributes it has."""

    def __init__(self, make: Callable[[ModuleType], Any], function: Callable[..., Any] | None = None) -> None:
        """``make`` returns numba's function, or another ``Kernel``; it is called with the module
        ``compiling``. ``function``: the Python function, if there is one."""
        self._make, self._compiled = make, None
        if function is not None:
            functools.update_wrapper(self, function)

    def compiled(self) -> Any:
        """numba's function, made at the first call. Any thread may call this."""
        if self._compiled is None:
            with _lock:
                made = self._make(_compiling())
                self._compiled = made.compiled() if isinstance(made, Kernel) else made
        return self._compiled

    def __call__(self, *arguments: Any) -> Any:
        load()
        return self.compiled()(*arguments)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python and libraries look for these, which is no reason to load numba
            raise AttributeError(name)
        return getattr(self.compiled(), name)


_lock = threading.RLock()
_kernels: list[Kernel] = []
"""The kernels that were declared before ``load``, which looks in their modules, too."""
_is_loaded = threading.Event()


def _compiling() -> ModuleType:
    return importlib.import_module("siltstone.base.records.compiling")


def load() -> None:
    """Import numba, and put its functions in the place of each ``Kernel`` in the package's modules and in
    those that declare kernels, if that has not been done. A call of a ``Kernel`` does it. Any thread may call
    this."""
    if _is_loaded.is_set():
        return
    with _lock:
        if _is_loaded.is_set():
            return
        for space in _namespaces():
            for name, value in list(space.items()):
                if isinstance(value, Kernel):
                    space[name] = value.compiled()
        _kernels.clear()
        _is_loaded.set()


def _namespaces() -> list[dict[str, Any]]:
    """The globals of the package's modules, and of those outside of it that declare kernels."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("siltstone.")]
    spaces = [vars(module) for module in modules if module is not None]
    spaces += [kernel.__wrapped__.__globals__ for kernel in _kernels if "__wrapped__" in vars(kernel)]
    return list({id(space): space for space in spaces}.values())


def _declared(make: Callable[[ModuleType], Any], function: Callable[..., Any] | None = None) -> Any:
    """A ``Kernel``; after ``load`` numba's function itself."""
    kernel = Kernel(make, function)
    with _lock:
        if _is_loaded.is_set():
            return kernel.compiled()
        _kernels.append(kernel)
    return kernel


def kernel(function: Function) -> Function:
    """Compile ``function`` with numba when it is first called: cached on disk where possible, without the
    GIL."""
    return cast(Function, _declared(lambda compiling: compiling.compiled_kernel(function), function))


def inline_kernel(function: Function) -> Function:
    """Compile a short function into every kernel that calls it, since the call would take longer than its
    body."""
    return cast(Function, _declared(lambda compiling: compiling.compiled_inline_kernel(function), function))


def chosen_kernel(choose: Callable[[], Function]) -> Function:
    """The kernel that ``choose`` returns. ``choose`` is called at the kernel's first call, since it may ask
    for the processor's instructions, which imports numba."""
    return cast(Function, _declared(lambda _: choose()))


@functools.cache
def has_crc32c() -> bool:
    """Whether kernels may use the processor's instruction for CRC32C: only that of x86, and not if
    ``NUMBA_CPU_NAME`` chooses another processor."""
    return bool(_compiling().HAS_CRC32C)


byte_at: Any = _declared(lambda compiling: compiling.byte_at)
"""The byte at an address (int64 → int64)."""
call_c_function: Any = _declared(lambda compiling: compiling.call_c_function)
"""Calls the C function at an address (int64) with five int64 arguments; returns its int64."""
crc_of_word_at: Any = _declared(lambda compiling: compiling.crc_of_word_at)
"""Continues a CRC32C over the eight bytes at an address."""
crc_of_byte_at: Any = _declared(lambda compiling: compiling.crc_of_byte_at)
"""Continues a CRC32C over the byte at an address."""
