// Text helpers for messages: quoting what others wrote, comparing names.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mori::shmem {

/// `text` in double quotes, for every value in a message that others wrote: the environment, a
/// file, an argument, the network. Quotes and backslashes get a backslash in front, bytes outside
/// printable ASCII become `\xNN`, and beyond `max_chars` bytes it is cut:
/// `"abc..." (5000 characters)`.
std::string Quote(std::string_view text, std::size_t max_chars = 64);

/// A whole sentence as one line that is valid UTF-8, for the edges at which sentences leave the
/// library: control characters, other line ends, and bytes that are no UTF-8 become `\xNN`. What
/// one's own sentences are made of stays as it is.
std::string OneLine(std::string_view text);

/// ASCII letters compare without case.
bool EqualsIgnoreCase(std::string_view a, std::string_view b);

/// Fewest insertions, deletions and replacements of a character that turn `a` into `b`.
/// Time O(|a| |b|).
std::size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace mori::shmem
