// A resource limit of this process while an object exists.
#pragma once

#include <sys/resource.h>

#include "support/run_pes.hpp"

namespace mori::shmem::testing {

/// Lowers the soft limit, and puts back what was: what looks for leaks at the exit needs
/// descriptors again.
class Limit {
 public:
  Limit(__rlimit_resource resource, rlim_t value) : resource_(resource) {
    PE_CHECK_EQ(::getrlimit(resource_, &before_), 0);
    const rlimit limit{value, before_.rlim_max};
    PE_CHECK_EQ(::setrlimit(resource_, &limit), 0);
  }
  Limit(const Limit&) = delete;
  ~Limit() { ::setrlimit(resource_, &before_); }

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};

}  // namespace mori::shmem::testing
