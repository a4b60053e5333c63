#include "base/config.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include "base/text.hpp"

namespace mori::shmem {
namespace {

// ---- one parser for each form of value ----

/// What is wrong with a value, beginning with the value in quotes; nothing if it is right.
using Problem = std::optional<std::string>;

Problem ParseBool(std::string_view text, bool& out) {
  for (const std::string_view word : {"1", "true", "yes", "on"}) {
    if (EqualsIgnoreCase(text, word)) return out = true, std::nullopt;
  }
  for (const std::string_view word : {"0", "false", "no", "off"}) {
    if (EqualsIgnoreCase(text, word)) return out = false, std::nullopt;
  }
  return fmt::format("{} is neither 1, true, yes, on nor 0, false, no, off", Quote(text));
}

Problem ParseInt(std::string_view text, int low, int high, int& out) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::invalid_argument || stop != end) {
    return fmt::format("{} is not a whole number", Quote(text));
  }
  if (error == std::errc::result_out_of_range || value < low || value > high) {
    return fmt::format("{} is outside {} to {}", Quote(text), low, high);
  }
  out = value;
  return std::nullopt;
}

Problem ParseInt(std::string_view text, int low, int high, std::optional<int>& out) {
  int value = 0;
  Problem problem = ParseInt(text, low, high, value);
  if (!problem) out = value;
  return problem;
}

Problem CheckInt(std::string_view text, int low, int high) {
  int ignored = 0;
  return ParseInt(text, low, high, ignored);
}

Problem ParseSize(std::string_view text, std::optional<std::uint64_t>& out) {
  const Result<std::uint64_t> size = ParseByteSize(text);
  if (!size.ok()) return size.status().message();
  if (*size == 0) return fmt::format("{} is zero, at least 1 byte is needed", Quote(text));
  out = *size;
  return std::nullopt;
}

Problem ParseSeconds(std::string_view text, std::chrono::milliseconds& out) {
  constexpr double kMaxSeconds = 1e6;
  if (text.find_first_not_of("0123456789.") != std::string_view::npos) {
    return fmt::format("{} is not a number of seconds", Quote(text));
  }
  double seconds = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seconds);
  if (error == std::errc::invalid_argument || stop != end) {
    return fmt::format("{} is not a number of seconds", Quote(text));
  }
  if (error != std::errc() || seconds <= 0 || seconds > kMaxSeconds) {
    return fmt::format("{} is not above 0 and at most {:.0f} seconds", Quote(text), kMaxSeconds);
  }
  out = std::chrono::milliseconds(std::llround(std::ceil(seconds * 1000)));
  return std::nullopt;
}

Problem ParseSeconds(std::string_view text, std::optional<std::chrono::milliseconds>& out) {
  std::chrono::milliseconds value{};
  Problem problem = ParseSeconds(text, value);
  if (!problem) out = value;
  return problem;
}

template <typename T>
struct Named {
  std::string_view name;
  T value;
};

constexpr Named<HeapMode> kModes[] = {
    {"static", HeapMode::kStatic}, {"vmm", HeapMode::kVmm}, {"isolation", HeapMode::kIsolation}};
constexpr Named<HeapType> kTypes[] = {{"normal", HeapType::kNormal},
                                      {"uncached", HeapType::kUncached}};
constexpr Named<Backend> kBackends[] = {{"auto", Backend::kAuto},
                                        {"host", Backend::kHost},
                                        {"cuda", Backend::kCuda},
                                        {"hip", Backend::kHip}};
constexpr Named<GpuSharing> kSharings[] = {
    {"auto", GpuSharing::kAuto}, {"fd", GpuSharing::kFd}, {"ipc", GpuSharing::kIpc}};
constexpr Named<LogLevel> kLogLevels[] = {{"TRACE", LogLevel::kTrace},
                                          {"DEBUG", LogLevel::kDebug},
                                          {"INFO", LogLevel::kInfo},
                                          {"WARN", LogLevel::kWarn},
                                          {"ERROR", LogLevel::kError}};

