// What put and get copy with.
#include "base/element_copy.hpp"
#include "mori/shmem/host_ops.hpp"

namespace mori::shmem::detail {

void CopyElements(void* to, const void* from, std::size_t bytes) {
  mori::shmem::CopyElements(to, from, bytes);
}

}  // namespace mori::shmem::detail
