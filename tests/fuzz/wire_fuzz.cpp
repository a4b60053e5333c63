// Bytes as a message between PEs: no record reaches beyond it, and each is one that could be asked.
#include <cstdint>
#include <vector>

#include "fuzz/check.hpp"
#include "transport/ofi/wire.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mori::shmem::ofi;
  // A copy of exactly that size: what reads beyond it is seen.
  const std::vector<std::uint8_t> copy(data, data + size);
  const auto* bytes = reinterpret_cast<const std::byte*>(copy.data());
  MessageReader reader({bytes, size});
  if (!reader.header()) {
    FUZZ_CHECK(!reader.Next());
    return 0;
  }
  std::size_t records = 0, sum = 0;
  while (const auto record = reader.Next()) {
    ++records;
    FUZZ_CHECK(record->data >= bytes && record->data + record->header.bytes <= bytes + size);
    for (std::uint32_t i = 0; i < record->header.bytes; ++i)
      sum += static_cast<std::size_t>(record->data[i]);
    for (std::size_t word = 0; word < 4; ++word) sum += record->Word(word);
  }
  FUZZ_CHECK(records * sizeof(RecordHeader) <= size);
  FUZZ_CHECK(!reader.Next());
  return sum == SIZE_MAX ? 1 : 0;
}
