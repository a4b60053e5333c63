#include "shmem/start_lines.hpp"

#include <string>

#include <fmt/format.h>

#include "base/log.hpp"

namespace mori::shmem {
namespace {

/// Says of a chunk size, or a way of sharing, that it is not what the variable asked for.
void LogDepartures(const StartedWorld& world) {
  const Config& config = *world.config;
  const DeviceRuntime& runtime = *world.runtime;
  const auto& wanted = config.vmm_chunk_bytes;
  if (config.heap_mode == HeapMode::kVmm && wanted && *wanted != ChunkBytes(config, runtime)) {
    LogInfo(
        "MORI_SHMEM_VMM_CHUNK_SIZE is {}, chunks are {}: whole pieces of {}, and no more than the "
        "heap",
        FormatByteSize(*wanted), FormatByteSize(ChunkBytes(config, runtime)),
        FormatByteSize(runtime.GranularityBytes()));
  }
  if (config.gpu_sharing == GpuSharing::kAuto && runtime.sharing() == GpuSharing::kIpc) {
    LogInfo(
        "GPU memory is shared by IPC handle (MORI_SHMEM_GPU_SHARING): the device cannot share it "
        "by file descriptor");
  }
}

/// "cuda backend", and how to get the other where nobody has asked for it.
std::string BackendText(const StartedWorld& world) {
  const bool is_found = world.config->backend == Backend::kAuto && !world.runtime->IsHostMemory();
  return fmt::format(
      "{} backend{}", BackendName(world.runtime->backend()),
      is_found ? " on the GPU found here (MORI_SHMEM_BACKEND=host takes the CPU's memory)" : "");
}

std::string HeapText(const StartedWorld& world) {
  const std::string type = world.runtime->IsHostMemory()
                               ? ""
                               : fmt::format(" ({})", HeapTypeName(world.config->heap_type));
  return fmt::format("{} heap of {}{}", HeapModeName(world.heap->mode()),
                     FormatByteSize(world.heap->bytes()), type);
}

}  // namespace

void LogStart(const StartedWorld& world) {
  const std::string backend = BackendText(world);
  if (world.pe == 0) {
    LogDepartures(world);
    LogInfo("ready: {} PE{}{}, {}, {} each", world.n_pes, world.n_pes == 1 ? "" : "s",
            world.n_nodes == 1 ? "" : fmt::format(" on {} nodes", world.n_nodes), backend,
            HeapText(world));
  }
  LogDebug("ready: {}, {} at {}, {} PE{} on this node", backend, HeapText(world),
           static_cast<const void*>(world.heap->base()), world.node_pes,
           world.node_pes == 1 ? "" : "s");
}

}  // namespace mori::shmem
