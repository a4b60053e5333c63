#include "cuda_host/library_kernels.hpp"

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "fake_cuda/fake_cuda.hpp"
#include "kernels/library_kernels.cu"

namespace mori::shmem::testing {
namespace {

using Kernel = std::function<void(void** arguments)>;

/// With the arguments that a launch points to.
template <typename... Arguments>
Kernel Of(void (*function)(Arguments...)) {
  return [function](void** arguments) {
    [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
      function(*static_cast<std::remove_const_t<Arguments>*>(arguments[kIndex])...);
    }
    (std::index_sequence_for<Arguments...>{});
  };
}

#define MORI_OF(name) \
  { "MoriShmem" #name, Of(&MoriShmem##name) }
#define MORI_OF_TYPES(name)                                                           \
  MORI_OF(name##_i32), MORI_OF(name##_u32), MORI_OF(name##_i64), MORI_OF(name##_u64), \
      MORI_OF(name##_f32), MORI_OF(name##_f64)
const std::map<std::string, Kernel>& AllKernels() {
  static const std::map<std::string, Kernel> all = {MORI_OF(Meet),
                                                    MORI_OF(MeetFew),
                                                    MORI_OF(Signal),
                                                    MORI_OF(Wait),
                                                    MORI_OF(Fence),
                                                    MORI_OF(Broadcast),
                                                    MORI_OF(FCollect),
                                                    MORI_OF(AllToAll),
                                                    MORI_OF(SmallBroadcast),
                                                    MORI_OF(SmallGather),
                                                    MORI_OF(RemotePut),
                                                    MORI_OF(RemoteGet),
                                                    MORI_OF(RemoteQuiet),
                                                    MORI_OF(RemotePutSignal),
                                                    MORI_OF(Collect),
                                                    MORI_OF_TYPES(Reduce),
                                                    MORI_OF_TYPES(SmallReduce),
                                                    MORI_OF_TYPES(ReduceAtOnce),
                                                    MORI_OF_TYPES(RemoteReduce)};
  return all;
}

}  // namespace

void RunLibraryKernels() {
  fake_cuda::SetKernels(
      [](const std::string& name, const device::DeviceContext& state, void** arguments) {
        const auto kernel = AllKernels().find(name);
        if (kernel == AllKernels().end()) return;
        globalGpuStates = state;
        kernel->second(arguments);
      });
}

}  // namespace mori::shmem::testing
