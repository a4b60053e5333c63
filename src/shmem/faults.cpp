#include "shmem/faults.hpp"

namespace mori::shmem {

std::string_view NameOf(device::FaultCall call) {
  switch (call) {
    case device::FaultCall::kPtr: return "address";
    case device::FaultCall::kPut: return "put";
    case device::FaultCall::kGet: return "get";
    case device::FaultCall::kAtomic: return "atomic";
    case device::FaultCall::kSignal: return "signal";
    case device::FaultCall::kWait: return "wait";
    case device::FaultCall::kQuiet: return "quiet";
    case device::FaultCall::kBarrier: return "barrier";
    case device::FaultCall::kCollective: return "collective";
    case device::FaultCall::kBarrierOnStream: return "barrier on a stream";
    case device::FaultCall::kCollectiveOnStream: return "collective on a stream";
  }
  return "call";
}

Status DescribeFault(const device::FaultRecord& fault) {
  const std::string_view call = NameOf(fault.call);
  switch (fault.reason) {
    case device::FaultReason::kPeOutOfRange:
      return Error(ErrorCode::kInvalidArgument,
                   "a kernel ended early: its {} named PE {}, and there are PEs 0 to {}", call,
                   fault.pe, static_cast<std::int64_t>(fault.value) - 1);
    case device::FaultReason::kPeOutOfReach:
      return Error(ErrorCode::kUnsupported,
                   "a kernel ended early: its {} named PE {}, which load and store do not reach",
                   call, fault.pe);
    case device::FaultReason::kTwoMeetings:
      return Error(ErrorCode::kInvalidArgument,
                   "a kernel ended early: PE {} was in a barrier or collective already when it "
                   "came to a {}; of kernels one is under way at a time, and of streams one",
                   fault.pe, call);
    case device::FaultReason::kTooManyElements:
      return Error(ErrorCode::kInvalidArgument,
                   "a kernel ended early: its {} named more elements of {} bytes than there are "
                   "addresses",
                   call, fault.value);
    case device::FaultReason::kPeLost:
      return Error(ErrorCode::kPeerLost, "a kernel ended early: PE {} was lost during its {}",
                   fault.pe, call);
    case device::FaultReason::kRemoteFailed:
      return Error(ErrorCode::kInternal, "a kernel's {} failed on its way to another node", call);
    case device::FaultReason::kNotGlobal:
      return Error(ErrorCode::kInvalidArgument,
                   "a kernel ended early: its {} named, for a PE of another node, memory that is "
                   "the thread's or the block's own, or none: the host carries it, and reaches "
                   "global memory alone",
                   call);
    case device::FaultReason::kNone: break;
  }
  return Error(ErrorCode::kInternal, "a kernel ended early in a {}, for reason {}", call,
               static_cast<unsigned>(fault.reason));
}

Status LostInKernel(const device::FaultRecord& fault, const Status& lost) {
  return Error(ErrorCode::kPeerLost, "{}; a kernel ended early, in a {}", lost.message(),
               NameOf(fault.call));
}

}  // namespace mori::shmem
