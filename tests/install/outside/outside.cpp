// A user's program: one PE alone, a word of symmetric memory, a put and a barrier.
#include <cstdint>
#include <cstdio>

#include "mori/shmem/shmem.hpp"

int main() {
  namespace shmem = mori::shmem;
  if (shmem::ShmemInit() != 0) return 1;
  auto* word = static_cast<std::uint64_t*>(shmem::ShmemMalloc(sizeof(std::uint64_t)));
  if (word == nullptr) return 2;
  const std::uint64_t answer = 42;
  if (shmem::ShmemPut(word, &answer, 1, shmem::ShmemMyPe()) != 0) return 3;
  if (shmem::ShmemBarrierAll() != 0) return 4;
  std::printf("PE %d of %d read %d through the barrier\n", shmem::ShmemMyPe(), shmem::ShmemNPes(),
              static_cast<int>(*word));
  if (shmem::ShmemFree(word) != 0) return 5;
  return shmem::ShmemFinalize();
}
