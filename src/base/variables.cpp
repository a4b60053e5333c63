#include "base/variables.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "base/text.hpp"

namespace mori::shmem {
namespace {

using namespace value_forms;

constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr std::string_view kNotSet = "Not set";
constexpr std::string_view kWithRdma = "Validated now, takes effect with the RDMA transport.";
constexpr std::string_view kLater = "Validated, and has no effect in this version.";
constexpr std::string_view kSetByLauncher = "Set by `mori run`";

std::vector<Variable> Table() {
  using C = Config;
  return {
      {"MORI_SHMEM_HEAP_SIZE",
       "Size of each PE's symmetric heap, or what it may grow to in the modes vmm and isolation. "
       "To be set before initialization.",
       Size(&C::heap_bytes, "6G"), "Required",
       "In the modes vmm and isolation it may be left unset: the memory of the device."},
      {"MORI_SHMEM_MODE", "How the memory of the heap is provided.",
       OneOf(&C::heap_mode, kModes, "static"), "static",
       "static: all of it at initialization; vmm: chunks, as blocks need them; isolation: memory "
       "of "
       "its own for each block."},
      {"MORI_SHMEM_HEAP_TYPE", "Memory type of the heap: normal is cached.",
       OneOf(&C::heap_type, kTypes, "uncached"), "uncached",
       "Host memory is coherent with either; the difference takes effect with a GPU backend."},
      {"MORI_SHMEM_VMM_CHUNK_SIZE", "Size of the chunks by which a vmm heap grows.",
       Size(&C::vmm_chunk_bytes, "64M"), "Auto",
       "64M, or the whole heap if that is less. Rounded up to what the device can map by itself."},
      {"MORI_SOCKET_IFNAME", "Network interface for the TCP connections of the bootstrap.",
       Interface(&C::socket_ifname), "Auto-detect", ""},
      {"MORI_RDMA_DEVICES", "RDMA NICs to use, or to leave out.", Devices(&C::rdma_devices),
       "All available", kWithRdma, Effect::kWithRdma},
      {"LD_LIBRARY_PATH",
       "Where the dynamic loader looks for an out-of-tree libibverbs, which is opened at run time.",
       Anything("directories separated by colons", "/opt/rdma/lib"),
       "libibverbs.so / libibverbs.so.1", "Takes effect with the RDMA transport."},
      {"MORI_NUM_QP_PER_PE", "Number of RDMA queue pairs per PE.",
       Int(&C::num_qp_per_pe, 1, 1024, "1 to 1024", "4"), "1",
       "Validated and returned by shmem_num_qp_per_pe() now, takes effect with the RDMA "
       "transport."},
      {"MORI_IB_GID_INDEX", "InfiniBand GID index for RDMA connections.",
       Int(&C::ib_gid_index, 0, 255, "0 to 255", "3"), "Auto-detect", kWithRdma, Effect::kWithRdma},
      {"MORI_RDMA_SL", "RDMA service level.", Int(&C::rdma_sl, 0, 15, "0 to 15", "0"), "Auto",
       kWithRdma, Effect::kWithRdma},
      {"MORI_RDMA_TC", "RDMA traffic class.", Int(&C::rdma_tc, 0, 255, "0 to 255", "104"), "Auto",
       kWithRdma, Effect::kWithRdma},
      {"MORI_DISABLE_P2P", "Disables load and store between PEs, so that the network is forced.",
       Bool(&C::disable_p2p), kNotSet,
       "With it one machine can try what several do: PEs of a node reach each other over the "
       "network, too."},
      {"MORI_ENABLE_RAIL_ONLY",
       "Creates RDMA queue pairs only to peers with the same index within their node.",
       Bool(&C::enable_rail_only), kNotSet, kWithRdma, Effect::kWithRdma},
      {"MORI_DISABLE_TOPO", "Disables topology detection.", Bool(&C::disable_topo), kNotSet, kLater,
       Effect::kLater},
      {"MORI_IGNORE_CPU_AFFINITY",
       "Leaves the initializing thread where it runs, instead of pinning it to the CPUs local to "
       "its GPU.",
       Bool(&C::ignore_cpu_affinity), "Not set (binding on)",
       "This version pins no thread, with it or without."},
      {"MORI_CPU_AFFINITY_NO_SPLIT",
       "Pins to the whole NUMA node of the GPU, instead of this PE's own slice of it.",
       Bool(&C::cpu_affinity_no_split), "Not set (split on)", kLater, Effect::kLater},
      {"MORI_GLOBAL_LOG_LEVEL", "Lines below this level are not logged.",
       OneOf(&C::log_level, kLogLevels, "INFO"), "INFO", ""},
      {"MORI_PRECOMPILE", "Precompiles all JIT kernels on import.", Bool(&C::precompile), kNotSet,
       kLater, Effect::kLater},
      {"MORI_DISABLE_JIT", "Disables JIT compilation of device bitcode.", Bool(&C::disable_jit),
       kNotSet, kLater, Effect::kLater},
      {"MORI_SHMEM_BACKEND", "Whose memory the heap is, and where kernels run.",
       OneOf(&C::backend, kBackends, "host"), "auto",
       "auto takes a CUDA GPU where there is one, and the host's memory otherwise; hip is not "
       "available yet."},
      {"MORI_SHMEM_GPU_SHARING",
       "How PEs reach the GPU memory of other processes: by file descriptor, or by IPC handle.",
       OneOf(&C::gpu_sharing, kSharings, "ipc"), "auto",
       "auto takes fd where the device can. ipc serves static mode alone."},
      {"MORI_SHMEM_TRANSPORT", "How PEs of other nodes are reached.",
       OneOf(&C::network, kNetworks, "ofi"), "auto",
       "auto takes ofi, which is libfabric; p2p allows no network at all; verbs is not available "
       "yet."},
      {"MORI_OFI_PROVIDER", "Provider of libfabric, as `fi_info -l` lists them.",
       Provider(&C::ofi_provider), "Auto",
       "The first that works of cxi, efa, verbs;ofi_rxm, tcp;ofi_rxm and tcp. The same for all "
       "PEs."},
      {"MORI_NODE_ID",
       "Name of this PE's node: PEs with the same name share memory, others do not.",
       NodeId(&C::node_id), "Auto-detect (boot of the operating system)", ""},
      {"MORI_BOOTSTRAP_TIMEOUT", "How long initialization and finalization wait for late PEs.",
       Seconds(&C::bootstrap_timeout), "300", ""},
      {"MORI_SHMEM_TIMEOUT",
       "How long a call after initialization waits for other PEs before it fails: a collective "
       "call, or a wait for a word or signal.",
       Seconds(&C::wait_timeout), "Not set (waits as long as all PEs are alive)", ""},
      {"MORI_UNIQUE_ID", "Token by which the PEs of shmem_init() find each other; a secret.",
       Token(), kSetByLauncher, "", Effect::kNow, true},
      {"MORI_RANK", "This PE's number for shmem_init().",
       CheckedInt("0 to MORI_WORLD_SIZE - 1", 0, kMaxInt, "0"), kSetByLauncher, ""},
      {"MORI_WORLD_SIZE", "Number of PEs for shmem_init().",
       CheckedInt("1 or more", 1, kMaxInt, "2"), kSetByLauncher, ""},
      {"MORI_LOCAL_RANK",
       "This PE's index among those that the launcher started on this node: the GPU of a PE that "
       "has no current device. Without it, what torchrun, Open MPI, MPICH or srun say.",
       Int(&C::local_rank, 0, kMaxInt, "0 to MORI_LOCAL_WORLD_SIZE - 1", "0"), kSetByLauncher, ""},
      {"MORI_LOCAL_WORLD_SIZE", "Number of PEs that the launcher started on this node.",
       CheckedInt("1 or more", 1, kMaxInt, "2"), kSetByLauncher, ""},
  };
}

/// Read by the build, the tests and the benchmarks; a program under them inherits them.
constexpr std::string_view kToolVariables[] = {
    "MORI_WITHOUT_TORCH", "MORI_SKIP_APT",   "MORI_NVCC",
    "MORI_COMMAND",       "MORI_BUILD_DIR",  "MORI_BENCH_PIN",
    "MORI_BENCH_TAG",     "MORI_TEST_NODES", "MORI_TEST_NETWORKS"};

constexpr std::string_view kPrefix = "MORI_";

/// What distinguishes a name: without `MORI_`, and without the `SHMEM_` that only some names have.
std::string_view Stem(std::string_view name) {
  for (const std::string_view prefix : {kPrefix, std::string_view("SHMEM_")}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  return name;
}

bool IsNear(std::string_view stem, std::string_view known_stem, std::size_t distance) {
  constexpr std::size_t kMinPart = 4;
  if (distance <= std::max<std::size_t>(1, stem.size() / 3)) return true;
  return stem.size() >= kMinPart && known_stem.find(stem) != std::string_view::npos;
}

/// The variable that `name` was meant to be, or an empty name.
std::string_view NearestVariable(std::string_view name) {
  const std::string_view stem = Stem(name);
  std::string_view nearest;
  std::size_t smallest = std::numeric_limits<std::size_t>::max();
  for (const Variable& known : Variables()) {
    const std::size_t distance = EditDistance(stem, Stem(known.name));
    if (distance >= smallest || !IsNear(stem, Stem(known.name), distance)) continue;
    nearest = known.name;
    smallest = distance;
  }
  return nearest;
}

}  // namespace

const std::vector<Variable>& Variables() {
  static const auto* const table = new std::vector<Variable>(Table());
  return *table;
}

const Variable* FindVariable(std::string_view name) {
  const auto& table = Variables();
  const auto found = std::find_if(table.begin(), table.end(),
                                  [name](const Variable& row) { return row.name == name; });
  return found != table.end() ? &*found : nullptr;
}

bool IsToolVariable(std::string_view name) {
  return std::find(std::begin(kToolVariables), std::end(kToolVariables), name) !=
         std::end(kToolVariables);
}

std::string UnknownVariable(std::string_view name) {
  constexpr std::size_t kMaxNameChars = 128;
  const std::string_view nearest =
      name.size() <= kMaxNameChars ? NearestVariable(name) : std::string_view();
  const std::string hint = nearest.empty() ? "`mori info` lists those that are known"
                                           : fmt::format("did you mean {}?", nearest);
  return fmt::format("environment variable {} is unknown and has no effect: {}", Quote(name), hint);
}

}  // namespace mori::shmem
