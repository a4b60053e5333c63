#include "base/element_copy.hpp"

namespace mori::shmem {

#if defined(__x86_64__)
const bool element_copy::Accesses::kHasVectors = __builtin_cpu_supports("avx2") != 0;
#endif

void CopyElements(void* to, const void* from, std::size_t bytes) {
  element_copy::Copy<element_copy::Accesses>(to, from, bytes);
}

}  // namespace mori::shmem
