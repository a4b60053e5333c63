"""What tests of code for GPUs share: compilers, and the paths through what they made."""

from __future__ import annotations

import concurrent.futures
import ctypes
import ctypes.util
import dataclasses
import functools
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from typing import NoReturn

import pytest

ROOT = pathlib.Path(__file__).parents[2]
INCLUDE = ROOT / "include"
SOURCE = ROOT / "tests" / "device" / "every_operation.cu"
BUILD_SECONDS = 300
# From 18 on, clang has the atomics with a scope that AMD GPUs need; 19 is what was looked at most.
CLANGS_FOR_AMD = [f"clang-{version}" for version in (19, 22, 21, 20, 18)]
CLANGS_FOR_GFX950 = ["clang-22", "clang-21", "clang-20"]
CLANGS_FOR_NVIDIA = CLANGS_FOR_AMD + [f"clang-{version}" for version in (17, 16, 15, 14)]


# ---- compilers


def is_missing(what: str, can_be_installed: bool) -> NoReturn:
    if can_be_installed:
        pytest.fail(f"{what} is missing: run `tools/setup.sh test`")
    pytest.skip(f"{what} is missing, and tools/setup.sh has none for this system")


def nvidia_packages() -> pathlib.Path:
    return pathlib.Path(sysconfig.get_path("purelib")) / "nvidia"


def find_nvcc() -> str:
    places = [os.environ.get("MORI_NVCC"), "nvcc", "/usr/local/cuda/bin/nvcc"]
    places += [str(place) for place in nvidia_packages().glob("cu*/bin/nvcc")]
    for place in places:
        if place and shutil.which(place):
            return place
    is_missing("nvcc", platform.machine() in ("x86_64", "aarch64"))


def find_clang(names: list[str]) -> str:
    for name in names:
        if shutil.which(name):
            return name
    is_missing(names[0], shutil.which("apt-get") is not None)


def find_nvrtc() -> str:
    # Packages first: PyTorch loads this one too where it has it.
    for place in nvidia_packages().glob("cu*/lib/libnvrtc.so.*"):
        return str(place)
    for place in pathlib.Path("/usr/local/cuda").glob("lib*/libnvrtc.so.*"):
        return str(place)
    found = ctypes.util.find_library("nvrtc")
    return found or is_missing("libnvrtc", platform.machine() in ("x86_64", "aarch64"))


def compiled(command: list[str], source: pathlib.Path = SOURCE) -> str:
    """What the compiler said, which is more than nothing only where it was asked to speak."""
    done = subprocess.run(
        [*command, "-std=c++17", f"-I{INCLUDE}", str(source)],
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_SECONDS,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def by_nvcc(output: pathlib.Path, *options: str, source: pathlib.Path = SOURCE) -> str:
    nvcc = find_nvcc()
    command = [nvcc, *options, "-Werror", "all-warnings", "-o", str(output)]
    if "-ptx" not in options:  # not looked at: as fast as this nvcc can
        about = subprocess.run([nvcc, "--help"], capture_output=True, text=True, check=True).stdout
        command += ["-Ofc", "max"] if "--Ofast-compile" in about else ["-Xcicc", "-O1"]
    compiled(command, source)
    return output.read_text() if "-ptx" in options else ""


def needs_of(ptx: concurrent.futures.Future[str], file: pathlib.Path, *options: str) -> str:
    """What the kernels of this PTX need on sm_90, in the words of ptxas."""
    ptx.result()  # the file is there
    command = [find_nvcc(), "-cubin", "-arch=sm_90", "-Xptxas", "-v", *options]
    return compiled([*command, "-o", str(file.with_suffix(".cubin"))], file)


def by_clang_for_nvidia(output: pathlib.Path, option: str) -> str:
    command = [find_clang(CLANGS_FOR_NVIDIA), "-x", "cuda", "--cuda-device-only"]
    command += ["--cuda-gpu-arch=sm_80", "-nocudainc", "-nocudalib", "-Wno-unknown-cuda-version"]
    command += ["-nostdinc", "-O2", "-fno-exceptions", "-Wall", "-Wextra", "-Werror"]
    compiled([*command, option, "-S", "-o", str(output)])
    return "" if option == "-fsyntax-only" else output.read_text()


def amd_gpus() -> list[str]:
    """Those that a compiler here knows."""
    known = ["gfx90a", "gfx942", "gfx1100"]
    return [*known, "gfx950"] if any(map(shutil.which, CLANGS_FOR_GFX950)) else known


def by_clang_for_amd(
    output: pathlib.Path, option: str, gpu: str, source: pathlib.Path = SOURCE
) -> str:
    clangs = CLANGS_FOR_GFX950 if gpu == "gfx950" else CLANGS_FOR_AMD
    command = [find_clang(clangs), "-x", "hip", "--cuda-device-only"]
    command += [f"--offload-arch={gpu}", "-nogpuinc", "-nogpulib"]
    command += ["-nostdinc", "-O2", "-fno-exceptions", "-Wall", "-Wextra", "-Werror"]
    compiled([*command, option, "-S", "-o", str(output)], source)
    return "" if option == "-fsyntax-only" else output.read_text()


def by_nvrtc(architecture: str) -> str:
    """The PTX. NVRTC has no -Werror: its log, which has the warnings, must be empty."""
    library = ctypes.CDLL(find_nvrtc())
    program = ctypes.c_void_p()
    options = ["--std=c++17", f"--gpu-architecture={architecture}", "-default-device"]
    options += [f"-I{INCLUDE}"]
    major = ctypes.c_int()
    assert library.nvrtcVersion(ctypes.byref(major), ctypes.byref(ctypes.c_int())) == 0
    if major.value >= 13:  # then it inlines nothing: not for searches along paths
        options += ["--Ofast-compile=max"]
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    source = SOURCE.read_bytes()
    assert (
        library.nvrtcCreateProgram(ctypes.byref(program), source, SOURCE.name.encode(), 0, 0, 0)
        == 0
    )
    code = library.nvrtcCompileProgram(program, len(options), encoded)

    def text_of(what: str) -> str:
        bytes_needed = ctypes.c_size_t()
        assert getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(bytes_needed)) == 0
        text = ctypes.create_string_buffer(bytes_needed.value)
        assert getattr(library, f"nvrtcGet{what}")(program, text) == 0
        return text.value.decode()

    log = text_of("ProgramLog")
    assert code == 0 and not log.strip(), log
    return text_of("PTX")


