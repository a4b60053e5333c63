// Text as the environment that a launcher left.
#include "shmem/launch.hpp"

#include <map>

#include "bootstrap/bootstrap.hpp"
#include "fuzz/check.hpp"
#include "fuzz/environment.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mori::shmem;
  std::map<std::string, std::string> environment;
  fuzz::CheckMessage(
      Error(ErrorCode::kInternal, "like {}", LooksLikeARankOfMany(fuzz::LinesOf(data, size))));
  for (const std::string& line : fuzz::LinesOf(data, size)) {
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos) environment[line.substr(0, equals)] = line.substr(equals + 1);
  }
  const auto launched = ReadLaunch([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
  fuzz::CheckMessage(launched.status());
  if (!launched.ok()) FUZZ_CHECK(launched.status().code() == ErrorCode::kInvalidConfig);
  if (!launched.ok() || !launched->has_value()) return 0;
  FUZZ_CHECK((*launched)->rank >= 0 && (*launched)->rank < (*launched)->size);
  FUZZ_CHECK((*launched)->size <= kMaxRanks);
  FUZZ_CHECK((*launched)->job_variables.find('\n') == std::string::npos);
  FUZZ_CHECK((*launched)->job.starts_with((*launched)->launcher));
  return 0;
}
