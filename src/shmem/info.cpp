#include "shmem/info.hpp"

#include <algorithm>
#include <cstdlib>

#include "base/text.hpp"

namespace mori::shmem {
namespace {

/// Whether a value is not for other eyes.
bool IsSecret(std::string_view variable) { return variable == "MORI_UNIQUE_ID"; }

std::string ShownValue(const Variable& variable) {
  const char* set = std::getenv(std::string(variable.name).c_str());
  if (set == nullptr || *set == '\0') return fmt::format("({})", variable.default_value);
  return IsSecret(variable.name) ? "set" : fmt::format("{} *", Quote(set));
}

}  // namespace

std::string LibraryInfo() {
  return fmt::format(
      "MORI Shmem {}\n"
      "backends    host, cuda (MORI_SHMEM_BACKEND=cuda); hip: not in this version\n"
      "heap modes  static, vmm, isolation\n"
      "transports  p2p (load and store within a node); rdma: not in this version\n",
      MORI_SHMEM_VERSION);
}

std::string DeviceInfo(const Config& config) {
  std::string text;
  for (const std::string& device : DescribeDevices(config)) {
    text += fmt::format("{:<12}{}\n", text.empty() ? "devices" : "", device);
  }
  return text;
}

std::string EnvironmentInfo() {
  std::size_t width = 0;
  for (const Variable& variable : Variables()) width = std::max(width, variable.name.size());
  std::string text = "environment (* set now, in parentheses the default)\n";
  for (const Variable& variable : Variables()) {
    text += fmt::format("  {:<{}}  {}\n", variable.name, width, ShownValue(variable));
    if (!variable.note.empty()) text += fmt::format("  {:<{}}    {}\n", "", width, variable.note);
  }
  return text;
}

std::string WorldInfo(const World* world) {
  return world != nullptr ? world->Describe() : "not initialized: this process has no PE now\n";
}

}  // namespace mori::shmem
