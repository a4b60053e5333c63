// What travels on a proved connection: sealed by libsodium's secretstream, so that nobody between
// the ends can read, change, repeat, reorder or drop a byte of it unseen.
//
//   each way: a header of 24 bytes, once; then records: length (4 bytes), that many sealed bytes
#pragma once

#include <array>
#include <cstddef>

#include "base/bytes.hpp"
#include "base/sodium.hpp"
#include "base/status.hpp"

namespace mori::shmem {

using StreamKey = std::array<std::uint8_t, crypto_secretstream_xchacha20poly1305_KEYBYTES>;

/// One end's keys, a fresh one each way for each connection.
struct StreamKeys {
  StreamKey sending;
  StreamKey receiving;
};

/// Most plain bytes of a record.
inline constexpr std::size_t kMaxRecordBytes = 64 << 10;

/// The sending end of one way.
class Sealer {
 public:
  explicit Sealer(const StreamKey& key);
  /// Appends what is to be sent for `plain`, of any length, to `wire`.
  void Seal(ByteView plain, Bytes* wire);

 private:
  crypto_secretstream_xchacha20poly1305_state state_{};
  std::array<std::uint8_t, crypto_secretstream_xchacha20poly1305_HEADERBYTES> header_;
  bool header_is_due_ = true;
};

/// The receiving end of one way.
class Opener {
 public:
  explicit Opener(const StreamKey& key) : key_(key) {}
  /// Where received bytes are appended.
  Bytes* buffer() { return &buffer_; }
  /// Moves what can be opened to the end of `plain`. @return kMismatch for bytes that the other end
  /// has not sent so: the connection is of no more use.
  Status Open(Bytes* plain);

 private:
  StreamKey key_;
  crypto_secretstream_xchacha20poly1305_state state_{};
  bool has_header_ = false;
  Bytes buffer_;
};

}  // namespace mori::shmem
