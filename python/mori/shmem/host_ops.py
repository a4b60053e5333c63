"""Put, get, atomics, signals, waits, fence and quiet, issued by the CPU.

`dest`, `source` and `target` on the remote side, `ivar` and `sig_addr` are symmetric addresses of
this PE; the call acts on `pe`'s copy. All calls are local: the target PE takes no part. The local
side of a put or get is an address (int) with a size in bytes, or an object with contiguous memory:
bytes, a numpy array, a CPU torch tensor. Atomics, signals and waits take 32- and 64-bit integers
("int32", "uint32", "int64", "uint64") at addresses aligned to their size.

Puts and gets are blocking: on return the source may be reused, or the data is there. A put is
visible to its target at the latest after `shmem_quiet()`, `shmem_barrier_all()`, or a signal that
the target waits for. Atomics are single copies in acquire and release order, on one word, for the
CPUs of one node.

Calls raise `ShmemError`: INVALID_ARGUMENT for a PE out of range, an address outside the heap, a
range that leaves it, a word that is not aligned, a value that does not fit its type;
NOT_INITIALIZED before init and after finalize.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Union

from mori import _core
from mori._core import Cmp, ErrorCode, SignalOp
from mori.shmem.errors import failed, shown

if TYPE_CHECKING:
    Bindings = TypeVar("Bindings", bound=_core._Element)

Local = Union[int, Any]
"""An address, or an object with contiguous memory."""

_COMPARISONS = {
    "==": Cmp.EQ,
    "!=": Cmp.NE,
    ">": Cmp.GT,
    ">=": Cmp.GE,
    "<": Cmp.LT,
    "<=": Cmp.LE,
}
_WORDS: Mapping[str, _core._Word] = {
    "int32": _core.int32,
    "uint32": _core.uint32,
    "int64": _core.int64,
    "uint64": _core.uint64,
}
_ELEMENTS: Mapping[str, _core._Element] = {
    **_WORDS,
    "float32": _core.float32,
    "float64": _core.float64,
}


def _type_name(dtype: Any) -> str:
    """The name of a numpy or torch dtype, or of a scalar type, as "float32"; a name itself."""
    try:
        name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
    except Exception:  # of the object's own code
        return ""
    return name.removeprefix("torch.")


def _of_type(table: Mapping[str, Bindings], dtype: Any) -> Bindings:
    """The bindings for `dtype`: a name, or a numpy or torch dtype."""
    bindings = table.get(_type_name(dtype))
    if bindings is None:
        raise failed(
            f"dtype is {shown(dtype)}; it must be one of {', '.join(table)}",
            ErrorCode.INVALID_ARGUMENT,
        )
    return bindings


def _comparison(cmp: Cmp | str | int) -> Cmp:
    try:
        return _COMPARISONS[cmp] if isinstance(cmp, str) else Cmp(cmp)
    except Exception:  # the sentence of the enumeration runs the object's own code
        raise failed(
            f"cmp is {shown(cmp)}; it must be a Cmp or one of {', '.join(_COMPARISONS)}",
            ErrorCode.INVALID_ARGUMENT,
        ) from None


def _local(memory: Local, size: int | None) -> tuple[Local, int | None]:
    """`memory` in the terms of the bindings, which know addresses and buffers, but no tensors."""
    if isinstance(memory, int) or not hasattr(memory, "data_ptr"):
        return memory, size
    if memory.device.type != "cpu" or not memory.is_contiguous():
        raise failed(
            f"the local tensor is on {memory.device} and"
            f" {'' if memory.is_contiguous() else 'not '}contiguous; it must be contiguous and on"
            " the CPU",
            ErrorCode.INVALID_ARGUMENT,
        )
    if memory.is_conj() or memory.is_neg():
        raise failed(
            "the local tensor is conjugated or negated lazily; resolve_conj() and resolve_neg()",
            ErrorCode.INVALID_ARGUMENT,
        )
    available = memory.numel() * memory.element_size()
    if size is not None and size > available:
        raise failed(
            f"size is {size} bytes, but the tensor has {available}", ErrorCode.INVALID_ARGUMENT
        )
    return memory.data_ptr(), available if size is None else size


# ---- Put and get


def shmem_putmem(dest: int, source: Local, size: int | None, pe: int) -> None:
    """Copies `size` bytes from local `source` to `dest` on `pe`.

    Any alignment; the two do not overlap. With `size` None the whole of the object `source`.
    """
    _core.putmem(dest, *_local(source, size), pe)


def shmem_getmem(dest: Local, source: int, size: int | None, pe: int) -> None:
    """Copies `size` bytes from `source` on `pe` to local `dest`, a writable object or an address.

    Any alignment; the two do not overlap. With `size` None the whole of the object `dest`.
    """
    memory, size = _local(dest, size)
    _core.getmem(memory, source, size, pe)


def shmem_p(dest: int, value: float, pe: int, dtype: Any = "uint64") -> None:
    """Puts one element. `dtype` is a type of atomics, or "float32" or "float64"."""
    _of_type(_ELEMENTS, dtype).p(dest, value, pe)


def shmem_g(source: int, pe: int, dtype: Any = "uint64") -> float:
    """Gets one element. `dtype` is a type of atomics, or "float32" or "float64"."""
    return _of_type(_ELEMENTS, dtype).g(source, pe)


# ---- Atomics


def shmem_atomic_fetch(target: int, pe: int, dtype: Any = "uint64") -> int:
    """Reads the word."""
    return _of_type(_WORDS, dtype).fetch(target, pe)


def shmem_atomic_set(target: int, value: int, pe: int, dtype: Any = "uint64") -> None:
    """Writes the word."""
    _of_type(_WORDS, dtype).set(target, value, pe)


def shmem_atomic_swap(target: int, value: int, pe: int, dtype: Any = "uint64") -> int:
    """Writes the word and returns what it was."""
    return _of_type(_WORDS, dtype).swap(target, value, pe)


def shmem_atomic_compare_swap(
    target: int, expected: int, value: int, pe: int, dtype: Any = "uint64"
) -> int:
    """Writes the word where it was `expected`. Returns what it was."""
    return _of_type(_WORDS, dtype).compare_swap(target, expected, value, pe)


def shmem_atomic_add(target: int, value: int, pe: int, dtype: Any = "uint64") -> None:
    """Adds to the word; overflow wraps."""
    _of_type(_WORDS, dtype).add(target, value, pe)


def shmem_atomic_fetch_add(target: int, value: int, pe: int, dtype: Any = "uint64") -> int:
    """Adds to the word and returns what it was; overflow wraps."""
    return _of_type(_WORDS, dtype).fetch_add(target, value, pe)


def shmem_atomic_inc(target: int, pe: int, dtype: Any = "uint64") -> None:
    """Adds 1 to the word; overflow wraps."""
    _of_type(_WORDS, dtype).inc(target, pe)


def shmem_atomic_fetch_inc(target: int, pe: int, dtype: Any = "uint64") -> int:
    """Adds 1 to the word and returns what it was; overflow wraps."""
    return _of_type(_WORDS, dtype).fetch_inc(target, pe)


def shmem_atomic_and(target: int, value: int, pe: int, dtype: Any = "uint64") -> None:
    """Clears the bits of the word that `value` does not have."""
    _of_type(_WORDS, dtype).and_(target, value, pe)


def shmem_atomic_fetch_and(target: int, value: int, pe: int, dtype: Any = "uint64") -> int:
    """As `shmem_atomic_and()`; returns what the word was."""
    return _of_type(_WORDS, dtype).fetch_and(target, value, pe)


def shmem_atomic_or(target: int, value: int, pe: int, dtype: Any = "uint64") -> None:
    """Sets the bits of `value` in the word."""
    _of_type(_WORDS, dtype).or_(target, value, pe)


def shmem_atomic_fetch_or(target: int, value: int, pe: int, dtype: Any = "uint64") -> int:
    """As `shmem_atomic_or()`; returns what the word was."""
    return _of_type(_WORDS, dtype).fetch_or(target, value, pe)


def shmem_atomic_xor(target: int, value: int, pe: int, dtype: Any = "uint64") -> None:
    """Flips the bits of `value` in the word."""
    _of_type(_WORDS, dtype).xor(target, value, pe)


def shmem_atomic_fetch_xor(target: int, value: int, pe: int, dtype: Any = "uint64") -> int:
    """As `shmem_atomic_xor()`; returns what the word was."""
    return _of_type(_WORDS, dtype).fetch_xor(target, value, pe)


# ---- Signals and waits


def shmem_putmem_signal(
    dest: int,
    source: Local,
    size: int | None,
    sig_addr: int,
    signal: int,
    sig_op: SignalOp | int,
    pe: int,
) -> None:
    """As `shmem_putmem()`, then sets or adds `signal` at the uint64 `sig_addr` on the same PE.

    Who sees the signal by a wait, a test or `shmem_signal_fetch()` sees the data.
    """
    _core.putmem_signal(dest, *_local(source, size), sig_addr, signal, _signal_op(sig_op), pe)


def _signal_op(sig_op: SignalOp | int) -> SignalOp:
    try:
        return SignalOp(sig_op)
    except Exception:  # as above
        raise failed(
            f"sig_op is {shown(sig_op)}; it must be SignalOp.SET or SignalOp.ADD",
            ErrorCode.INVALID_ARGUMENT,
        ) from None


def shmem_signal_fetch(sig_addr: int) -> int:
    """This PE's signal word. The data that was put with it is visible."""
    return _core.signal_fetch(sig_addr)