template <typename Names, typename T>
Problem ParseName(std::string_view text, const Names& names, T& out) {
  std::string known;
  for (const auto& [name, value] : names) {
    if (EqualsIgnoreCase(text, name)) return out = value, std::nullopt;
    if (!known.empty()) known += ", ";
    known += name;
  }
  return fmt::format("{} is none of {}", Quote(text), known);
}

template <typename Names, typename T>
std::string_view NameOf(const Names& names, T wanted) {
  for (const auto& [name, value] : names) {
    if (value == wanted) return name;
  }
  return "unknown";
}

bool IsPrintable(char c) { return c >= ' ' && c <= '~'; }
bool IsAlnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool IsHexDigit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
bool IsDeviceChar(char c) { return IsAlnum(c) || c == '_' || c == '-' || c == '.'; }
bool IsInterfaceChar(char c) { return IsPrintable(c) && c != ' ' && c != '/'; }

Problem ParseInterface(std::string_view text, std::string& out) {
  if (!std::all_of(text.begin(), text.end(), IsInterfaceChar)) {
    return fmt::format("{} is not the name of a network interface", Quote(text));
  }
  out = text;
  return std::nullopt;
}

Problem ParseNodeId(std::string_view text, std::string& out) {
  constexpr std::size_t kMaxChars = 255;
  if (text.size() > kMaxChars || !std::all_of(text.begin(), text.end(), IsPrintable)) {
    return fmt::format("{} is not 1 to {} printable ASCII characters", Quote(text), kMaxChars);
  }
  out = text;
  return std::nullopt;
}

Problem ParseDevices(std::string_view text, std::string& out) {
  std::string_view rest = text.substr(text.starts_with('^') ? 1 : 0);
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    if (name.empty()) return fmt::format("{} has an empty name in its list", Quote(text));
    if (name.starts_with('^')) {
      return fmt::format("{} has a '^' inside: one in front excludes the whole list", Quote(text));
    }
    if (!std::all_of(name.begin(), name.end(), IsDeviceChar)) {
      return fmt::format("{} is not a comma-separated list of device names without spaces",
                         Quote(text));
    }
    more = comma != std::string_view::npos;
    if (more) rest = rest.substr(comma + 1);
  }
  out = text;
  return std::nullopt;
}

/// The token holds a secret: its text never goes into a message.
Problem CheckUniqueId(std::string_view text) {
  constexpr std::size_t kHexDigits = 2 * UniqueId::kBytes;
  if (text.size() != kHexDigits) {
    return fmt::format("its value has {} characters instead of {} hexadecimal digits", text.size(),
                       kHexDigits);
  }
  if (!std::all_of(text.begin(), text.end(), IsHexDigit)) {
    return fmt::format("its value has characters that are not hexadecimal digits");
  }
  return std::nullopt;
}

// ---- the table ----

struct Row {
  Variable variable;
  std::string_view example;  ///< a right value, for messages
  Problem (*apply)(std::string_view text, Config& config);
  bool is_secret = false;
};

constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr std::string_view kBoolForm = "1 or 0 (also true, yes, on, false, no, off)";
constexpr std::string_view kNotSet = "Not set";
constexpr std::string_view kWithRdma = "Validated now, takes effect with the RDMA transport.";
constexpr std::string_view kLater = "Validated, and has no effect in this version.";
constexpr std::string_view kSetByLauncher = "Set by `mori run`";

