// A message between any two ranks, on its way along the tree.
#pragma once

#include "bootstrap/bootstrap.hpp"

namespace mori::shmem {

/// What goes around a message: from, to, use and tag of the channel.
struct Letter {
  int from = 0;
  int to = 0;
  Bootstrap::Channel channel;
  Bytes message;
};

Bytes EncodeLetter(const Letter& letter);
/// @return kMismatch for bytes that are no letter, or for ranks outside a world of `size`
Result<Letter> DecodeLetter(ByteView bytes, int size);

}  // namespace mori::shmem
