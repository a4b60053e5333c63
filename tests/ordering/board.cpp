// Barrier on a board that two threads share: what one wrote before is read by the other after.
// Built with the thread sanitizer, which reports the data as a race unless the barrier orders it.
#include <cstdint>
#include <memory>
#include <thread>

#include "node/board.hpp"

using namespace mori::shmem;

namespace mori::shmem {
Result<UniqueFd> FdExchange::Broadcast(int, const Deadline&) {
  return UniqueFd();
}  // not used here
}  // namespace mori::shmem

namespace {

class Memory final : public AddressRange {
 public:
  std::byte* base() const override { return const_cast<std::byte*>(bytes_); }
  std::uint64_t bytes() const override { return sizeof bytes_; }
  Status Map(std::uint64_t, const DeviceMemory&) override { return Status(); }
  Status Unmap(std::uint64_t, std::uint64_t, bool) override { return Status(); }

 private:
  alignas(4096) std::byte bytes_[4096] = {};
};

}  // namespace

int main() {
  constexpr int kRounds = 2000;
  const auto memory = std::make_shared<Memory>();
  std::uint64_t values[2] = {0, 0};
  int wrong[2] = {0, 0};
  const auto run = [&](int self) {
    const auto board = Board::Attach(memory, self, 2, /*may_spin=*/true);
    std::optional<Board::Dispute> dispute;
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      values[self] = round;
      if (!board->Barrier(&dispute).ok()) return;
      wrong[self] += values[1 - self] != round;
      if (!board->Barrier(&dispute).ok()) return;
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  return wrong[0] + wrong[1] > 0 ? 2 : 0;
}
