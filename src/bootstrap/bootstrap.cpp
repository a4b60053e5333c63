#include "bootstrap/bootstrap.hpp"

namespace mori::shmem {

std::string ListRanks(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 16;
  std::string text;
  for (std::size_t i = 0; i < ranks.size() && i < kMost; ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  return ranks.size() > kMost ? text + ", …" : text;
}

Status RanksDidNotCome(const std::vector<int>& missing, int size, const Deadline& deadline) {
  return Error(ErrorCode::kTimeout, "{} of {} ranks did not come within {:.3g} s: rank{} {}",
               missing.size(), size, deadline.ElapsedSeconds(), missing.size() == 1 ? "" : "s",
               ListRanks(missing));
}

}  // namespace mori::shmem
