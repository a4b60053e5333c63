#include "base/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "base/variables.hpp"
#include "support/environment_doc.hpp"

namespace mori::shmem {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Lt;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;
using namespace std::chrono_literals;

Result<Config> Read(std::string_view name, std::string_view value) {
  return Config::FromEnvironment({fmt::format("{}={}", name, value)});
}

const std::string kToken(256, 'a');

// ---- right values ----

struct Good {
  std::string_view name;
  std::string_view value;
  bool (*holds)(const Config& config);
};

const std::vector<Good>& GoodValues() {
  using C = const Config&;
  static const std::vector<Good> rows = {
      {"MORI_SHMEM_HEAP_SIZE", "6G", [](C c) { return c.heap_bytes == 6ull << 30; }},
      {"MORI_SHMEM_HEAP_SIZE", "1", [](C c) { return c.heap_bytes == 1u; }},
      {"MORI_SHMEM_HEAP_SIZE", "512MiB", [](C c) { return c.heap_bytes == 512u << 20; }},
      {"MORI_SHMEM_MODE", "static", [](C c) { return c.heap_mode == HeapMode::kStatic; }},
      {"MORI_SHMEM_MODE", "vmm", [](C c) { return c.heap_mode == HeapMode::kVmm; }},
      {"MORI_SHMEM_MODE", "isolation", [](C c) { return c.heap_mode == HeapMode::kIsolation; }},
      {"MORI_SHMEM_MODE", "Static_Heap", [](C c) { return c.heap_mode == HeapMode::kStatic; }},
      {"MORI_SHMEM_MODE", "VMM_HEAP", [](C c) { return c.heap_mode == HeapMode::kVmm; }},
      {"MORI_SHMEM_HEAP_TYPE", "normal", [](C c) { return c.heap_type == HeapType::kNormal; }},
      {"MORI_SHMEM_HEAP_TYPE", "uncached", [](C c) { return c.heap_type == HeapType::kUncached; }},
      {"MORI_SHMEM_VMM_CHUNK_SIZE", "2097152", [](C c) { return c.vmm_chunk_bytes == 2u << 20; }},
      {"MORI_SHMEM_VMM_CHUNK_SIZE", "64M", [](C c) { return c.vmm_chunk_bytes == 64u << 20; }},
      {"MORI_SOCKET_IFNAME", "lo", [](C c) { return c.socket_ifname == "lo"; }},
      {"MORI_SOCKET_IFNAME", "enp1s0f0.100", [](C c) { return c.socket_ifname == "enp1s0f0.100"; }},
      {"MORI_RDMA_DEVICES", "mlx5_0", [](C c) { return c.rdma_devices == "mlx5_0"; }},
      {"MORI_RDMA_DEVICES", "mlx5_0,mlx5_1", [](C c) { return c.rdma_devices == "mlx5_0,mlx5_1"; }},
      {"MORI_RDMA_DEVICES", "^mlx5_2,mlx5_3",
       [](C c) { return c.rdma_devices == "^mlx5_2,mlx5_3"; }},
      {"LD_LIBRARY_PATH", "/opt/rdma/lib:/usr/lib",
       [](C c) { return c.set_variables.empty() && c.warnings.empty(); }},
      {"MORI_NUM_QP_PER_PE", "1", [](C c) { return c.num_qp_per_pe == 1; }},
      {"MORI_NUM_QP_PER_PE", "1024", [](C c) { return c.num_qp_per_pe == 1024; }},
      {"MORI_IB_GID_INDEX", "0", [](C c) { return c.ib_gid_index == 0; }},
      {"MORI_IB_GID_INDEX", "255", [](C c) { return c.ib_gid_index == 255; }},
      {"MORI_RDMA_SL", "0", [](C c) { return c.rdma_sl == 0; }},
      {"MORI_RDMA_SL", "15", [](C c) { return c.rdma_sl == 15; }},
      {"MORI_RDMA_TC", "0", [](C c) { return c.rdma_tc == 0; }},
      {"MORI_RDMA_TC", "255", [](C c) { return c.rdma_tc == 255; }},
      {"MORI_DISABLE_P2P", "1", [](C c) { return c.disable_p2p; }},
      {"MORI_DISABLE_P2P", "0", [](C c) { return !c.disable_p2p; }},
      {"MORI_ENABLE_RAIL_ONLY", "true", [](C c) { return c.enable_rail_only; }},
      {"MORI_ENABLE_RAIL_ONLY", "False", [](C c) { return !c.enable_rail_only; }},
      {"MORI_DISABLE_TOPO", "yes", [](C c) { return c.disable_topo; }},
      {"MORI_DISABLE_TOPO", "no", [](C c) { return !c.disable_topo; }},
      {"MORI_IGNORE_CPU_AFFINITY", "on", [](C c) { return c.ignore_cpu_affinity; }},
      {"MORI_IGNORE_CPU_AFFINITY", "OFF", [](C c) { return !c.ignore_cpu_affinity; }},
      {"MORI_CPU_AFFINITY_NO_SPLIT", "TRUE", [](C c) { return c.cpu_affinity_no_split; }},
      {"MORI_GLOBAL_LOG_LEVEL", "TRACE", [](C c) { return c.log_level == LogLevel::kTrace; }},
      {"MORI_GLOBAL_LOG_LEVEL", "debug", [](C c) { return c.log_level == LogLevel::kDebug; }},
      {"MORI_GLOBAL_LOG_LEVEL", "Info", [](C c) { return c.log_level == LogLevel::kInfo; }},
      {"MORI_GLOBAL_LOG_LEVEL", "WARN", [](C c) { return c.log_level == LogLevel::kWarn; }},
      {"MORI_GLOBAL_LOG_LEVEL", "ERROR", [](C c) { return c.log_level == LogLevel::kError; }},
      {"MORI_PRECOMPILE", "1", [](C c) { return c.precompile; }},
      {"MORI_DISABLE_JIT", "1", [](C c) { return c.disable_jit; }},
      {"MORI_SHMEM_BACKEND", "auto", [](C c) { return c.backend == Backend::kAuto; }},
      {"MORI_SHMEM_BACKEND", "host", [](C c) { return c.backend == Backend::kHost; }},
      {"MORI_SHMEM_BACKEND", "cuda", [](C c) { return c.backend == Backend::kCuda; }},
      {"MORI_SHMEM_BACKEND", "hip", [](C c) { return c.backend == Backend::kHip; }},
      {"MORI_SHMEM_GPU_SHARING", "auto", [](C c) { return c.gpu_sharing == GpuSharing::kAuto; }},
      {"MORI_SHMEM_GPU_SHARING", "fd", [](C c) { return c.gpu_sharing == GpuSharing::kFd; }},
      {"MORI_SHMEM_GPU_SHARING", "ipc", [](C c) { return c.gpu_sharing == GpuSharing::kIpc; }},
      {"MORI_SHMEM_TRANSPORT", "auto", [](C c) { return c.network == Network::kAuto; }},
      {"MORI_SHMEM_TRANSPORT", "p2p", [](C c) { return c.network == Network::kP2p; }},
      {"MORI_SHMEM_TRANSPORT", "verbs", [](C c) { return c.network == Network::kVerbs; }},
      {"MORI_SHMEM_TRANSPORT", "OFI", [](C c) { return c.network == Network::kOfi; }},
      {"MORI_OFI_PROVIDER", "tcp;ofi_rxm", [](C c) { return c.ofi_provider == "tcp;ofi_rxm"; }},
      {"MORI_NODE_ID", "rack 3, node 7", [](C c) { return c.node_id == "rack 3, node 7"; }},
      {"MORI_BOOTSTRAP_TIMEOUT", "60", [](C c) { return c.bootstrap_timeout == 60s; }},
      {"MORI_BOOTSTRAP_TIMEOUT", "0.5", [](C c) { return c.bootstrap_timeout == 500ms; }},
      {"MORI_BOOTSTRAP_TIMEOUT", ".0001", [](C c) { return c.bootstrap_timeout == 1ms; }},
      {"MORI_BOOTSTRAP_TIMEOUT", "1000000", [](C c) { return c.bootstrap_timeout == 1'000'000s; }},
      {"MORI_SHMEM_TIMEOUT", "60", [](C c) { return c.wait_timeout == 60s; }},
      {"MORI_SHMEM_TIMEOUT", "0.25", [](C c) { return c.wait_timeout == 250ms; }},
      {"MORI_UNIQUE_ID", kToken, [](C c) { return c.set_variables.size() == 1; }},
      {"MORI_RANK", "0", [](C c) { return c.set_variables.size() == 1; }},
      {"MORI_RANK", "99999", [](C c) { return c.set_variables.size() == 1; }},
      {"MORI_WORLD_SIZE", "1", [](C c) { return c.set_variables.size() == 1; }},
      {"MORI_LOCAL_RANK", "7", [](C c) { return c.set_variables.size() == 1; }},
      {"MORI_LOCAL_WORLD_SIZE", "8", [](C c) { return c.set_variables.size() == 1; }},
  };
  return rows;
}

TEST(Config, ReadsRightValues) {
  for (const Good& row : GoodValues()) {
    const Result<Config> config = Read(row.name, row.value);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_TRUE(row.holds(*config)) << row.name << "=" << row.value;
    const Variable* variable = FindVariable(row.name);
    ASSERT_NE(variable, nullptr) << row.name;
    if (variable->effect != Effect::kNow) continue;
    EXPECT_THAT(config->warnings, IsEmpty()) << row.name;
  }
}

TEST(Config, WhatIsSetWithoutEffectIsSaidOnce) {
  const Result<Config> config =
      Config::FromEnvironment({"MORI_PRECOMPILE=1", "MORI_DISABLE_JIT=on", "MORI_DISABLE_TOPO=0",
                               "MORI_ENABLE_RAIL_ONLY=1", "MORI_RDMA_SL=3", "MORI_SHMEM_MODE=vmm"});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_THAT(config->warnings,
              ElementsAre("without effect in this version, though set: MORI_RDMA_SL, "
                          "MORI_ENABLE_RAIL_ONLY, MORI_PRECOMPILE, MORI_DISABLE_JIT"));
}

TEST(Config, VariablesOfTheProjectsOwnToolsAreKnown) {
  const Result<Config> config = Config::FromEnvironment(
      {"MORI_WITHOUT_TORCH=1", "MORI_NVCC=/opt/nvcc", "MORI_SKIP_APT=1", "MORI_BENCH_PIN=0"});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_THAT(config->warnings, IsEmpty());
  EXPECT_THAT(config->set_variables, IsEmpty());
}

TEST(Config, EveryVariableHasARightValueHere) {
  std::set<std::string_view> tried;
  for (const Good& row : GoodValues()) tried.insert(row.name);
  for (const Variable& variable : Variables()) EXPECT_THAT(tried, Contains(variable.name));
}

// ---- wrong values ----

struct Bad {
  std::string_view name;
  std::string value;
  std::string_view complaint;
};

const std::vector<Bad>& BadValues() {
  static const std::vector<Bad> rows = {
      {"MORI_SHMEM_HEAP_SIZE", "0", "\"0\" is zero, at least 1 byte is needed"},
      {"MORI_SHMEM_HEAP_SIZE", "0G", "\"0G\" is zero"},
      {"MORI_SHMEM_HEAP_SIZE", "-6G", "\"-6G\" is negative"},
      {"MORI_SHMEM_HEAP_SIZE", "1.5G", "\"1.5G\" is a fraction"},
      {"MORI_SHMEM_HEAP_SIZE", "99999999T", "\"99999999T\" is larger than 64 bits can hold"},
      {"MORI_SHMEM_HEAP_SIZE", "lots", "\"lots\" is not a size"},
      {"MORI_SHMEM_HEAP_SIZE", " ", "\" \" is not a size"},
      {"MORI_SHMEM_MODE", "dynamic", "\"dynamic\" is none of static, vmm, isolation"},
      {"MORI_SHMEM_HEAP_TYPE", "hot", "\"hot\" is none of normal, uncached"},
      {"MORI_SHMEM_VMM_CHUNK_SIZE", "0", "\"0\" is zero"},
      {"MORI_SHMEM_VMM_CHUNK_SIZE", "-1", "\"-1\" is negative"},
      {"MORI_SHMEM_VMM_CHUNK_SIZE", "auto", "\"auto\" is not a size"},
      {"MORI_SOCKET_IFNAME", "eth 0", "\"eth 0\" is not the name of a network interface"},
      {"MORI_SOCKET_IFNAME", "../lo", "\"../lo\" is not the name of a network interface"},
      {"MORI_SOCKET_IFNAME", "lo\n", "\"lo\\x0a\" is not the name of a network interface"},
      {"MORI_RDMA_DEVICES", "^", "\"^\" has an empty name in its list"},
      {"MORI_RDMA_DEVICES", ",", "\",\" has an empty name in its list"},
      {"MORI_RDMA_DEVICES", "mlx5_0,", "has an empty name in its list"},
      {"MORI_RDMA_DEVICES", "mlx5_0,,mlx5_1", "has an empty name in its list"},
      {"MORI_RDMA_DEVICES", "mlx5_0,^mlx5_1", "has a '^' inside"},
      {"MORI_RDMA_DEVICES", "^^mlx5_1", "has a '^' inside"},
      {"MORI_RDMA_DEVICES", "mlx5_0, mlx5_1", "device names without spaces"},
      {"MORI_RDMA_DEVICES", "mlx5_0;mlx5_1", "device names without spaces"},
      {"MORI_NUM_QP_PER_PE", "0", "\"0\" is outside 1 to 1024"},
      {"MORI_NUM_QP_PER_PE", "1025", "\"1025\" is outside 1 to 1024"},
      {"MORI_NUM_QP_PER_PE", "two", "\"two\" is not a whole number"},
      {"MORI_IB_GID_INDEX", "-1", "\"-1\" is outside 0 to 255"},
      {"MORI_IB_GID_INDEX", "256", "\"256\" is outside 0 to 255"},
      {"MORI_IB_GID_INDEX", "3x", "\"3x\" is not a whole number"},
      {"MORI_RDMA_SL", "16", "\"16\" is outside 0 to 15"},
      {"MORI_RDMA_SL", "0.5", "\"0.5\" is not a whole number"},
      {"MORI_RDMA_TC", "256", "\"256\" is outside 0 to 255"},
      {"MORI_RDMA_TC", "99999999999999999999", "is outside 0 to 255"},
      {"MORI_DISABLE_P2P", "maybe", "\"maybe\" is neither 1, true, yes, on nor 0, false, no, off"},
      {"MORI_ENABLE_RAIL_ONLY", "2", "\"2\" is neither"},
      {"MORI_DISABLE_TOPO", "-", "\"-\" is neither"},
      {"MORI_IGNORE_CPU_AFFINITY", "y", "\"y\" is neither"},
      {"MORI_CPU_AFFINITY_NO_SPLIT", "10", "\"10\" is neither"},
      {"MORI_GLOBAL_LOG_LEVEL", "LOUD", "\"LOUD\" is none of TRACE, DEBUG, INFO, WARN, ERROR"},
      {"MORI_PRECOMPILE", "all", "\"all\" is neither"},
      {"MORI_DISABLE_JIT", " 1", "\" 1\" is neither"},
      {"MORI_SHMEM_BACKEND", "metal", "\"metal\" is none of auto, host, cuda, hip"},
      {"MORI_SHMEM_GPU_SHARING", "vmm", "\"vmm\" is none of auto, fd, ipc"},
      {"MORI_SHMEM_TRANSPORT", "tcp", "\"tcp\" is none of auto, p2p, verbs, ofi"},
      {"MORI_OFI_PROVIDER", "tcp,efa", "\"tcp,efa\" is not the name of one provider"},
      {"MORI_OFI_PROVIDER", std::string(64, 'p'), "is not the name of one provider"},
      {"MORI_NODE_ID", std::string(256, 'n'), "is not 1 to 255 printable ASCII characters"},
      {"MORI_NODE_ID", "a\tb", "\"a\\x09b\" is not 1 to 255 printable"},
      {"MORI_BOOTSTRAP_TIMEOUT", "0", "\"0\" is not above 0 and at most 1000000 seconds"},
      {"MORI_BOOTSTRAP_TIMEOUT", "1000000.5", "is not above 0 and at most 1000000 seconds"},
      {"MORI_BOOTSTRAP_TIMEOUT", "-1", "\"-1\" is not a number of seconds"},
      {"MORI_BOOTSTRAP_TIMEOUT", "inf", "\"inf\" is not a number of seconds"},
      {"MORI_BOOTSTRAP_TIMEOUT", "60s", "\"60s\" is not a number of seconds"},
      {"MORI_BOOTSTRAP_TIMEOUT", "1.2.3", "\"1.2.3\" is not a number of seconds"},
      {"MORI_BOOTSTRAP_TIMEOUT", ".", "\".\" is not a number of seconds"},
      {"MORI_SHMEM_TIMEOUT", "0", "\"0\" is not above 0 and at most 1000000 seconds"},
      {"MORI_SHMEM_TIMEOUT", "never", "\"never\" is not a number of seconds"},
      {"MORI_UNIQUE_ID", "abc", "has 3 characters instead of 256 hexadecimal digits"},
      {"MORI_UNIQUE_ID", std::string(256, 'g'), "has characters that are not hexadecimal digits"},
      {"MORI_RANK", "-1", "\"-1\" is outside 0 to 2147483647"},
      {"MORI_RANK", "first", "\"first\" is not a whole number"},
      {"MORI_WORLD_SIZE", "0", "\"0\" is outside 1 to 2147483647"},
      {"MORI_LOCAL_RANK", "2147483648", "\"2147483648\" is outside 0 to 2147483647"},
      {"MORI_LOCAL_WORLD_SIZE", "0", "\"0\" is outside 1 to 2147483647"},
  };
  return rows;
}

TEST(Config, RefusesWrongValuesWithVariableValueAndExample) {
  for (const Bad& row : BadValues()) {
    const Result<Config> config = Read(row.name, row.value);
    ASSERT_FALSE(config.ok()) << row.name << "=" << row.value;
    EXPECT_EQ(config.status().code(), ErrorCode::kInvalidConfig);
    const std::string message = config.status().message();
    EXPECT_THAT(message, StartsWith(fmt::format("{}: ", row.name)));
    EXPECT_THAT(message, HasSubstr(std::string(row.complaint)));
    EXPECT_THAT(message, HasSubstr(fmt::format(", for example: export {}=", row.name)));
  }
}

TEST(Config, EveryVariableHasAWrongValueHere) {
  std::set<std::string_view> tried;
  for (const Bad& row : BadValues()) tried.insert(row.name);
  for (const Variable& variable : Variables()) {
    if (variable.name == "LD_LIBRARY_PATH") continue;  // belongs to the dynamic loader
    EXPECT_THAT(tried, Contains(variable.name));
  }
}

TEST(Config, HeapSizeMessageIsOneReadableSentence) {
  EXPECT_EQ(Read("MORI_SHMEM_HEAP_SIZE", "-6G").status().message(),
            "MORI_SHMEM_HEAP_SIZE: \"-6G\" is negative; a size looks like 6G, 512M or 4096 "
            "(bytes), for example: export MORI_SHMEM_HEAP_SIZE=6G");
}

TEST(Config, ExamplesInMessagesAreRightValues) {
  for (const Bad& row : BadValues()) {
    if (row.name == "MORI_UNIQUE_ID") continue;  // shows a placeholder
    const std::string message = Read(row.name, row.value).status().message();
    const std::string_view marker = "export ";
    const std::string example = message.substr(message.rfind(marker) + marker.size());
    EXPECT_TRUE(Config::FromEnvironment({example}).ok()) << example;
  }
}

TEST(Config, ForeignTextInMessagesIsBoundedAndPrintable) {
  for (const Variable& variable : Variables()) {
    if (variable.name == "LD_LIBRARY_PATH") continue;
    const Result<Config> config = Read(variable.name, "\x1b[2J" + std::string(50'000, '~'));
    ASSERT_FALSE(config.ok()) << variable.name;
    EXPECT_THAT(config.status().message(), SizeIs(Lt(400u)));
    EXPECT_THAT(config.status().message(), Not(HasSubstr("\x1b")));
  }
}

TEST(Config, OfSeveralWrongValuesTheFirstIsSaidAndAllAreFound) {
  const Config::Environment environment = {"MORI_RDMA_TC=x", "MORI_SHMEM_MODE=dynamic",
                                           "MORI_NO_SUCH_NAME=1", "MORI_SHMEM_HEAP_SIZE=1M",
                                           "MORI_RANK=-1"};
  EXPECT_EQ(Config::FromEnvironment(environment).status().message(),
            "MORI_SHMEM_MODE: \"dynamic\" is none of static, vmm, isolation, for example: export "
            "MORI_SHMEM_MODE=static (2 more values cannot be used; `mori info` lists all)");
  const Config::Findings found = Config::Check(environment);
  EXPECT_THAT(found.problems, ElementsAre(StartsWith("MORI_SHMEM_MODE: "),
                                          StartsWith("MORI_RDMA_TC: "), StartsWith("MORI_RANK: ")));
  EXPECT_THAT(found.warnings, ElementsAre(HasSubstr("MORI_NO_SUCH_NAME")));
}

/// Bytes of all kinds, newlines among them, in every variable that the library reads.
TEST(Config, NoMessageHasWhatIsNotPrintable) {
  std::string bytes;
  for (int c = 1; c < 256; ++c) bytes += static_cast<char>(c);
  for (const std::string& value :
       {bytes, std::string("1\nPE 0/2 ready"), std::string("\xff"), std::string("a\rb")}) {
    for (const Variable& variable : Variables()) {
      const Config::Findings found =
          Config::Check({fmt::format("{}={}", variable.name, value),
                         fmt::format("MORI_{}=1", value.substr(0, value.find('=')))});
      for (const auto* sentences : {&found.problems, &found.warnings}) {
        for (const std::string& sentence : *sentences) {
          EXPECT_TRUE(std::all_of(sentence.begin(), sentence.end(),
                                  [](char c) { return c >= ' ' && c <= '~'; }))
              << variable.name << ": " << sentence;
        }
      }
    }
  }
}

TEST(Config, TheTokenIsNeverShown) {
  const std::string damaged = kToken.substr(0, 255) + "g";
  EXPECT_THAT(Read("MORI_UNIQUE_ID", damaged).status().message(), Not(HasSubstr("aaaa")));

  const Result<Config> config = Read("MORI_UNIQUE_ID", kToken);
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(config->set_variables, ElementsAre(Pair("MORI_UNIQUE_ID", "(a secret, not shown)")));
}

// ---- the environment as a whole ----

TEST(Config, DefaultsAreThoseOfTheGuide) {
  const Result<Config> config = Config::FromEnvironment(Config::Environment{});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->heap_bytes, std::nullopt);
  EXPECT_EQ(config->heap_mode, HeapMode::kStatic);
  EXPECT_EQ(config->heap_type, HeapType::kUncached);
  EXPECT_EQ(config->vmm_chunk_bytes, std::nullopt);
  EXPECT_EQ(config->num_qp_per_pe, 1);
  EXPECT_EQ(config->ib_gid_index, std::nullopt);
  EXPECT_EQ(config->rdma_sl, std::nullopt);
  EXPECT_EQ(config->rdma_tc, std::nullopt);
  EXPECT_EQ(config->log_level, LogLevel::kInfo);
  EXPECT_EQ(config->backend, Backend::kAuto);
  EXPECT_EQ(config->bootstrap_timeout, 300s);
  EXPECT_EQ(config->wait_timeout, std::nullopt);
  EXPECT_FALSE(config->disable_p2p || config->enable_rail_only || config->disable_topo);
  EXPECT_FALSE(config->ignore_cpu_affinity || config->cpu_affinity_no_split);
  EXPECT_FALSE(config->precompile || config->disable_jit);
  EXPECT_THAT(config->set_variables, IsEmpty());
  EXPECT_THAT(config->warnings, IsEmpty());
}

TEST(Config, EmptyCountsAsNotSet) {
  Config::Environment environment = {"MORI_NO_SUCH_NAME="};
  for (const Variable& variable : Variables()) {
    environment.push_back(fmt::format("{}=", variable.name));
  }
  const Result<Config> config = Config::FromEnvironment(environment);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_THAT(config->set_variables, IsEmpty());
  EXPECT_THAT(config->warnings, IsEmpty());
}

TEST(Config, SetVariablesComeInTableOrder) {
  const Result<Config> config =
      Config::FromEnvironment({"MORI_RANK=1", "PATH=/bin", "MORI_SHMEM_MODE=static",
                               "LD_LIBRARY_PATH=/lib", "MORI_SHMEM_HEAP_SIZE=1M"});
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(config->set_variables,
              ElementsAre(Pair("MORI_SHMEM_HEAP_SIZE", "1M"), Pair("MORI_SHMEM_MODE", "static"),
                          Pair("MORI_RANK", "1")));
}

TEST(Config, TheFirstOfEqualNamesCounts) {
  const Result<Config> config =
      Config::FromEnvironment({"MORI_NODE_ID=first", "MORI_NODE_ID=second"});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->node_id, "first");
}

TEST(Config, EntriesThatAreNoVariablesAreIgnored) {
  const Result<Config> config = Config::FromEnvironment({"", "=", "=x", "MORI_RANK", "nonsense"});
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(config->warnings, IsEmpty());
}

TEST(Config, ReadsTheProcessEnvironment) {
  ASSERT_EQ(::setenv("MORI_NODE_ID", "from the process", 1), 0);
  const Result<Config> config = Config::FromEnvironment();
  ASSERT_EQ(::unsetenv("MORI_NODE_ID"), 0);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->node_id, "from the process");
}

