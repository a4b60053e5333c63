#include "shmem/info.hpp"

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/machine.hpp"
#include "base/text.hpp"
#include "base/variables.hpp"
#include "transport/factory.hpp"

namespace mori::shmem {
namespace {

constexpr std::size_t kWidth = 100;

/// Appends `text` in lines of at most `kWidth`: the first begins with `label`, the others with as
/// many spaces.
void AppendWrapped(std::string& out, std::string_view label, std::string_view text) {
  std::string line(label);
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    if (line.size() + 1 + word.size() > kWidth && line.size() > label.size()) {
      out += line + '\n';
      line.assign(label.size(), ' ');
    }
    if (line.size() > label.size()) line += ' ';
    line += word;
    text = space == std::string_view::npos ? std::string_view() : text.substr(space + 1);
  }
  out += line + '\n';
}

/// The value now, for people: what is set is in quotes.
std::string ShownValue(const Variable& variable) {
  const char* set = std::getenv(std::string(variable.name).c_str());
  if (set == nullptr || *set == '\0') return "not set";
  return variable.is_secret ? "= (set; a secret, not shown)" : fmt::format("= {}", Quote(set));
}

}  // namespace

std::string LibraryInfo() {
  return fmt::format(
      "MORI Shmem {}\n"
      "backends    host, cuda (MORI_SHMEM_BACKEND=cuda); hip: not in this version\n"
      "heap modes  static, vmm, isolation\n"
      "transports  p2p (load and store within a node), ofi (libfabric, between nodes); verbs: not "
      "in "
      "this version\n",
      MORI_SHMEM_VERSION);
}

std::string MachineInfo() {
  const MemoryLimit memory = FindMemoryLimit();
  const int cpus = UsableCpuCount();
  return fmt::format("machine     {}: {} CPU{} for this process, memory {} ({})\n", HostName(),
                     cpus, cpus == 1 ? "" : "s", FormatByteSize(memory.bytes), memory.source);
}

std::string DeviceInfo(const Config& config) {
  std::string text;
  for (const std::string& device : DescribeDevices(config)) {
    text += fmt::format("{:<12}{}\n", text.empty() ? "devices" : "", device);
  }
  return text;
}

std::string NetworkInfo(const Config& config) {
  std::string text;
  for (const std::string& network : DescribeNetworks(config)) {
    text += fmt::format("{:<12}{}\n", text.empty() ? "networks" : "", network);
  }
  return text;
}

std::string EnvironmentInfo() {
  std::string text = "environment variables, and what each is now\n";
  for (const Variable& variable : Variables()) {
    text += fmt::format("\n  {} {}\n", variable.name, ShownValue(variable));
    AppendWrapped(text, "      ", variable.meaning);
    AppendWrapped(text, "      values:  ", variable.form.text);
    AppendWrapped(text, "      default: ", variable.default_value);
    if (!variable.note.empty()) AppendWrapped(text, "      ", variable.note);
  }
  return text;
}

std::string SetVariablesInfo() {
  std::string text;
  for (const Variable& variable : Variables()) {
    const std::string value = ShownValue(variable);
    if (value.starts_with('=')) text += fmt::format("  {} {}\n", variable.name, value);
  }
  return "environment variables that are set\n" + (text.empty() ? "  none\n" : text);
}

std::string WorldInfo(const World* world) {
  return world != nullptr ? world->Describe() : "not initialized: this process has no PE now\n";
}

}  // namespace mori::shmem
