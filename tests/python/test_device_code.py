"""The device API compiled by every compiler it is for, and the order that their code keeps.

No GPU is needed. tests/device/every_operation.cu has each operation in a kernel of its own. The
paths through the code of each kernel are followed: none may lead from one access to a later one
without the fence that belongs between them. Each search is also shown code with a fault, and must
find it.
"""

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
DEVICE_API = INCLUDE / "mori" / "shmem" / "shmem_device_api.hpp"
SOURCE = ROOT / "tests" / "device" / "every_operation.cu"
BUILD_SECONDS = 300
FEWER_KERNELS = "-DFEWER_KERNELS"
PTX = ["nvcc", "clang"]
AMD = ["gfx90a", "gfx942", "gfx1100"]
# From 18 on, clang has the atomics with a scope that AMD GPUs need; 19 is what was looked at most.
CLANGS_FOR_AMD = [f"clang-{version}" for version in (19, 22, 21, 20, 18)]
CLANGS_FOR_NVIDIA = CLANGS_FOR_AMD + [f"clang-{version}" for version in (17, 16, 15, 14)]

pytestmark = pytest.mark.timeout(600)  # the first tests wait for the compilers


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
    return ctypes.util.find_library("nvrtc") or pytest.skip("libnvrtc is not here")


def compiled(command: list[str]) -> None:
    done = subprocess.run(
        [*command, "-std=c++17", f"-I{INCLUDE}", str(SOURCE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_SECONDS,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def by_nvcc(output: pathlib.Path, *options: str) -> str:
    nvcc = find_nvcc()
    command = [nvcc, *options, "-Werror", "all-warnings", "-o", str(output)]
    if "-ptx" not in options:  # not looked at: as fast as this nvcc can
        about = subprocess.run([nvcc, "--help"], capture_output=True, text=True, check=True).stdout
        command += ["-Ofc", "max"] if "--Ofast-compile" in about else ["-Xcicc", "-O1"]
    compiled(command)
    return output.read_text() if "-ptx" in options else ""


def by_clang_for_nvidia(output: pathlib.Path, option: str) -> str:
    command = [find_clang(CLANGS_FOR_NVIDIA), "-x", "cuda", "--cuda-device-only"]
    command += ["--cuda-gpu-arch=sm_80", "-nocudainc", "-nocudalib", "-Wno-unknown-cuda-version"]
    command += ["-nostdinc", "-O2", "-fno-exceptions", "-Wall", "-Wextra", "-Werror"]
    compiled([*command, option, "-S", "-o", str(output)])
    return "" if option == "-fsyntax-only" else output.read_text()


def by_clang_for_amd(output: pathlib.Path, option: str, gpu: str) -> str:
    command = [find_clang(CLANGS_FOR_AMD), "-x", "hip", "--cuda-device-only"]
    command += [f"--offload-arch={gpu}", "-nogpuinc", "-nogpulib"]
    command += ["-nostdinc", "-O2", "-fno-exceptions", "-Wall", "-Wextra", "-Werror"]
    compiled([*command, option, "-S", "-o", str(output)])
    return "" if option == "-fsyntax-only" else output.read_text()


def by_nvrtc() -> str:
    """The PTX. NVRTC has no -Werror: its log, which has the warnings, must be empty."""
    library = ctypes.CDLL(find_nvrtc())
    program = ctypes.c_void_p()
    options = ["--std=c++17", "--gpu-architecture=compute_80", "-default-device", f"-I{INCLUDE}"]
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


Builds = dict[str, "concurrent.futures.Future[str]"]


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builds]:
    """What each compiler made of all operations: begun together, the longest first."""
    folder = tmp_path_factory.mktemp("device")
    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
    nvcc = functools.partial(pool.submit, by_nvcc)
    clang = functools.partial(pool.submit, by_clang_for_nvidia)
    amd = functools.partial(pool.submit, by_clang_for_amd)
    begun = {
        "nvcc": nvcc(folder / "nvcc.ptx", "-ptx", "-arch=compute_80", FEWER_KERNELS),
        **{gpu: amd(folder / f"{gpu}.s", FEWER_KERNELS, gpu) for gpu in AMD},
        "nvcc, linked": nvcc(folder / "linked.o", "-c", "-rdc=true", "-arch=sm_90"),
        "nvcc, sm_90": nvcc(folder / "sm_90.cubin", "-cubin", "-arch=sm_90"),
        "clang": clang(folder / "clang.ptx", FEWER_KERNELS),
        "nvrtc": pool.submit(by_nvrtc),
        "clang, all": clang(folder / "all.ptx", "-fsyntax-only"),
        "amd, all": amd(folder / "all.s", "-fsyntax-only", "gfx942"),
    }
    yield begun
    pool.shutdown(cancel_futures=True)


def code_of(builds: Builds, compiler: str) -> str:
    if isinstance(builds[compiler].exception(), AssertionError):
        pytest.fail(f"{compiler} did not compile every operation", pytrace=False)
    return builds[compiler].result()


@pytest.mark.parametrize(
    "compiler", [*PTX, *AMD, "nvrtc", "nvcc, linked", "nvcc, sm_90", "clang, all", "amd, all"]
)
def test_every_operation_compiles_without_a_warning(builds: Builds, compiler: str) -> None:
    builds[compiler].result()


def test_every_operation_is_compiled_at_every_scope_for_both_sizes() -> None:
    command = [find_clang(CLANGS_FOR_NVIDIA), "-x", "cuda", "--cuda-device-only", "-nocudainc"]
    command += ["-nocudalib", "-nostdinc", f"-I{INCLUDE}", "-std=c++17", "-E", "-P"]

    def read(file: pathlib.Path) -> str:
        done = subprocess.run([*command, str(file)], capture_output=True, text=True, check=True)
        return done.stdout

    operations = re.findall(
        r"(template <typename T>\s+)?__attribute__\(\(device\)\) inline"
        r" __attribute__\(\(always_inline\)\) [^({]*?\b(Shmem\w+)\(",
        read(DEVICE_API),
    )
    assert len(operations) > 90
    for scope in ("", "Warp", "Block"):
        assert ("", f"ShmemPutMemSignal{scope}") in operations
    kernels = dict(re.findall(r"void Call(\w+)\([^{]*\) \{(.*?)(?=extern|$)", read(SOURCE), re.S))
    for template, operation in operations:
        for suffix in ("_u32", "_u64") if template else ("",):
            assert f"{operation}(" in kernels.get(operation + suffix, ""), operation + suffix


def test_device_headers_include_no_standard_header() -> None:
    headers = [DEVICE_API, *(DEVICE_API.parent / "device").glob("*.hpp")]
    assert len(headers) > 5
    for header in headers:
        for included in re.findall(r"#\s*include\s*(\S+)", header.read_text()):
            assert included.startswith('"mori/shmem/device/'), f"{header}: {included}"


# ---- code as what may follow what


Statements = list[str]
JUMP = re.compile(r"(@\S+ )?(bra|brx|call|exit|ret|trap|s_c?branch|s_endpgm|s_setpc)")
# Labels, what the searches ask about, and what says which lanes take part: the rest is arithmetic.
LOOKED_AT = re.compile(
    rf".*:$|{JUMP.pattern}|\.branchtargets|(@\S+ )?(ld|st|atom|red|fence|membar|bar)|flat_"
    r"|global_|buffer_|s_wait|s_barrier|.*\bexec"
)


@functools.cache
def kernels_of(text: str) -> dict[str, Statements]:
    """The code of each kernel of PTX or of AMD's assembly, as far as it is looked at."""
    if ".entry" in text:
        bodies = re.findall(r"\.entry Call(\w+)\([^{]*\n\{(.*?)\n\}", text, re.S)
        statements_of = ptx_statements
    else:
        bodies = re.findall(r"^Call(\w+):(.*?)^\.Lfunc_end", text, re.S | re.M)
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


PUT_SIGNAL = "PutMemSignal(Nbi)?"
COLLECTIVE = "(Broadcast|FCollect|AllToAll)Mem"
MEETING = "(SyncAll|BarrierAll)"
COMPLETION = "(Fence|Quiet)"
ANY_SCOPE = "(Warp|Block)?"
WAIT = "(Signal)?WaitUntil"
EXIT = r"(@\S+ )?ret\b|s_endpgm"


def ptx_orders() -> list[Order]:
    data = r"(@\S+ )?st\.(?!relaxed|param)|(@\S+ )?call\b.*CopyAny"
    fence = r"fence\.(release|acq_rel|sc)\.sys$"
    both = r"fence\.(acq_rel|sc)\.sys$"
    block = r"barrier\.sync 0$"
    warp = r"bar\.warp\.sync 0xffffffff$"
    set_signal = r"st\.relaxed\.sys\.(global\.)?b64 "
    add_signal = r"atom\.relaxed\.sys\.(global\.)?add\.u64 "
    acquire = r"ld\.acquire\.sys\."
    byte_store, byte_load = r"st\.global\.[ub]8 ", r"ld\.global\.[ub]8 "
    rows = [
        Order("data, signal set", PUT_SIGNAL + ANY_SCOPE, data, fence, set_signal),
        Order("data, signal added", PUT_SIGNAL + ANY_SCOPE, data, fence, add_signal),
        Order("before a signal set", "SignalOp", byte_store, fence, set_signal),
        Order("before a signal added", "SignalOp", byte_store, fence, add_signal),
        Order("fence", f"{COMPLETION}{ANY_SCOPE}(_pe)?", byte_store, fence, byte_store),
        Order("fence acquires", f"Fence{ANY_SCOPE}", byte_store, both, byte_store),
        Order("before epochs", MEETING + ANY_SCOPE, byte_store, fence, set_signal),
        Order("behind epochs", MEETING + ANY_SCOPE, set_signal, acquire, byte_load, True),
        Order("data, epochs", COLLECTIVE + ANY_SCOPE, data, fence, set_signal),
        Order("behind collectives", COLLECTIVE + ANY_SCOPE, set_signal, acquire, EXIT),
        Order("wait", f"{WAIT}(_u32|_u64)?", None, acquire, r"st\.global\.[ub]"),
        Order("test", "(Test_.*|SignalFetch)", None, acquire, r"st\.global\.[ub]"),
    ]
    for scope, met in (("Block", block), ("Warp", warp)):
        rows += [
            Order(f"{scope} met behind data", f"{PUT_SIGNAL}{scope}", data, met, fence),
            Order(f"{scope} met in a collective", f"{COLLECTIVE}{scope}", data, met, fence),
            Order(f"{scope} met, fence", f"{COMPLETION}{scope}(_pe)?", byte_store, met, fence),
            Order(f"{scope} met, epochs", f"{MEETING}{scope}", byte_store, met, fence),
            Order(f"{scope} met behind epochs", f"{MEETING}{scope}", acquire, met, byte_load),
            Order(
                f"{scope} met behind a wait", f"{WAIT}{scope}(_.*)?", acquire, met, r"st\.global"
            ),
        ]
    return rows


def amd_orders(gpu: str) -> list[Order]:
    """As above; and the cache's write-back is waited for before the signal, by our own wait."""
    gfx9 = gpu.startswith("gfx9")
    wait = r"s_waitcnt .*vmcnt\(0\)" if gfx9 else r"s_waitcnt_vscnt null, 0x0$"
    release = r"buffer_wbl2\b" if gfx9 else wait  # gfx11: its stores pass by caches
    acquire = r"buffer_inv" if gfx9 else r"buffer_gl1_inv$"
    block = r"s_barrier$"
    store, add = r"(flat|global)_store_", r"(flat|global)_atomic_add"
    data = r"(flat|global)_store_|call .*CopyAny"
    poll = r"(flat|global)_load_\w+ .* (glc|sc1)\b"
    epoch = r"flat_store_(dwordx2|b64) "
    byte_store = r"global_store_(byte|b8) "
    byte_load = r"global_load_(ubyte|u8|d16_u8) "
    rows = [
        Order("data, signal added", PUT_SIGNAL + ANY_SCOPE, data, release, add),
        Order("before a signal added", "SignalOp", byte_store, release, add),
        Order("fence", f"{COMPLETION}{ANY_SCOPE}(_pe)?", byte_store, release, byte_store),
        Order("fence acquires", f"Fence{ANY_SCOPE}", byte_store, acquire, byte_store),
        Order("before epochs", MEETING + ANY_SCOPE, byte_store, release, epoch),
        Order("behind polls", MEETING + ANY_SCOPE, poll, acquire, byte_load, True),
        Order("wait", f"{WAIT}{ANY_SCOPE}(_u32|_u64)?", poll, acquire, store),
        Order("test", "(Test_.*|SignalFetch)", None, acquire, store),
        Order("block drained before it meets", f"{PUT_SIGNAL}Block", data, wait, block),
        Order("block drained before a fence", f"{COMPLETION}Block(_pe)?", byte_store, wait, block),
        Order("block met behind polls", f"{MEETING}Block", poll, block, byte_load),
        Order("block met behind a wait", f"{WAIT}Block(_.*)?", poll, block, store),
    ]
    if gfx9:
        written = r"(flat|global)_(store|atomic)_"
        rows += [
            Order("write-back, signal", PUT_SIGNAL + ANY_SCOPE, release, wait, written),
            Order("write-back, signal alone", "SignalOp", release, wait, written),
            Order("write-back, fence", f"{COMPLETION}{ANY_SCOPE}(_pe)?", release, wait, written),
            Order("write-back, epochs", MEETING + ANY_SCOPE, release, wait, written),
            Order("block met behind data", f"{PUT_SIGNAL}Block", data, block, release),
        ]
    return rows


ORDERS = [(compiler, order) for compiler in PTX for order in ptx_orders()]
ORDERS += [(gpu, order) for gpu in AMD for order in amd_orders(gpu)]
each_order = pytest.mark.parametrize(
    ("compiler", "order"), ORDERS, ids=[f"{name}: {order.name}" for name, order in ORDERS]
)


@each_order
def test_no_path_passes_by_a_fence(builds: Builds, compiler: str, order: Order) -> None:
    faults = order.faults(code_of(builds, compiler))
    assert faults == [None] * len(faults)


@each_order
def test_a_missing_fence_is_found(builds: Builds, compiler: str, order: Order) -> None:
    assert all(order.faults(code_of(builds, compiler), without_fence=True))


# ---- scope


def ptx_scope_faults(text: str) -> list[str]:
    """Accesses and fences that are not at system scope, or of another order than they should be."""

    def holds(words: list[str]) -> bool:
        if words[0] in ("atom", "red"):
            return {"relaxed", "sys"} <= set(words)
        if words[0] in ("fence", "membar"):
            return (
                len(words) == 3 and words[1] in ("release", "acq_rel", "sc") and words[2] == "sys"
            )
        ordered = {"relaxed", "acquire", "release"} & set(words)
        return "sys" in words if ordered else not {"cta", "cluster", "gpu", "mmio"} & set(words)

    found = re.findall(r"^\s*(?:@\S+\s+)?((?:atom|red|fence|membar|ld|st)\.[\w.:]+)", text, re.M)
    assert {"atom", "fence", "ld", "st"} <= {instruction.split(".")[0] for instruction in found}
    return [instruction for instruction in set(found) if not holds(instruction.split("."))]


@pytest.mark.parametrize("compiler", [*PTX, "nvrtc"])
def test_ptx_is_at_system_scope(builds: Builds, compiler: str) -> None:
    assert ptx_scope_faults(code_of(builds, compiler)) == []


@pytest.mark.parametrize("compiler", PTX)
@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        (r"fence\.", ".sys", ".gpu"),
        (r"fence\.", ".acq_rel", ".acquire"),
        (r"fence\.", ".acq_rel.sys", ".release.gpu"),
        (r"fence\.", "fence.acq_rel.sys", "membar.gl"),
        (r"atom\.", ".sys", ".gpu"),
        (r"atom\.", ".sys", ""),
        (r"atom\.", ".relaxed", ".acq_rel"),
        (r"ld\.acquire\.", ".sys", ".gpu"),
        (r"ld\.relaxed\.", ".sys", ".cta"),
        (r"st\.relaxed\.", ".sys", ".gpu"),
    ],
)
def test_ptx_at_another_scope_is_found(
    builds: Builds, compiler: str, kind: str, before: str, after: str
) -> None:
    text = code_of(builds, compiler)
    right = re.search(rf"\b{kind}[\w.]*", text)
    assert right and before in right[0]
    wrong = right[0].replace(before, after)
    assert ptx_scope_faults(text.replace(right[0], wrong, 1)) == [wrong]


