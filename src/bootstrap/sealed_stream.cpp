#include "bootstrap/sealed_stream.hpp"

#include <algorithm>

namespace mori::shmem {
namespace {

constexpr std::size_t kSealBytes = crypto_secretstream_xchacha20poly1305_ABYTES;
constexpr std::size_t kHeaderBytes = crypto_secretstream_xchacha20poly1305_HEADERBYTES;
constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);

Status Damaged() {
  return Error(ErrorCode::kMismatch, "a message on a bootstrap connection was changed on its way");
}

}  // namespace

Sealer::Sealer(const StreamKey& key) {
  InitSodium();
  crypto_secretstream_xchacha20poly1305_init_push(&state_, header_.data(), key.data());
}

void Sealer::Seal(ByteView plain, Bytes* wire) {
  if (header_is_due_) wire->insert(wire->end(), header_.begin(), header_.end());
  header_is_due_ = false;
  while (!plain.empty()) {
    const ByteView record = plain.first(std::min(plain.size(), kMaxRecordBytes));
    plain = plain.subspan(record.size());
    const std::size_t sealed_bytes = record.size() + kSealBytes;
    const Bytes length = ByteWriter().Int(static_cast<std::uint32_t>(sealed_bytes)).Take();
    wire->insert(wire->end(), length.begin(), length.end());
    const std::size_t start = wire->size();
    wire->resize(start + sealed_bytes);
    crypto_secretstream_xchacha20poly1305_push(&state_, wire->data() + start, nullptr,
                                               record.data(), record.size(), nullptr, 0,
                                               crypto_secretstream_xchacha20poly1305_TAG_MESSAGE);
  }
}

Status Opener::Open(Bytes* plain) {
  std::size_t done = 0;
  if (!has_header_) {
    if (buffer_.size() < kHeaderBytes) return Status();
    InitSodium();
    if (crypto_secretstream_xchacha20poly1305_init_pull(&state_, buffer_.data(), key_.data()) != 0)
      return Damaged();
    has_header_ = true;
    done = kHeaderBytes;
  }
  while (buffer_.size() - done >= kLengthBytes) {
    const std::size_t length =
        ByteReader(ByteView(buffer_).subspan(done, kLengthBytes)).Int<std::uint32_t>();
    if (length < kSealBytes || length > kMaxRecordBytes + kSealBytes) return Damaged();
    if (buffer_.size() - done - kLengthBytes < length) break;
    const std::size_t start = plain->size();
    plain->resize(start + length - kSealBytes);
    unsigned char tag = 0;
    if (crypto_secretstream_xchacha20poly1305_pull(&state_, plain->data() + start, nullptr, &tag,
                                                   buffer_.data() + done + kLengthBytes, length,
                                                   nullptr, 0) != 0) {
      plain->resize(start);
      return Damaged();
    }
    done += kLengthBytes + length;
  }
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(done));
  return Status();
}

}  // namespace mori::shmem
