// One endpoint of libfabric with all that belongs to it.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "transport/ofi/connections.hpp"
#include "transport/ofi/provider.hpp"
#include "transport/remote.hpp"

namespace mori::shmem::ofi {

struct CloseFid {
  pid_t owner = ::getpid();
  /// A forked child closes nothing: it would end the connections of its parent.
  template <typename Object>
  void operator()(Object* object) const {
    if (::getpid() == owner) ::fi_close(&object->fid);
  }
};
template <typename Object>
using Fid = std::unique_ptr<Object, CloseFid>;

/// A range that the network may write to and read from.
struct Region {
  Fid<fid_mr> handle;
  RemotePlace place;
};

/// What a thread did before it gave the network something happened before what another does with
/// what comes of it: libfabric's locks and the kernel see to that, also between PEs that are
/// threads of one process. The thread sanitizer sees neither, and is told.
class Handover {
 public:
  static void Give() {
#if defined(__SANITIZE_THREAD__)
    all_.fetch_add(1, std::memory_order_release);
#endif
  }
  static void Take() {
#if defined(__SANITIZE_THREAD__)
    (void)all_.load(std::memory_order_acquire);
#endif
  }

 private:
  static inline std::atomic<std::uint64_t> all_{0};
};

/// Thread-safe but for the end.
class Endpoint {
 public:
  static Result<std::shared_ptr<Endpoint>> Open(const Library* library, Info info);

  const fi_info& info() const { return *info_; }
  const Library& library() const { return *library_; }

  /// What others know it by.
  const Bytes& name() const { return name_; }
  /// Those of this endpoint, and to what was inserted.
  const Connections& connections() const { return *connections_; }
  Result<fi_addr_t> Insert(ByteView name);
  /// `key` is taken where the network leaves the choice.
  Result<Region> Register(void* start, std::uint64_t bytes, std::uint64_t key);

  // These return 0, or a negative code as libfabric does; -FI_EAGAIN: later.
  ssize_t Receive(void* buffer, std::size_t bytes, void* context) const {
    Handover::Give();
    return ::fi_recv(endpoint_.get(), buffer, bytes, nullptr, FI_ADDR_UNSPEC, context);
  }
  ssize_t Send(fi_addr_t to, const void* buffer, std::size_t bytes, void* context) const {
    Handover::Give();
    return ::fi_send(endpoint_.get(), buffer, bytes, nullptr, to, context);
  }
  /// Completes once the data is visible at the target.
  ssize_t Write(fi_addr_t to, RemotePlace place, const void* from, std::size_t bytes,
                void* context) const;
  ssize_t Read(fi_addr_t from, RemotePlace place, void* to, std::size_t bytes,
               void* context) const {
    Handover::Give();
    return ::fi_read(endpoint_.get(), to, bytes, nullptr, from, place.address, place.key, context);
  }

  fid_cq* queue() const { return queue_.get(); }
  /// Readable when there may be something to do.
  int wait_descriptor() const { return wait_descriptor_; }
  /// Whether a wait on the descriptor sees all that comes.
  bool MayWait() const;

  /// Ends all that is under way: its memory is the caller's again. Only memory may be registered,
  /// or no longer be, from then on.
  void Shut() {
    endpoint_.reset();
    queue_.reset();
  }

 private:
  Endpoint(const Library* library, Info info) : library_(library), info_(std::move(info)) {}
  Status OpenAll();
  Status ReadName();

  const Library* library_;
  Info info_;
  Bytes name_;
  std::unique_ptr<Connections> connections_;  ///< as long as the endpoint
  Fid<fid_fabric> fabric_;
  Fid<fid_domain> domain_;
  Fid<fid_av> addresses_;
  Fid<fid_cq> queue_;
  Fid<fid_ep> endpoint_;
  int wait_descriptor_ = -1;
};

}  // namespace mori::shmem::ofi
