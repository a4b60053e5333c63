// Messages between PEs: what a small operation is on its way.
//
// A message is a header and records, carried out in their order. Both ends are of the same
// architecture and library version, which they compared when they met; a message is checked
// nevertheless, since anything may connect.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "mori/shmem/types.hpp"

namespace mori::shmem::ofi {

/// All of a message: what fits into a buffer that the network sends at once.
inline constexpr std::size_t kMessageBytes = 4096;

struct MessageHeader {
  std::uint64_t token;    ///< of the PE it is for: a later process at its address has another
  std::uint64_t number;   ///< 1, 2, … of those from one PE to another
  std::uint64_t applied;  ///< the last message of the other way that is carried out
  std::uint32_t from;
  std::uint32_t bytes;  ///< of all
};
static_assert(sizeof(MessageHeader) == 32);

enum class RecordKind : std::uint8_t {
  kPut = 1,      ///< data to (key, address)
  kPost = 2,     ///< an atomic: data is its value
  kFetch = 3,    ///< an atomic with a reply: value, expected, ticket
  kGet = 4,      ///< what lies at (key, address): ticket, length
  kReply = 5,    ///< of the ticket in `key`: found bits in `address`, or data
  kRefusal = 6,  ///< of the ticket in `key`, 0 for none: `op` is a Refusal
  kTell = 7,     ///< words to (key, address), the last of them last; nobody waits to hear of it
};

/// Why a record was not carried out.
enum class Refusal : std::uint8_t {
  kNoMemory = 0,  ///< there is no memory like that
  kDevice = 1,    ///< the device whose memory it is has failed
};

struct RecordHeader {
  RecordKind kind;
  std::uint8_t op;       ///< AtomicOp, or Refusal
  std::uint8_t width;    ///< of the atomic's word
  std::uint8_t padding;  ///< bytes before the data: it is aligned as at its place
  std::uint32_t bytes;   ///< of the data
  std::uint64_t key;
  std::uint64_t address;
};
static_assert(sizeof(RecordHeader) == 24);

/// The most that a put or a reply brings in one record of an empty message.
inline constexpr std::size_t kMaxRecordData =
    kMessageBytes - sizeof(MessageHeader) - sizeof(RecordHeader) - 8;

/// A record as it was read.
struct Record {
  RecordHeader header{};
  const std::byte* data = nullptr;
  /// Number `index` of the 64-bit words that the data begins with; 0 where it is shorter.
  std::uint64_t Word(std::size_t index) const;
};

/// Fills a message. Each call needs `HasRoom()` for its data.
class MessageWriter {
 public:
  explicit MessageWriter(std::byte* message) : message_(message) {}

  bool is_empty() const { return used_ == sizeof(MessageHeader); }
  std::size_t used() const { return used_; }
  /// For one more record with `bytes` of data.
  bool HasRoom(std::size_t bytes) const {
    return used_ + sizeof(RecordHeader) + 8 + bytes <= kMessageBytes;
  }

  void Put(std::uint64_t key, std::uint64_t address, const void* data, std::size_t bytes);
  /// The next put is a record of its own, wherever it goes.
  void EndRun() { last_put_ = 0; }
  void Post(std::uint64_t key, std::uint64_t address, detail::AtomicOp op, int width,
            std::uint64_t value);
  /// At least one word; `address` is aligned to it.
  void Tell(std::uint64_t key, std::uint64_t address, std::span<const std::uint64_t> words);
  void Fetch(std::uint64_t key, std::uint64_t address, detail::AtomicOp op, int width,
             std::uint64_t value, std::uint64_t expected, std::uint64_t ticket);
  void Get(std::uint64_t key, std::uint64_t address, std::uint64_t bytes, std::uint64_t ticket);
  void Reply(std::uint64_t ticket, std::uint64_t found);
  void ReplyData(std::uint64_t ticket, const void* data, std::size_t bytes);
  void Refuse(std::uint64_t ticket, Refusal why);

  /// Writes the header: the message may be sent.
  void Finish(MessageHeader header) const;

 private:
  /// A record's data, uninitialised.
  std::byte* Add(const RecordHeader& header);
  void AddWords(RecordHeader header, std::span<const std::uint64_t> words);

  std::byte* message_;
  std::size_t used_ = sizeof(MessageHeader);
  std::size_t last_put_ = 0;      ///< where its record begins, if it is the last; else 0
  std::size_t last_put_end_ = 0;  ///< where its data ends
};

/// Reads a message, which may hold anything.
class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> message);
  /// Nothing where the message is none.
  const std::optional<MessageHeader>& header() const { return header_; }
  /// The next record; nothing at the end, and where what follows is none: then `ok()` is false.
  std::optional<Record> Next();
  bool ok() const { return ok_; }

 private:
  std::span<const std::byte> message_;
  std::optional<MessageHeader> header_;
  std::size_t at_ = sizeof(MessageHeader);
  bool ok_ = true;
};

}  // namespace mori::shmem::ofi
