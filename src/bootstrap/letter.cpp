#include "bootstrap/letter.hpp"

namespace mori::shmem {

Bytes EncodeLetter(const Letter& letter) {
  return ByteWriter()
      .Int(static_cast<std::uint32_t>(letter.from))
      .Int(static_cast<std::uint32_t>(letter.to))
      .Int(letter.channel.use)
      .Int(letter.channel.tag)
      .Raw(letter.message)
      .Take();
}

Result<Letter> DecodeLetter(ByteView bytes, int size) {
  ByteReader reader(bytes);
  Letter letter;
  letter.from = reader.Int<std::int32_t>();
  letter.to = reader.Int<std::int32_t>();
  letter.channel.use = reader.Int<Bootstrap::Channel::Use>();
  letter.channel.tag = reader.Int<std::uint64_t>();
  const auto is_rank = [&](int rank) { return rank >= 0 && rank < size; };
  using Use = Bootstrap::Channel::Use;
  const bool is_known = letter.channel.use >= Use::kAll && letter.channel.use <= Use::kPair;
  if (!reader.ok() || !is_known || !is_rank(letter.from) || !is_rank(letter.to))
    return Error(ErrorCode::kMismatch, "a message between two ranks is malformed");
  const ByteView rest = reader.Raw(reader.remaining());
  letter.message.assign(rest.begin(), rest.end());
  return letter;
}

}  // namespace mori::shmem
