// One PE of a benchmark: init, pinning, symmetric memory, and an end with a sentence when something
// is not as it must be.
#pragma once

#include <cstddef>
#include <cstring>

#include "common/figure.hpp"
#include "mori/shmem/shmem.hpp"

namespace mori::bench {

/// Ends the process with status 1 and `what` unless `holds`. `mori run` then ends the other PEs.
void Require(bool holds, const char* what);

/// The PE from construction to destruction. With a CPU for every PE, each is pinned to its own
/// (`MORI_BENCH_PIN=0`: never).
class Pe {
 public:
  Pe();
  ~Pe();
  Pe(const Pe&) = delete;
  Pe& operator=(const Pe&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool is_first() const { return rank_ == 0; }

  void Barrier() const;

  /// Whether every PE can have a CPU of its own.
  bool has_cpu_each() const;

  /// The value that PE 0 passes. Collective.
  long FromFirst(long value) const;

  /// The address of PE `pe`'s copy of `local`.
  template <typename T>
  T* At(T* local, int pe) const {
    const auto address = shmem::ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(local), rank_, pe);
    Require(address != 0, "a PE is not reached by load and store");
    return reinterpret_cast<T*>(address);
  }

 private:
  int rank_;
  int size_;
  long* shared_word_;
};

/// Symmetric memory of `count` zeroed elements, page aligned and touched. Collective.
template <typename T>
class Symmetric {
 public:
  Symmetric(const Pe& pe, std::size_t count);
  ~Symmetric() { shmem::ShmemFree(data_); }
  Symmetric(const Symmetric&) = delete;
  Symmetric& operator=(const Symmetric&) = delete;

  T* data() const { return data_; }
  T& operator[](std::size_t i) const { return data_[i]; }

 private:
  T* data_;
};

template <typename T>
Symmetric<T>::Symmetric(const Pe& pe, std::size_t count)
    : data_(static_cast<T*>(shmem::ShmemMallocAlign(4096, count * sizeof(T)))) {
  Require(data_ != nullptr, "no symmetric memory: raise MORI_SHMEM_HEAP_SIZE");
  std::memset(static_cast<void*>(data_), 0, count * sizeof(T));
  pe.Barrier();
}

}  // namespace mori::bench
