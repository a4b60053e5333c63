// Every environment variable, read once: `Config::FromEnvironment()` runs at init, parts receive a
// `const Config&`, and later changes of the environment have no effect.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
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

/// The names that the variables use: "static", "uncached", "host", ...
std::string_view HeapModeName(HeapMode mode);
std::string_view HeapTypeName(HeapType type);
std::string_view BackendName(Backend backend);
std::string_view GpuSharingName(GpuSharing sharing);

/// One row of the variable table: what docs/environment.md and `mori info` show.
struct Variable {
  std::string_view name;
  std::string_view meaning;  ///< one sentence, for the table
  std::string_view form;     ///< what a value looks like, with its unit, e.g. `6G, 512M, bytes`
  std::string_view default_value;  ///< as shown in the table
  std::string_view note;  ///< empty, or what of it does not work yet, and since when it will
};

/// The table, in the order of the guide, then the variables beyond it. Every `MORI_…` variable
/// that the library or the `mori` command reads is in it.
const std::vector<Variable>& Variables();

/// Snapshot of the environment.
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
  std::optional<int> local_rank;                          // MORI_LOCAL_RANK
  std::string node_id;                                    // MORI_NODE_ID
  std::chrono::milliseconds bootstrap_timeout{300'000};   // MORI_BOOTSTRAP_TIMEOUT, in seconds
  std::optional<std::chrono::milliseconds> wait_timeout;  // MORI_SHMEM_TIMEOUT, in seconds

  /// Odd but usable findings of the same reading, one sentence each: a `MORI_…` variable that the
  /// table does not have, with the nearest name. The caller logs them, once a job.
  std::vector<std::string> warnings;

  /// Name and value of every `MORI_…` variable that was set, in table order.
  std::vector<std::pair<std::string, std::string>> set_variables;

  /// All of an environment as "NAME=value" strings.
  using Environment = std::vector<std::string>;

  /// Reads and validates. Fails with kInvalidConfig on the first value that cannot be used; the
  /// sentence has the variable, the value and an example of a right one. An empty value counts as
  /// not set. A heap size that is not set is no error here: whether it is needed depends on the
  /// mode.
  static Result<Config> FromEnvironment(const Environment& environment);
  /// The same over this process's environment.
  static Result<Config> FromEnvironment();
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
