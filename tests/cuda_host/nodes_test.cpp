// PEs of the CUDA backend on several nodes: kernels reach those of other nodes by the ring and its
// proxy, and a device's memory goes over the network. The driver is that of the tests, and kernels
// are threads of the host with the state that the library has published.
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "cuda_host/cuda_pe.hpp"
#include "mori/shmem/shmem_device_api.hpp"

namespace mori::shmem {
namespace {

using device::u64;
using testing::CudaOptions;
using testing::Failures;
using testing::Left;
using testing::Options;
using testing::Pe;
using testing::Right;

/// How PEs lie on nodes, and how the heap has its memory.
struct Placement {
  const char* name;
  std::vector<std::string> nodes;
  const char* mode = "static";
};

Options OptionsOf(const Placement& placement) {
  Options options = CudaOptions(placement.mode);
  options.environment.emplace_back("MORI_SHMEM_HEAP_SIZE", "32M");
  options.environment.emplace_back("MORI_SHMEM_VMM_CHUNK_SIZE", "2M");
  return options;
}

/// Of zeros, on all PEs.
u64* Words(std::size_t count) {
  auto* words = static_cast<u64*>(ShmemMalloc(count * sizeof(u64)));
  PE_CHECK(words != nullptr);
  std::memset(words, 0, count * sizeof(u64));
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  return words;
}

/// A PE on its node, with a module whose state is published.
class NodePe {
 public:
  NodePe(const Pe& pe, const std::vector<std::string>& nodes) : nodes_(nodes) {
    ::setenv("MORI_NODE_ID", nodes[static_cast<std::size_t>(pe.rank)].c_str(), 1);
    pe.Init();
    state_ = testing::StateOfPe();
  }
  /// Of as many threads as one; returns when they have ended.
  void Launch(int threads, const std::function<void(int thread)>& body) const {
    std::vector<std::thread> all;
    std::vector<std::exception_ptr> failed(static_cast<std::size_t>(threads));
    for (int n = 0; n < threads; ++n) {
      all.emplace_back([&, n] {
        globalGpuStates = *state_;
        try {
          body(n);
        } catch (...) {
          failed[static_cast<std::size_t>(n)] = std::current_exception();
        }
      });
    }
    for (std::thread& each : all) each.join();
    for (const std::exception_ptr& each : failed) {
      if (each) std::rethrow_exception(each);
    }
  }
  void Launch(const std::function<void()>& body) const {
    Launch(1, [&](int) { body(); });
  }
  const device::DeviceContext& state() const { return *state_; }
  bool IsRemote(int pe) const {
    return nodes_[static_cast<std::size_t>(pe)] != nodes_[static_cast<std::size_t>(ShmemMyPe())];
  }

 private:
  std::vector<std::string> nodes_;
  const device::DeviceContext* state_ = nullptr;
};

class CudaHostNodes : public ::testing::TestWithParam<Placement> {
 protected:
  using Body = std::function<void(const Pe& pe, NodePe& node)>;
  static void RunAll(const Body& body) {
    const Placement& placement = GetParam();
    const auto on_its_node = [&](const Pe& pe) {
      NodePe node(pe, placement.nodes);
      body(pe, node);
      PE_CHECK_EQ(ShmemFinalize(), 0);
    };
    EXPECT_EQ(Failures(RunProcesses(static_cast<int>(placement.nodes.size()), on_its_node,
                                    OptionsOf(placement))),
              "");
  }
};
INSTANTIATE_TEST_SUITE_P(Placements, CudaHostNodes,
                         ::testing::Values(Placement{"OneEach", {"a", "b"}},
                                           Placement{"Scattered", {"a", "b", "a", "b", "a"}},
                                           Placement{"Growing", {"a", "b", "a"}, "vmm"},
                                           Placement{"Isolated", {"a", "b", "b"}, "isolation"}),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(CudaHostNodes, AKernelPutsToAnotherNode) {
  RunAll([](const Pe& pe, NodePe& node) {
    u64* words = Words(4);
    node.Launch([&] {
      PE_CHECK((node.state().flags & device::kHasRemotePes) != 0);
      device::ShmemP(words, u64{100} + static_cast<u64>(pe.rank), Right(pe));
      device::ShmemQuiet();
    });
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(words[0], 100u + static_cast<unsigned>(Left(pe)));
  });
}

}  // namespace
}  // namespace mori::shmem
