"""Put, get, atomics, signals and waits from Python, between PEs."""

from __future__ import annotations

from pes import PeRunner, needs_torch


def test_put_and_get_of_every_kind_of_buffer(run_pes: PeRunner) -> None:
    code = """
    import ctypes
    import numpy as np
    join()
    size, other = 1000, 1 - rank
    ptr = shmem.shmem_malloc(size)
    pattern = bytes((i * 7 + rank) % 256 for i in range(size))
    expected = bytes((i * 7 + other) % 256 for i in range(size))
    raw = ctypes.create_string_buffer(pattern, size)
    sources = [
        (pattern, None), (bytearray(pattern), None), (memoryview(pattern), size),
        (np.frombuffer(pattern, np.uint16), None), (ctypes.addressof(raw), size),
        (np.uint64(ctypes.addressof(raw)), np.int32(size)), (pattern + b"more", size),
    ]
    for source, count in sources:
        shmem.shmem_putmem(ptr, source, count, other)
        shmem.shmem_barrier_all()
        assert ctypes.string_at(ptr, size) == expected
        shmem.shmem_barrier_all()

    shmem.shmem_putmem(ptr, pattern, None, rank)
    shmem.shmem_barrier_all()
    into = [bytearray(size), np.zeros(size // 4, np.float32), ctypes.create_string_buffer(size)]
    for dest in into:
        assert shmem.shmem_getmem(dest, ptr, None, other) is None
        assert bytes(dest) == expected
    shmem.shmem_getmem(ctypes.addressof(raw), ptr, size, other)
    assert raw.raw == expected
    shmem.shmem_barrier_all()
    shmem.shmem_finalize()
    """
    run_pes(2, code).succeeded()


def test_put_at_every_offset_touches_nothing_else(run_pes: PeRunner) -> None:
    code = """
    join()
    ptr = shmem.shmem_malloc(512)
    other = 1 - rank
    for offset in range(0, 65, 5):
        for size in (0, 1, 3, 8, 17, 64, 129):
            shmem.shmem_putmem(ptr, bytes(512), None, other)
            shmem.shmem_putmem(ptr + 100 + offset, b"x" * size, size, other)
            content = bytearray(512)
            shmem.shmem_getmem(content, ptr, None, other)
            blank = bytes(100 + offset)
            assert content == blank + b"x" * size + bytes(512 - len(blank) - size)
    shmem.shmem_barrier_all()
    shmem.shmem_finalize()
    """
    run_pes(2, code).succeeded()


@needs_torch
def test_torch_tensors_as_local_memory(run_pes: PeRunner) -> None:
    code = """
    import torch
    join()
    ptr = shmem.shmem_malloc(4096)
    sent = torch.arange(64, dtype=torch.bfloat16)
    shmem.shmem_putmem(ptr, sent, None, 0)
    received = torch.zeros(64, dtype=torch.bfloat16)
    shmem.shmem_getmem(received, ptr, received.nbytes, 0)
    assert torch.equal(received, torch.arange(64, dtype=torch.bfloat16))

    invalid = shmem.ErrorCode.INVALID_ARGUMENT
    expect_error(invalid, shmem.shmem_putmem, ptr, sent[::2], None, 0, says="contiguous")
    expect_error(invalid, shmem.shmem_putmem, ptr, sent, 129, 0, says="has 128")
    meta = torch.zeros(4, device="meta")
    expect_error(invalid, shmem.shmem_putmem, ptr, meta, None, 0, says="meta")
    shmem.shmem_finalize()
    """
    run_pes(1, code).succeeded()


def test_single_elements(run_pes: PeRunner) -> None:
    code = """
    import numpy as np
    join()
    ptr, other = shmem.shmem_malloc(64), 1 - rank
    extremes = {
        "int32": (-2**31, 2**31 - 1), "uint32": (0, 2**32 - 1),
        "int64": (-2**63, 2**63 - 1), "uint64": (0, 2**64 - 1),
        "float32": (-1.5, 2.0**100), "float64": (-0.1, 1e300),
    }
    for dtype, values in extremes.items():
        for value in values:
            shmem.shmem_p(ptr, value, other, dtype=dtype)
            shmem.shmem_barrier_all()
            assert shmem.shmem_g(ptr, rank, dtype=np.dtype(dtype)) == value
            assert shmem.shmem_g(ptr, other, dtype=getattr(np, dtype)) == value
            shmem.shmem_barrier_all()
    shmem.shmem_finalize()
    """
    run_pes(2, code).succeeded()