// ---- unknown names ----

struct Guess {
  std::string_view name;
  std::string_view meant;
};

TEST(Config, UnknownNamesGetTheNearestKnownOne) {
  const Guess rows[] = {
      {"MORI_SHMEM_HEAPSIZE", "MORI_SHMEM_HEAP_SIZE"},
      {"MORI_HEAP_SIZE", "MORI_SHMEM_HEAP_SIZE"},
      {"MORI_SHMEM_HEAP_TYP", "MORI_SHMEM_HEAP_TYPE"},
      {"MORI_SHMEM_NUM_QP_PER_PE", "MORI_NUM_QP_PER_PE"},
      {"MORI_RDMA_DEVICE", "MORI_RDMA_DEVICES"},
      {"MORI_DISABLE_PTP", "MORI_DISABLE_P2P"},
      {"MORI_LOG_LEVEL", "MORI_GLOBAL_LOG_LEVEL"},
      {"MORI_IFNAME", "MORI_SOCKET_IFNAME"},
      {"MORI_TIMEOUT", "MORI_SHMEM_TIMEOUT"},
      {"MORI_BOOTSTRAP_TIMOUT", "MORI_BOOTSTRAP_TIMEOUT"},
      {"MORI_BACKEND", "MORI_SHMEM_BACKEND"},
      {"MORI_RNK", "MORI_RANK"},
  };
  for (const Guess& row : rows) {
    const Result<Config> config = Read(row.name, "1");
    ASSERT_TRUE(config.ok());
    EXPECT_THAT(config->warnings,
                ElementsAre(fmt::format("environment variable \"{}\" is unknown and has no effect: "
                                        "did you mean {}?",
                                        row.name, row.meant)));
  }
}

