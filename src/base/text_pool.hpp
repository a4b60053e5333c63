// Texts that many things have alike, kept once.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>

namespace mori::shmem {

/// Hands out views that are good as long as the pool. Used by one thread at a time.
class TextPool {
 public:
  TextPool() = default;
  TextPool(const TextPool&) = delete;  // whose texts stay where they are
  TextPool& operator=(const TextPool&) = delete;

  std::string_view Keep(std::string_view text) {
    const auto found = texts_.find(text);
    return found != texts_.end() ? *found : *texts_.emplace(text).first;
  }
  /// Different texts.
  std::size_t size() const { return texts_.size(); }

 private:
  struct Hash {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): a name of the standard
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  std::unordered_set<std::string, Hash, std::equal_to<>> texts_;
};

}  // namespace mori::shmem
