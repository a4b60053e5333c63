// Bytes as a stream of frames: what comes out does not depend on how the stream is cut.
#include <vector>

#include "bootstrap/frame.hpp"
#include "fuzz/check.hpp"

namespace mori::shmem::fuzz {
namespace {

constexpr std::size_t kMaxPayload = 4096;

struct Parsed {
  Bytes frames;  ///< encoded again
  bool ok = true;
  std::size_t left = 0;  ///< bytes of a frame that is not complete
};

/// Takes all frames there are.
void Drain(FrameParser* parser, Parsed* parsed) {
  while (parsed->ok) {
    const auto frame = parser->Next();
    CheckMessage(frame.status());
    parsed->ok = frame.ok();
    if (!frame.ok() || !frame->has_value()) return;
    FUZZ_CHECK((*frame)->payload.size() <= kMaxPayload);
    const Bytes encoded = EncodeFrame(**frame);
    parsed->frames.insert(parsed->frames.end(), encoded.begin(), encoded.end());
  }
}

Parsed Parse(ByteView stream, std::size_t piece) {
  FrameParser parser(kMaxPayload);
  Parsed parsed;
  while (!stream.empty() && parsed.ok) {
    const ByteView next = stream.first(std::min(piece, stream.size()));
    parser.buffer()->insert(parser.buffer()->end(), next.begin(), next.end());
    stream = stream.subspan(next.size());
    Drain(&parser, &parsed);
  }
  parsed.left = parser.buffer()->size();
  return parsed;
}

}  // namespace
}  // namespace mori::shmem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mori::shmem;
  const ByteView stream(data, size);
  const fuzz::Parsed whole = fuzz::Parse(stream, size + 1);
  FUZZ_CHECK(std::equal(whole.frames.begin(), whole.frames.end(), stream.begin()));
  if (whole.ok) FUZZ_CHECK(whole.frames.size() + whole.left == size);
  for (const std::size_t piece : {1, 7, 64}) {
    const fuzz::Parsed cut = fuzz::Parse(stream, piece);
    FUZZ_CHECK(cut.ok == whole.ok && cut.frames == whole.frames);
  }
  return 0;
}