const std::vector<Row>& Rows() {
  static const auto* const rows = new std::vector<Row>{
      {{"MORI_SHMEM_HEAP_SIZE",
        "Size of each PE's symmetric heap, or what it may grow to in the modes vmm and isolation. "
        "To be "
        "set before initialization.",
        "whole number of bytes, or with K, M, G, T (powers of 1024): 6G, 512M", "Required",
        "In the modes vmm and isolation it may be left unset: the memory of the device."},
       "6G",
       [](std::string_view text, Config& c) { return ParseSize(text, c.heap_bytes); }},
      {{"MORI_SHMEM_MODE", "How the memory of the heap is provided.", "static, vmm or isolation",
        "static", "See docs/heaps.md."},
       "static",
       [](std::string_view text, Config& c) { return ParseName(text, kModes, c.heap_mode); }},
      {{"MORI_SHMEM_HEAP_TYPE", "Memory type of the heap: normal is cached.", "normal or uncached",
        "uncached",
        "Host memory is coherent with either; the difference takes effect with a GPU backend."},
       "uncached",
       [](std::string_view text, Config& c) { return ParseName(text, kTypes, c.heap_type); }},
      {{"MORI_SHMEM_VMM_CHUNK_SIZE", "Size of the chunks by which a vmm heap grows.",
        "whole number of bytes, or with K, M, G, T: 2097152, 64M", "Auto",
        "64M, or the whole heap if that is less. Rounded up to what the device can map by itself."},
       "64M",
       [](std::string_view text, Config& c) { return ParseSize(text, c.vmm_chunk_bytes); }},
      {{"MORI_SOCKET_IFNAME", "Network interface for the TCP connections of the bootstrap.",
        "interface name: lo, eth0", "Auto-detect", ""},
       "eth0",
       [](std::string_view text, Config& c) { return ParseInterface(text, c.socket_ifname); }},
      {{"MORI_RDMA_DEVICES", "RDMA NICs to use, or to leave out.",
        "include: mlx5_0,mlx5_1; exclude: ^mlx5_2,mlx5_3", "All available", kWithRdma},
       "mlx5_0,mlx5_1",
       [](std::string_view text, Config& c) { return ParseDevices(text, c.rdma_devices); }},
      {{"LD_LIBRARY_PATH",
        "Where the dynamic loader looks for an out-of-tree libibverbs, which is opened at run "
        "time.",
        "directories separated by colons", "libibverbs.so / libibverbs.so.1",
        "Takes effect with the RDMA transport."},
       "/opt/rdma/lib",
       [](std::string_view, Config&) -> Problem { return std::nullopt; }},
      {{"MORI_NUM_QP_PER_PE", "Number of RDMA queue pairs per PE.", "1 to 1024", "1",
        "Validated and returned by shmem_num_qp_per_pe() now, takes effect with the RDMA "
        "transport."},
       "4",
       [](std::string_view text, Config& c) { return ParseInt(text, 1, 1024, c.num_qp_per_pe); }},
      {{"MORI_IB_GID_INDEX", "InfiniBand GID index for RDMA connections.", "0 to 255",
        "Auto-detect", kWithRdma},
       "3",
       [](std::string_view text, Config& c) { return ParseInt(text, 0, 255, c.ib_gid_index); }},
      {{"MORI_RDMA_SL", "RDMA service level.", "0 to 15", "Auto", kWithRdma},
       "0",
       [](std::string_view text, Config& c) { return ParseInt(text, 0, 15, c.rdma_sl); }},
      {{"MORI_RDMA_TC", "RDMA traffic class.", "0 to 255", "Auto", kWithRdma},
       "104",
       [](std::string_view text, Config& c) { return ParseInt(text, 0, 255, c.rdma_tc); }},
      {{"MORI_DISABLE_P2P", "Disables load and store between PEs, so that RDMA is forced.",
        kBoolForm, kNotSet, kWithRdma},
       "1",
       [](std::string_view text, Config& c) { return ParseBool(text, c.disable_p2p); }},
      {{"MORI_ENABLE_RAIL_ONLY",
        "Creates RDMA queue pairs only to peers with the same index within their node.", kBoolForm,
        kNotSet, kWithRdma},
       "1",
       [](std::string_view text, Config& c) { return ParseBool(text, c.enable_rail_only); }},
      {{"MORI_DISABLE_TOPO", "Disables topology detection.", kBoolForm, kNotSet, kLater},
       "1",
       [](std::string_view text, Config& c) { return ParseBool(text, c.disable_topo); }},
      {{"MORI_IGNORE_CPU_AFFINITY",
        "Leaves the initializing thread where it runs, instead of pinning it to the CPUs local to "
        "its GPU.",
        kBoolForm, "Not set (binding on)", kLater},
       "1",
       [](std::string_view text, Config& c) { return ParseBool(text, c.ignore_cpu_affinity); }},
      {{"MORI_CPU_AFFINITY_NO_SPLIT",
        "Pins to the whole NUMA node of the GPU, instead of this PE's own slice of it.", kBoolForm,
        "Not set (split on)", kLater},
       "1",
       [](std::string_view text, Config& c) { return ParseBool(text, c.cpu_affinity_no_split); }},
      {{"MORI_GLOBAL_LOG_LEVEL", "Lines below this level are not logged.",
        "TRACE, DEBUG, INFO, WARN or ERROR", "INFO", ""},
       "INFO",
       [](std::string_view text, Config& c) { return ParseName(text, kLogLevels, c.log_level); }},
      {{"MORI_PRECOMPILE", "Precompiles all JIT kernels on import.", kBoolForm, kNotSet, kLater},
       "1",
       [](std::string_view text, Config& c) { return ParseBool(text, c.precompile); }},
      {{"MORI_DISABLE_JIT", "Disables JIT compilation of device bitcode.", kBoolForm, kNotSet,
        kLater},
       "1",
       [](std::string_view text, Config& c) { return ParseBool(text, c.disable_jit); }},
      {{"MORI_SHMEM_BACKEND", "Whose memory the heap is, and where kernels run.",
        "auto, host, cuda or hip", "auto",
        "auto takes a CUDA GPU where there is one, and the host's memory otherwise; hip is not "
        "available yet."},
       "host",
       [](std::string_view text, Config& c) { return ParseName(text, kBackends, c.backend); }},
      {{"MORI_SHMEM_GPU_SHARING",
        "How PEs reach the GPU memory of other processes: by file descriptor, or by IPC handle.",
        "auto, fd or ipc", "auto",
        "auto takes fd where the device can. ipc serves static mode alone."},
       "ipc",
       [](std::string_view text, Config& c) { return ParseName(text, kSharings, c.gpu_sharing); }},
      {{"MORI_NODE_ID",
        "Name of this PE's node: PEs with the same name share memory, others do not.",
        "1 to 255 printable ASCII characters", "Auto-detect (boot of the operating system)", ""},
       "node0",
       [](std::string_view text, Config& c) { return ParseNodeId(text, c.node_id); }},
      {{"MORI_BOOTSTRAP_TIMEOUT", "How long initialization and finalization wait for late PEs.",
        "seconds, above 0 and at most 1000000, fractions allowed: 60, 0.5", "300", ""},
       "60",
       [](std::string_view text, Config& c) { return ParseSeconds(text, c.bootstrap_timeout); }},
      {{"MORI_SHMEM_TIMEOUT",
        "How long a call after initialization waits for other PEs before it fails: a collective "
        "call, or a wait for a word or signal.",
        "seconds, above 0 and at most 1000000, fractions allowed: 60, 0.5",
        "Not set (waits as long as all PEs are alive)", ""},
       "60",
       [](std::string_view text, Config& c) { return ParseSeconds(text, c.wait_timeout); }},
      {{"MORI_UNIQUE_ID", "Token by which the PEs of shmem_init() find each other; a secret.",
        "256 hexadecimal digits (128 bytes)", kSetByLauncher, ""},
       "<256 hexadecimal digits>",
       [](std::string_view text, Config&) { return CheckUniqueId(text); },
       true},
      {{"MORI_RANK", "This PE's number for shmem_init().", "0 to MORI_WORLD_SIZE - 1",
        kSetByLauncher, ""},
       "0",
       [](std::string_view text, Config&) { return CheckInt(text, 0, kMaxInt); }},
      {{"MORI_WORLD_SIZE", "Number of PEs for shmem_init().", "1 or more", kSetByLauncher, ""},
       "2",
       [](std::string_view text, Config&) { return CheckInt(text, 1, kMaxInt); }},
      {{"MORI_LOCAL_RANK",
        "This PE's index among those that the launcher started on this node: the GPU of a PE that "
        "has no current device. Without it, what torchrun, Open MPI, MPICH or srun say.",
        "0 to MORI_LOCAL_WORLD_SIZE - 1", kSetByLauncher, ""},
       "0",
       [](std::string_view text, Config& c) {
         return ParseInt(text, 0, kMaxInt, c.local_rank.emplace());
       }},
      {{"MORI_LOCAL_WORLD_SIZE", "Number of PEs that the launcher started on this node.",
        "1 or more", kSetByLauncher, ""},
       "2",
       [](std::string_view text, Config&) { return CheckInt(text, 1, kMaxInt); }},
  };
  return *rows;
}

