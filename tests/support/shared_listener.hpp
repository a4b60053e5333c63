// A listener for descriptors among forked processes: the first of them opens it, since a listener
// is no inheritance of children, and the others learn its token.
#pragma once

#include <atomic>

#include "node/fd_exchange.hpp"
#include "support/bootstrap_ranks.hpp"
#include "support/forked.hpp"

namespace mori::shmem::testing {

class SharedListener {
 public:
  /// In each process: the listener of `index` 0, an empty one of others, once the token is known.
  Result<FdListener> Open(int index) const {
    if (index != 0) {
      if (Eventually([&] { return shared_->there.load(); })) return FdListener();
      return Error(ErrorCode::kTimeout, "the first process did not listen");
    }
    auto listener = FdListener::Open();
    if (!listener.ok()) return listener.status();
    shared_->token = listener->token();
    shared_->there = true;
    return listener;
  }
  const FdListener::Token& token() const { return shared_->token; }

 private:
  struct State {
    FdListener::Token token;
    std::atomic<bool> there{false};
  };
  Shared<State> shared_;
};

}  // namespace mori::shmem::testing
