#include "base/text.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include <fmt/format.h>

namespace mori::shmem {
namespace {

char ToLower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool IsPrintable(char c) { return c >= ' ' && c <= '~'; }

std::string EscapedByte(char c) { return fmt::format("\\x{:02x}", static_cast<unsigned char>(c)); }

void AppendQuoted(std::string& out, char c) {
  if (!IsPrintable(c)) {
    out += EscapedByte(c);
    return;
  }
  if (c == '"' || c == '\\') out += '\\';
  out += c;
}

/// What a first byte of UTF-8 announces: bytes in all, and its own bits of the code point.
struct Utf8Lead {
  std::size_t length;
  char32_t bits;
  char32_t least;  ///< code points below have a shorter form, and this one is not allowed
};

std::optional<Utf8Lead> LeadOf(unsigned char byte) {
  if (byte >= 0xc2 && byte <= 0xdf) return Utf8Lead{2, byte & 0x1fU, 0x80};
  if (byte >= 0xe0 && byte <= 0xef) return Utf8Lead{3, byte & 0x0fU, 0x800};
  if (byte >= 0xf0 && byte <= 0xf4) return Utf8Lead{4, byte & 0x07U, 0x10000};
  return std::nullopt;
}

/// Whether a terminal shows it within the line. The others are control characters, two kinds of
/// line ends, and numbers that are no characters.
bool StaysInLine(char32_t code_point) {
  const bool is_control = code_point < 0xa0;
  const bool ends_a_line = code_point == 0x2028 || code_point == 0x2029;
  const bool is_surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
  return !is_control && !ends_a_line && !is_surrogate && code_point <= 0x10ffff;
}

/// Bytes of the character beyond ASCII that `text` begins with; 0 if it is none that can be shown.
std::size_t ShownCharacterBytes(std::string_view text) {
  const std::optional<Utf8Lead> lead = LeadOf(static_cast<unsigned char>(text.front()));
  if (!lead || text.size() < lead->length) return 0;
  char32_t code_point = lead->bits;
  for (const char next : text.substr(1, lead->length - 1)) {
    const auto byte = static_cast<unsigned char>(next);
    if ((byte & 0xc0U) != 0x80) return 0;
    code_point = code_point << 6U | (byte & 0x3fU);
  }
  return code_point >= lead->least && StaysInLine(code_point) ? lead->length : 0;
}

}  // namespace

std::string Quote(std::string_view text, std::size_t max_chars) {
  std::string out = "\"";
  for (const char c : text.substr(0, max_chars)) AppendQuoted(out, c);
  if (text.size() <= max_chars) return out + '"';
  return out + fmt::format("...\" ({} characters)", text.size());
}

std::string OneLine(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = IsPrintable(text.front()) ? 1 : ShownCharacterBytes(text);
    out += bytes > 0 ? std::string(text.substr(0, bytes)) : EscapedByte(text.front());
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return out;
}

bool EqualsIgnoreCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return ToLower(x) == ToLower(y); });
}

std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);  // distances of a prefix of `a` to those of `b`
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace mori::shmem