// ---- reading ----

constexpr std::string_view kPrefix = "MORI_";

using Values = std::map<std::string_view, std::string_view>;

/// What is set in an environment; as with getenv(), the first of several equal names counts.
Values SetValues(const Config::Environment& environment) {
  Values values;
  for (const std::string_view entry : environment) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos || equals + 1 == entry.size()) continue;
    values.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return values;
}

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

std::string UnknownVariable(std::string_view name) {
  constexpr std::size_t kMaxNameChars = 128;
  const std::string_view nearest =
      name.size() <= kMaxNameChars ? NearestVariable(name) : std::string_view();
  const std::string hint = nearest.empty()
                               ? "`mori info` and docs/environment.md list the variables"
                               : fmt::format("did you mean {}?", nearest);
  return fmt::format("environment variable {} is unknown and has no effect: {}", Quote(name), hint);
}

bool IsKnown(std::string_view name) {
  const auto& known = Variables();
  return std::any_of(known.begin(), known.end(),
                     [name](const Variable& variable) { return variable.name == name; });
}

Status ApplyRow(const Row& row, std::string_view value, Config& config) {
  const std::string_view name = row.variable.name;
  if (const Problem problem = row.apply(value, config)) {
    return Error(ErrorCode::kInvalidConfig, "{}: {}, for example: export {}={}", name, *problem,
                 name, row.example);
  }
  if (name.starts_with(kPrefix)) {
    config.set_variables.emplace_back(name, row.is_secret ? "(a secret, not shown)" : value);
  }
  return {};
}

}  // namespace