# What says on an AMD GPU that an access is at system scope. Where no bit does, all reach the memory
# that other devices see: `glc` of an atomic only says that it has a result.
SYSTEM_SCOPE = {
    ("gfx90a", "load"): "glc",
    ("gfx942", "load"): "sc0 sc1",
    ("gfx942", "store"): "sc0 sc1",
    ("gfx942", "atomic"): "sc1",
    ("gfx1100", "load"): "glc",
}


def amd_scope_faults(text: str, gpu: str) -> list[str]:
    """Atomic operations that are not one instruction at system scope."""
    found = []
    for kernel, statements in kernels_of(text).items():
        named = re.fullmatch(r"ShmemAtomic(\w+)_u\d\d", kernel)
        if named:
            kind = {"Fetch": "load", "Set": "store"}.get(named[1], "atomic")
            scope = SYSTEM_SCOPE.get((gpu, kind), "")
            if not any(re.match(rf"(flat|global)_{kind}_.*{scope}$", text) for text in statements):
                found.append(kernel)
    return found


@pytest.mark.parametrize("gpu", AMD)
def test_amd_atomics_are_at_system_scope(builds: Builds, gpu: str) -> None:
    assert amd_scope_faults(code_of(builds, gpu), gpu) == []


@pytest.mark.parametrize(("gpu", "bit"), [("gfx90a", "glc"), ("gfx942", "sc1"), ("gfx1100", "glc")])
def test_amd_atomics_at_another_scope_are_found(builds: Builds, gpu: str, bit: str) -> None:
    found = amd_scope_faults(code_of(builds, gpu).replace(f" {bit}", ""), gpu)
    kinds = [kind for of_gpu, kind in SYSTEM_SCOPE if of_gpu == gpu]
    assert len(found) == 2 * (14 if "atomic" in kinds else len(kinds))


