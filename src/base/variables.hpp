// The table of environment variables: a variable is one row here and one field of `Config`.
#pragma once

#include <string_view>
#include <vector>

#include "base/value_forms.hpp"

namespace mori::shmem {

/// When a value takes effect, where it does not yet.
enum class Effect { kNow, kWithRdma, kLater };

/// One row: what docs/environment.md and `mori info` show, and how the value is read.
struct Variable {
  std::string_view name;
  std::string_view meaning;  ///< one sentence or more, for people
  Form form;
  std::string_view default_value;  ///< as shown
  std::string_view note;           ///< more for people; may be empty
  Effect effect = Effect::kNow;
  bool is_secret = false;  ///< its value is shown nowhere
};

/// In the order of the guide, then the variables beyond it. Every `MORI_…` variable that the
/// library or the `mori` command reads is in it.
const std::vector<Variable>& Variables();

/// The row of that name; null if the table has none.
const Variable* FindVariable(std::string_view name);

/// Whether `name` is a variable of the project's build, tests and benchmarks, which the library
/// does not read.
bool IsToolVariable(std::string_view name);

/// What is wrong with a `name` that is not in the table: a sentence with the nearest name that is.
std::string UnknownVariable(std::string_view name);

}  // namespace mori::shmem
