#include "base/config.hpp"

#include <unistd.h>

#include <map>

#include <fmt/format.h>

#include "base/text.hpp"
#include "base/variables.hpp"

namespace mori::shmem {
namespace {

constexpr std::string_view kPrefix = "MORI_";

using Values = std::map<std::string_view, std::string_view>;

/// What is set in an environment; as with getenv(), the first of several equal names counts.
Values SetValues(const Config::Environment& environment) {
  Values values;
  for (const std::string_view entry : environment) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos || equals + 1 == entry.size()) continue;
    values.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return values;
}

struct Reading {
  Config config;
  std::vector<std::string> problems;   ///< a sentence for each value that cannot be used
  std::vector<std::string_view> idle;  ///< set to other than their default, and without effect
};

void ReadRow(const Variable& row, std::string_view value, Reading& reading) {
  Config& config = reading.config;
  const Config before = config;
  if (const Problem problem = row.form.parse(value, config)) {
    reading.problems.push_back(fmt::format("{}: {}, for example: export {}={}", row.name, *problem,
                                           row.name, row.form.example));
    return;
  }
  if (row.effect != Effect::kNow && config != before) reading.idle.push_back(row.name);
  if (row.name.starts_with(kPrefix)) {
    config.set_variables.emplace_back(row.name, row.is_secret ? "(a secret, not shown)" : value);
  }
}

Reading Read(const Config::Environment& environment) {
  const Values values = SetValues(environment);
  Reading reading;
  for (const Variable& row : Variables()) {
    if (const auto found = values.find(row.name); found != values.end())
      ReadRow(row, found->second, reading);
  }
  std::vector<std::string>& warnings = reading.config.warnings;
  for (const auto& [name, value] : values) {
    if (name.starts_with(kPrefix) && FindVariable(name) == nullptr && !IsToolVariable(name))
      warnings.push_back(UnknownVariable(name));
  }
  if (!reading.idle.empty()) {
    warnings.push_back(fmt::format("without effect in this version, though set: {}",
                                   fmt::join(reading.idle, ", ")));
  }
  return reading;
}

}  // namespace

std::string_view HeapModeName(HeapMode mode) { return NameOf(value_forms::kModes, mode); }
std::string_view HeapTypeName(HeapType type) { return NameOf(value_forms::kTypes, type); }
std::string_view BackendName(Backend backend) { return NameOf(value_forms::kBackends, backend); }
std::string_view GpuSharingName(GpuSharing sharing) {
  return NameOf(value_forms::kSharings, sharing);
}
std::string_view NetworkName(Network network) { return NameOf(value_forms::kNetworks, network); }

Result<Config> Config::FromEnvironment(const Environment& environment) {
  Reading reading = Read(environment);
  const std::size_t wrong = reading.problems.size();
  if (wrong == 0) return std::move(reading.config);
  const std::string more =
      wrong == 1 ? ""
                 : fmt::format(" ({} more value{} cannot be used; `mori info` lists all)",
                               wrong - 1, wrong == 2 ? "" : "s");
  return Error(ErrorCode::kInvalidConfig, "{}{}", reading.problems[0], more);
}

Result<Config> Config::FromEnvironment() { return FromEnvironment(ProcessEnvironment()); }

Config::Findings Config::Check(const Environment& environment) {
  Reading reading = Read(environment);
  return {std::move(reading.problems), std::move(reading.config.warnings)};
}

Config::Environment Config::ProcessEnvironment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    environment.emplace_back(*entry);
  }
  return environment;
}

}  // namespace mori::shmem
