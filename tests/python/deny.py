"""Runs a command for which one system call fails, as in a container or a service with a filter.

deny.py ERROR NUMBER -- command…           the call of this number fails with this errno
deny.py ERROR NUMBER ARGUMENT -- command…  only where this is its first argument
deny.py only NUMBER… -- command…           any other call than these ends its process
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SECCOMP_MODE_FILTER = 2
RET_ALLOW, RET_ERRNO, RET_KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER_AT, FIRST_ARGUMENT_AT = 0, 16  # offsets in struct seccomp_data


def call_numbers() -> dict[str, int]:
    """The system calls of this machine, as the C compiler's headers have them."""
    macros = subprocess.run(
        ["cc", "-E", "-dM", "-include", "sys/syscall.h", "-xc", os.devnull],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pairs = (line.split()[1:3] for line in macros.splitlines() if "#define __NR_" in line)
    return {name[len("__NR_") :]: int(text) for name, text in pairs if text.isdigit()}


def filter_of(number: int, first_argument: int | None, error: int) -> list[tuple[int, ...]]:
    deny = (RETURN, 0, 0, RET_ERRNO | error)
    allow = (RETURN, 0, 0, RET_ALLOW)
    if first_argument is None:
        return [(LOAD_WORD, 0, 0, NUMBER_AT), (JUMP_IF_EQUAL, 0, 1, number), deny, allow]
    return [
        (LOAD_WORD, 0, 0, NUMBER_AT),
        (JUMP_IF_EQUAL, 0, 3, number),
        (LOAD_WORD, 0, 0, FIRST_ARGUMENT_AT),
        (JUMP_IF_EQUAL, 0, 1, first_argument),
        deny,
        allow,
    ]


def filter_of_all_but(numbers: list[int]) -> list[tuple[int, ...]]:
    allow = (RETURN, 0, 0, RET_ALLOW)
    pairs = [((JUMP_IF_EQUAL, 0, 1, number), allow) for number in numbers]
    each = [instruction for pair in pairs for instruction in pair]
    return [(LOAD_WORD, 0, 0, NUMBER_AT), *each, (RETURN, 0, 0, RET_KILL_PROCESS)]


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def install(instructions: list[tuple[int, ...]]) -> None:
    """From here on the filter holds for this process and all that it starts."""
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code)
    program = Program(len(instructions), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    done = (
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        and libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program)) == 0
    )
    if not done:
        raise OSError(ctypes.get_errno(), "no filter for system calls")


def main() -> None:
    separator = sys.argv.index("--")
    command = sys.argv[separator + 1 :]
    if sys.argv[1] == "only":
        install(filter_of_all_but(list(map(int, sys.argv[2:separator]))))
    else:
        error, number, *arguments = map(int, sys.argv[1:separator])
        install(filter_of(number, arguments[0] if arguments else None, error))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
