// Ranks of an MPI program that use the library's MPI init rightly and wrongly; run by test_mpi.py.
// The argument names the case. Each rank prints what it saw, and exits with 0 if it came to the
// end.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "mori/shmem/mpi.hpp"
#include "mori/shmem/shmem.hpp"

using namespace mori::shmem;

namespace {

int rank = 0;
int size = 0;

void Show(const char* what, int code) {
  std::printf("rank %d: %s gave %d: %s\n", rank, what, code, code == 0 ? "" : ShmemLastError());
  std::fflush(stdout);
}

int Init(InitFlag flag, int as_rank, int as_size, MPI_Comm comm) {
  const int code = ShmemInitAttr(flag, as_rank, as_size, comm);
  Show("init", code);
  return code;
}

int InitRightly(MPI_Comm comm) { return Init(MORI_SHMEM_INIT_WITH_MPI_COMM, rank, size, comm); }

/// A word of each PE goes to its right neighbour.
bool ShiftRight() {
  auto* word = static_cast<int*>(ShmemMalloc(sizeof(int)));
  if (word == nullptr) return false;
  const int me = ShmemMyPe();
  const int n_pes = ShmemNPes();
  const bool put = ShmemP(word, me, (me + 1) % n_pes) == 0;
  const bool came = ShmemBarrierAll() == 0 && *word == (me + n_pes - 1) % n_pes;
  return ShmemFree(word) == 0 && put && came;
}

bool UseOnce(int init_code) { return init_code == 0 && ShiftRight() && ShmemFinalize() == 0; }

bool MpiWorks() {
  int sum = 0;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return sum == size * (size - 1) / 2;
}

/// After a refusal nothing is left that could disturb a right init.
bool RightInitWorks() { return !ShmemInitialized() && UseOnce(InitRightly(MPI_COMM_WORLD)); }

bool Run(const std::string& name) {
  if (name == "mpi after finalize") return UseOnce(InitRightly(MPI_COMM_WORLD)) && MpiWorks();
  if (name == "init again after finalize") {
    return UseOnce(InitRightly(MPI_COMM_WORLD)) && UseOnce(InitRightly(MPI_COMM_WORLD));
  }
  if (name == "ShmemMpiInit") {
    const int code = ShmemMpiInit(MPI_COMM_WORLD);
    const bool is_right = code == 0 && ShmemMyPe() == rank && ShmemNPes() == size;
    return is_right && UseOnce(code) && MpiWorks();
  }
  if (name == "freed communicator") {
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    const int code = InitRightly(comm);
    MPI_Comm_free(&comm);
    return UseOnce(code);
  }
  if (name == "reversed communicator") {
    MPI_Comm comm;
    MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank, &comm);
    const int as_rank = size - 1 - rank;
    const int code = Init(MORI_SHMEM_INIT_WITH_MPI_COMM, as_rank, size, comm);
    const bool is_right = code == 0 && ShmemMyPe() == as_rank;
    MPI_Comm_free(&comm);
    return is_right && UseOnce(code);
  }
  if (name == "halves") {  // two worlds at once
    MPI_Comm comm;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &comm);
    const int code = ShmemMpiInit(comm);
    const bool is_right = code == 0 && ShmemMyPe() == rank / 2;
    MPI_Comm_free(&comm);
    return is_right && UseOnce(code) && MpiWorks();
  }
  if (name == "twice alike") {
    const int first = InitRightly(MPI_COMM_WORLD);
    return InitRightly(MPI_COMM_WORLD) == 0 && UseOnce(first);
  }
  if (name == "twice different") {
    const int first = InitRightly(MPI_COMM_WORLD);
    const int code = ShmemMpiInit(MPI_COMM_SELF);
    Show("second init", code);
    return code == static_cast<int>(ErrorCode::kAlreadyInitialized) && UseOnce(first);
  }
  if (name == "some initialised") {
    if (rank == 0 && ShmemMpiInit(MPI_COMM_SELF) != 0) return false;
    Init(MORI_SHMEM_INIT_WITH_MPI_COMM, rank, size, MPI_COMM_WORLD);
    return (rank != 0 || ShmemFinalize() == 0) && RightInitWorks();
  }
  if (name == "wrong flag") {
    Init(MORI_SHMEM_INIT_WITH_UNIQUEID, rank, size, MPI_COMM_WORLD);
    return RightInitWorks();
  }
  if (name == "unknown flag") {
    Init(static_cast<InitFlag>(7), rank, size, MPI_COMM_WORLD);
    return RightInitWorks();
  }
  if (name == "wrong rank on one") {
    Init(MORI_SHMEM_INIT_WITH_MPI_COMM, rank == 1 ? 5 : rank, size, MPI_COMM_WORLD);
    return RightInitWorks();
  }
  if (name == "wrong size on all") {
    Init(MORI_SHMEM_INIT_WITH_MPI_COMM, rank, size + 1, MPI_COMM_WORLD);
    return RightInitWorks();
  }
  if (name == "no interface on rank 0") {
    if (rank == 0) setenv("MORI_SOCKET_IFNAME", "nosuch0", 1);
    InitRightly(MPI_COMM_WORLD);
    setenv("MORI_SOCKET_IFNAME", "lo", 1);
    return RightInitWorks();
  }
  if (name == "null communicator") {
    InitRightly(MPI_COMM_NULL);
    Show("ShmemMpiInit", ShmemMpiInit(MPI_COMM_NULL));
    return RightInitWorks();
  }
  std::fprintf(stderr, "unknown case '%s'\n", name.c_str());
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "before MPI_Init") {
    Show("ShmemMpiInit", ShmemMpiInit(MPI_COMM_WORLD));
    InitRightly(MPI_COMM_WORLD);
  }
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const bool around_mpi = name == "before MPI_Init" || name == "after MPI_Finalize";
  const bool is_right = around_mpi ? RightInitWorks() : Run(name);
  MPI_Finalize();
  if (name == "after MPI_Finalize") {
    Show("ShmemMpiInit", ShmemMpiInit(MPI_COMM_WORLD));
    InitRightly(MPI_COMM_WORLD);
  }
  return is_right ? 0 : 1;
}
