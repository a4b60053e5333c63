"""The one exception of `mori.shmem`."""

from __future__ import annotations

from mori._core import ErrorCode


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
