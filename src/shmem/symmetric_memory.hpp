// Symmetric addresses, and where each PE's copy of them is found from here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/status.hpp"
#include "heap/heap.hpp"
#include "transport/route.hpp"

namespace mori::shmem {

/// A symmetric range on a PE: mapped here, or reached by the network.
struct Location {
  std::byte* near = nullptr;  ///< null: the network
};

/// Thread-safe.
class SymmetricMemory {
 public:
  /// Both are borrowed, and outlive it.
  SymmetricMemory(const Heap* heap, const std::vector<Route>* routes)
      : heap_(heap), routes_(routes) {}

  int n_pes() const { return static_cast<int>(routes_->size()); }
  /// @return kInvalidArgument unless there is such a PE
  Status CheckPe(int pe) const;
  /// Where `pe`'s copy of [address, address + bytes) is.
  /// @return kInvalidArgument for no such PE, and for no symmetric range
  Result<Location> Locate(const void* address, std::uint64_t bytes, int pe) const;
  /// The same of what is mapped here, whatever kind of memory that is.
  /// @return kUnsupported for a PE that the network alone reaches
  Result<std::byte*> FindMapped(const void* address, std::uint64_t bytes, int pe) const;

  /// Where the network finds a word that `Locate()` has found remote: it lies in one piece, since
  /// pieces begin and end on pages.
  Result<RemotePlace> RemoteWord(const void* word, int pe) const;
  /// The same of a range: where it begins, and how far it, or more, is there in one piece.
  /// @return kInvalidArgument for no symmetric range, kInternal for a PE that is near
  Result<RemotePieces::Stretch> RemoteStretch(std::uint64_t offset, std::uint64_t bytes,
                                              int pe) const;
  /// `part(place, done, length)` for each stretch of a range that `Locate()` has found remote,
  /// `done` bytes behind its start, until one fails.
  template <typename Part>
  Status ForEachStretch(const void* address, std::uint64_t bytes, int pe, Part part) const {
    for (std::uint64_t done = 0; done < bytes;) {
      const void* const at = static_cast<const std::byte*>(address) + done;
      const auto stretch = heap_->Remote(at, pe);
      if (!stretch) return Unknown(at, pe);
      const std::uint64_t length = std::min(stretch->bytes, bytes - done);
      MORI_RETURN_IF_ERROR(part(stretch->place, done, length));
      done += length;
    }
    return Status();
  }
  /// Whether a range that `Locate()` has found remote lies in one piece.
  bool IsOnePiece(const void* address, std::uint64_t bytes, int pe) const;

 private:
  /// Where a range of no bytes may lie, as elsewhere in the heap.
  bool IsEnd(const void* address) const;
  static Status Unknown(const void* address, int pe);

  const Heap* heap_;
  const std::vector<Route>* routes_;
};

}  // namespace mori::shmem