std::string_view HeapModeName(HeapMode mode) { return NameOf(kModes, mode); }
std::string_view HeapTypeName(HeapType type) { return NameOf(kTypes, type); }
std::string_view BackendName(Backend backend) { return NameOf(kBackends, backend); }
std::string_view GpuSharingName(GpuSharing sharing) { return NameOf(kSharings, sharing); }

const std::vector<Variable>& Variables() {
  static const auto* const variables = [] {
    auto* made = new std::vector<Variable>;
    for (const Row& row : Rows()) made->push_back(row.variable);
    return made;
  }();
  return *variables;
}

Result<Config> Config::FromEnvironment(const Environment& environment) {
  const Values values = SetValues(environment);
  Config config;
  for (const Row& row : Rows()) {
    const auto found = values.find(row.variable.name);
    if (found == values.end()) continue;
    MORI_RETURN_IF_ERROR(ApplyRow(row, found->second, config));
  }
  for (const auto& [name, value] : values) {
    if (name.starts_with(kPrefix) && !IsKnown(name)) {
      config.warnings.push_back(UnknownVariable(name));
    }
  }
  return config;
}

Result<Config> Config::FromEnvironment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    environment.emplace_back(*entry);
  }
  return FromEnvironment(environment);
}

}  // namespace mori::shmem
