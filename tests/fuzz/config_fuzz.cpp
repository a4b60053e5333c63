// Text as an environment, and its values as sizes.
#include "base/config.hpp"
#include "fuzz/check.hpp"
#include "fuzz/environment.hpp"

namespace mori::shmem::fuzz {
namespace {

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

void CheckConfig(const Config::Environment& environment) {
  const auto config = Config::FromEnvironment(environment);
  if (!config.ok()) {
    FUZZ_CHECK(config.status().code() == ErrorCode::kInvalidConfig);
    FUZZ_CHECK(config.status().message().find(", for example: export ") != std::string::npos);
    FUZZ_CHECK(IsPrintable(config.status().message()));
    return;
  }
  FUZZ_CHECK(config->heap_bytes.value_or(1) > 0);
  FUZZ_CHECK(config->vmm_chunk_bytes.value_or(1) > 0);
  FUZZ_CHECK(config->num_qp_per_pe >= 1 && config->num_qp_per_pe <= 1024);
  FUZZ_CHECK(config->bootstrap_timeout.count() > 0);
  FUZZ_CHECK(config->bootstrap_timeout <= std::chrono::seconds(1'000'000));
  for (const std::string& warning : config->warnings) FUZZ_CHECK(IsPrintable(warning));
}

void CheckByteSize(std::string_view text) {
  const auto size = ParseByteSize(text);
  FUZZ_CHECK(size.ok() || IsPrintable(size.status().message()));
  if (!size.ok()) return;
  const auto again = ParseByteSize(std::to_string(*size));
  FUZZ_CHECK(again.ok() && *again == *size);
  FUZZ_CHECK(!FormatByteSize(*size).empty());
}

}  // namespace
}  // namespace mori::shmem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mori::shmem;
  const auto lines = fuzz::LinesOf(data, size);
  fuzz::CheckConfig(lines);
  for (const std::string_view line : lines) fuzz::CheckByteSize(line.substr(line.find('=') + 1));
  return 0;
}
