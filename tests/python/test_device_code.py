"""The device API compiled by every compiler it is for, and the order that their code keeps.

No GPU is needed. tests/device/every_operation.cu has each operation in a kernel of its own, and
src/kernels/library_kernels.cu has those of the library. The paths through the code of each kernel
are followed: none may lead from one access to a later one without the fence that belongs between
them. Each search is also shown code with a fault, and must find it.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
import pathlib
import re
import subprocess
from collections.abc import Iterator

import pytest
from device_code_support import (
    CLANGS_FOR_NVIDIA,
    INCLUDE,
    ROOT,
    SOURCE,
    Order,
    amd_gpus,
    by_clang_for_amd,
    by_clang_for_nvidia,
    by_nvcc,
    by_nvrtc,
    find_clang,
    kernels_of,
    needs_of,
)

DEVICE_API = INCLUDE / "mori" / "shmem" / "shmem_device_api.hpp"
LIBRARY_SOURCE = ROOT / "src" / "kernels" / "library_kernels.cu"
FEWER_KERNELS = "-DFEWER_KERNELS"
# From compute_90 on, where the compiler knows it, what only has to release has a fence of its own.
PTX = ["nvcc", "nvcc, compute_90", "clang"]
NVRTC = ["nvrtc", "nvrtc, compute_90"]
AMD = amd_gpus()
# The library's kernels: where an epoch can be told from data by its scope.
AMD_LIBRARY = [gpu for gpu in AMD if gpu in ("gfx942", "gfx950")]

pytestmark = pytest.mark.timeout(600)  # the first tests wait for the compilers
Builds = dict[str, "concurrent.futures.Future[str]"]


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builds]:
    """What each compiler made of all operations: begun together, the longest first."""
    folder = tmp_path_factory.mktemp("device")
    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
    nvcc = functools.partial(pool.submit, by_nvcc)
    clang = functools.partial(pool.submit, by_clang_for_nvidia)
    amd = functools.partial(pool.submit, by_clang_for_amd)
    library = folder / "library.ptx"
    options = ["-ptx", "-arch=compute_90", f"-I{ROOT / 'src'}"]
    ptx_90 = nvcc(folder / "90.ptx", "-ptx", "-arch=compute_90", FEWER_KERNELS)
    library_ptx = nvcc(library, *options, source=LIBRARY_SOURCE)
    begun = {
        "nvcc": nvcc(folder / "nvcc.ptx", "-ptx", "-arch=compute_80", FEWER_KERNELS),
        "nvcc, compute_90": ptx_90,
        **{gpu: amd(folder / f"{gpu}.s", FEWER_KERNELS, gpu) for gpu in AMD},
        **{
            f"library, {gpu}": amd(
                folder / f"library_{gpu}.s", f"-I{ROOT / 'src'}", gpu, LIBRARY_SOURCE
            )
            for gpu in AMD_LIBRARY
        },
        "nvcc, linked": nvcc(folder / "linked.o", "-c", "-rdc=true", "-arch=sm_90"),
        "nvcc, sm_90": nvcc(folder / "sm_90.cubin", "-cubin", "-arch=sm_90"),
        "clang": clang(folder / "clang.ptx", FEWER_KERNELS),
        "nvrtc": pool.submit(by_nvrtc, "compute_80"),
        "nvrtc, compute_90": pool.submit(by_nvrtc, "compute_90"),
        "clang, all": clang(folder / "all.ptx", "-fsyntax-only"),
        "amd, all": amd(folder / "all.s", "-fsyntax-only", "gfx942"),
        "library": library_ptx,
        "nvcc, needs": pool.submit(needs_of, ptx_90, folder / "90.ptx"),
        "nvcc, 64 registers": pool.submit(needs_of, ptx_90, folder / "90.ptx", "-maxrregcount=64"),
        "library, needs": pool.submit(needs_of, library_ptx, library),
        "library, few registers": pool.submit(needs_of, library_ptx, library, "-maxrregcount=32"),
    }
    yield begun
    pool.shutdown(cancel_futures=True)


def code_of(builds: Builds, compiler: str) -> str:
    if isinstance(builds[compiler].exception(), AssertionError):
        pytest.fail(f"{compiler} did not compile every operation", pytrace=False)
    return builds[compiler].result()


@pytest.mark.parametrize(
    "compiler",
    [*PTX, *AMD, *NVRTC, "nvcc, linked", "nvcc, sm_90", "clang, all", "amd, all", "library"],
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


PUT_SIGNAL = "PutMemSignal(Nbi)?"
COLLECTIVE = "(Broadcast|FCollect|AllToAll)Mem"
MEETING = "(SyncAll|BarrierAll)(OrLost)?"
COMPLETION = "(Fence|Quiet)"
ANY_SCOPE = "(Warp|Block)?"
WAIT = "(Signal)?WaitUntil(OrLost)?"
EXIT = r"(@\S+ )?ret\b|s_endpgm"


PTX_DATA = r"(@\S+ )?st\.(?!relaxed|param|local)|(@\S+ )?call\b.*CopyAny"
PTX_RELEASE = r"fence\.(release|acq_rel|sc)\.sys$"
PTX_BOTH = r"fence\.(acq_rel|sc)\.sys$"
PTX_ACQUIRE = r"ld\.acquire\.sys\."
PTX_SC = r"fence\.sc\.sys$"
PTX_BLOCK = r"barrier\.(sync\.aligned 0|red\.or\.aligned\.pred \S+, 0, \S+)$"
PTX_SET = r"st\.relaxed\.sys\.(global\.)?b64 "
PTX_LOOK = r"ld\.relaxed\.sys\.b64 "
PTX_CLAIM = r"atom\.relaxed\.sys\.(global\.)?exch\.b32 "
PTX_ADD = r"atom\.relaxed\.sys\.(global\.)?add\.u64 "


def ptx_orders() -> list[Order]:
    data, fence, both, acquire = PTX_DATA, PTX_RELEASE, PTX_BOTH, PTX_ACQUIRE
    set_signal, add_signal, block = PTX_SET, PTX_ADD, PTX_BLOCK
    warp = r"bar\.warp\.sync %\w+$"
    byte_store, byte_load = r"st\.global\.[ub]8 ", r"ld\.global\.[ub]8 "
    rows = [
        Order("data, signal set", PUT_SIGNAL + ANY_SCOPE, data, fence, set_signal),
        Order("data, signal added", PUT_SIGNAL + ANY_SCOPE, data, fence, add_signal),
        Order("before a signal set", "SignalOp", byte_store, fence, set_signal),
        Order("before a signal added", "SignalOp", byte_store, fence, add_signal),
        Order("fence", f"{COMPLETION}{ANY_SCOPE}(_pe)?", byte_store, fence, byte_store),
        Order("fence acquires", f"Fence{ANY_SCOPE}", byte_store, both, byte_store),
        Order("quiet", f"Quiet{ANY_SCOPE}(_pe)?", byte_store, PTX_SC, byte_store),
        Order("before epochs", MEETING + ANY_SCOPE, byte_store, fence, set_signal),
        Order("behind epochs", MEETING + ANY_SCOPE, set_signal, acquire, byte_load, True),
        Order("data, epochs", COLLECTIVE + ANY_SCOPE, data, fence, set_signal),
        Order("behind collectives", COLLECTIVE + ANY_SCOPE, set_signal, acquire, EXIT),
        Order("wait", f"{WAIT}(_u32|_u64)?", None, acquire, r"st\.global\.[ub]"),
        Order("pause", f"{WAIT}_u64", PTX_LOOK, r"nanosleep\.", PTX_LOOK),
        Order("one meeting", MEETING, None, PTX_CLAIM, set_signal),
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


def library_orders() -> list[Order]:
    shared = "(Broadcast|FCollect|AllToAll|Reduce_.*)"
    atomic = r"(@\S+ )?(atom|ld\.acquire|st\.r)"
    waited, launches = r"griddepcontrol\.wait$", r"griddepcontrol\.launch_dependents$"
    shared_memory = r"(@\S+ )?(atom|ld\.(?!param|const|local)|st\.(?!param|local))"
    return [
        Order("the stream before", f"(Meet(Few)?|Small.*|{shared})", None, waited, shared_memory),
        Order("early launch", f"(Meet(Few)?|Small.*|{shared})", None, waited, launches),
        Order("data, epochs", shared, PTX_DATA, PTX_RELEASE, PTX_SET),
        Order("block met behind data", shared, PTX_DATA, PTX_BLOCK, r"fence\."),
        Order("data, the count of blocks", shared, PTX_DATA, PTX_RELEASE, PTX_ADD),
        Order("the count of blocks, epochs", shared, PTX_ADD, PTX_BOTH, PTX_SET),
        Order("before epochs", "Meet(Few)?", None, PTX_RELEASE, PTX_SET),
        Order("behind epochs", f"(Meet|{shared})", PTX_SET, PTX_ACQUIRE, EXIT, True),
        Order("behind an epoch", "MeetFew", PTX_SET, PTX_ACQUIRE, EXIT),
        Order("before a signal set", "Signal", None, PTX_RELEASE, PTX_SET),
        Order("before a signal added", "Signal", None, PTX_RELEASE, PTX_ADD),
        Order("wait", "Wait", None, PTX_ACQUIRE, EXIT),
        Order("fence", "Fence", None, PTX_SC, EXIT),
        Order("before an atomic", "Atomic", None, PTX_BOTH, atomic),
        Order("behind an atomic", "Atomic", atomic, PTX_BOTH, EXIT),
    ]


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
    wait_alone = "(Signal)?WaitUntil"  # the others look at the mark of lost PEs behind it
    rows = [
        Order("data, signal added", PUT_SIGNAL + ANY_SCOPE, data, release, add),
        Order("before a signal added", "SignalOp", byte_store, release, add),
        Order("fence", f"{COMPLETION}{ANY_SCOPE}(_pe)?", byte_store, release, byte_store),
        Order("fence acquires", f"Fence{ANY_SCOPE}", byte_store, acquire, byte_store),
        Order("before epochs", MEETING + ANY_SCOPE, byte_store, release, epoch),
        Order("behind polls", MEETING + ANY_SCOPE, poll, acquire, byte_load, True),
        Order("wait", f"{wait_alone}{ANY_SCOPE}(_u32|_u64)?", poll, acquire, store),
        Order("wait or lost", f"{WAIT}{ANY_SCOPE}(_u32|_u64)?", None, acquire, store),
        Order("test", "(Test_.*|SignalFetch)", None, acquire, store),
        Order("block drained before it meets", f"{PUT_SIGNAL}Block", data, wait, block),
        Order("block drained before a fence", f"{COMPLETION}Block(_pe)?", byte_store, wait, block),
        Order("block met behind polls", "(Sync|Barrier)AllBlock", poll, block, byte_load),
        Order("block met behind a wait", f"{wait_alone}Block(_.*)?", poll, block, store),
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


def amd_library_orders() -> list[Order]:
    shared = "(Broadcast|FCollect|AllToAll|Reduce_.*)"
    release, wait = r"buffer_wbl2 sc0 sc1$", r"s_waitcnt .*vmcnt\(0\)"
    acquire, block = r"buffer_inv sc0 sc1$", r"s_barrier$"
    data = r"(flat|global)_store_(?!.* sc)|call .*CopyAny"
    epoch, add = r"(flat|global)_store_dwordx2 .* sc0 sc1$", r"(flat|global)_atomic_add"
    return [
        Order("data, epochs", shared, data, release, epoch),
        Order("write-back, epochs", f"(Meet(Few)?|{shared})", release, wait, epoch),
        Order("block met behind data", shared, data, block, release),
        Order("block drained before it meets", shared, data, wait, block),
        Order("data, the count of blocks", shared, data, release, add),
        Order("the count of blocks, epochs", shared, add, acquire, epoch),
        Order("before epochs", "Meet(Few)?", None, release, epoch),
        Order("behind epochs", "Meet", epoch, acquire, EXIT, True),
        Order("behind an epoch", "MeetFew", epoch, acquire, EXIT),
        Order("before a signal added", "Signal", None, release, add),
        Order("wait", "Wait", None, acquire, EXIT),
        Order("fence", "Fence", None, release, EXIT),
    ]


ORDERS = [(compiler, order) for compiler in PTX for order in ptx_orders()]
ORDERS += [("library", order) for order in library_orders()]
ORDERS += [(gpu, order) for gpu in AMD for order in amd_orders(gpu)]
ORDERS += [(f"library, {gpu}", order) for gpu in AMD_LIBRARY for order in amd_library_orders()]
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


@pytest.mark.parametrize("compiler", PTX)
def test_a_quiet_that_is_not_sequentially_consistent_is_found(
    builds: Builds, compiler: str
) -> None:
    (order,) = [order for order in ptx_orders() if order.name == "quiet"]
    assert all(order.faults(code_of(builds, compiler).replace("fence.sc.sys", "fence.acq_rel.sys")))


@pytest.mark.parametrize("compiler", PTX)
def test_a_fence_that_only_releases_is_found_where_it_must_acquire(
    builds: Builds, compiler: str
) -> None:
    (order,) = [order for order in ptx_orders() if order.name == "fence acquires"]
    text = code_of(builds, compiler).replace("fence.acq_rel.sys", "fence.release.sys")
    assert all(order.faults(text))


RELEASES = rf"{COMPLETION}{ANY_SCOPE}(_pe)?|{PUT_SIGNAL}{ANY_SCOPE}|SignalOp|{MEETING}{ANY_SCOPE}"


def knows_the_releasing_fence(ptx: str) -> bool:
    version = re.search(r"^\.version (\d+)\.(\d+)", ptx, re.M)
    assert version
    return (int(version[1]), int(version[2])) >= (8, 7)


def releasing_kernels(text: str, fence: str) -> set[str]:
    return {
        kernel
        for kernel, statements in kernels_of(text).items()
        if re.fullmatch(f"Shmem({RELEASES})", kernel)
        and any(re.match(fence, statement) for statement in statements)
    }


# So that the rules above look at both kinds of fence, in the same kernels.
def test_only_compute_90_has_a_fence_that_only_releases(builds: Builds) -> None:
    older, newer = code_of(builds, "nvcc"), code_of(builds, "nvcc, compute_90")
    everywhere = releasing_kernels(older, PTX_RELEASE)
    assert {"ShmemPutMemSignal", "ShmemSignalOp", "ShmemFence"} <= everywhere
    assert releasing_kernels(older, r"fence\.release") == set()
    if knows_the_releasing_fence(newer):
        fences = {kernel for kernel in everywhere if re.match("Shmem(Fence|Quiet)", kernel)}
        assert releasing_kernels(newer, r"fence\.release") == everywhere - fences
    else:  # CUDA before 12.8
        assert releasing_kernels(newer, r"fence\.release") == set()


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


@pytest.mark.parametrize("compiler", [*PTX, *NVRTC, "library"])
def test_ptx_is_at_system_scope(builds: Builds, compiler: str) -> None:
    assert ptx_scope_faults(code_of(builds, compiler)) == []


@pytest.mark.parametrize("compiler", [*PTX, "library"])
@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        (r"fence\.acq_rel\.", ".sys", ".gpu"),
        (r"fence\.acq_rel\.", ".acq_rel", ".acquire"),
        (r"fence\.acq_rel\.", ".acq_rel.sys", ".release.gpu"),
        (r"fence\.acq_rel\.", "fence.acq_rel.sys", "membar.gl"),
        (r"fence\.release\.", ".sys", ".gpu"),
        (r"fence\.release\.", ".release", ".acquire"),
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
    if "release" in kind and "fence.release" not in text:  # as in all code for older GPUs
        text = text.replace("fence.acq_rel", "fence.release", 1)
    right = re.search(rf"\b{kind}[\w.]*", text)
    assert right and before in right[0]
    wrong = right[0].replace(before, after)
    assert ptx_scope_faults(text.replace(right[0], wrong, 1)) == [wrong]


# What says on an AMD GPU that an access is at system scope. Where no bit does, all reach the memory
# that other devices see: `glc` of an atomic only says that it has a result.
SYSTEM_SCOPE = {
    ("gfx90a", "load"): "glc",
    **{
        (gpu, kind): scope
        for gpu in ("gfx942", "gfx950")
        for kind, scope in (("load", "sc0 sc1"), ("store", "sc0 sc1"), ("atomic", "sc1"))
    },
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


# Of the instructions of each GPU that order or pass by caches: the scope that each must have,
# wherever it is. A scope of the device alone has one bit less on gfx942 and gfx950, and one of the
# two invalidations on gfx90a, whose second the next rule asks for.
AMD_SCOPES = {
    "gfx942": [
        (r"buffer_(wbl2|inv)", r"buffer_\w+ sc0 sc1"),
        (r"(flat|global)_(load|store).* sc[01]", r".*\d\S* sc0 sc1|.*off sc0 sc1"),
        (r"(flat|global)_atomic", r".* sc1"),
    ],
    "gfx90a": [],
    "gfx1100": [],
}
AMD_SCOPES["gfx950"] = AMD_SCOPES["gfx942"]
# What an acquire of the whole system has, in this order.
AMD_INVALIDATIONS = {
    "gfx90a": ("buffer_invl2", "buffer_wbinvl1_vol"),
    "gfx1100": ("buffer_gl1_inv", "buffer_gl0_inv"),
}


def amd_order_faults(text: str, gpu: str) -> set[str]:
    """Fences, and accesses that pass by caches, that are not at the scope of the whole system."""
    found = set()
    for statements in kernels_of(text).values():
        for statement, following in zip(statements, [*statements[1:], "nothing"]):
            for kind, right in AMD_SCOPES[gpu]:
                if re.match(kind, statement) and not re.fullmatch(right, statement):
                    found.add(statement)
            first, second = AMD_INVALIDATIONS.get(gpu, ("none", "none"))
            if statement == first and following != second:
                found.add(f"{first} alone")
            # Some of gfx11 are of a block, where the first is not needed.
            if gpu == "gfx90a" and following == second and statement != first:
                found.add(f"{second} alone")
    return found


@pytest.mark.parametrize("compiler", [*AMD, *(f"library, {gpu}" for gpu in AMD_LIBRARY)])
def test_amd_fences_are_at_system_scope(builds: Builds, compiler: str) -> None:
    assert amd_order_faults(code_of(builds, compiler), compiler.split()[-1]) == set()


AMD_WRONG_SCOPES = [
    ("gfx942", r"buffer_wbl2 sc0 sc1", "buffer_wbl2 sc1"),
    ("gfx942", r"buffer_inv sc0 sc1", "buffer_inv sc1"),
    ("gfx942", r"(global_load_dwordx2 .*) sc0 sc1", r"\1 sc1"),
    ("gfx942", r"(flat_store_dwordx2 .*) sc0 sc1", r"\1 sc1"),
    ("gfx942", r"(flat_atomic_add_x2 .*) sc1", r"\1"),
    ("gfx90a", r"buffer_invl2", ""),
    ("gfx90a", r"buffer_wbinvl1_vol", ""),
    ("gfx1100", r"buffer_gl0_inv", ""),
]


@pytest.mark.parametrize(("gpu", "right", "wrong"), AMD_WRONG_SCOPES)
def test_amd_fences_at_another_scope_are_found(
    builds: Builds, gpu: str, right: str, wrong: str
) -> None:
    text, changes = re.subn(rf"{right}$", wrong, code_of(builds, gpu), flags=re.M)
    assert changes > 0
    assert amd_order_faults(text, gpu) != set()


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


@pytest.mark.parametrize("gpu", AMD)
def test_the_state_is_reached_without_a_load_of_its_address(builds: Builds, gpu: str) -> None:
    ways = set(re.findall(r"\bglobalGpuStates@([a-z]+)", code_of(builds, gpu)))
    assert ways == {"rel"}  # `gotpcrel` where it could be another module's


@pytest.mark.parametrize("compiler", PTX)
def test_a_fault_is_told_by_one_store_before_the_thread_ends(builds: Builds, compiler: str) -> None:
    bodies = re.findall(
        r"\.func\s+_Z\w*8FailWithE\w*\([^)]*\)[^{};]*\{(.*?)\n\}", code_of(builds, compiler), re.S
    )
    assert len(bodies) == 1
    told = re.findall(r"\b(st\.v4\.b32|fence\.acq_rel\.sys|call\.uni|call)\b", bodies[0])
    assert told[-3:-1] == ["st.v4.b32", "fence.acq_rel.sys"] and told[-1].startswith("call")
    assert told.count("st.v4.b32") == 1 and not re.search(r"\bst\.[ub]\d", bodies[0])


def other_calls(text: str) -> set[str]:
    """What kernels call, but failure and copies: else the paths followed here would lack it."""
    calls = {
        statement
        for statements in kernels_of(text).values()
        for statement in statements
        if re.match(r"(@\S+ )?call\b", statement)
    }
    assert any("FailWithoutState" in call for call in calls)
    return {call for call in calls if not re.search(r"Fail|CopyAny|Remote", call)}


@pytest.mark.parametrize("compiler", [*PTX, *AMD])
def test_only_failure_and_copies_are_called(builds: Builds, compiler: str) -> None:
    text = code_of(builds, compiler)
    assert other_calls(text) == set()
    assert other_calls(text.replace("FailOutOfReach", "Quiet")) != set()


# ---- copies of elements


COPY = re.compile(
    r"\.func\s+(?:\([^)]*\)\s*)?_Z\w*CopyAny\w*Lj(\d)E\w*\([^)]*\)[^{};]*\{(.*?)\n\}", re.S
)
BYTES_OF = {"u8": 1, "b8": 1, "u16": 2, "b16": 2, "b32": 4, "u32": 4, "b64": 8, "u64": 8}


def smaller_words(text: str, of_bytes: int) -> dict[int, set[str]]:
    """Of each copy of elements of as many bytes or more: what is smaller in it than `of_bytes`."""
    found = {}
    for unit, body in COPY.findall(text):
        accesses = re.findall(r"^\s*(?:@\S+ )?(?:ld|st)\.(?!param|local|const)[\w.]*", body, re.M)
        kinds = {access.split(".")[-1] for access in accesses if ".v4." not in access}
        assert kinds, f"a copy of elements of {unit} bytes accesses nothing"
        found.setdefault(int(unit), set()).update(k for k in kinds if BYTES_OF[k] < of_bytes)
    return found


@pytest.mark.parametrize("compiler", PTX)
def test_no_element_is_copied_in_parts(builds: Builds, compiler: str) -> None:
    text = code_of(builds, compiler)
    assert smaller_words(text, 4)[4] == set()
    assert smaller_words(text, 8)[8] == set()
    assert smaller_words(text, 8)[1] >= {"u8", "u16", "b32"}  # where types are not known


# ---- what kernels need


def registers(report: str) -> dict[str, int]:
    found = re.findall(r"entry function '(\w+)'.*?Used (\d+) registers", report, re.S)
    assert len(found) > 10
    return {name: int(number) for name, number in found}


def test_each_operation_leaves_room_for_blocks_of_1024_threads(builds: Builds) -> None:
    needs = registers(code_of(builds, "nvcc, needs"))
    too_many = {name for name, number in needs.items() if number > 64}
    # Those want launch bounds, and need no more, either.
    assert {
        name for name in too_many if not re.search("Reduce|(AllToAll|Broadcast|FCollect)Mem", name)
    } == (set())


def test_no_operation_needs_more_registers_than_blocks_of_1024_threads_have(
    builds: Builds,
) -> None:
    assert use_local_memory(code_of(builds, "nvcc, 64 registers")) == set()


# ---- what the library's kernels need


NEEDS = re.compile(
    r"Function properties for (\w+)\n"
    r"\s*(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)


def use_local_memory(report: str) -> set[str]:
    """Kernels that keep variables in memory, for want of registers or because they index them."""
    needs = {name: numbers for name, *numbers in NEEDS.findall(report)}
    kernels = set(re.findall(r"Compiling entry function '(\w+)'", report))
    assert len(kernels) > 10 and kernels <= set(needs)
    return {name for name in kernels if set(needs[name]) != {"0"}}


def test_the_librarys_kernels_keep_all_in_registers(builds: Builds) -> None:
    assert use_local_memory(code_of(builds, "library, needs")) == set()


def test_a_kernel_that_lacks_registers_is_found(builds: Builds) -> None:
    assert "MoriShmemBroadcast" in use_local_memory(code_of(builds, "library, few registers"))