def shmem_signal_wait_until(sig_addr: int, cmp: Cmp | str, value: int) -> int:
    """As `shmem_wait_until()` on a signal word. Returns the value seen."""
    return _core.signal_wait_until(sig_addr, _comparison(cmp), value)


def shmem_test(ivar: int, cmp: Cmp | str, value: int, dtype: Any = "uint64") -> bool:
    """Whether `*ivar cmp value` holds now, on this PE's copy. `cmp` is a `Cmp`, or "==" to "<="."""
    return _of_type(_WORDS, dtype).test(ivar, _comparison(cmp), value)


def shmem_wait_until(ivar: int, cmp: Cmp | str, value: int, dtype: Any = "uint64") -> None:
    """Returns once `*ivar cmp value` holds on this PE's copy. `cmp` is a `Cmp`, or "==" to "<=".

    Blocks, at most `MORI_SHMEM_TIMEOUT` seconds if that is set; other Python threads run meanwhile.
    A Ctrl-C is raised when the wait ends; a loop over `shmem_test()` can be interrupted at any
    time. While the comparison does not hold, raises also PEER_LOST if a PE dies or leaves, TIMEOUT,
    and NOT_INITIALIZED if another thread finalizes this PE.
    """
    _of_type(_WORDS, dtype).wait_until(ivar, _comparison(cmp), value)


# ---- Ordering


def shmem_fence() -> None:
    """Orders this thread's puts to each PE: those before are visible there before those after."""
    _core.fence()


def shmem_quiet() -> None:
    """Completes all puts and atomics of this thread: they are visible to every PE on return."""
    _core.quiet()
