// Every environment variable, read once: `Config::FromEnvironment()` runs at init, parts receive a
// `const Config&`, and later changes of the environment have no effect.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/status.hpp"

namespace mori::shmem {

enum class HeapMode { kStatic, kVmm, kIsolation };
enum class HeapType { kNormal, kUncached };
enum class Backend { kAuto, kHost, kCuda, kHip };
enum class GpuSharing { kAuto, kFd, kIpc };
enum class Network { kAuto, kP2p, kVerbs, kOfi };

/// The names that the variables use: "static", "uncached", "host", ...
std::string_view HeapModeName(HeapMode mode);
std::string_view HeapTypeName(HeapType type);
std::string_view BackendName(Backend backend);
std::string_view GpuSharingName(GpuSharing sharing);
std::string_view NetworkName(Network network);

/// Snapshot of the environment: a field for each variable of the table in base/variables.hpp.
struct Config {
  std::optional<std::uint64_t> heap_bytes;                // MORI_SHMEM_HEAP_SIZE
  HeapMode heap_mode = HeapMode::kStatic;                 // MORI_SHMEM_MODE
  HeapType heap_type = HeapType::kUncached;               // MORI_SHMEM_HEAP_TYPE
  std::optional<std::uint64_t> vmm_chunk_bytes;           // MORI_SHMEM_VMM_CHUNK_SIZE
  std::string socket_ifname;                              // MORI_SOCKET_IFNAME
  std::string rdma_devices;                               // MORI_RDMA_DEVICES
  int num_qp_per_pe = 1;                                  // MORI_NUM_QP_PER_PE
  std::optional<int> ib_gid_index;                        // MORI_IB_GID_INDEX
  std::optional<int> rdma_sl;                             // MORI_RDMA_SL
  std::optional<int> rdma_tc;                             // MORI_RDMA_TC
  bool disable_p2p = false;                               // MORI_DISABLE_P2P
  bool enable_rail_only = false;                          // MORI_ENABLE_RAIL_ONLY
  bool disable_topo = false;                              // MORI_DISABLE_TOPO
  bool ignore_cpu_affinity = false;                       // MORI_IGNORE_CPU_AFFINITY
  bool cpu_affinity_no_split = false;                     // MORI_CPU_AFFINITY_NO_SPLIT
  LogLevel log_level = LogLevel::kInfo;                   // MORI_GLOBAL_LOG_LEVEL
  bool precompile = false;                                // MORI_PRECOMPILE
  bool disable_jit = false;                               // MORI_DISABLE_JIT
  Backend backend = Backend::kAuto;                       // MORI_SHMEM_BACKEND
  GpuSharing gpu_sharing = GpuSharing::kAuto;             // MORI_SHMEM_GPU_SHARING
  Network network = Network::kAuto;                       // MORI_SHMEM_TRANSPORT
  std::string ofi_provider;                               // MORI_OFI_PROVIDER
  std::optional<int> local_rank;                          // MORI_LOCAL_RANK
  std::string node_id;                                    // MORI_NODE_ID
  std::chrono::milliseconds bootstrap_timeout{300'000};   // MORI_BOOTSTRAP_TIMEOUT, in seconds
  std::optional<std::chrono::milliseconds> wait_timeout;  // MORI_SHMEM_TIMEOUT, in seconds

  /// Odd but usable findings of the same reading, one sentence each: a `MORI_…` variable that the
  /// table does not have, with the nearest name; those that are set and have no effect. The caller
  /// logs them, once a job.
  std::vector<std::string> warnings;

  /// Name and value of every `MORI_…` variable that was set, in table order.
  std::vector<std::pair<std::string, std::string>> set_variables;

  /// All of an environment as "NAME=value" strings.
  using Environment = std::vector<std::string>;

  /// Reads and validates. An empty value counts as not set. A heap size that is not set is no
  /// error here: whether it is needed depends on the mode.
  /// @return kInvalidConfig if a value cannot be used. The sentence has the variable, the value and
  ///   an example of a right one; of several wrong values it has the first, and says how many more
  ///   there are.
  static Result<Config> FromEnvironment(const Environment& environment);
  /// The same over this process's environment.
  static Result<Config> FromEnvironment();

  struct Findings {
    std::vector<std::string> problems;  ///< a sentence for each value that cannot be used
    std::vector<std::string> warnings;  ///< as those of a reading
  };
  /// All there is to say against an environment.
  static Findings Check(const Environment& environment);

  static Environment ProcessEnvironment();

  bool operator==(const Config&) const = default;
};

/// Bytes of "6G", "512M", "64K", "1T", "4096", also "6GiB", "6GB", "6g" (all powers of 1024).
/// Fails on anything else: sign, fraction, zero is the caller's concern, overflow of 64 bits. The
/// sentence says which of these it was, and what a right value looks like.
Result<std::uint64_t> ParseByteSize(std::string_view text);

/// "6 GiB", "512 MiB", "1.5 KiB", "100 bytes".
std::string FormatByteSize(std::uint64_t bytes);
/// "6 GiB", "1536 MiB", "1030 bytes": no two sizes look alike.
std::string FormatExactByteSize(std::uint64_t bytes);

}  // namespace mori::shmem
