#include "heap/symmetric_space.hpp"

#include "heap/given_space.hpp"
#include "heap/mapped_space.hpp"

namespace mori::shmem {

Result<std::unique_ptr<SymmetricSpace>> SymmetricSpace::Reserve(const SpaceParts& parts,
                                                                std::uint64_t bytes) {
  if (parts.runtime->ChoosesAddresses()) {
    return std::unique_ptr<SymmetricSpace>(std::make_unique<GivenSpace>(parts, bytes));
  }
  return MappedSpace::Reserve(parts, bytes);
}

}  // namespace mori::shmem
