"""Tensors of torch on a GPU: a part of one is put, and some are alive when the program ends.

MORI_SHMEM_BACKEND=cuda MORI_SHMEM_HEAP_SIZE=64M mori run -n 2 python3 tests/gpu/tensors.py
"""

import mori
import torch
from mori import shmem

shmem.shmem_init()
pe, n_pes = shmem.shmem_mype(), shmem.shmem_npes()
neighbour, other = (pe + 1) % n_pes, (pe - 1) % n_pes
torch.cuda.set_device(shmem.shmem_device())

tensor = shmem.mori_shmem_create_tensor((64,), torch.float32)
tensor.fill_(-1.0)
source = torch.arange(64, dtype=torch.float32, device="cuda") + 100 * pe
torch.cuda.synchronize()
shmem.shmem_barrier_all()

# Neither begins where its memory was allocated.
part = source[3:20]
shmem.shmem_putmem(tensor[5:].data_ptr(), part.data_ptr(), part.nbytes, neighbour)
shmem.shmem_barrier_all()
expected = torch.full((64,), -1.0, device="cuda")
expected[5:22] = torch.arange(3, 20, device="cuda") + 100 * other
assert torch.equal(tensor, expected), tensor
theirs = shmem.mori_shmem_peer_tensor(tensor, neighbour)
expected[5:22] = torch.arange(3, 20, device="cuda") + 100 * pe
assert torch.equal(theirs, expected), theirs
assert torch.cuda.current_device() == shmem.shmem_device()
shmem.shmem_barrier_all()

# What kernels of torch wrote is there behind a barrier on their stream.
side = torch.cuda.Stream()
halves = shmem.mori_shmem_create_tensor((1 << 20,), torch.bfloat16)
with torch.cuda.stream(side):
    for _ in range(20):
        halves.fill_(7.0).mul_(2)
    halves.add_(pe)
    shmem.shmem_barrier_all_on_stream(side)
    seen = shmem.mori_shmem_peer_tensor(halves, neighbour).clone()
    shmem.shmem_barrier_all_on_stream(side)
side.synchronize()
assert (seen == 14 + neighbour).all()

nothing = shmem.mori_shmem_peer_tensor(tensor[3:3], neighbour)
assert nothing.numel() == 0 and nothing.device == tensor.device


def refused(code, call, *arguments):
    try:
        call(*arguments)
    except shmem.ShmemError as error:
        assert error.code == code, error
    else:
        raise AssertionError(f"{call.__name__}{arguments} succeeded")


refused(shmem.ErrorCode.UNSUPPORTED, shmem.shmem_numpy, tensor.data_ptr(), 4, "float32")
if torch.cuda.device_count() > 1:
    elsewhere = torch.cuda.Stream((shmem.shmem_device() + 1) % torch.cuda.device_count())
    refused(shmem.ErrorCode.INVALID_ARGUMENT, shmem.shmem_quiet_on_stream, elsewhere)

# Freed at the next collective call at which what the device did is done.
del tensor, theirs, halves
shmem.shmem_barrier_all()
shmem.shmem_barrier_all()
assert mori.shmem.shmem_heap_stats().live_blocks == 0
kept = shmem.mori_shmem_create_tensor((4,), torch.int64)
print(f"PE {pe} of {n_pes}: OK")
# No finalize: `kept` and the world are left to the end of the interpreter.
