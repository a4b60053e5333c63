"""The guide's first method on GPUs, as it is written there; then puts, a barrier and a look.

    MORI_SHMEM_BACKEND=cuda MORI_SHMEM_HEAP_SIZE=64M \\
    torchrun --nproc-per-node 2 tests/gpu/guide_method1.py
"""

import os

import mori
import torch
import torch.distributed as dist

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

# Standard PyTorch distributed init
torch.cuda.set_device(rank)
dist.init_process_group(
    backend="cpu:gloo,cuda:nccl",
    rank=rank,
    world_size=world_size,
    device_id=torch.device("cuda", rank),
)

# Register the process group with a name
world_group = dist.group.WORLD
torch._C._distributed_c10d._register_process_group("default", world_group)

# Initialize shmem from the registered process group
mori.shmem.shmem_torch_process_group_init("default")

assert mori.shmem.shmem_mype() == rank and mori.shmem.shmem_npes() == world_size
assert mori.shmem.shmem_device() == rank
ptr = mori.shmem.shmem_malloc(4096)
tensor = mori.shmem.shmem_tensor(ptr, (1024,), torch.float32)
assert tensor.device == torch.device("cuda", rank)
tensor.fill_(rank)
source = torch.full((1024,), float(rank), device="cuda")
torch.cuda.synchronize()
mori.shmem.shmem_barrier_all()
neighbour = (rank + 1) % world_size
mori.shmem.shmem_putmem(ptr, source.data_ptr(), 4096, neighbour)
mori.shmem.shmem_barrier_all()
assert (tensor == (rank - 1) % world_size).all()
assert mori.shmem.shmem_ptr_p2p(ptr, rank, neighbour) != 0
assert mori.shmem.shmem_buffer_register(source.data_ptr(), source.nbytes) == 0
assert mori.shmem.shmem_buffer_deregister(source.data_ptr(), source.nbytes) == 0
if rank == 0:
    print(mori.shmem.shmem_info()[-600:])
print(f"PE {rank} of {world_size}: OK")
mori.shmem.shmem_free(ptr)
mori.shmem.shmem_finalize()
dist.destroy_process_group()
