#include "bootstrap/rendezvous_messages.hpp"

#include <optional>

#include "bootstrap/bootstrap.hpp"

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
  return writer.Take();
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
  if (!ReadEndpoint(&reader, &hello.endpoint) || !reader.AtEnd() || !in_range) {
    return Malformed("hello");
  }
  return hello;
}

Bytes EncodeEndpoint(const Endpoint& endpoint) {
  ByteWriter writer;
  WriteEndpoint(endpoint, &writer);
  return writer.Take();
}

Result<Endpoint> DecodeEndpoint(ByteView bytes) {
  ByteReader reader(bytes);
  Endpoint endpoint;
  if (!ReadEndpoint(&reader, &endpoint) || !reader.AtEnd()) return Malformed("welcome");
  return endpoint;
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
