// Little-endian encoding of messages, and its bounded decoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace mori::shmem {

using Bytes = std::vector<std::uint8_t>;
using ByteView = std::span<const std::uint8_t>;

/// Appends fields to a message.
class ByteWriter {
 public:
  template <typename T>
  ByteWriter& Int(T value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    auto bits = static_cast<std::uint64_t>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i, bits >>= 8) {
      bytes_.push_back(static_cast<std::uint8_t>(bits));
    }
    return *this;
  }
  ByteWriter& Raw(ByteView raw) {
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
    return *this;
  }
  /// A length and the bytes.
  ByteWriter& Block(ByteView block) {
    return Int(static_cast<std::uint32_t>(block.size())).Raw(block);
  }
  ByteWriter& Text(std::string_view text) {
    return Block({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  }
  const Bytes& bytes() const { return bytes_; }
  Bytes Take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

/// Takes fields off a message. A field that is not all there, or longer than allowed, makes `ok()`
/// false for good and reads as zero or empty; the caller checks once at the end.
class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : rest_(bytes) {}

  template <typename T>
  T Int() {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    std::uint64_t bits = 0;
    const ByteView raw = Raw(sizeof(T));
    for (std::size_t i = raw.size(); i-- > 0;) bits = bits << 8 | raw[i];
    return static_cast<T>(bits);
  }
  ByteView Raw(std::size_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const ByteView taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }
  ByteView Block(std::size_t max_bytes = SIZE_MAX) {
    const auto size = Int<std::uint32_t>();
    return size > max_bytes ? Raw(SIZE_MAX) : Raw(size);
  }
  std::string Text(std::size_t max_bytes) {
    const ByteView block = Block(max_bytes);
    return {reinterpret_cast<const char*>(block.data()), block.size()};
  }
  bool ok() const { return ok_; }
  /// All read, nothing left.
  bool AtEnd() const { return ok_ && rest_.empty(); }
  std::size_t remaining() const { return rest_.size(); }

 private:
  ByteView rest_;
  bool ok_ = true;
};

}  // namespace mori::shmem
