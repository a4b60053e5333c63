#include "shmem/published_context.hpp"

#include <memory>
#include <mutex>

namespace mori::shmem {

PublishedContext* PublishedContext::Make() {
  static auto* const mutex = new std::mutex;
  static auto* const all = new std::vector<std::unique_ptr<PublishedContext>>;
  const std::lock_guard lock(*mutex);
  all->push_back(std::make_unique<PublishedContext>());
  return all->back().get();
}

void PublishedContext::Show(const Contents& contents) {
  const Heap& heap = *contents.heap;
  bases_.assign(heap.peer_bases(), heap.peer_bases() + contents.n_pes);
  context_.near_bases = bases_.data();
  context_.word_bases = bases_.data();
  context_.heap_base = reinterpret_cast<std::uintptr_t>(heap.base());
  is_inline_ = contents.is_inline;
  ShowSpan(heap);
  context_.my_pe = static_cast<std::uint32_t>(contents.pe);
  if (contents.fences_suffice) context_.flags = HostContext::kFencesSuffice;
  context_.n_pes = static_cast<std::uint32_t>(contents.n_pes);
}

void PublishedContext::ShowSpan(const Heap& heap) {
  if (!is_inline_) return;  // 0: every operation asks out of line
  // Relaxed: threads of this PE may be reading it, but they can name a new block only once they
  // were told of it.
  __atomic_store_n(&context_.heap_bytes, heap.span_bytes(), __ATOMIC_RELAXED);
}

void PublishedContext::Hide() {
  // Relaxed: a thread that reads them meanwhile uses an address after or while another one
  // finalizes. The bases stay where they are.
  __atomic_store_n(&context_.n_pes, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&context_.flags, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&context_.heap_bytes, 0, __ATOMIC_RELAXED);
}

}  // namespace mori::shmem
