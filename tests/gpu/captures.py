"""torch captures a graph in one thread, while another makes calls of the host; then in the same.

MORI_SHMEM_HEAP_SIZE=64M mori run -n 1 python3 tests/gpu/captures.py
"""

import threading

import torch
from mori import shmem

shmem.shmem_init()
pe, n_pes = shmem.shmem_mype(), shmem.shmem_npes()
torch.cuda.set_device(shmem.shmem_device())
block = shmem.shmem_malloc(4096)
shmem.shmem_p(block, 3, pe)
counter = torch.zeros(1024, device="cuda")
torch.cuda.synchronize()


def malloc_and_free():
    shmem.shmem_free(shmem.shmem_malloc(64))


calls = {
    "quiet": shmem.shmem_quiet,
    "g": lambda: shmem.shmem_g(block, pe),
    "atomic": lambda: shmem.shmem_atomic_add(block, 1, pe),
    "put": lambda: shmem.shmem_putmem(block, block + 64, 64, pe),
    "barrier": shmem.shmem_barrier_all,
    "malloc": malloc_and_free,
    "stats": shmem.shmem_heap_stats,
}
for name, call in calls.items():
    failures = []
    made, end = threading.Event(), threading.Event()

    def make(call=call, failures=failures, made=made, end=end):
        torch.cuda.set_device(shmem.shmem_device())
        try:
            while not end.is_set():
                call()
                made.set()
        except Exception as error:  # the result
            failures.append(error)
            made.set()

    other = threading.Thread(target=make)
    graph = torch.cuda.CUDAGraph()
    before = float(counter[0])
    with torch.cuda.graph(graph):
        other.start()
        for _ in range(20):
            counter.add_(1.0)
        assert made.wait(60), name
    end.set()
    other.join()
    assert not failures, (name, failures)
    graph.replay()
    torch.cuda.synchronize()
    assert float(counter[0]) == before + 20, name

# None is torch's current stream: what it puts there is captured, too.
shmem.shmem_p(block, 0, pe)
shmem.shmem_p(block + 8, 9, pe)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    shmem.shmem_putmem_on_stream(block, block + 8, 8, pe)
torch.cuda.synchronize()
assert shmem.shmem_g(block, pe, "int64") == 0, "the put was made, and not captured"
graph.replay()
torch.cuda.synchronize()
assert shmem.shmem_g(block, pe, "int64") == 9
del graph
print(f"PE {pe} of {n_pes}: OK")
shmem.shmem_free(block)
shmem.shmem_finalize()
