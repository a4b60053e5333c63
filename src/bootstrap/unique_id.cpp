#include "bootstrap/unique_id.hpp"

#include <algorithm>
#include <cstring>

#include "base/sodium.hpp"

namespace mori::shmem {
namespace {

constexpr std::uint8_t kMagic[4] = {'M', 'O', 'R', 'I'};
constexpr std::size_t kChecksumOffset = 120;
constexpr std::size_t kChecksumBytes = 8;

std::array<std::uint8_t, kChecksumBytes> Checksum(const std::uint8_t* bytes) {
  InitSodium();
  std::array<std::uint8_t, crypto_generichash_BYTES> hash;
  crypto_generichash(hash.data(), hash.size(), bytes, kChecksumOffset, nullptr, 0);
  std::array<std::uint8_t, kChecksumBytes> checksum;
  std::copy_n(hash.begin(), checksum.size(), checksum.begin());
  return checksum;
}

}  // namespace

Rendezvous NewRendezvous() {
  InitSodium();
  Rendezvous rendezvous;
  randombytes_buf(rendezvous.name.data(), rendezvous.name.size());
  randombytes_buf(rendezvous.secret.data(), rendezvous.secret.size());
  return rendezvous;
}

UniqueId EncodeUniqueId(const Rendezvous& rendezvous) {
  ByteWriter writer;
  writer.Raw(kMagic).Int(kUniqueIdVersion).Int<std::uint8_t>(0).Int(rendezvous.port);
  writer.Raw(rendezvous.name).Raw(rendezvous.secret);
  writer.Int(static_cast<std::uint32_t>(rendezvous.addresses.size()));
  for (const auto& address : rendezvous.addresses) EncodeAddress(address, &writer);
  UniqueId id{};
  std::copy(writer.bytes().begin(), writer.bytes().end(), id.bytes);
  const auto checksum = Checksum(id.bytes);
  std::copy(checksum.begin(), checksum.end(), id.bytes + kChecksumOffset);
  return id;
}

Result<Rendezvous> DecodeUniqueId(const UniqueId& id) {
  ByteReader reader(ByteView(id.bytes, UniqueId::kBytes));
  if (!std::ranges::equal(reader.Raw(sizeof kMagic), kMagic)) {
    return Error(ErrorCode::kInvalidArgument,
                 "these {} bytes are no unique id: they must come from shmem_get_unique_id()",
                 +UniqueId::kBytes);
  }
  if (const auto version = reader.Int<std::uint8_t>(); version != kUniqueIdVersion) {
    return Error(
        ErrorCode::kInvalidArgument,
        "the unique id has format version {}, this library reads {}: all PEs need the same "
        "version of the library",
        version, kUniqueIdVersion);
  }
  const auto checksum = Checksum(id.bytes);
  if (!std::equal(checksum.begin(), checksum.end(), id.bytes + kChecksumOffset)) {
    return Error(ErrorCode::kInvalidArgument,
                 "the unique id is damaged: its checksum does not fit its bytes; carry all {} "
                 "bytes unchanged",
                 +UniqueId::kBytes);
  }
  Rendezvous rendezvous;
  reader.Int<std::uint8_t>();
  rendezvous.port = reader.Int<std::uint16_t>();
  std::ranges::copy(reader.Raw(rendezvous.name.size()), rendezvous.name.begin());
  std::ranges::copy(reader.Raw(rendezvous.secret.size()), rendezvous.secret.begin());
  const auto count = reader.Int<std::uint32_t>();
  if (count > kMaxAddresses || (count == 0) != (rendezvous.port == 0)) {
    return Error(ErrorCode::kInvalidArgument,
                 "the unique id holds {} addresses and port {}: it cannot be used", count,
                 rendezvous.port);
  }
  rendezvous.addresses.resize(count);
  for (auto& address : rendezvous.addresses) {
    if (!DecodeAddress(&reader, &address)) {
      return Error(ErrorCode::kInvalidArgument,
                   "the unique id holds an address of an unknown family");
    }
  }
  return rendezvous;
}

std::string UniqueIdToHex(const UniqueId& id) {
  std::string hex(2 * UniqueId::kBytes + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), id.bytes, UniqueId::kBytes);
  hex.pop_back();
  return hex;
}

Result<UniqueId> UniqueIdFromHex(std::string_view hex) {
  UniqueId id{};
  std::size_t written = 0;
  const bool ok = hex.size() == 2 * std::size_t{UniqueId::kBytes} &&
                  sodium_hex2bin(id.bytes, UniqueId::kBytes, hex.data(), hex.size(), nullptr,
                                 &written, nullptr) == 0 &&
                  written == UniqueId::kBytes;
  if (!ok) {
    return Error(ErrorCode::kInvalidArgument,
                 "expected {} hexadecimal digits of a unique id, got {} characters",
                 2 * UniqueId::kBytes, hex.size());
  }
  return id;
}

}  // namespace mori::shmem
