// Bytes as the messages of the bootstrap: what is accepted encodes to the same bytes again.
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/letter.hpp"
#include "bootstrap/rendezvous_messages.hpp"
#include "bootstrap/sealed_stream.hpp"
#include "bootstrap/tree.hpp"
#include "fuzz/check.hpp"

namespace mori::shmem::fuzz {
namespace {

bool Same(const Bytes& encoded, ByteView bytes) {
  return std::equal(encoded.begin(), encoded.end(), bytes.begin(), bytes.end());
}

void CheckHello(ByteView bytes) {
  const auto hello = DecodeHello(bytes);
  CheckMessage(hello.status());
  if (!hello.ok()) return;
  FUZZ_CHECK(hello->budget.count() >= 0);
  FUZZ_CHECK(hello->endpoint.addresses.size() <= kMaxAddresses);
  if (hello->protocol != kProtocolVersion) return;  // whose later fields are not read
  FUZZ_CHECK(hello->waited.count() >= 0 && hello->waited <= hello->budget);
  FUZZ_CHECK(Same(EncodeHello(*hello), bytes));
}

/// Of the world whose ranks the messages name.
constexpr int kSize = 40;

void CheckWelcome(ByteView bytes) {
  const auto welcome = DecodeWelcome(bytes, kSize);
  CheckMessage(welcome.status());
  if (!welcome.ok()) return;
  for (const IpAddress& address : welcome->parent.addresses)
    FUZZ_CHECK(!address.ToString().empty());
  FUZZ_CHECK(Same(EncodeWelcome(*welcome), bytes));
  if (welcome->node_of.empty()) return;
  const Tree tree(welcome->node_of);
  for (int rank = 1; rank < kSize; ++rank) FUZZ_CHECK(tree.ChildTowards(0, rank).has_value());
}

void CheckLetter(ByteView bytes) {
  const auto letter = DecodeLetter(bytes, kSize);
  CheckMessage(letter.status());
  if (!letter.ok()) return;
  FUZZ_CHECK(letter->from >= 0 && letter->from < kSize && letter->to >= 0 && letter->to < kSize);
  FUZZ_CHECK(Same(EncodeLetter(*letter), bytes));
}

void CheckStatus(ByteView bytes) {
  const Status status = DecodeStatus(bytes);
  FUZZ_CHECK(!status.ok());
  FUZZ_CHECK(!ErrorCodeName(status.code()).empty());
  FUZZ_CHECK(Same(EncodeStatus(status), bytes) || status.code() == ErrorCode::kMismatch);
}

void CheckFailure(ByteView bytes) {
  const Failure failure = DecodeFailure(bytes);
  FUZZ_CHECK(!failure.status.ok());
  FUZZ_CHECK(failure.suspect >= -1 && failure.suspect < kMaxRanks);
}

/// What nobody has sealed does not open, beyond nothing.
void CheckSealed(ByteView bytes) {
  Opener opener(StreamKey{});
  opener.buffer()->assign(bytes.begin(), bytes.end());
  Bytes plain;
  CheckMessage(opener.Open(&plain));
}

}  // namespace
}  // namespace mori::shmem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mori::shmem;
  const ByteView bytes(data, size);
  fuzz::CheckHello(bytes);
  fuzz::CheckWelcome(bytes);
  fuzz::CheckLetter(bytes);
  fuzz::CheckStatus(bytes);
  fuzz::CheckFailure(bytes);
  fuzz::CheckSealed(bytes);
  return 0;
}
