"""A tensor is dropped right behind a kernel that reads it: its memory is not given out before.

MORI_SHMEM_HEAP_SIZE=64M mori run -n 2 python3 tests/gpu/dropped.py
"""

import gc

import torch
from mori import shmem

shmem.shmem_init()
pe, n_pes = shmem.shmem_mype(), shmem.shmem_npes()
torch.cuda.set_device(shmem.shmem_device())

for _ in range(10):
    dropped = shmem.mori_shmem_create_tensor((1 << 20,), torch.float32)
    dropped.fill_(1.0)
    torch.cuda.synchronize()
    shmem.shmem_barrier_all()
    torch.cuda._sleep(200_000_000)  # about 0.1 s on the current stream
    doubled = dropped * 2
    del dropped
    gc.collect()
    shmem.shmem_barrier_all()
    other = shmem.mori_shmem_create_tensor((1 << 20,), torch.float32)
    with torch.cuda.stream(torch.cuda.Stream()):
        shmem.mori_shmem_peer_tensor(other, (pe + 1) % n_pes).fill_(7.0)
    torch.cuda.synchronize()
    assert bool((doubled == 2.0).all()), "overwritten under a kernel that read it"
    shmem.shmem_barrier_all()
    shmem.mori_shmem_free_tensor(other)

for _ in range(2):  # the device is idle: the last one comes back
    shmem.shmem_barrier_all()
assert shmem.shmem_heap_stats().live_blocks == 0
print(f"PE {pe} of {n_pes}: OK")
shmem.shmem_finalize()
