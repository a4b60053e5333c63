#include "agent_messages.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "host_list.hpp"

namespace mori::launcher {
namespace {

using shmem::ByteReader;
using shmem::Bytes;
using shmem::ByteView;
using shmem::ByteWriter;

constexpr std::size_t kHeaderBytes = 5;
constexpr std::size_t kMaxVersionBytes = 64;
constexpr std::size_t kMaxMasterBytes = 256;
constexpr int kMaxSignal = 64;

bool HasNul(std::string_view text) { return text.find('\0') != std::string_view::npos; }

void WriteTexts(const std::vector<std::string>& texts, ByteWriter* writer) {
  writer->Int(static_cast<std::uint32_t>(texts.size()));
  for (const std::string& text : texts) writer->Text(text);
}

std::vector<std::string> ReadTexts(ByteReader* reader) {
  std::vector<std::string> texts;
  for (auto left = reader->Int<std::uint32_t>(); left > 0 && reader->ok(); --left)
    texts.push_back(reader->Text(kMaxWorkBytes));
  return texts;
}

/// A flag that is 0 or 1.
bool ReadFlag(ByteReader* reader, bool* is_valid) {
  const auto value = reader->Int<std::uint8_t>();
  *is_valid = *is_valid && value <= 1;
  return value == 1;
}

bool IsEntry(const std::string& text) {
  const std::size_t equals = text.find('=');
  return equals != std::string::npos && equals > 0 && !HasNul(text);
}

bool IsShare(const PeShare& share) {
  return share.world >= 1 && share.world <= kMaxPes && share.count >= 1 && share.first >= 0 &&
         share.first < share.world && share.count <= share.world - share.first;
}

bool IsPe(int pe) { return pe >= 0 && pe < kMaxPes; }
bool IsSignal(int signal) { return signal >= 1 && signal <= kMaxSignal; }

/// `value`, if all was read and it is valid.
template <typename T>
std::optional<T> Checked(const ByteReader& reader, bool is_valid, T value) {
  if (!reader.AtEnd() || !is_valid) return std::nullopt;
  return value;
}

}  // namespace

std::string EncodeMessage(MessageType type, ByteView payload) {
  ByteWriter writer;
  writer.Int(static_cast<std::uint32_t>(payload.size())).Int(type).Raw(payload);
  return {writer.bytes().begin(), writer.bytes().end()};
}

void MessageReader::Add(std::string_view bytes) {
  received_.erase(0, taken_);
  taken_ = 0;
  received_.append(bytes);
}

shmem::Result<std::optional<Message>> MessageReader::Next() {
  const std::string_view rest = std::string_view(received_).substr(taken_);
  if (rest.size() < kHeaderBytes) return std::optional<Message>();
  ByteReader reader({reinterpret_cast<const std::uint8_t*>(rest.data()), rest.size()});
  const auto size = reader.Int<std::uint32_t>();
  const auto type = reader.Int<std::uint8_t>();
  if (size > max_payload_bytes_) {
    return shmem::Error(shmem::ErrorCode::kInvalidArgument,
                        "a message of {} bytes, where {} are the most", size, max_payload_bytes_);
  }
  if (reader.remaining() < size) return std::optional<Message>();
  const ByteView payload = reader.Raw(size);
  Message message{static_cast<MessageType>(type), Bytes(payload.begin(), payload.end())};
  taken_ += kHeaderBytes + size;
  return std::optional(std::move(message));
}

Bytes Encode(const AgentHello& hello) {
  return ByteWriter().Int(hello.protocol).Text(hello.version).Take();
}

template <>
std::optional<AgentHello> Decode(ByteView payload) {
  ByteReader reader(payload);
  AgentHello hello;
  hello.protocol = reader.Int<std::uint32_t>();
  hello.version = reader.Text(kMaxVersionBytes);
  return Checked(reader, true, std::move(hello));
}

Bytes Encode(const AgentWork& work) {
  ByteWriter writer;
  writer.Text(work.folder);
  WriteTexts(work.environment, &writer);
  WriteTexts(work.command, &writer);
  writer.Int(work.share.first).Int(work.share.count).Int(work.share.world);
  writer.Int<std::uint8_t>(work.is_alone).Int<std::uint8_t>(work.opens_meeting);
  writer.Int<std::uint8_t>(work.has_input);
  return writer.Take();
}

template <>
std::optional<AgentWork> Decode(ByteView payload) {
  ByteReader reader(payload);
  AgentWork work;
  work.folder = reader.Text(kMaxWorkBytes);
  work.environment = ReadTexts(&reader);
  work.command = ReadTexts(&reader);
  work.share.first = reader.Int<int>();
  work.share.count = reader.Int<int>();
  work.share.world = reader.Int<int>();
  bool is_valid = true;
  work.is_alone = ReadFlag(&reader, &is_valid);
  work.opens_meeting = ReadFlag(&reader, &is_valid);
  work.has_input = ReadFlag(&reader, &is_valid);
  is_valid = is_valid && !work.folder.empty() && !HasNul(work.folder) && !work.command.empty() &&
             std::ranges::all_of(work.environment, IsEntry) &&
             std::ranges::none_of(work.command, HasNul) && IsShare(work.share);
  return Checked(reader, is_valid, std::move(work));
}

Bytes Encode(const Meeting& meeting) {
  ByteWriter writer;
  writer.Int<std::uint8_t>(meeting.id.has_value());
  if (meeting.id) writer.Raw(meeting.id->bytes);
  return writer.Text(meeting.master_address).Text(meeting.master_port).Take();
}

template <>
std::optional<Meeting> Decode(ByteView payload) {
  ByteReader reader(payload);
  Meeting meeting;
  bool is_valid = true;
  if (ReadFlag(&reader, &is_valid)) {
    const ByteView bytes = reader.Raw(shmem::UniqueId::kBytes);
    std::ranges::copy(bytes, meeting.id.emplace().bytes);
  }
  meeting.master_address = reader.Text(kMaxMasterBytes);
  meeting.master_port = reader.Text(kMaxMasterBytes);
  is_valid = is_valid && !HasNul(meeting.master_address) && !HasNul(meeting.master_port);
  return Checked(reader, is_valid, std::move(meeting));
}

Bytes Encode(const SignalOrder& order) {
  return ByteWriter().Int(order.signal).Int<std::uint8_t>(order.to_groups).Take();
}

template <>
std::optional<SignalOrder> Decode(ByteView payload) {
  ByteReader reader(payload);
  SignalOrder order;
  bool is_valid = true;
  order.signal = reader.Int<int>();
  order.to_groups = ReadFlag(&reader, &is_valid);
  return Checked(reader, is_valid && IsSignal(order.signal), order);
}

Bytes Encode(const FlowOrder& order) { return ByteWriter().Int(order.kind).Int(order.flow).Take(); }

template <>
std::optional<FlowOrder> Decode(ByteView payload) {
  ByteReader reader(payload);
  const auto kind = reader.Int<std::uint8_t>(), flow = reader.Int<std::uint8_t>();
  return Checked(reader, kind <= 1 && flow <= 2,
                 FlowOrder{static_cast<StreamKind>(kind), static_cast<Flow>(flow)});
}

Bytes Encode(const AgentFailure& failure) {
  return ByteWriter().Text(failure.text).Int(failure.exit_status).Take();
}

template <>
std::optional<AgentFailure> Decode(ByteView payload) {
  ByteReader reader(payload);
  AgentFailure failure;
  failure.text = reader.Text(kMaxReplyBytes);
  failure.exit_status = reader.Int<int>();
  const bool is_valid = failure.exit_status >= 1 && failure.exit_status <= 255;
  return Checked(reader, is_valid, std::move(failure));
}

Bytes Encode(const OutputPiece& piece) {
  return ByteWriter().Int(piece.pe).Int(piece.kind).Text(piece.bytes).Take();
}

template <>
std::optional<OutputPiece> Decode(ByteView payload) {
  ByteReader reader(payload);
  OutputPiece piece;
  piece.pe = reader.Int<int>();
  const auto kind = reader.Int<std::uint8_t>();
  piece.kind = static_cast<StreamKind>(kind);
  piece.bytes = reader.Text(kMaxReplyBytes);
  return Checked(reader, IsPe(piece.pe) && kind <= 1, std::move(piece));
}

Bytes Encode(const EndNotice& notice) {
  return ByteWriter().Int(notice.pe).Int(notice.wait_status).Take();
}

template <>
std::optional<EndNotice> Decode(ByteView payload) {
  ByteReader reader(payload);
  EndNotice notice;
  notice.pe = reader.Int<int>();
  notice.wait_status = reader.Int<int>();
  const bool is_end = WIFEXITED(notice.wait_status) || WIFSIGNALED(notice.wait_status);
  return Checked(reader, IsPe(notice.pe) && is_end, notice);
}

}  // namespace mori::launcher