TEST(Config, UnknownNamesFarFromAllAreSentToTheTable) {
  for (const std::string& name : {std::string("MORI_"), std::string("MORI_FLAVOUR"),
                                  std::string("MORI_X"), "MORI_" + std::string(100'000, 'A')}) {
    const Result<Config> config = Read(name, "1");
    ASSERT_TRUE(config.ok());
    ASSERT_THAT(config->warnings, SizeIs(1));
    EXPECT_THAT(config->warnings[0], HasSubstr("`mori info` lists those that are known"));
    EXPECT_THAT(config->warnings[0], SizeIs(Lt(250u)));
  }
}

TEST(Config, OtherProgramsVariablesAreNoConcern) {
  const Result<Config> config =
      Config::FromEnvironment({"HOME=/", "MORIARTY=1", "MORI=1", "NCCL_DEBUG=INFO"});
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(config->warnings, IsEmpty());
}

// ---- names and the table ----

TEST(Config, NamesAreThoseOfTheVariables) {
  for (const HeapMode mode : {HeapMode::kStatic, HeapMode::kVmm, HeapMode::kIsolation}) {
    EXPECT_EQ(Read("MORI_SHMEM_MODE", HeapModeName(mode))->heap_mode, mode);
  }
  for (const HeapType type : {HeapType::kNormal, HeapType::kUncached}) {
    EXPECT_EQ(Read("MORI_SHMEM_HEAP_TYPE", HeapTypeName(type))->heap_type, type);
  }
  for (const Backend backend : {Backend::kAuto, Backend::kHost, Backend::kCuda, Backend::kHip}) {
    EXPECT_EQ(Read("MORI_SHMEM_BACKEND", BackendName(backend))->backend, backend);
  }
  for (const GpuSharing sharing : {GpuSharing::kAuto, GpuSharing::kFd, GpuSharing::kIpc}) {
    EXPECT_EQ(Read("MORI_SHMEM_GPU_SHARING", GpuSharingName(sharing))->gpu_sharing, sharing);
  }
  for (const Network network : {Network::kAuto, Network::kP2p, Network::kVerbs, Network::kOfi}) {
    EXPECT_EQ(Read("MORI_SHMEM_TRANSPORT", NetworkName(network))->network, network);
  }
}

TEST(Variables, BeginWithTheGuidesRowsAndDefaults) {
  const std::pair<std::string_view, std::string_view> guide[] = {
      {"MORI_SHMEM_HEAP_SIZE", "Required"},
      {"MORI_SHMEM_MODE", "static"},
      {"MORI_SHMEM_HEAP_TYPE", "uncached"},
      {"MORI_SHMEM_VMM_CHUNK_SIZE", "Auto"},
      {"MORI_SOCKET_IFNAME", "Auto-detect"},
      {"MORI_RDMA_DEVICES", "All available"},
      {"LD_LIBRARY_PATH", "libibverbs.so / libibverbs.so.1"},
      {"MORI_NUM_QP_PER_PE", "1"},
      {"MORI_IB_GID_INDEX", "Auto-detect"},
      {"MORI_RDMA_SL", "Auto"},
      {"MORI_RDMA_TC", "Auto"},
      {"MORI_DISABLE_P2P", "Not set"},
      {"MORI_ENABLE_RAIL_ONLY", "Not set"},
      {"MORI_DISABLE_TOPO", "Not set"},
      {"MORI_IGNORE_CPU_AFFINITY", "Not set (binding on)"},
      {"MORI_CPU_AFFINITY_NO_SPLIT", "Not set (split on)"},
      {"MORI_GLOBAL_LOG_LEVEL", "INFO"},
      {"MORI_PRECOMPILE", "Not set"},
      {"MORI_DISABLE_JIT", "Not set"},
  };
  ASSERT_GE(Variables().size(), std::size(guide));
  for (std::size_t i = 0; i < std::size(guide); ++i) {
    EXPECT_EQ(Variables()[i].name, guide[i].first);
    EXPECT_EQ(Variables()[i].default_value, guide[i].second);
  }
}

TEST(Variables, HaveUniqueNamesAndFullRows) {
  std::set<std::string_view> names;
  for (const Variable& variable : Variables()) {
    EXPECT_TRUE(names.insert(variable.name).second) << variable.name;
    EXPECT_FALSE(variable.meaning.empty() || variable.form.text.empty()) << variable.name;
    EXPECT_FALSE(variable.default_value.empty()) << variable.name;
  }
}

/// To bring the page up to date after a change of the table, run this test with UPDATE_DOCS=1.
TEST(Variables, AreTheTableOfTheDocumentation) {
  const std::string path = MORI_SOURCE_DIR "/docs/environment.md";
  std::stringstream page;
  page << std::ifstream(path).rdbuf();
  const std::string wanted = testing::WithVariableTable(page.str());
  ASSERT_FALSE(wanted.empty()) << path << " has no markers around its table";
  if (std::getenv("UPDATE_DOCS") != nullptr) {
    std::ofstream(path) << wanted;
    return;
  }
  EXPECT_EQ(page.str(), wanted) << "docs/environment.md is out of date; run UPDATE_DOCS=1 "
                                   "unit_tests --gtest_filter=Variables.*";
}

}  // namespace
}  // namespace mori::shmem
