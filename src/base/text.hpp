// Text helpers for messages: quoting what others wrote, comparing names.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mori::shmem {

/// `text` in double quotes, safe for a log line and for a Python string: bytes outside printable
/// ASCII become `\xNN`, and beyond `max_chars` bytes it is cut: `"abc..." (5000 characters)`.
std::string Quote(std::string_view text, std::size_t max_chars = 64);

/// ASCII letters compare without case.
bool EqualsIgnoreCase(std::string_view a, std::string_view b);

/// Fewest insertions, deletions and replacements of a character that turn `a` into `b`.
/// Time O(|a| |b|).
std::size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace mori::shmem
