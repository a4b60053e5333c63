// Bindings of the calls on streams. A stream is the vendor's handle as an int; 0 is the default
// one.
#include <pybind11/native_enum.h>

#include "mori/shmem/stream_ops.hpp"
#include "pybind/arguments.hpp"
#include "pybind/mori.hpp"

namespace py = pybind11;

namespace mori::shmem {
namespace {

using Stream = Integer<std::uintptr_t, "stream">;
using Signal = Integer<std::uint64_t, "signal">;
// On the host backend a call on a stream waits for the other PEs.
using ReleaseGil = py::call_guard<ErrorsAreRaised, py::gil_scoped_release>;

void* Handle(Stream stream) { return reinterpret_cast<void*>(stream.value); }

}  // namespace

void RegisterStreams(py::module_& module) {
  py::native_enum<ReduceOp>(module, "ReduceOp", "enum.IntEnum", "How a reduction combines.")
      .value("SUM", ReduceOp::kSum)
      .value("MIN", ReduceOp::kMin)
      .value("MAX", ReduceOp::kMax)
      .finalize();
  module.def(
      "putmem_on_stream",
      [](Address dest, Address source, Size size, Pe pe, Stream stream) {
        Check(ShmemPutMemOnStream(At<void>(dest), At<void>(source), size, pe, Handle(stream)));
      },
      ReleaseGil());
  module.def(
      "getmem_on_stream",
      [](Address dest, Address source, Size size, Pe pe, Stream stream) {
        Check(ShmemGetMemOnStream(At<void>(dest), At<void>(source), size, pe, Handle(stream)));
      },
      ReleaseGil());
  module.def(
      "putmem_signal_on_stream",
      [](Address dest, Address source, Size size, Address sig_addr, Signal signal, SignalOp op,
         Pe pe, Stream stream) {
        Check(ShmemPutMemSignalOnStream(At<void>(dest), At<void>(source), size,
                                        At<std::uint64_t>(sig_addr), signal, op, pe,
                                        Handle(stream)));
      },
      ReleaseGil());
  module.def(
      "signal_op_on_stream",
      [](Address sig_addr, Signal signal, SignalOp op, Pe pe, Stream stream) {
        Check(ShmemSignalOpOnStream(At<std::uint64_t>(sig_addr), signal, op, pe, Handle(stream)));
      },
      ReleaseGil());
  module.def(
      "signal_wait_until_on_stream",
      [](Address sig_addr, Cmp cmp, Integer<std::uint64_t, "value"> value, Stream stream) {
        Check(
            ShmemSignalWaitUntilOnStream(At<std::uint64_t>(sig_addr), cmp, value, Handle(stream)));
      },
      ReleaseGil());
  module.def(
      "quiet_on_stream", [](Stream stream) { Check(ShmemQuietOnStream(Handle(stream))); },
      ReleaseGil());
  module.def(
      "barrier_all_on_stream",
      [](Stream stream) { Check(ShmemBarrierAllOnStream(Handle(stream))); }, ReleaseGil());
  module.def(
      "sync_all_on_stream", [](Stream stream) { Check(ShmemSyncAllOnStream(Handle(stream))); },
      ReleaseGil());
  module.def(
      "broadcast_on_stream",
      [](Address dest, Address source, Size size, Pe root, Stream stream) {
        Check(ShmemBroadcastMemOnStream(At<void>(dest), At<void>(source), size, root,
                                        Handle(stream)));
      },
      ReleaseGil());
  module.def(
      "fcollect_on_stream",
      [](Address dest, Address source, Size size, Stream stream) {
        Check(ShmemFCollectMemOnStream(At<void>(dest), At<void>(source), size, Handle(stream)));
      },
      ReleaseGil());
  module.def(
      "alltoall_on_stream",
      [](Address dest, Address source, Size size, Stream stream) {
        Check(ShmemAllToAllMemOnStream(At<void>(dest), At<void>(source), size, Handle(stream)));
      },
      ReleaseGil());
  module.def(
      "reduce_on_stream",
      [](Address dest, Address source, Integer<std::size_t, "count"> count,
         Integer<int, "element type"> type, ReduceOp op, Stream stream) {
        Check(ShmemReduceOnStream(At<void>(dest), At<void>(source), count,
                                  static_cast<ElementType>(type.value), op, Handle(stream)));
      },
      ReleaseGil());
}

}  // namespace mori::shmem
