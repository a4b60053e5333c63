// The variable table of docs/environment.md, made from `Variables()`.
#pragma once

#include <string>

#include "base/variables.hpp"

namespace mori::shmem::testing {

inline constexpr std::string_view kTableBegin = "<!-- variables: begin -->\n";
inline constexpr std::string_view kTableEnd = "<!-- variables: end -->\n";

/// A cell of a Markdown table; only a `|` would end it early.
inline std::string MarkdownCell(std::string_view text) {
  std::string cell;
  for (const char c : text) {
    if (c == '|') cell += '\\';
    cell += c;
  }
  return cell;
}

inline std::string VariableTable() {
  std::string table = "| Variable | Meaning | Value | Default | Note |\n|---|---|---|---|---|\n";
  for (const Variable& row : Variables()) {
    table += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.name, MarkdownCell(row.meaning),
                         MarkdownCell(row.form.text), MarkdownCell(row.default_value),
                         MarkdownCell(row.note));
  }
  return table;
}

/// `document` with what stands between the two markers replaced by the table; empty if it has no
/// such markers.
inline std::string WithVariableTable(const std::string& document) {
  const std::size_t begin = document.find(kTableBegin);
  const std::size_t end = document.find(kTableEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  return document.substr(0, begin + kTableBegin.size()) + VariableTable() + document.substr(end);
}

}  // namespace mori::shmem::testing
