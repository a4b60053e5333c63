// What it costs a heap to grow and to shrink, beside the bare system calls that no way leads
// around; and the memory that is resident before, between and after.
//
//   MORI_SHMEM_MODE=vmm MORI_SHMEM_HEAP_SIZE=4G mori run -n 2 heap_growth
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "common/pe.hpp"

namespace mori::bench {
namespace {

using namespace mori::shmem;

struct Options {
  std::size_t bytes = std::size_t{1} << 30;
  std::size_t piece_bytes = 64 << 20;
  int batches = 15;
  bool is_touched = false;
};

/// Memory in pieces, each mapped once for every PE, as a heap of that many PEs needs it. What it
/// takes at least: make, size and seal the memory, map it, close it; and unmap it again.
class BareGrowth {
 public:
  BareGrowth(int pes, const Options& options)
      : pes_(static_cast<std::size_t>(pes)), bytes_(options.bytes), piece_(options.piece_bytes) {
    base_ = Reserve(nullptr, pes_ * bytes_);
    Require(base_ != MAP_FAILED, "no addresses");
  }
  ~BareGrowth() { ::munmap(base_, pes_ * bytes_); }
  BareGrowth(const BareGrowth&) = delete;
  BareGrowth& operator=(const BareGrowth&) = delete;

  void Grow() {
    for (std::size_t at = 0; at < bytes_; at += piece_) {
      const std::size_t piece = std::min(piece_, bytes_ - at);
      const int fd = ::memfd_create("bare", MFD_CLOEXEC | MFD_ALLOW_SEALING);
      Require(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(piece)) == 0 &&
                  ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0,
              "no memory");
      for (std::size_t pe = 0; pe < pes_; ++pe) {
        const void* mapped =
            ::mmap(At(pe, at), piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
        Require(mapped != MAP_FAILED, "no mapping");
      }
      ::close(fd);
    }
  }
  void Shrink() {
    for (std::size_t at = 0; at < bytes_; at += piece_) {
      for (std::size_t pe = 0; pe < pes_; ++pe) Reserve(At(pe, at), std::min(piece_, bytes_ - at));
    }
  }

 private:
  static void* Reserve(void* where, std::size_t bytes) {
    return ::mmap(where, bytes, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (where != nullptr ? MAP_FIXED : 0),
                  -1, 0);
  }
  void* At(std::size_t pe, std::size_t offset) const {
    return static_cast<char*>(base_) + pe * bytes_ + offset;
  }

  std::size_t pes_;
  std::size_t bytes_;
  std::size_t piece_;
  void* base_;
};

double ResidentKib() {
  std::ifstream statm("/proc/self/statm");
  double total = 0, resident = 0;
  statm >> total >> resident;
  return resident * 4;
}

void Touch(std::byte* block, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 4096) block[i] = std::byte{1};
}

void Run(const Options& options) {
  const Pe pe;
  const char* mode = std::getenv("MORI_SHMEM_MODE");
  const std::string variant = mode != nullptr ? mode : "static";
  const double gib = static_cast<double>(options.bytes) / (1 << 30);
  BareGrowth bare(pe.size(), options);
  std::vector<double> ours, theirs;
  const double before = ResidentKib();
  double grown = 0;
  for (int batch = -1; batch < options.batches; ++batch) {
    pe.Barrier();
    const double start = NowNs();
    auto* block = static_cast<std::byte*>(ShmemMalloc(options.bytes));
    Require(block != nullptr, "no room: raise MORI_SHMEM_HEAP_SIZE");
    const double grow_ns = NowNs() - start;
    if (options.is_touched) Touch(block, options.bytes);
    grown = ResidentKib();
    const double release = NowNs();
    Require(ShmemFree(block) == 0, "a free failed");
    const double ours_ns = grow_ns + NowNs() - release;
    pe.Barrier();
    const double bare_start = NowNs();
    bare.Grow();
    bare.Shrink();
    const double bare_ns = NowNs() - bare_start;
    if (batch < 0) continue;  // the first one warms up
    ours.push_back(ours_ns / gib);
    theirs.push_back(bare_ns / gib);
  }
  const double released = ResidentKib();
  if (!pe.is_first()) return;
  if (options.is_touched) {
    PrintFigure({"resident_grown", options.bytes, pe.size(), variant, Unit::kKiB}, grown - before,
                grown - before);
    PrintFigure({"resident_released", options.bytes, pe.size(), variant, Unit::kKiB},
                released - before, released - before);
    return;
  }
  PrintTimes({"grow_and_release", options.bytes, pe.size(), variant, Unit::kUs}, ours);
  PrintTimes({"bare_grow_and_release", options.bytes, pe.size(), variant, Unit::kUs}, theirs);
}

}  // namespace
}  // namespace mori::bench

int main(int argc, char** argv) {
  CLI::App app("Time per GiB by which a heap grows and shrinks, beside the bare system calls");
  mori::bench::Options options;
  app.add_option("--bytes", options.bytes, "Bytes to grow by")->check(CLI::PositiveNumber);
  app.add_option("--piece", options.piece_bytes,
                 "Bytes of a piece of the bare calls, as the heap's")
      ->check(CLI::PositiveNumber);
  app.add_option("--batches", options.batches, "Batches")->check(CLI::PositiveNumber);
  app.add_flag("--touch", options.is_touched, "Write to every page, and print what is resident");
  CLI11_PARSE(app, argc, argv);
  mori::bench::Run(options);
}
