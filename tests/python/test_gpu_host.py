"""Python beside a GPU, over the driver of the tests, which has none."""

from __future__ import annotations

from launcher_support import find_build_dir
from pes import PeRunner


def test_a_gpu_is_taken_and_numpy_is_told_how_to_get_the_host(run_pes: PeRunner) -> None:
    code = """
    join()
    assert shmem.shmem_device() == 0
    block = shmem.shmem_malloc(64)
    expect_error(
        shmem.ErrorCode.UNSUPPORTED, shmem.shmem_numpy, block, 4, "int64",
        says="MORI_SHMEM_BACKEND=host",
    )
    shmem.shmem_p(block, 5 + rank, 1 - rank)
    shmem.shmem_barrier_all_on_stream()
    shmem.shmem_barrier_all()
    assert shmem.shmem_g(block, rank) == 6 - rank
    shmem.shmem_finalize()
    """
    driver = find_build_dir() / "tests" / "fake_cuda"
    run_pes(2, code, env={"MORI_SHMEM_BACKEND": None, "LD_LIBRARY_PATH": str(driver)}).succeeded()
