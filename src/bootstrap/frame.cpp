#include "bootstrap/frame.hpp"

namespace mori::shmem {
namespace {

constexpr std::uint32_t kMagic = 0x314d4653;  // "SFM1"

struct Header {
  Frame frame;
  std::size_t payload_bytes;
};

Result<Header> DecodeHeader(ByteView bytes, std::size_t max_payload_bytes) {
  ByteReader reader(bytes);
  const auto magic = reader.Int<std::uint32_t>();
  Header header;
  header.frame.type = reader.Int<FrameType>();
  const auto reserved = reader.Int<std::uint16_t>();
  header.frame.sender = reader.Int<std::uint32_t>();
  header.frame.sequence = reader.Int<std::uint32_t>();
  header.payload_bytes = reader.Int<std::uint32_t>();
  const bool known =
      header.frame.type >= FrameType::kHello && header.frame.type <= FrameType::kMissing;
  if (!reader.ok() || magic != kMagic || reserved != 0 || !known) {
    return Error(ErrorCode::kMismatch, "a message on a bootstrap connection is malformed");
  }
  if (header.payload_bytes > max_payload_bytes) {
    return Error(ErrorCode::kMismatch, "a bootstrap message of {} bytes is over the limit of {}",
                 header.payload_bytes, max_payload_bytes);
  }
  return header;
}

}  // namespace

Bytes EncodeFrame(const Frame& frame) {
  ByteWriter writer;
  writer.Int(kMagic).Int(frame.type).Int<std::uint16_t>(0).Int(frame.sender).Int(frame.sequence);
  return writer.Block(frame.payload).Take();
}

Result<std::optional<Frame>> FrameParser::Next() {
  if (buffer_.size() < kFrameHeaderBytes) return std::optional<Frame>();
  MORI_ASSIGN_OR_RETURN(
      Header header, DecodeHeader(ByteView(buffer_).first(kFrameHeaderBytes), max_payload_bytes_));
  const std::size_t total = kFrameHeaderBytes + header.payload_bytes;
  if (buffer_.size() < total) return std::optional<Frame>();
  const auto end = buffer_.begin() + static_cast<std::ptrdiff_t>(total);
  header.frame.payload.assign(buffer_.begin() + kFrameHeaderBytes, end);
  buffer_.erase(buffer_.begin(), end);
  return std::optional<Frame>(std::move(header.frame));
}

}  // namespace mori::shmem
