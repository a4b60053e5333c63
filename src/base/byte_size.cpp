#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "base/config.hpp"
#include "base/text.hpp"

namespace mori::shmem {
namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr std::array kUnitNames = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
constexpr std::string_view kHint = "a size looks like 6G, 512M or 4096 (bytes)";

/// The shift that a suffix stands for, or nothing for an unknown one.
std::optional<unsigned> ShiftOf(std::string_view suffix) {
  if (suffix.empty()) return 0;
  constexpr std::string_view kUnits = "KMGT";
  for (unsigned i = 0; i < kUnits.size(); ++i) {
    const std::string unit(1, kUnits[i]);
    if (EqualsIgnoreCase(suffix, unit) || EqualsIgnoreCase(suffix, unit + "B") ||
        EqualsIgnoreCase(suffix, unit + "iB")) {
      return 10 * (i + 1);
    }
  }
  return std::nullopt;
}

std::string_view SkipDigits(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kDigits), text.size()));
}

bool IsUnsignedSize(std::string_view text) {
  const std::string_view suffix = SkipDigits(text);
  return suffix.size() < text.size() && ShiftOf(suffix).has_value();
}

bool IsFraction(std::string_view text) {
  const std::string_view rest = SkipDigits(text);
  if (rest.empty() || rest.front() != '.') return false;
  const std::string_view suffix = SkipDigits(rest.substr(1));
  return text.size() - suffix.size() > 1 && ShiftOf(suffix).has_value();
}

/// What is wrong with a text that is no unsigned whole size.
std::string_view Complaint(std::string_view text) {
  if (text.empty()) return "is empty";
  const std::string_view magnitude = text.substr(1);
  const bool is_size = IsUnsignedSize(magnitude) || IsFraction(magnitude);
  if (text.front() == '-' && is_size) return "is negative";
  if (text.front() == '+' && is_size) return "has a sign";
  if (IsFraction(text)) return "is a fraction, sizes are whole numbers";
  return "is not a size";
}

Status BadSize(std::string_view text, std::string_view complaint) {
  return Error(ErrorCode::kInvalidArgument, "{} {}; {}", Quote(text), complaint, kHint);
}

}  // namespace

Result<std::uint64_t> ParseByteSize(std::string_view text) {
  if (!IsUnsignedSize(text)) return BadSize(text, Complaint(text));
  const std::string_view suffix = SkipDigits(text);
  const unsigned shift = *ShiftOf(suffix);

  std::uint64_t count = 0;
  const auto parsed = std::from_chars(text.data(), suffix.data(), count);
  const bool fits =
      parsed.ec == std::errc() && count <= (std::numeric_limits<std::uint64_t>::max() >> shift);
  if (!fits) return BadSize(text, "is larger than 64 bits can hold");
  return count << shift;
}

std::string FormatByteSize(std::uint64_t bytes) {
  if (bytes == 1) return "1 byte";
  if (bytes < 1024) return fmt::format("{} bytes", bytes);

  std::size_t unit = 0;
  double value = static_cast<double>(bytes) / 1024;
  // What would be shown as 1024 belongs to the next unit.
  while (value >= 1023.995 && unit + 1 < kUnitNames.size()) {
    value /= 1024;
    ++unit;
  }
  std::string number = fmt::format("{:.2f}", value);
  number.erase(number.find_last_not_of('0') + 1);
  if (number.back() == '.') number.pop_back();
  return fmt::format("{} {}", number, kUnitNames[unit]);
}

std::string FormatExactByteSize(std::uint64_t bytes) {
  std::uint64_t count = bytes;
  std::size_t units = 0;
  for (; count != 0 && count % 1024 == 0; ++units) count /= 1024;
  if (units == 0) return bytes == 1 ? "1 byte" : fmt::format("{} bytes", bytes);
  return fmt::format("{} {}", count, kUnitNames[units - 1]);
}

}  // namespace mori::shmem