def test_atomics_return_and_leave_what_they_should(run_pes: PeRunner) -> None:
    code = """
    join()
    block, other = shmem.shmem_malloc(64), 1 - rank
    for dtype, bits in (("int32", 32), ("uint32", 32), ("int64", 64), ("uint64", 64)):
        ptr = block + 8 * (bits // 32)  # both PEs at once, each on the other's word
        top = 2 ** (bits - 1) - 1 if dtype.startswith("i") else 2 ** bits - 1
        lowest = -top - 1 if dtype.startswith("i") else 0

        def value(): return shmem.shmem_atomic_fetch(ptr, other, dtype=dtype)

        assert shmem.shmem_atomic_set(ptr, 12, other, dtype=dtype) is None
        assert value() == 12
        assert shmem.shmem_atomic_swap(ptr, 20, other, dtype=dtype) == 12
        assert shmem.shmem_atomic_compare_swap(ptr, 7, 9, other, dtype=dtype) == 20
        assert value() == 20
        assert shmem.shmem_atomic_compare_swap(ptr, 20, 9, other, dtype=dtype) == 20
        assert value() == 9
        for name, operand, result in (
            ("add", 3, 12), ("and", 10, 8), ("or", 3, 11), ("xor", 6, 13), ("inc", None, 14),
        ):
            arguments = () if operand is None else (operand,)
            before = value()
            plain = getattr(shmem, "shmem_atomic_" + name)
            fetching = getattr(shmem, "shmem_atomic_fetch_" + name)
            assert plain(ptr, *arguments, other, dtype=dtype) is None
            assert value() == result, name
            shmem.shmem_atomic_set(ptr, before, other, dtype=dtype)
            assert fetching(ptr, *arguments, other, dtype=dtype) == before
            assert value() == result, name
        shmem.shmem_atomic_set(ptr, top, other, dtype=dtype)
        assert shmem.shmem_atomic_fetch_inc(ptr, other, dtype=dtype) == top
        assert value() == lowest, "wraps"
        shmem.shmem_barrier_all()
    shmem.shmem_finalize()
    """
    run_pes(2, code).succeeded()


def test_atomics_of_all_pes_on_one_word_lose_nothing(run_pes: PeRunner) -> None:
    code = """
    import threading
    join()
    ptr = shmem.shmem_malloc(16)
    shmem.shmem_atomic_set(ptr, 0, rank)
    shmem.shmem_atomic_set(ptr + 8, 0, rank)
    shmem.shmem_barrier_all()
    seen = []

    def work():
        for _ in range(2000):
            shmem.shmem_atomic_add(ptr, 3, 0)
            seen.append(shmem.shmem_atomic_fetch_inc(ptr + 8, 0))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    shmem.shmem_barrier_all()
    total = 2000 * 2 * world_size
    assert shmem.shmem_atomic_fetch(ptr, 0) == 3 * total
    assert shmem.shmem_atomic_fetch(ptr + 8, 0) == total
    assert len(set(seen)) == len(seen), "each old value is seen once"
    shmem.shmem_barrier_all()
    shmem.shmem_finalize()
    """
    run_pes(3, code).succeeded()


def test_signal_seen_means_data_seen(run_pes: PeRunner) -> None:
    code = """
    join()
    size, other = 4096, 1 - rank
    data, sig = shmem.shmem_malloc(size), shmem.shmem_malloc(8)
    turn = shmem.shmem_malloc(8)
    for address in (sig, turn):
        shmem.shmem_atomic_set(address, 0, rank)
    shmem.shmem_barrier_all()
    for step in range(1, 301):
        shmem.shmem_putmem_signal(
            data, bytes([step % 256]) * size, None, sig, step, shmem.SignalOp.SET, other)
        assert shmem.shmem_signal_wait_until(sig, ">=", step) == step
        content = bytearray(size)
        shmem.shmem_getmem(content, data, None, rank)
        assert content == bytes([step % 256]) * size
        shmem.shmem_atomic_set(turn, step, other)
        shmem.shmem_wait_until(turn, shmem.Cmp.EQ, step)

    shmem.shmem_putmem_signal(data, b"", 0, sig, 5, shmem.SignalOp.ADD, other)
    shmem.shmem_barrier_all()
    assert shmem.shmem_signal_fetch(sig) == 305
    shmem.shmem_finalize()
    """
    run_pes(2, code).succeeded()


