#include "base/value_forms.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include <fmt/format.h>

#include "base/text.hpp"
#include "mori/shmem/types.hpp"

namespace mori::shmem::value_forms {
namespace {

bool IsPrintable(char c) { return c >= ' ' && c <= '~'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsAlnum(char c) { return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsHexDigit(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool IsDeviceChar(char c) { return IsAlnum(c) || c == '_' || c == '-' || c == '.'; }
bool IsInterfaceChar(char c) { return IsPrintable(c) && c != ' ' && c != '/'; }

Problem ParseBool(std::string_view text, bool& out) {
  for (const std::string_view word : {"1", "true", "yes", "on"}) {
    if (EqualsIgnoreCase(text, word)) return out = true, std::nullopt;
  }
  for (const std::string_view word : {"0", "false", "no", "off"}) {
    if (EqualsIgnoreCase(text, word)) return out = false, std::nullopt;
  }
  return fmt::format("{} is neither 1, true, yes, on nor 0, false, no, off", Quote(text));
}

Problem ParseSize(std::string_view text, std::optional<std::uint64_t>& out) {
  const Result<std::uint64_t> size = ParseByteSize(text);
  if (!size.ok()) return size.status().message();
  if (*size == 0) return fmt::format("{} is zero, at least 1 byte is needed", Quote(text));
  out = *size;
  return std::nullopt;
}

Problem ParseInterface(std::string_view text, std::string& out) {
  if (!std::all_of(text.begin(), text.end(), IsInterfaceChar)) {
    return fmt::format("{} is not the name of a network interface", Quote(text));
  }
  out = text;
  return std::nullopt;
}

Problem ParseProvider(std::string_view text, std::string& out) {
  constexpr std::size_t kMaxChars = 63;
  const auto is_provider_char = [](char c) {
    return IsPrintable(c) && std::string_view(" ,^/").find(c) == std::string_view::npos;
  };
  if (text.size() > kMaxChars || !std::all_of(text.begin(), text.end(), is_provider_char)) {
    return fmt::format("{} is not the name of one provider of libfabric", Quote(text));
  }
  out = text;
  return std::nullopt;
}

Problem ParseNodeId(std::string_view text, std::string& out) {
  constexpr std::size_t kMaxChars = 255;
  if (text.size() > kMaxChars || !std::all_of(text.begin(), text.end(), IsPrintable)) {
    return fmt::format("{} is not 1 to {} printable ASCII characters", Quote(text), kMaxChars);
  }
  out = text;
  return std::nullopt;
}

Problem ParseDevices(std::string_view text, std::string& out) {
  std::string_view rest = text.substr(text.starts_with('^') ? 1 : 0);
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    if (name.empty()) return fmt::format("{} has an empty name in its list", Quote(text));
    if (name.starts_with('^')) {
      return fmt::format("{} has a '^' inside: one in front excludes the whole list", Quote(text));
    }
    if (!std::all_of(name.begin(), name.end(), IsDeviceChar)) {
      return fmt::format("{} is not a comma-separated list of device names without spaces",
                         Quote(text));
    }
    more = comma != std::string_view::npos;
    if (more) rest = rest.substr(comma + 1);
  }
  out = text;
  return std::nullopt;
}

Problem CheckToken(std::string_view text) {
  constexpr std::size_t kHexDigits = 2 * UniqueId::kBytes;
  if (text.size() != kHexDigits) {
    return fmt::format("its value has {} characters instead of {} hexadecimal digits", text.size(),
                       kHexDigits);
  }
  if (!std::all_of(text.begin(), text.end(), IsHexDigit)) {
    return fmt::format("its value has characters that are not hexadecimal digits");
  }
  return std::nullopt;
}

/// A form whose parser writes into one field.
template <typename T>
Form Into(T Config::*field, Problem (*parse)(std::string_view, T&), std::string text,
          std::string example) {
  return {std::move(text), std::move(example),
          [field, parse](std::string_view value, Config& c) { return parse(value, c.*field); }};
}

}  // namespace

Problem ParseInt(std::string_view text, int low, int high, int& out) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::invalid_argument || stop != end) {
    return fmt::format("{} is not a whole number", Quote(text));
  }
  if (error == std::errc::result_out_of_range || value < low || value > high) {
    return fmt::format("{} is outside {} to {}", Quote(text), low, high);
  }
  out = value;
  return std::nullopt;
}

Problem ParseSeconds(std::string_view text, std::chrono::milliseconds& out) {
  constexpr double kMaxSeconds = 1e6;
  if (text.find_first_not_of("0123456789.") != std::string_view::npos) {
    return fmt::format("{} is not a number of seconds", Quote(text));
  }
  double seconds = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seconds);
  if (error == std::errc::invalid_argument || stop != end) {
    return fmt::format("{} is not a number of seconds", Quote(text));
  }
  if (error != std::errc() || seconds <= 0 || seconds > kMaxSeconds) {
    return fmt::format("{} is not above 0 and at most {:.0f} seconds", Quote(text), kMaxSeconds);
  }
  out = std::chrono::milliseconds(std::llround(std::ceil(seconds * 1000)));
  return std::nullopt;
}

Problem NoneOf(std::string_view value, const std::string& names) {
  return fmt::format("{} is none of {}", Quote(value), names);
}

bool SameName(std::string_view a, std::string_view b) { return EqualsIgnoreCase(a, b); }

Form Bool(bool Config::*field) {
  return Into(field, ParseBool, "1 or 0 (also true, yes, on, false, no, off)", "1");
}

Form Size(std::optional<std::uint64_t> Config::*field, std::string example) {
  std::string text = fmt::format(
      "whole number of bytes, or with K, M, G, T (powers of 1024): {}, 2097152", example);
  return Into(field, ParseSize, std::move(text), std::move(example));
}

Form Interface(std::string Config::*field) {
  return Into(field, ParseInterface, "interface name: lo, eth0", "eth0");
}

Form Devices(std::string Config::*field) {
  return Into(field, ParseDevices, "include: mlx5_0,mlx5_1; exclude: ^mlx5_2,mlx5_3",
              "mlx5_0,mlx5_1");
}

Form Provider(std::string Config::*field) {
  return Into(field, ParseProvider, "name of a provider: tcp;ofi_rxm, efa", "\"tcp;ofi_rxm\"");
}

Form NodeId(std::string Config::*field) {
  return Into(field, ParseNodeId, "1 to 255 printable ASCII characters", "node0");
}

Form Token() {
  return {"256 hexadecimal digits (128 bytes)", "<256 hexadecimal digits>",
          [](std::string_view value, Config&) { return CheckToken(value); }};
}

Form Anything(std::string text, std::string example) {
  return {std::move(text), std::move(example), [](std::string_view, Config&) { return Problem(); }};
}

Form CheckedInt(std::string text, int low, int high, std::string example) {
  return {std::move(text), std::move(example), [low, high](std::string_view value, Config&) {
            int ignored = 0;
            return ParseInt(value, low, high, ignored);
          }};
}

}  // namespace mori::shmem::value_forms
