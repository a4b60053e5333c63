// The PEs of a program, whether they are processes or threads: where they meet, and what they tell
// each other beside any library.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "options.hpp"

namespace mori::bench {

/// One of them.
class Crew {
 public:
  static constexpr int kMostPes = 64;
  /// In memory of all; zeroed.
  struct Shared {
    std::atomic<unsigned> arrived{0};
    unsigned char message[4000];
    double values[kMostPes];
  };

  Crew(int rank, int size, Shared* shared) : rank_(rank), size_(size), shared_(shared) {}

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Returns once all have called it. Sleeps meanwhile: the GPU and the CPUs are for who measures.
  void Meet() const {
    const unsigned mine = shared_->arrived.fetch_add(1) + 1;
    const unsigned size = static_cast<unsigned>(size_);
    const unsigned all = (mine + size - 1) / size * size;
    while (shared_->arrived.load() < all) ::usleep(20);
  }
  /// What PE 0 passes, to all.
  template <typename T>
  void FromFirst(T* value) const {
    static_assert(sizeof(T) <= sizeof(Shared::message));
    if (rank_ == 0) std::memcpy(shared_->message, value, sizeof(T));
    Meet();
    std::memcpy(value, shared_->message, sizeof(T));
    Meet();
  }
  /// What each passes, by PE, to all.
  std::vector<double> FromAll(double mine) const {
    shared_->values[rank_] = mine;
    Meet();
    std::vector<double> values(shared_->values, shared_->values + size_);
    Meet();
    return values;
  }
  /// The largest that one passes, to all.
  double Most(double mine) const {
    const std::vector<double> values = FromAll(mine);
    return *std::max_element(values.begin(), values.end());
  }

 private:
  int rank_;
  int size_;
  Shared* shared_;
};

}  // namespace mori::bench
