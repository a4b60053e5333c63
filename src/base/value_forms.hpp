// The forms that values of environment variables have: for each a description, an example, and the
// parser that puts the value into the configuration or says what is wrong.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/config.hpp"

namespace mori::shmem {

/// What is wrong with a value, beginning with the value in quotes; nothing if it is right.
using Problem = std::optional<std::string>;

struct Form {
  std::string text;     ///< what values look like, with their unit, e.g. `0 to 15`
  std::string example;  ///< a right value
  std::function<Problem(std::string_view text, Config& config)> parse;
};

namespace value_forms {

/// A name of an enumeration's value.
template <typename T>
struct Named {
  std::string_view name;
  T value;
  bool is_alias = false;  ///< accepted, and listed in parentheses
};

Problem ParseInt(std::string_view text, int low, int high, int& out);
Problem ParseSeconds(std::string_view text, std::chrono::milliseconds& out);

/// Words for yes and no, in any case.
Form Bool(bool Config::*field);
/// A number of bytes, above 0, with a suffix or without.
Form Size(std::optional<std::uint64_t> Config::*field, std::string example);
/// A name of a network interface.
Form Interface(std::string Config::*field);
/// RDMA devices to use or, after `^`, to leave out.
Form Devices(std::string Config::*field);
/// The name of a provider of libfabric.
Form Provider(std::string Config::*field);
/// The name of a node.
Form NodeId(std::string Config::*field);
/// The token with the unique id. It holds a secret: no message shows its text.
Form Token();
/// Whatever there is; another program reads it.
Form Anything(std::string text, std::string example);
/// A whole number that the launcher's reader takes from the environment itself.
Form CheckedInt(std::string text, int low, int high, std::string example);

/// A whole number. `T` is an int or an optional one.
template <typename T>
Form Int(T Config::*field, int low, int high, std::string text, std::string example) {
  return {std::move(text), std::move(example),
          [field, low, high](std::string_view value, Config& config) {
            int parsed = 0;
            Problem problem = ParseInt(value, low, high, parsed);
            if (!problem) config.*field = parsed;
            return problem;
          }};
}

/// A time in seconds, above 0. `T` is milliseconds or optional ones.
template <typename T>
Form Seconds(T Config::*field) {
  return {"seconds, above 0 and at most 1000000, fractions allowed: 60, 0.5", "60",
          [field](std::string_view value, Config& config) {
            std::chrono::milliseconds parsed{};
            Problem problem = ParseSeconds(value, parsed);
            if (!problem) config.*field = parsed;
            return problem;
          }};
}

/// What is wrong with a value that is none of `names`.
Problem NoneOf(std::string_view value, const std::string& names);
bool SameName(std::string_view a, std::string_view b);

/// "a, b or c".
template <typename T, std::size_t kCount>
std::string Listed(const Named<T> (&names)[kCount], bool aliases, std::string_view last_separator) {
  std::size_t left = 0;
  for (const auto& one : names) left += one.is_alias == aliases ? 1 : 0;
  std::string text;
  for (const auto& one : names) {
    if (one.is_alias != aliases) continue;
    if (!text.empty()) text += left == 1 ? last_separator : ", ";
    text += one.name;
    --left;
  }
  return text;
}

/// One of `names`, in any case.
template <typename T, std::size_t kCount>
Form OneOf(T Config::*field, const Named<T> (&names)[kCount], std::string example) {
  std::string text = Listed(names, false, " or ");
  if (const std::string aliases = Listed(names, true, ", "); !aliases.empty())
    text += " (also " + aliases + ")";
  return {std::move(text), std::move(example), [field, &names](std::string_view value, Config& c) {
            for (const auto& one : names) {
              if (SameName(value, one.name)) return c.*field = one.value, Problem();
            }
            return NoneOf(value, Listed(names, false, ", "));
          }};
}

/// The name of a value.
template <typename T, std::size_t kCount>
std::string_view NameOf(const Named<T> (&names)[kCount], T wanted) {
  for (const auto& one : names) {
    if (one.value == wanted) return one.name;
  }
  return "unknown";
}

inline constexpr Named<HeapMode> kModes[] = {{"static", HeapMode::kStatic},
                                             {"vmm", HeapMode::kVmm},
                                             {"isolation", HeapMode::kIsolation},
                                             {"static_heap", HeapMode::kStatic, true},
                                             {"vmm_heap", HeapMode::kVmm, true}};
inline constexpr Named<HeapType> kTypes[] = {{"normal", HeapType::kNormal},
                                             {"uncached", HeapType::kUncached}};
inline constexpr Named<Backend> kBackends[] = {{"auto", Backend::kAuto},
                                               {"host", Backend::kHost},
                                               {"cuda", Backend::kCuda},
                                               {"hip", Backend::kHip}};
inline constexpr Named<GpuSharing> kSharings[] = {
    {"auto", GpuSharing::kAuto}, {"fd", GpuSharing::kFd}, {"ipc", GpuSharing::kIpc}};
inline constexpr Named<Network> kNetworks[] = {{"auto", Network::kAuto},
                                               {"p2p", Network::kP2p},
                                               {"verbs", Network::kVerbs},
                                               {"ofi", Network::kOfi}};
inline constexpr Named<LogLevel> kLogLevels[] = {{"TRACE", LogLevel::kTrace},
                                                 {"DEBUG", LogLevel::kDebug},
                                                 {"INFO", LogLevel::kInfo},
                                                 {"WARN", LogLevel::kWarn},
                                                 {"ERROR", LogLevel::kError}};

}  // namespace value_forms
}  // namespace mori::shmem
