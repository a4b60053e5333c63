#include "bootstrap/rendezvous_messages.hpp"

#include <optional>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/tree.hpp"

namespace mori::shmem {
namespace {

constexpr std::size_t kMaxText = 4096;

void WriteEndpoint(const Endpoint& endpoint, ByteWriter* writer) {
  writer->Int(endpoint.port).Int(static_cast<std::uint8_t>(endpoint.addresses.size()));
  for (const auto& address : endpoint.addresses) EncodeAddress(address, writer);
}

bool ReadEndpoint(ByteReader* reader, Endpoint* endpoint) {
  endpoint->port = reader->Int<std::uint16_t>();
  const auto count = reader->Int<std::uint8_t>();
  if (!reader->ok() || count > kMaxAddresses) return false;
  endpoint->addresses.resize(count);
  for (auto& address : endpoint->addresses) {
    if (!DecodeAddress(reader, &address)) return false;
  }
  return true;
}

Status Malformed(std::string_view what) {
  return Error(ErrorCode::kMismatch, "a {} message of the bootstrap is malformed", what);
}

/// Nothing for bytes that make no sense.
std::optional<Status> ReadStatus(ByteView bytes) {
  ByteReader reader(bytes);
  const auto code = reader.Int<std::int32_t>();
  std::string text = reader.Text(kMaxText);
  const bool known = code > 0 && code <= static_cast<int>(ErrorCode::kInternal);
  if (!reader.AtEnd() || !known) return std::nullopt;
  return Status(static_cast<ErrorCode>(code), std::move(text));
}

}  // namespace

Bytes EncodeHello(const Hello& hello) {
  ByteWriter writer;
  writer.Int(hello.protocol);
  writer.Int(static_cast<std::int32_t>(hello.rank)).Int(static_cast<std::int32_t>(hello.size));
  writer.Text(hello.version).Text(hello.host).Int(hello.process_id);
  writer.Text(std::string_view(hello.failure).substr(0, kMaxText));
  writer.Int(static_cast<std::int64_t>(hello.budget.count()));
  writer.Int(static_cast<std::int64_t>(hello.waited.count()));
  WriteEndpoint(hello.endpoint, &writer);
  return writer.Text(hello.node).Take();
}

Result<Hello> DecodeHello(ByteView bytes) {
  ByteReader reader(bytes);
  Hello hello;
  hello.protocol = reader.Int<std::uint32_t>();
  hello.rank = reader.Int<std::int32_t>();
  hello.size = reader.Int<std::int32_t>();
  hello.version = reader.Text(kMaxText);
  hello.host = reader.Text(kMaxText);
  hello.process_id = reader.Int<std::uint32_t>();
  if (reader.ok() && hello.protocol != kProtocolVersion) return hello;
  hello.failure = reader.Text(kMaxText);
  hello.budget = std::chrono::milliseconds(reader.Int<std::int64_t>());
  hello.waited = std::chrono::milliseconds(reader.Int<std::int64_t>());
  const bool in_range = hello.waited.count() >= 0 && hello.waited <= hello.budget;
  if (!ReadEndpoint(&reader, &hello.endpoint) || !in_range) return Malformed("hello");
  hello.node = reader.Text(kMaxText);
  if (!reader.AtEnd()) return Malformed("hello");
  return hello;
}

Bytes EncodeWelcome(const Welcome& welcome) {
  ByteWriter writer;
  writer.Int(static_cast<std::int32_t>(welcome.parent_rank));
  WriteEndpoint(welcome.parent, &writer);
  writer.Int(static_cast<std::uint8_t>(welcome.children.size()));
  for (const int child : welcome.children) writer.Int(static_cast<std::int32_t>(child));
  return writer.Raw(EncodeNodes(welcome.node_of)).Take();
}

Result<Welcome> DecodeWelcome(ByteView bytes, int size) {
  ByteReader reader(bytes);
  Welcome welcome;
  welcome.parent_rank = reader.Int<std::int32_t>();
  bool is_good = ReadEndpoint(&reader, &welcome.parent) && welcome.parent_rank >= -1 &&
                 welcome.parent_rank < size;
  const auto children = reader.Int<std::uint8_t>();
  for (int i = 0; i < children && is_good; ++i) {
    welcome.children.push_back(reader.Int<std::int32_t>());
    is_good = welcome.children.back() > 0 && welcome.children.back() < size;
  }
  if (!is_good || !reader.ok() || children > 2 * kTreeFanOut) return Malformed("welcome");
  MORI_ASSIGN_OR_RETURN(welcome.node_of, DecodeNodes(reader.Raw(reader.remaining()), size));
  return welcome;
}

Bytes EncodeNodes(std::span<const std::uint32_t> node_of) {
  ByteWriter writer;
  for (const std::uint32_t node : node_of) writer.Int(node);
  return writer.Take();
}

Result<std::vector<std::uint32_t>> DecodeNodes(ByteView bytes, int size) {
  std::vector<std::uint32_t> node_of;
  if (bytes.empty()) return node_of;
  if (bytes.size() != sizeof(std::uint32_t) * static_cast<std::size_t>(size))
    return Malformed("tree");
  ByteReader reader(bytes);
  std::uint32_t nodes = 0;
  while (!reader.AtEnd()) {
    node_of.push_back(reader.Int<std::uint32_t>());
    if (node_of.back() > nodes) return Malformed("tree");
    if (node_of.back() == nodes) ++nodes;
  }
  return node_of;
}

Bytes EncodeFailure(const Failure& failure) {
  return ByteWriter()
      .Int(static_cast<std::int32_t>(failure.suspect))
      .Raw(EncodeStatus(failure.status))
      .Take();
}

Failure DecodeFailure(ByteView bytes) {
  ByteReader reader(bytes);
  const int suspect = reader.Int<std::int32_t>();
  auto status = ReadStatus(reader.Raw(reader.remaining()));
  if (!status) return {Malformed("status"), -1};
  return {std::move(*status), suspect >= 0 && suspect < kMaxRanks ? suspect : -1};
}

Bytes EncodeStatus(const Status& status) {
  return ByteWriter()
      .Int(static_cast<std::int32_t>(status.code()))
      .Text(std::string_view(status.message()).substr(0, kMaxText))
      .Take();
}

Status DecodeStatus(ByteView bytes) {
  auto status = ReadStatus(bytes);
  return status ? std::move(*status) : Malformed("status");
}

}  // namespace mori::shmem
