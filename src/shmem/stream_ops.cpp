// The public calls on streams: each checks its arguments, and hands them to the PE's streams.
#include "mori/shmem/stream_ops.hpp"

#include "shmem/checks.hpp"
#include "shmem/edge.hpp"

namespace mori::shmem {
namespace {

/// `call(world, streams)` for the calling thread's PE.
template <typename Call>
int OnStreams(const char* name, void* stream, Call call) {
  return OnWorld(
      name,
      [&](const World& world) -> Status {
        MORI_ASSIGN_OR_RETURN(Streams * streams, world.streams());
        // Made all the same: the others may be in the same collective.
        const Status made = call(world, *streams);
        return made.ok() ? world.Fault() : made;
      },
      stream);
}

Status CheckRange(const World& world, const void* address, std::uint64_t bytes) {
  return world.memory().FindMapped(address, bytes, world.my_pe()).status();
}

Status CheckSignal(const World& world, const std::uint64_t* sig_addr, SignalOp op, int pe) {
  MORI_RETURN_IF_ERROR(CheckSignalOp(op));
  MORI_RETURN_IF_ERROR(CheckWord(sig_addr, sizeof *sig_addr));
  MORI_RETURN_IF_ERROR(world.memory().Locate(sig_addr, sizeof *sig_addr, pe).status());
  return op == SignalOp::kAdd ? world.operations().CheckAtomicsOf(pe) : Status();
}

/// Bytes of all PEs' parts.
Result<std::uint64_t> BytesOfAll(const World& world, std::uint64_t bytes) {
  const auto n_pes = static_cast<std::uint64_t>(world.n_pes());
  if (bytes > world.heap().bytes() / n_pes) {
    return Error(ErrorCode::kInvalidArgument, "{} bytes of each of {} PEs are more than the heap",
                 bytes, n_pes);
  }
  return bytes * n_pes;
}

}  // namespace

int ShmemPutMemOnStream(void* dest, const void* source, std::size_t bytes, int pe, void* stream) {
  return OnStreams(
      "shmem_putmem_on_stream", stream, [&](const World& world, Streams& streams) -> Status {
        MORI_ASSIGN_OR_RETURN(const Location to, world.memory().Locate(dest, bytes, pe));
        if (to.near != nullptr) return streams.Copy(to.near, source, bytes, stream);
        return streams.RemotePut(dest, source, bytes, pe, stream);
      });
}

int ShmemGetMemOnStream(void* dest, const void* source, std::size_t bytes, int pe, void* stream) {
  return OnStreams(
      "shmem_getmem_on_stream", stream, [&](const World& world, Streams& streams) -> Status {
        MORI_ASSIGN_OR_RETURN(const Location from, world.memory().Locate(source, bytes, pe));
        if (from.near != nullptr) return streams.Copy(dest, from.near, bytes, stream);
        return streams.RemoteGet(dest, source, bytes, pe, stream);
      });
}

int ShmemPutMemSignalOnStream(void* dest, const void* source, std::size_t bytes,
                              std::uint64_t* sig_addr, std::uint64_t signal, SignalOp op, int pe,
                              void* stream) {
  return OnStreams(
      "shmem_putmem_signal_on_stream", stream, [&](const World& world, Streams& streams) -> Status {
        MORI_RETURN_IF_ERROR(CheckSignal(world, sig_addr, op, pe));
        MORI_ASSIGN_OR_RETURN(const Location to, world.memory().Locate(dest, bytes, pe));
        if (to.near == nullptr)
          return streams.RemotePutSignal(dest, source, bytes, sig_addr, signal, op, pe, stream);
        MORI_RETURN_IF_ERROR(streams.Copy(to.near, source, bytes, stream));
        return streams.Signal(sig_addr, signal, op, pe, stream);
      });
}

int ShmemSignalOpOnStream(std::uint64_t* sig_addr, std::uint64_t signal, SignalOp op, int pe,
                          void* stream) {
  return OnStreams("shmem_signal_op_on_stream", stream,
                   [&](const World& world, Streams& streams) -> Status {
                     MORI_RETURN_IF_ERROR(CheckSignal(world, sig_addr, op, pe));
                     return streams.Signal(sig_addr, signal, op, pe, stream);
                   });
}

int ShmemSignalWaitUntilOnStream(const std::uint64_t* sig_addr, Cmp cmp, std::uint64_t value,
                                 void* stream) {
  return OnStreams("shmem_signal_wait_until_on_stream", stream,
                   [&](const World& world, Streams& streams) -> Status {
                     MORI_RETURN_IF_ERROR(CheckCmp(cmp));
                     MORI_RETURN_IF_ERROR(CheckWord(sig_addr, sizeof *sig_addr));
                     MORI_RETURN_IF_ERROR(CheckRange(world, sig_addr, sizeof *sig_addr));
                     return streams.Wait(sig_addr, cmp, value, stream);
                   });
}

int ShmemQuietOnStream(void* stream) {
  return OnStreams("shmem_quiet_on_stream", stream,
                   [&](const World&, Streams& streams) { return streams.Quiet(stream); });
}

int ShmemBarrierAllOnStream(void* stream) {
  return OnStreams("shmem_barrier_all_on_stream", stream,
                   [&](const World&, Streams& streams) { return streams.Meet(stream); });
}

int ShmemSyncAllOnStream(void* stream) {
  return OnStreams("shmem_sync_all_on_stream", stream,
                   [&](const World&, Streams& streams) { return streams.Meet(stream); });
}

int ShmemBroadcastMemOnStream(void* dest, const void* source, std::size_t bytes, int root,
                              void* stream) {
  return OnStreams("shmem_broadcast_on_stream", stream,
                   [&](const World& world, Streams& streams) -> Status {
                     MORI_RETURN_IF_ERROR(world.memory().CheckPe(root));
                     MORI_RETURN_IF_ERROR(CheckRange(world, dest, bytes));
                     return streams.Broadcast(dest, source, bytes, root, stream);
                   });
}

int ShmemFCollectMemOnStream(void* dest, const void* source, std::size_t bytes, void* stream) {
  return OnStreams("shmem_fcollect_on_stream", stream,
                   [&](const World& world, Streams& streams) -> Status {
                     MORI_ASSIGN_OR_RETURN(const std::uint64_t all, BytesOfAll(world, bytes));
                     MORI_RETURN_IF_ERROR(CheckRange(world, dest, all));
                     return streams.FCollect(dest, source, bytes, stream);
                   });
}

int ShmemAllToAllMemOnStream(void* dest, const void* source, std::size_t bytes, void* stream) {
  return OnStreams("shmem_alltoall_on_stream", stream,
                   [&](const World& world, Streams& streams) -> Status {
                     MORI_ASSIGN_OR_RETURN(const std::uint64_t all, BytesOfAll(world, bytes));
                     MORI_RETURN_IF_ERROR(CheckRange(world, dest, all));
                     return streams.AllToAll(dest, source, bytes, stream);
                   });
}

int ShmemReduceOnStream(void* dest, const void* source, std::size_t count, ElementType type,
                        ReduceOp op, void* stream) {
  return OnStreams(
      "shmem_reduce_on_stream", stream, [&](const World& world, Streams& streams) -> Status {
        const std::uint64_t element = ElementBytes(type);
        if (element == 0 || static_cast<int>(op) < 0 || op > ReduceOp::kMax) {
          return Error(
              ErrorCode::kInvalidArgument,
              "element type {} or operation {} is unknown: types 0 to 5, operations 0 to 2",
              static_cast<int>(type), static_cast<int>(op));
        }
        if (count > world.heap().bytes() / element) {
          return Error(ErrorCode::kInvalidArgument,
                       "{} elements of {} bytes are more than the heap", count, element);
        }
        for (const void* address : {static_cast<const void*>(dest), source}) {
          MORI_RETURN_IF_ERROR(CheckWord(address, element));
          MORI_RETURN_IF_ERROR(CheckRange(world, address, count * element));
        }
        return streams.Reduce(dest, source, count, type, op, stream);
      });
}

}  // namespace mori::shmem
