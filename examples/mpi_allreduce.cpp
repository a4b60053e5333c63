// A sum over all ranks of an MPI program, once through the symmetric heap and once through MPI.
//
//   mpicxx -std=c++17 mpi_allreduce.cpp $(pkg-config --cflags --libs mori-shmem) -o mpi_allreduce
//   export MORI_SHMEM_HEAP_SIZE=16M MORI_SHMEM_BACKEND=host
//   mpirun -n 4 mpi_allreduce
#include <mpi.h>

#include <cstddef>
#include <cstdio>
#include <vector>

#include "mori/shmem/mpi.hpp"
#include "mori/shmem/shmem.hpp"

using namespace mori::shmem;

namespace {

constexpr std::size_t kCount = 1 << 16;

/// Sums `values` over all PEs, in place: every PE puts its values into a row of every PE's table,
/// and adds up the rows of its own table when all have come.
bool AllReduce(std::vector<double>& values) {
  const int me = ShmemMyPe();
  const int n_pes = ShmemNPes();
  const std::size_t bytes = values.size() * sizeof(double);

  auto* table = static_cast<double*>(ShmemMalloc(static_cast<std::size_t>(n_pes) * bytes));
  if (table == nullptr) return false;
  double* my_row = table + static_cast<std::size_t>(me) * values.size();
  for (int step = 0; step < n_pes; ++step) {
    const int pe = (me + step) % n_pes;  // not all of them the same one at a time
    if (ShmemPutMem(my_row, values.data(), bytes, pe) != 0) return false;
  }
  // All have put, and all that was put is visible.
  if (ShmemBarrierAll() != 0) return false;

  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 0;
    for (int pe = 0; pe < n_pes; ++pe) {
      values[i] += table[static_cast<std::size_t>(pe) * values.size() + i];
    }
  }
  return ShmemFree(table) == 0;
}

/// Whether both ways give the same. The values are whole numbers, so the sums are exact.
bool Compare(int rank) {
  std::vector<double> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<double>(i) * (rank + 1);
  std::vector<double> by_mpi(kCount);
  MPI_Allreduce(values.data(), by_mpi.data(), kCount, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return AllReduce(values) && values == by_mpi;
}

}  // namespace

int main(int argc, char** argv) {
  // MPI is the program's own: it is initialised before the library and finalised after it.
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  int is_right = 0;
  if (ShmemInitAttr(MORI_SHMEM_INIT_WITH_MPI_COMM, rank, size, MPI_COMM_WORLD) == 0) {
    is_right = Compare(rank) ? 1 : 0;
    if (ShmemFinalize() != 0) is_right = 0;
  }

  // The library has gone, MPI is as it was.
  int all_right = 0;
  MPI_Allreduce(&is_right, &all_right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0) {
    std::printf("%d ranks, %zu values: the sums are %s\n", size, kCount,
                all_right ? "the same" : "NOT the same");
  }
  MPI_Finalize();
  return all_right ? 0 : 1;
}
