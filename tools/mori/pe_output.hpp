// Where the output of PEs goes.
#pragma once

#include <cstdint>
#include <string_view>

namespace mori::launcher {

/// Standard output or standard error of a PE.
enum class StreamKind : std::uint8_t { kOut = 0, kError = 1 };
inline constexpr StreamKind kStreamKinds[] = {StreamKind::kOut, StreamKind::kError};

class PeOutput {
 public:
  virtual ~PeOutput() = default;

  /// Takes bytes of a PE's stream. Never blocks.
  virtual void Feed(int pe, StreamKind kind, std::string_view bytes) = 0;
  /// The stream has ended.
  virtual void Finish(int pe, StreamKind kind) = 0;
  /// So much is waiting that PEs should pause.
  virtual bool Full(StreamKind kind) const = 0;
  /// Nothing more can be written.
  virtual bool Closed(StreamKind kind) const = 0;
};

}  // namespace mori::launcher
