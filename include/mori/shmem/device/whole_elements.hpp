// How a copy is cut so that no element is torn: the rule of the host's copies and of the device's.
//
// An element of 1, 2, 4 or 8 bytes that is aligned to its size where it comes from and where it
// goes is loaded by one load and stored by one store, and stored once. So who waits for the last
// element of a put sees the old value or the new one, and a value that it puts there afterwards
// stays.
//
// The distance of both ends decides the width of the words between: the most that both are aligned
// to alike. Before the first such word, and after the last, stand pieces of less, each at an
// address that is aligned to its size.
#pragma once

#include "mori/shmem/device/platform.hpp"

namespace mori::shmem::device {

/// Bytes of the words to copy with: the largest power of two, up to `most`, which is one, that
/// divides the distance.
MORI_DEVICE_FN u32 WholeWidth(u64 to, u64 from, u32 most) {
  const u64 bits = (to ^ from) | most;
  return static_cast<u32>(bits & (~bits + 1));
}

/// Bytes of the next piece at `address` while no word of `width` may stand there; 0 where one may,
/// or where what is left is less than this piece.
MORI_DEVICE_FN u32 PieceBefore(u64 address, u32 width, u64 left) {
  const u64 bits = address & (width - 1);
  const u64 piece = bits & (~bits + 1);
  return piece <= left ? static_cast<u32>(piece) : 0;
}

/// Bytes of the next piece of what is left, less than `width`, behind the last word.
MORI_DEVICE_FN u32 PieceAfter(u32 width, u64 left) {
  u32 piece = width / 2;
  while (piece > left) piece /= 2;
  return piece;
}

}  // namespace mori::shmem::device
