// Bandwidth of put and get over size and over the destination's offset in its page, beside memcpy
// of the same bytes to the same places in the same turns.
//
//   mori run -n 2 bandwidth --operation put --sizes 4096 65536 --offsets 0 16
#include <CLI/CLI.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "common/pe.hpp"

namespace mori::bench {
namespace {

using namespace mori::shmem;

constexpr int kPeer = 1;
constexpr std::size_t kPage = 4096;
constexpr unsigned char kGuard = 0xee;

struct Options {
  std::vector<std::string> operations{"put", "get"};
  std::vector<std::size_t> sizes{4096,   4099,    16384,         65521,   65536,
                                 262144, 1 << 20, (1 << 20) + 3, 8 << 20, 64 << 20};
  std::vector<std::size_t> offsets{0, 1, 16, 64, 256, 2048, 4032};
  BatchPlan plan{7, 12};
};

/// Where bytes are copied from and to, as the calling PE reaches them.
struct Route {
  bool is_put;
  unsigned char* source;       ///< symmetric or local
  unsigned char* destination;  ///< the same
  unsigned char* from;         ///< what memcpy reads
  unsigned char* to;           ///< what memcpy writes

  int Copy(std::size_t offset, std::size_t bytes) const {
    return is_put ? ShmemPutMem(destination + offset, source, bytes, kPeer)
                  : ShmemGetMem(destination + offset, source, bytes, kPeer);
  }
};

Route MakeRoute(const Pe& pe, bool is_put, unsigned char* source, unsigned char* destination) {
  const int target = is_put ? kPeer : 0;
  return {is_put, source, destination, pe.At(source, kPeer - target), pe.At(destination, target)};
}

unsigned char PatternAt(std::size_t i, std::size_t offset) {
  return static_cast<unsigned char>(i * 7 + i / 251 + offset + 1);
}

bool HoldsPattern(const unsigned char* destination, std::size_t offset, std::size_t bytes) {
  if (offset > 0 && destination[offset - 1] != kGuard) return false;
  if (destination[offset + bytes] != kGuard) return false;
  for (std::size_t i = 0; i < bytes; ++i) {
    if (destination[offset + i] != PatternAt(i, offset)) return false;
  }
  return true;
}

/// One copy at each offset, every byte of it compared, and the bytes around it.
void Verify(const Pe& pe, const Route& route, const Options& options, std::size_t bytes) {
  const int owner_of_source = route.is_put ? 0 : kPeer;
  for (const std::size_t offset : options.offsets) {
    if (pe.rank() == owner_of_source) {
      for (std::size_t i = 0; i < bytes; ++i) route.source[i] = PatternAt(i, offset);
    } else {
      std::memset(route.destination, kGuard, bytes + 2 * kPage);
    }
    pe.Barrier();
    if (pe.is_first()) Require(route.Copy(offset, bytes) == 0, "a copy failed");
    pe.Barrier();
    if (pe.rank() != owner_of_source) {
      Require(HoldsPattern(route.destination, offset, bytes), "bytes arrived wrong");
    }
    pe.Barrier();
  }
}

void Measure(const Route& route, const Options& options, std::size_t bytes) {
  const std::string operation = route.is_put ? "put" : "get";
  std::vector<Candidate> candidates;
  for (const std::size_t offset : options.offsets) {
    const auto label = [&](const std::string& metric) {
      return Label{metric, bytes, 2, std::to_string(offset), Unit::kGBps};
    };
    candidates.push_back({label(operation + "_bandwidth"), [=](long rounds) {
                            for (long i = 0; i < rounds; ++i) route.Copy(offset, bytes);
                          }});
    candidates.push_back({label("memcpy_for_" + operation), [=](long rounds) {
                            for (long i = 0; i < rounds; ++i) {
                              std::memcpy(route.to + offset, route.from, bytes);
                              Clobber();
                            }
                          }});
  }
  MeasureInTurns(candidates, options.plan);
}

/// Two blocks as an application gets them: where the allocator puts them.
void MeasureAsAllocated(const Pe& pe, const Options& options, bool is_put, std::size_t bytes) {
  auto* source = static_cast<unsigned char*>(ShmemMalloc(bytes));
  auto* destination = static_cast<unsigned char*>(ShmemMalloc(bytes));
  Require(source != nullptr && destination != nullptr, "no symmetric memory");
  std::memset(source, 1, bytes);
  std::memset(destination, 2, bytes);
  pe.Barrier();
  if (pe.is_first()) {
    const Route route = MakeRoute(pe, is_put, source, destination);
    const char* metric = is_put ? "put_bandwidth" : "get_bandwidth";
    MeasureInTurns({{{metric, bytes, 2, "as_allocated", Unit::kGBps},
                     [=](long rounds) {
                       for (long i = 0; i < rounds; ++i) route.Copy(0, bytes);
                     }}},
                   options.plan);
  }
  pe.Barrier();
  ShmemFree(destination);
  ShmemFree(source);
}

void Run(const Options& options) {
  const Pe pe;
  Require(pe.size() == 2, "needs 2 PEs");
  for (const std::string& operation : options.operations) {
    const bool is_put = operation == "put";
    for (const std::size_t bytes : options.sizes) {
      const Symmetric<unsigned char> source(pe, bytes);
      const Symmetric<unsigned char> destination(pe, bytes + 2 * kPage);
      const Route route = MakeRoute(pe, is_put, source.data(), destination.data());
      Verify(pe, route, options, bytes);
      if (pe.is_first()) Measure(route, options, bytes);
      pe.Barrier();
    }
    for (const std::size_t bytes : options.sizes) MeasureAsAllocated(pe, options, is_put, bytes);
  }
}

}  // namespace
}  // namespace mori::bench

int main(int argc, char** argv) {
  CLI::App app("Bandwidth between PE 0 and PE 1, beside memcpy");
  mori::bench::Options options;
  app.add_option("--operation", options.operations, "put, get or both")
      ->check(CLI::IsMember({"put", "get"}));
  app.add_option("--sizes", options.sizes, "Bytes of a copy")->check(CLI::PositiveNumber);
  app.add_option("--offsets", options.offsets, "Destination after the start of a page, bytes")
      ->check(CLI::Range(0, 4096));
  app.add_option("--batches", options.plan.batches, "Batches per figure")
      ->check(CLI::PositiveNumber);
  app.add_option("--batch-ms", options.plan.batch_ms, "Length of a batch")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  mori::bench::Run(options);
}