# ---- the rest of the code


def bytes_of(symbol: str, text: str) -> list[int]:
    sizes = re.findall(
        rf"^(?:\.\w+ )?\.(?:global|const) .*\b{symbol}\[(\d+)\]"
        rf"|^\s*\.size\s+{symbol}, (\d+)",
        text,
        re.M,
    )
    return [int(of_ptx or of_amd) for of_ptx, of_amd in sizes]


@pytest.mark.parametrize("compiler", [*PTX, *AMD, "nvrtc"])
def test_the_state_is_where_the_host_looks_for_it(builds: Builds, compiler: str) -> None:
    text = code_of(builds, compiler)
    assert len(bytes_of("globalGpuStates", text)) == 1
    assert bytes_of("globalGpuStates", text) == bytes_of("as_large_as_the_state", text)
    assert bytes_of("globalGpuStates", text.replace("globalGpu", "_ZL15globalGpu")) == []


def other_calls(text: str) -> set[str]:
    """What kernels call, but failure and copies: else the paths followed here would lack it."""
    calls = {
        statement
        for statements in kernels_of(text).values()
        for statement in statements
        if re.match(r"(@\S+ )?call\b", statement)
    }
    assert any("FailWithoutState" in call for call in calls)
    return {call for call in calls if not re.search(r"Fail|CopyAny", call)}


@pytest.mark.parametrize("compiler", [*PTX, *AMD])
def test_only_failure_and_copies_are_called(builds: Builds, compiler: str) -> None:
    text = code_of(builds, compiler)
    assert other_calls(text) == set()
    assert other_calls(text.replace("FailOutOfReach", "Quiet")) != set()
