#include "bootstrap/handshake.hpp"

#include <algorithm>

#include "base/sodium.hpp"
#include "bootstrap/socket.hpp"

namespace mori::shmem {
namespace {

constexpr std::uint8_t kMagic[3] = {'M', 'S', 'H'};
/// Of handshake and seal. What ranks and rendezvous say has a version of its own.
constexpr std::uint8_t kVersion = '2';

Random FreshRandom() {
  InitSodium();
  Random random;
  randombytes_buf(random.data(), random.size());
  return random;
}

Proof Prove(const Secret& secret, std::string_view side, ByteView listener_random,
            ByteView caller_random) {
  const Bytes text = ByteWriter().Text(side).Raw(listener_random).Raw(caller_random).Take();
  Proof proof;
  crypto_generichash(proof.data(), proof.size(), text.data(), text.size(), secret.data(),
                     secret.size());
  return proof;
}

/// In constant time.
bool Same(ByteView a, ByteView b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

ListenerHandshake::ListenerHandshake(const RendezvousName& name, const Secret& secret)
    : name_(name), secret_(secret), random_(FreshRandom()) {}

Bytes ListenerHandshake::Challenge() const {
  return ByteWriter().Raw(kMagic).Int(kVersion).Raw(random_).Take();
}

Result<Bytes> ListenerHandshake::Check(ByteView answer) const {
  ByteReader reader(answer);
  const ByteView name = reader.Raw(name_.size());
  const ByteView caller_random = reader.Raw(sizeof(Random));
  const ByteView proof = reader.Raw(sizeof(Proof));
  if (!reader.AtEnd() || !std::ranges::equal(name, name_) ||
      !Same(proof, Prove(secret_, "caller", random_, caller_random))) {
    return Error(ErrorCode::kMismatch, "a caller does not know the secret of this rendezvous");
  }
  const Proof mine = Prove(secret_, "listener", random_, caller_random);
  return Bytes(mine.begin(), mine.end());
}

StreamKeys ListenerHandshake::Keys(ByteView answer) const {
  const ByteView caller_random = answer.subspan(name_.size(), sizeof(Random));
  return {Prove(secret_, "stream from listener", random_, caller_random),
          Prove(secret_, "stream from caller", random_, caller_random)};
}

Result<StreamKeys> ProveToListener(int fd, const RendezvousName& name, const Secret& secret,
                                   const Deadline& deadline) {
  std::array<std::uint8_t, kChallengeBytes> challenge;
  MORI_RETURN_IF_ERROR(ReceiveAll(fd, challenge, deadline));
  const ByteView magic = ByteView(challenge).first(sizeof kMagic);
  const std::uint8_t version = challenge[sizeof kMagic];
  const ByteView listener_random = ByteView(challenge).subspan(sizeof kMagic + 1);
  if (!std::ranges::equal(magic, kMagic)) {
    return Error(ErrorCode::kMismatch, "something else than MORI Shmem answers there");
  }
  if (version != kVersion) {
    return Error(ErrorCode::kMismatch,
                 "another version of MORI Shmem answers there: its handshake is {:#x}, ours {:#x}; "
                 "all PEs need the same version of the library",
                 version, kVersion);
  }
  const Random mine = FreshRandom();
  const Proof proof = Prove(secret, "caller", listener_random, mine);
  MORI_RETURN_IF_ERROR(SendAll(fd, ByteWriter().Raw(name).Raw(mine).Raw(proof).Take(), deadline));
  Proof theirs;
  MORI_RETURN_IF_ERROR(ReceiveAll(fd, theirs, deadline));
  if (!Same(theirs, Prove(secret, "listener", listener_random, mine))) {
    return Error(ErrorCode::kMismatch,
                 "who answers there does not know the secret of this rendezvous");
  }
  return StreamKeys{Prove(secret, "stream from caller", listener_random, mine),
                    Prove(secret, "stream from listener", listener_random, mine)};
}

}  // namespace mori::shmem