def test_every_comparison(run_pes: PeRunner) -> None:
    code = """
    import operator
    join()
    ptr = shmem.shmem_malloc(8)
    texts = {"==": "EQ", "!=": "NE", ">": "GT", ">=": "GE", "<": "LT", "<=": "LE"}
    functions = dict(EQ=operator.eq, NE=operator.ne, GT=operator.gt, GE=operator.ge,
                     LT=operator.lt, LE=operator.le)
    for dtype, values in (("int32", (-2**31, -1, 0, 7)), ("uint32", (0, 2**31, 2**32 - 1)),
                          ("int64", (-2**63, -1, 0, 7)), ("uint64", (0, 2**63, 2**64 - 1))):
        for held in values:
            shmem.shmem_p(ptr, held, 0, dtype=dtype)
            for text, name in texts.items():
                for value in values:
                    holds = functions[name](held, value)
                    assert shmem.shmem_test(ptr, text, value, dtype=dtype) is holds
                    assert shmem.shmem_test(ptr, shmem.Cmp[name], value, dtype=dtype) is holds
                    if holds:
                        shmem.shmem_wait_until(ptr, text, value, dtype=dtype)
    shmem.shmem_finalize()
    """
    run_pes(1, code).succeeded()


def test_wait_lets_other_threads_run(run_pes: PeRunner) -> None:
    code = """
    import threading
    join()
    ptr = shmem.shmem_malloc(8)
    shmem.shmem_atomic_set(ptr, 0, 0)
    waiting = threading.Event()

    def wait():
        waiting.set()
        shmem.shmem_wait_until(ptr, "==", 1)

    waiter = threading.Thread(target=wait)
    waiter.start()
    waiting.wait()
    time.sleep(0.05)
    assert waiter.is_alive()
    shmem.shmem_atomic_set(ptr, 1, 0)
    waiter.join()
    shmem.shmem_finalize()
    """
    run_pes(1, code).succeeded()


def test_ctrl_c_goes_before_the_loss_that_ends_a_wait(run_pes: PeRunner) -> None:
    code = """
    import signal
    join()
    ptr, pids = shmem.shmem_malloc(8), shmem.shmem_malloc(8)
    shmem.shmem_p(ptr, 0, rank)
    shmem.shmem_p(pids, os.getpid(), rank)
    shmem.shmem_barrier_all()
    if rank == 1:
        shmem.shmem_wait_until(ptr, "==", 1)
        time.sleep(0.1)  # so that PE 0 is in its wait
        os.kill(shmem.shmem_g(pids, 0), signal.SIGINT)
        os._exit(0)
    try:
        shmem.shmem_p(ptr, 1, 1)
        shmem.shmem_wait_until(ptr, "==", 1)
    except KeyboardInterrupt:
        print("interrupted")
    """
    assert run_pes(2, code).succeeded()[0].stdout == "interrupted\n"


def test_fence_and_quiet(run_pes: PeRunner) -> None:
    code = """
    join()
    data, flag, other = shmem.shmem_malloc(8), shmem.shmem_malloc(8), 1 - rank
    for address in (data, flag):
        shmem.shmem_p(address, 0, rank)
    shmem.shmem_barrier_all()
    for step in range(1, 301):
        shmem.shmem_p(data, step, other)
        assert shmem.shmem_fence() is None
        shmem.shmem_p(flag, step, other)
        assert shmem.shmem_quiet() is None
        shmem.shmem_wait_until(flag, ">=", step)
        assert shmem.shmem_g(data, rank) >= step
    shmem.shmem_barrier_all()
    shmem.shmem_finalize()
    """
    run_pes(2, code).succeeded()