# ---- code as what may follow what


Statements = list[str]
JUMP = re.compile(r"(@\S+ )?(bra|brx|call|exit|ret|trap|s_c?branch|s_endpgm|s_setpc)")
# Labels, what the searches ask about, and what says which lanes take part: the rest is arithmetic.
LOOKED_AT = re.compile(
    rf".*:$|{JUMP.pattern}|\.branchtargets|(@\S+ )?(ld|st|atom|red|fence|membar|bar|grid|nano)"
    r"|flat_|global_|buffer_|s_wait|s_barrier|.*\bexec"
)


@functools.cache
def kernels_of(text: str) -> dict[str, Statements]:
    """The code of each kernel of PTX or of AMD's assembly, as far as it is looked at."""
    if ".entry" in text:
        bodies = re.findall(r"\.entry (?:Call|Mori)(\w+)\([^{]*\n\{(.*?)\n\}", text, re.S)
        statements_of = ptx_statements
    else:
        bodies = re.findall(r"^(?:Call|Mori)(\w+):(.*?)^\.Lfunc_end", text, re.S | re.M)
        statements_of = amd_statements
    return {name: list(filter(LOOKED_AT.match, statements_of(body))) for name, body in bodies}


def ptx_statements(body: str) -> Iterator[str]:
    body = re.sub(r"//.*", "", body)
    body = re.sub(r"^(\s*[$\w]+:)", r"\1;", body, flags=re.M)
    return (" ".join(statement.split()).lstrip("{} ") for statement in body.split(";"))


def amd_statements(body: str) -> Iterator[str]:
    called = "?"  # the last function whose address was taken, which comes right before the call
    for line in body.splitlines():
        text = " ".join(line.split(";")[0].split())
        symbol = re.search(r"(\w+)@(?:rel|got)", text)
        if symbol and symbol[1] != "globalGpuStates":
            called = symbol[1]
        yield f"call {called}" if text.startswith("s_swappc") else text


LEAVES_A_LOOP = re.compile(r"s_and(n2|_not1)_b\d\d exec")


def successors(statements: Statements) -> list[list[int]]:
    """Of each statement, those that may be next. Calls return, but of what fails.

    Lanes of AMD's wavefronts that take no part in some code wait for those that do: it may be
    skipped where there is none of them, and counts as gone through here.
    """
    labels = {text[:-1]: index for index, text in enumerate(statements) if text.endswith(":")}
    follow = [[index + 1] for index in range(len(statements))]
    follow[-1] = []
    for index, text in enumerate(statements):
        jump = JUMP.match(text)
        if not jump:
            continue
        assert jump[2] != "s_setpc", f"not understood: {text}"
        if jump[2] == "call" and "Fail" not in text:
            continue
        if not jump[1] and jump[2] != "s_cbranch":
            follow[index] = []
        if jump[2] in ("bra", "s_branch") or (
            jump[2] == "s_cbranch"
            and ("execz" not in text or LEAVES_A_LOOP.match(statements[index - 1]))
        ):
            follow[index].append(labels[text.split()[-1]])
        if jump[2] == "brx":
            targets = statements[labels[text.split()[-1]] + 1].replace(",", "").split()
            follow[index] += [labels[target] for target in targets[1:]]
    return follow


@dataclasses.dataclass(frozen=True)
class Order:
    """In `kernels`, no path leads from `first` to `later` without `fence` between them."""

    name: str
    kernels: str
    first: str | None  # None: the start of the kernel
    fence: str
    later: str
    first_repeats: bool = False  # only such of `first` as are in a loop

    def faults(self, text: str, without_fence: bool = False) -> list[str | None]:
        """Of each kernel, the fault or None; of the same code without any such fence if asked."""
        code = [v for k, v in kernels_of(text).items() if re.fullmatch(f"Shmem{self.kernels}", k)]
        assert code, f"{self.name}: no kernel is called Shmem{self.kernels}"
        if without_fence:
            code = [[text for text in body if not re.match(self.fence, text)] for body in code]
        return [self.fault(statements) for statements in code]

    def fault(self, statements: Statements) -> str | None:
        follow = successors(statements)

        def reached(pending: list[int], fence: str | None) -> set[int]:
            seen: set[int] = set()
            while pending:
                index = pending.pop()
                if index not in seen and not (fence and re.match(fence, statements[index])):
                    seen.add(index)
                    pending += follow[index]
            return seen

        firsts = [i for i, text in enumerate(statements) if re.match(self.first or "", text)]
        if self.first_repeats:
            firsts = [i for i in firsts if i in reached(list(follow[i]), None)]
        assert firsts, f"{self.name}: nothing is {self.first}"
        assert any(re.match(self.later, text) for text in statements), f"nothing: {self.later}"
        ahead = [0] if self.first is None else [i for first in firsts for i in follow[first]]
        for index in reached(ahead, self.fence):
            if re.match(self.later, statements[index]):
                return f"{self.name}: `{statements[index]}` without {self.fence}"
        return None
