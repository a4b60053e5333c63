// Bytes as a unique id: as they are, and with the checksum that someone who knows the format puts
// on.
#include <sodium.h>

#include <algorithm>
#include <cstring>

#include "bootstrap/unique_id.hpp"
#include "fuzz/check.hpp"

namespace mori::shmem::fuzz {
namespace {

void FixChecksum(UniqueId* id) {
  std::uint8_t hash[crypto_generichash_BYTES];
  crypto_generichash(hash, sizeof hash, id->bytes, 120, nullptr, 0);
  std::memcpy(id->bytes + 120, hash, 8);
}

void CheckDecoding(const UniqueId& id) {
  const auto rendezvous = DecodeUniqueId(id);
  CheckMessage(rendezvous.status());
  if (!rendezvous.ok()) return;
  FUZZ_CHECK(rendezvous->addresses.empty() == (rendezvous->port == 0));
  const auto again = DecodeUniqueId(EncodeUniqueId(*rendezvous));
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(again->name == rendezvous->name && again->secret == rendezvous->secret);
  FUZZ_CHECK(again->port == rendezvous->port && again->addresses == rendezvous->addresses);
}

void CheckHex(std::string_view text) {
  const auto id = UniqueIdFromHex(text);
  CheckMessage(id.status());
  if (id.ok()) FUZZ_CHECK(UniqueIdFromHex(UniqueIdToHex(*id)).ok());
}

}  // namespace
}  // namespace mori::shmem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mori::shmem;
  fuzz::CheckHex({reinterpret_cast<const char*>(data), size});
  UniqueId id{};
  std::copy_n(data, std::min<std::size_t>(size, UniqueId::kBytes), id.bytes);
  fuzz::CheckDecoding(id);
  fuzz::FixChecksum(&id);
  fuzz::CheckDecoding(id);
  return 0;
}
