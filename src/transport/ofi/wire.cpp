#include "transport/ofi/wire.hpp"

#include <cassert>
#include <cstring>

#include "base/element_copy.hpp"
#include "base/round_up.hpp"

namespace mori::shmem::ofi {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

std::size_t WordsOf(RecordKind kind) {
  switch (kind) {
    case RecordKind::kPost: return 1;
    case RecordKind::kFetch: return 3;
    case RecordKind::kGet: return 2;
    default: return 0;
  }
}

bool IsRecord(const RecordHeader& header) {
  if (header.padding >= kWord) return false;
  switch (header.kind) {
    case RecordKind::kPut:
    case RecordKind::kReply:
    case RecordKind::kRefusal: return true;
    case RecordKind::kPost:
    case RecordKind::kFetch:
    case RecordKind::kGet: return header.bytes == WordsOf(header.kind) * kWord;
    case RecordKind::kTell:
      return header.bytes >= kWord && header.bytes % kWord == 0 && header.padding == 0 &&
             header.address % kWord == 0;
  }
  return false;
}

}  // namespace

std::uint64_t Record::Word(std::size_t index) const {
  std::uint64_t word = 0;
  if ((index + 1) * kWord <= header.bytes) std::memcpy(&word, data + index * kWord, kWord);
  return word;
}

std::byte* MessageWriter::Add(const RecordHeader& header) {
  assert(HasRoom(header.bytes));
  std::memcpy(message_ + used_, &header, sizeof header);
  std::byte* data = message_ + used_ + sizeof header + header.padding;
  used_ = RoundUp(used_ + sizeof header + header.padding + header.bytes, kWord);
  last_put_ = 0;
  return data;
}

void MessageWriter::AddWords(RecordHeader header, std::span<const std::uint64_t> words) {
  header.bytes = static_cast<std::uint32_t>(words.size_bytes());
  std::memcpy(Add(header), words.data(), words.size_bytes());
}

void MessageWriter::Put(std::uint64_t key, std::uint64_t address, const void* data,
                        std::size_t bytes) {
  if (last_put_ != 0) {
    RecordHeader last;
    std::memcpy(&last, message_ + last_put_, sizeof last);
    if (last.key == key && last.address + last.bytes == address) {
      CopyElements(message_ + last_put_end_, data, bytes);
      last.bytes += static_cast<std::uint32_t>(bytes);
      std::memcpy(message_ + last_put_, &last, sizeof last);
      last_put_end_ += bytes;
      used_ = RoundUp(last_put_end_, kWord);
      return;
    }
  }
  RecordHeader header{};
  header.kind = RecordKind::kPut;
  header.padding = static_cast<std::uint8_t>(address % kWord);
  header.bytes = static_cast<std::uint32_t>(bytes);
  header.key = key;
  header.address = address;
  const std::size_t start = used_;
  std::byte* to = Add(header);
  CopyElements(to, data, bytes);
  last_put_ = start;
  last_put_end_ = static_cast<std::size_t>(to - message_) + bytes;
}

void MessageWriter::Post(std::uint64_t key, std::uint64_t address, detail::AtomicOp op, int width,
                         std::uint64_t value) {
  const std::array words{value};
  AddWords({RecordKind::kPost, static_cast<std::uint8_t>(op), static_cast<std::uint8_t>(width), 0,
            0, key, address},
           words);
}

void MessageWriter::Tell(std::uint64_t key, std::uint64_t address,
                         std::span<const std::uint64_t> words) {
  AddWords({RecordKind::kTell, 0, 0, 0, 0, key, address}, words);
}

void MessageWriter::Fetch(std::uint64_t key, std::uint64_t address, detail::AtomicOp op, int width,
                          std::uint64_t value, std::uint64_t expected, std::uint64_t ticket) {
  const std::array words{value, expected, ticket};
  AddWords({RecordKind::kFetch, static_cast<std::uint8_t>(op), static_cast<std::uint8_t>(width), 0,
            0, key, address},
           words);
}

void MessageWriter::Get(std::uint64_t key, std::uint64_t address, std::uint64_t bytes,
                        std::uint64_t ticket) {
  const std::array words{ticket, bytes};
  AddWords({RecordKind::kGet, 0, 0, 0, 0, key, address}, words);
}

void MessageWriter::Reply(std::uint64_t ticket, std::uint64_t found) {
  Add({RecordKind::kReply, 0, 0, 0, 0, ticket, found});
}

void MessageWriter::ReplyData(std::uint64_t ticket, const void* data, std::size_t bytes) {
  // Words are aligned in it as where they came from.
  const auto padding = static_cast<std::uint8_t>(reinterpret_cast<std::uintptr_t>(data) % kWord);
  CopyElements(
      Add({RecordKind::kReply, 0, 0, padding, static_cast<std::uint32_t>(bytes), ticket, 0}), data,
      bytes);
}

void MessageWriter::Refuse(std::uint64_t ticket, Refusal why) {
  Add({RecordKind::kRefusal, static_cast<std::uint8_t>(why), 0, 0, 0, ticket, 0});
}

void MessageWriter::Finish(MessageHeader header) const {
  header.bytes = static_cast<std::uint32_t>(used_);
  std::memcpy(message_, &header, sizeof header);
}

MessageReader::MessageReader(std::span<const std::byte> message) : message_(message) {
  if (message.size() < sizeof(MessageHeader)) return;
  MessageHeader header;
  std::memcpy(&header, message.data(), sizeof header);
  if (header.bytes == message.size()) header_ = header;
}

std::optional<Record> MessageReader::Next() {
  if (!ok_ || !header_ || at_ == message_.size()) return std::nullopt;
  Record record;
  ok_ = false;
  if (message_.size() - at_ < sizeof record.header) return std::nullopt;
  std::memcpy(&record.header, message_.data() + at_, sizeof record.header);
  const std::size_t start = at_ + sizeof record.header + record.header.padding;
  if (!IsRecord(record.header) || start > message_.size() ||
      record.header.bytes > message_.size() - start)
    return std::nullopt;
  record.data = message_.data() + start;
  at_ = RoundUp(start + record.header.bytes, kWord);
  if (at_ > message_.size()) return std::nullopt;
  ok_ = true;
  return record;
}

}  // namespace mori::shmem::ofi
