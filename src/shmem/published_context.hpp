// What the inline operations of the host read of a world.
#pragma once

#include <vector>

#include "heap/heap.hpp"
#include "mori/shmem/host_ops.hpp"

namespace mori::shmem {

/// One world's. Never freed: a thread may look at it after its world is gone, or be in the middle
/// of looking when it goes. It then names no PE.
class PublishedContext {
 public:
  static PublishedContext* Make();

  const HostContext* context() const { return &context_; }
  struct Contents {
    int pe;
    int n_pes;
    const Heap* heap;
    bool is_inline;       ///< memory of the host: loads and stores of the calling thread reach it
    bool fences_suffice;  ///< nothing is out of their reach
  };
  /// From here on inline operations find the PE.
  void Show(const Contents& contents);
  /// The heap has grown or shrunk.
  void ShowSpan(const Heap& heap);
  /// Inline operations find no PE from here on.
  void Hide();

 private:
  HostContext context_{};
  std::vector<std::byte*> bases_;  ///< behind `context_.near_bases`
  bool is_inline_ = false;
};

}  // namespace mori::shmem
