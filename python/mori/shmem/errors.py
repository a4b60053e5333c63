"""The one exception of `mori.shmem`, and how its sentences get the name of the call that failed."""

from __future__ import annotations

import sys

from mori._core import ErrorCode

_MAX_SHOWN = 100


class ShmemError(RuntimeError):
    """A call failed. `str(error)` is one sentence for people, `error.code` is for programs."""

    code: ErrorCode

    def __init__(self, message: str, code: ErrorCode) -> None:
        super().__init__(message, code)
        self.code = ErrorCode(code)

    def __str__(self) -> str:
        return str(self.args[0])


# Shown in tracebacks and pickled under the name that users import.
ShmemError.__module__ = "mori.shmem"


def failed(sentence: str, code: ErrorCode) -> ShmemError:
    """The error of the public call that is under way, which is named in front of `sentence`.

    The bindings come here, too, so that an error names the call that the program made, and not one
    that the package made for it.
    """
    call = _public_call()
    return ShmemError(f"{call}: {sentence}" if call else sentence, code)


def shown(value: object) -> str:
    """A value of the program for a sentence: on one line, printable, and not long."""
    try:
        text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in ascii(value))
    except Exception:  # of the object's own code, or for an int of thousands of digits
        return f"<{type(value).__name__}>"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _public_call() -> str:
    """The outermost public function of this package on the stack; empty if there is none."""
    name = ""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("mori.shmem"):
        if frame.f_code.co_name.startswith(("shmem_", "mori_shmem_", "symm_mori_shmem_")):
            name = frame.f_code.co_name
        frame = frame.f_back
    return name
